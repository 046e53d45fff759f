"""Devices: their memory and rates, torch's allocator on them, and the GPU memory of processes."""
