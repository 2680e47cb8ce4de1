"""The Global Params Pool: pages of declared parameters, kept in slots over device memory, host memory and files."""
