"""The models: one package per integration, with its roles."""
