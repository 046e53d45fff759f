"""What the machine is and has: GPU memory of processes, measured through NVML."""
