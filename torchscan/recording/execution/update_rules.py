"""Rules for writing to many tensors, as optimizers do: shapes stay as they are.

torch takes 100 µs a tensor to find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torchscan.torch_versions import OpOverload, aten

# fmt: off
_NAMES = (
    "add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "sqrt", "neg", "reciprocal", "sign",
    "abs", "maximum", "minimum",
)
# fmt: on


def _each_written(targets: Sequence[Tensor], *others: Any, **_scalars: Any) -> tuple[()] | None:
    """Take tensors of a list, with those of other lists, of the same shapes and types."""
    if any(isinstance(each, Tensor) for each in others):
        return None
    if not all(each.is_meta for each in targets):
        return None
    for each in others:
        if not isinstance(each, list | tuple):
            continue
        has_tensors = any(isinstance(item, Tensor) for item in each)
        if has_tensors and not _are_alike(targets, each):
            return None
    return ()


def _are_alike(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    if len(targets) != len(others):
        return False
    for target, other in zip(targets, others, strict=True):
        if target.shape != other.shape or target.dtype is not other.dtype or not other.is_meta:
            return False
    return True


def return_nothing(*_args: Any, **_kwargs: Any) -> tuple[()]:
    """Return the result of an update that returns nothing."""
    return ()


_FOREACH_NAMES = [f"_foreach_{name}_" for name in _NAMES]
_MANY = [getattr(aten, name) for name in _FOREACH_NAMES if hasattr(aten, name)]
_FUSED = (aten._fused_sgd_, aten._fused_adagrad_)

_OTHER_FUSED = {aten._fused_adam_.tensor_lr, aten._fused_adamw_.tensor_lr}

#: updates in place that return nothing, of which torch has no shape function
UPDATES_WITHOUT_SHAPE_FUNCTION = _OTHER_FUSED.union(
    getattr(update, name) for update in _FUSED for name in update.overloads()
)

UPDATE_RULES: Mapping[OpOverload, Callable[..., tuple[()] | None]] = {
    getattr(packet, name): _each_written for packet in _MANY for name in packet.overloads()
}

RULES_OF_FUSED_UPDATES: Mapping[OpOverload, Callable[..., tuple[()]]] = dict.fromkeys(
    UPDATES_WITHOUT_SHAPE_FUNCTION, return_nothing
)
