"""Shapes of results that torch's own shape functions refuse to give, or are slow to give.

Nearly each of torch's functions imports a computer algebra system on first use (0.6 s), many its
compiler, too (2 s): a rule for each operator of common models keeps the first call of a process
short. Later calls take 50 to 4,000 µs in Python, and a rule 10 to 40 µs.

A rule that does not fit a call returns None, and torch is asked; so no rule has to know what an
error is. This file has the rules of element-wise operators and of losses, and the table of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.attention_rules import ATTENTION_RULES
from torchscan.recording.execution.layouts import (
    FLOATS,
    Rule,
    broadcast,
    like_input,
    meta_empty,
    meta_like,
)
from torchscan.recording.execution.norm_rules import NORM_RULES, in_layout_of_images
from torchscan.recording.execution.product_rules import PRODUCT_RULES
from torchscan.recording.execution.recurrence_rules import RECURRENCE_RULES
from torchscan.recording.execution.row_rules import ROW_RULES
from torchscan.recording.execution.update_rules import RULES_OF_FUSED_UPDATES, UPDATE_RULES
from torchscan.recording.execution.window_rules import WINDOW_RULES
from torchscan.torch_versions import OpOverload, aten


def _written(target: Tensor, *others: Any, **_kwargs: Any) -> Tensor | None:
    """Return the target, if it takes every operand: one of its shape and type, or a real number."""
    for other in others:
        if isinstance(other, Tensor):
            if other.dtype != target.dtype or other.shape != target.shape:
                return None
        elif isinstance(other, complex):
            return None
    if 0 in target.stride() or not target.is_floating_point():
        return None
    return target


def _like_both(left: Any, right: Any, *_rest: Any, **kwargs: Any) -> Tensor | None:
    """Return the result for two tensors of one type, or for one and a number."""
    if any(isinstance(each, complex) for each in kwargs.values()):
        return None
    if isinstance(right, int | float) and isinstance(left, Tensor):
        return like_input(left)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    if left.dtype != right.dtype:
        return None
    is_alike = left.shape == right.shape and left.stride() == right.stride()
    return like_input(left) if is_alike else broadcast(left, right)


def shuffled(source: Tensor, *_groups: int) -> Tensor:
    """Return the result of shuffling channels."""
    return in_layout_of_images(source)


def dropout_with_mask(
    source: Tensor, _p: float, _train: bool | None
) -> tuple[Tensor, Tensor] | None:
    """Return the result, and a mask of booleans."""
    if source.dtype not in FLOATS:
        return None
    return meta_like(source), meta_like(source, dtype=torch.bool)


def reduced_loss(source: Tensor, target: Tensor, *rest: Any, reduction: int = 1) -> Tensor | None:
    """Return a loss that torch computes per element and then reduces into the same memory.

    That memory is not made smaller.
    """
    reduction = next((each for each in rest if isinstance(each, int)), reduction)
    if not reduction:
        return None
    size = torch.broadcast_shapes(source.shape, target.shape)
    return meta_empty(size, source).as_strided((), ())


# fmt: off
_UNARY = (
    "relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "hardtanh", "neg", "cos",
    "sin", "exp", "sqrt", "rsqrt", "_sample_dirichlet", "_dirichlet_grad", "_standard_gamma_grad",
)
_UNARY_IN_PLACE = (
    "relu_", "silu_", "sigmoid_", "tanh_", "hardswish_", "hardsigmoid_", "hardtanh_",
)
_GRADIENTS = (
    "threshold_backward", "gelu_backward", "silu_backward", "hardswish_backward",
    "hardsigmoid_backward",
)
_LOSSES = ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")
# fmt: on
_SHUFFLES = ("channel_shuffle", "native_channel_shuffle")
_OPERATIONS = ("add", "sub", "mul", "div")
_OPERATIONS_IN_PLACE = ("add_", "sub_", "mul_", "div_")

_RULES_BY_NAME: Mapping[str, Rule] = {
    "native_dropout": dropout_with_mask,
    **dict.fromkeys(_UNARY, like_input),
    **dict.fromkeys(_UNARY_IN_PLACE, _written),
    **dict.fromkeys(_GRADIENTS, _like_both),
    **dict.fromkeys(_LOSSES, reduced_loss),
    **dict.fromkeys(_SHUFFLES, shuffled),
}
_RULES_OF_OPERATIONS: Mapping[str, Rule] = {
    **dict.fromkeys(_OPERATIONS, _like_both),
    **dict.fromkeys(_OPERATIONS_IN_PLACE, _written),
}

_ELEMENTWISE_RULES: dict[OpOverload, Rule] = {
    getattr(aten, name).default: rule for name, rule in _RULES_BY_NAME.items()
}
for _name, _rule in _RULES_OF_OPERATIONS.items():
    _packet = getattr(aten, _name)
    _ELEMENTWISE_RULES |= {_packet.Tensor: _rule, _packet.Scalar: _rule}

SHAPE_RULES: Mapping[OpOverload, Rule] = {
    **WINDOW_RULES,
    **ROW_RULES,
    **NORM_RULES,
    **PRODUCT_RULES,
    **RECURRENCE_RULES,
    **UPDATE_RULES,
    **RULES_OF_FUSED_UPDATES,
    **ATTENTION_RULES,
    **_ELEMENTWISE_RULES,
}
