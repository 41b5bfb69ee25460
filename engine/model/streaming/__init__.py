"""Frozen weights in host memory, copied to the device just before they are needed."""
