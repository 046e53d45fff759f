"""Snapshots of torch's CUDA allocator: what held the memory, and what would have helped."""
