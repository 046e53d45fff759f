"""Writing to many tensors, as optimizers do: shapes stay as they are, which torch takes 100 µs a tensor to find out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torchscan.torch_versions import OpOverload, aten

_NAMES = (
    "add",
    "sub",
    "mul",
    "div",
    "lerp",
    "addcmul",
    "addcdiv",
    "sqrt",
    "neg",
    "reciprocal",
    "sign",
    "abs",
    "maximum",
    "minimum",
)


def _each_written(targets: Sequence[Tensor], *others: Any, **_scalars: Any) -> tuple[()] | None:
    """Every tensor of a list, with those of other lists, of the same shapes and types."""
    lists = [
        each
        for each in others
        if isinstance(each, list | tuple) and any(isinstance(item, Tensor) for item in each)
    ]
    singles = any(isinstance(each, Tensor) for each in others)
    fits = (
        not singles
        and all(len(each) == len(targets) for each in lists)
        and all(each.is_meta for each in targets)
    )
    return () if fits and all(_are_alike(targets, each) for each in lists) else None


def _are_alike(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(targets, others, strict=True)
    return all(
        one.shape == other.shape and one.dtype is other.dtype and other.is_meta
        for one, other in pairs
    )


_MANY = [
    getattr(aten, f"_foreach_{name}_") for name in _NAMES if hasattr(aten, f"_foreach_{name}_")
]

UPDATE_RULES: Mapping[OpOverload, Callable[..., tuple[()] | None]] = {
    getattr(packet, name): _each_written for packet in _MANY for name in packet.overloads()
}
