"""Memory that one process owns and others map, one module per kind of device."""
