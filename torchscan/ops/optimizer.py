"""Operators that update many tensors in one call: ``_foreach_*`` and fused optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.op_costs import Work, elements
from torchscan.ops.per_element import per_listed_element
from torchscan.ops.registry import cost_of, declare_costless, traffic_of
from torchscan.trace.events import TensorSpec

Tensors = Sequence[TensorSpec]


def _foreach(flops: int, *names: str) -> None:
    per_listed_element(flops, *(f"aten::_foreach_{name}" for name in names))


_foreach(
    1,
    "mul",
    "div",
    "neg",
    "abs",
    "sign",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "pow",
    "exp",
    "expm1",
    "erf",
    "erfc",
)
_foreach(1, "log", "log2", "log10", "log1p", "lgamma", "floor", "ceil", "round", "trunc")
_foreach(1, "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")
_foreach(1, "maximum", "minimum", "clamp_max", "clamp_min", "max")
_foreach(2, "frac", "norm", "powsum")
_foreach(3, "lerp")
_foreach(4, "sigmoid")
_foreach(6, "tanh")
declare_costless("aten::_foreach_copy", "aten::_foreach_clone")


@traffic_of("aten::_foreach_zero")
def foreach_zero(*_: object, out: object) -> Work:
    """Return the traffic of writing the result, without reading it."""
    return Work(elements_read=0, bytes_read=0)


@cost_of("aten::_foreach_add", "aten::_foreach_sub")
def foreach_add(self: Tensors, *_: object, alpha: float = 1, out: object) -> Work:
    """1 per element, 2 if alpha ≠ 1."""
    flops = (2 if alpha != 1 else 1) * elements(self)
    return Work(other_flops=flops)


@cost_of("aten::_foreach_addcmul", "aten::_foreach_addcdiv")
def foreach_addcmul(self: Tensors, *_: object, value: float = 1, out: object) -> Work:
    """2 per element, 3 if value ≠ 1."""
    flops = (3 if value != 1 else 2) * elements(self)
    return Work(other_flops=flops)


@cost_of("aten::_fused_adam")
def fused_adam(
    self: Tensors,
    *_: object,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: object = None,
    out: object,
) -> Work:
    """13 per element.

    ``m += (1−β₁)(g − m)`` 3; ``v = β₂·v + (1−β₂)·g·g`` 4; ``p −= lr·m / (√v/√c + ε)`` 6.

    Weight decay (added to the gradient) 2, amsgrad 1, maximize 1, a scaled gradient 1.
    """
    per_element = 13 + _options(amsgrad, maximize, grad_scale)
    if weight_decay != 0:
        per_element += 2
    return Work(other_flops=per_element * elements(self))


@cost_of("aten::_fused_adamw")
def fused_adamw(
    self: Tensors,
    *_: object,
    weight_decay: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: object = None,
    out: object,
) -> Work:
    """FLOPs = those of Adam, but weight decay shrinks the parameter: 1 per element, not 2."""
    per_element = 13 + _options(amsgrad, maximize, grad_scale)
    if weight_decay != 0:
        per_element += 1
    return Work(other_flops=per_element * elements(self))


@cost_of("aten::_fused_sgd")
def fused_sgd(
    self: Tensors,
    *_: object,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: object = None,
    out: object,
) -> Work:
    """2 per element for ``p −= lr·g``, and more for options.

    Weight decay takes 2; momentum ``b = μ·b + (1−τ)·g`` 3, 0 in the first step; nesterov 2.
    """
    per_element = 2 + _options(False, maximize, grad_scale)
    if weight_decay != 0:
        per_element += 2
    if momentum != 0 and not is_first_step:
        per_element += 3
    if nesterov:
        per_element += 2
    return Work(other_flops=per_element * elements(self))


@cost_of("aten::_fused_adagrad")
def fused_adagrad(
    self: Tensors,
    *_: object,
    weight_decay: float,
    maximize: bool,
    grad_scale: object = None,
    out: object,
) -> Work:
    """``s += g·g`` 2; ``p −= lr·g / (√s + ε)`` 5: 7 per element; weight decay 2."""
    per_element = 7 + _options(False, maximize, grad_scale)
    if weight_decay != 0:
        per_element += 2
    return Work(other_flops=per_element * elements(self))


#: FLOPs for each element, with weight decay: Adam's 13 and 1; the same with two norms; of Lion a
#: weighted sum with its sign, another one, and the step; of the others the state, the step 2 or 5
_BLOCKWISE_FLOPS = {"adam": 14, "lamb": 19, "lion": 10, "momentum": 6, "rmsprop": 11, "adagrad": 9}


# FLOPs of ours, which stand for bitsandbytes' without data, and of its own
@cost_of("torchscan::optimizer_update_32bit", "bitsandbytes::optimizer_update_32bit")
def optimizer_update_32bit(
    name: str, gradient: TensorSpec, *_: object, out: object, **_kwargs: object
) -> Work | None:
    """Return the FLOPs of updates as those of torch's fused kernels, with weight decay."""
    if name not in _BLOCKWISE_FLOPS:
        return None
    return Work(other_flops=_BLOCKWISE_FLOPS[name] * gradient.numel)


@cost_of(
    "torchscan::optimizer_update_8bit_blockwise", "bitsandbytes::optimizer_update_8bit_blockwise"
)
def optimizer_update_8bit_blockwise(
    name: str,
    gradient: TensorSpec,
    parameter: TensorSpec,
    state1: TensorSpec,
    state2: TensorSpec | None,
    *_: object,
    out: object,
    **_kwargs: object,
) -> Work | None:
    """Each state is scaled (1), its largest value found (2), and it is scaled and rounded (2)."""
    if name not in _BLOCKWISE_FLOPS:
        return None
    num_states = 1 if state2 is None else 2
    flops = (_BLOCKWISE_FLOPS[name] + 5 * num_states) * gradient.numel
    return Work(other_flops=flops)


@cost_of("aten::_amp_foreach_non_finite_check_and_unscale")
def unscale_gradients(self: Tensors, *_: object, out: object) -> Work:
    """Return the FLOPs of a check and a product per element."""
    return Work(other_flops=2 * elements(self))


@cost_of("aten::_amp_update_scale")
def update_scale(*_: object, out: object) -> Work:
    """Return the FLOPs of one comparison and one product."""
    return Work(other_flops=2)


def _options(*given: object) -> int:
    return sum(isinstance(each, TensorSpec) or bool(each) for each in given)
