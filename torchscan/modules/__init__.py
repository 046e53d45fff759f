"""Functions of one module, as torchscan 0.1 and 0.2 had them here. ``torchscan`` has them, too."""

from torchscan.crawler import module_dmas, module_flops, module_macs, module_rf
from torchscan.hints import forward_old_module

__all__ = ["module_dmas", "module_flops", "module_macs", "module_rf"]

forward_old_module(__name__, "flops", "macs", "memory", "receptive")
