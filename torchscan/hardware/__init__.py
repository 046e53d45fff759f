"""Devices: what they have, how fast they are, torch's allocator on them, and the GPU memory that processes hold."""
