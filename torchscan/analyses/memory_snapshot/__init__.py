"""Snapshots of torch's CUDA allocator: what held the memory of a run, and what would have helped."""
