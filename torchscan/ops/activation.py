"""Activation functions, softmax, dropout: the fixed table of docs/conventions.md."""

from __future__ import annotations

import torch

from torchscan.ops.elementwise import per_element
from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten

per_element(1, aten.relu, aten.threshold)
per_element(2, aten.relu6, aten.hardtanh)
per_element(4, aten.leaky_relu, aten.prelu, aten._prelu_kernel)
per_element(6, aten.elu, aten.selu, aten.celu)
per_element(4, aten.sigmoid, aten.hardsigmoid, aten.softplus)
per_element(6, aten.tanh)
per_element(5, aten.silu, aten.hardswish, aten.log_sigmoid, aten.softmax, aten._softmax, aten._safe_softmax)
per_element(5, aten.log_softmax, aten._log_softmax)
per_element(11, aten.mish)
per_element(2, aten.hardshrink, aten.softshrink)  # compare, select (subtract)
per_element(5, aten.glu)  # a sigmoid of one half, times the other

_GELU = {"none": 5, "tanh": 14}


@cost_of(aten.gelu)
def gelu(self: TensorSpec, *, approximate: str = "none", out: TensorSpec) -> Work:
    """FLOPs = 5 per element by the error function, 14 by the hyperbolic tangent."""
    return Work(other_flops=_GELU[approximate] * out.numel)


@cost_of(aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout)
def dropout(input: TensorSpec, p: float, train: bool, *, out: TensorSpec) -> Work:
    """FLOPs = 2 per element in training (draw, scale); in evaluation it does not run."""
    return Work(other_flops=2 * out.numel if train else 0)


@cost_of(aten.native_dropout)
def native_dropout(input: TensorSpec, p: float, train: bool | None, *, out: tuple[TensorSpec, ...]) -> Work:
    """As above; it also writes its mask."""
    return Work(other_flops=0 if train is False else 2 * out[0].numel)
