"""GPU memory of a process, as torchscan 0.1 had it here. ``torchscan`` has it, too."""

from torchscan.hardware.process_memory import get_process_gpu_ram
from torchscan.hints import forward_old_module

__all__ = ["get_process_gpu_ram"]

forward_old_module(__name__, "memory")
