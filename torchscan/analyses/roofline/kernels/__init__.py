"""Kernels of torch's operators: the share of a device's rates that each attains."""

from __future__ import annotations

from torchscan.analyses.roofline.kernels import convolutions as convolutions  # registers its rules
from torchscan.analyses.roofline.kernels import fused_attention as fused_attention  # likewise
from torchscan.analyses.roofline.kernels import row_kernels as row_kernels  # likewise
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, is_launched, rules
from torchscan.analyses.roofline.kernels.products import any_product
from torchscan.analyses.roofline.kernels.streaming import any_streaming
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature

__all__ = ["Kernel", "Machine", "is_launched", "kernel_of"]


def kernel_of(signature: OpSignature, cost: OpCost, machine: Machine) -> Kernel:
    """Return the kernel of one call."""
    rule = rules.get(signature.operator, any_product if cost.macs else any_streaming)
    return rule(signature, cost, machine)
