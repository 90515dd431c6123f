"""The kernel: clients, front doors and engines in one event loop, as plain functions over lists or arrays."""
