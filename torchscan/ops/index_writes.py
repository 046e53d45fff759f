"""Writing elements by index costs traffic, and a sum where elements are added to existing ones.

Operators that return a new tensor read and write all of it. Those that work in place read the
indices and the new elements, and write as many; if they add to existing elements, those are read
too, and each costs a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchscan.ops.indexing import is_mask, without_none
from torchscan.ops.op_costs import Work, elements, stored_bytes
from torchscan.ops.registry import cost_of, declare_costless, traffic_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

declare_costless(
    aten.masked_scatter, aten.index_put, aten.index_copy, aten.index_fill, aten.put, aten.scatter
)


def _write_work(
    target: TensorSpec,
    source: TensorSpec | None,
    indices: Sequence[TensorSpec],
    count: int,
    adds: bool,
    flops: int,
) -> Work:
    operands = [*indices] if source is None else [*indices, source]
    itemsize = target.dtype.itemsize
    num_added = count if adds else 0
    elements_read = elements(operands) + num_added
    bytes_read = stored_bytes(operands) + num_added * itemsize
    return Work(
        other_flops=flops,
        elements_read=elements_read,
        bytes_read=bytes_read,
        elements_written=count,
        bytes_written=count * itemsize,
    )


@cost_of("aten::index_put_", "aten::_index_put_impl", "aten::_unsafe_index_put")
def index_put(
    self: TensorSpec,
    indices: Sequence[TensorSpec | None],
    values: TensorSpec,
    accumulate: bool = False,
    *_: object,
    out: TensorSpec,
) -> Work:
    """Return the cost of writing the elements that the indices select.

    Their number is that of the indices, broadcast together, times the dimensions without an index.
    """
    count = _count_selected(self.shape, indices, values)
    flops = count if accumulate else 0
    return _write_work(self, values, without_none(indices), count, accumulate, flops)


@traffic_of("aten::scatter_")
def scatter_in_place(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    src: object,
    *_: object,
    out: TensorSpec,
    **_kw: object,
) -> Work:
    """Return the cost of writing as many elements as the index selects."""
    source = src if isinstance(src, TensorSpec) else None
    return _write_work(self, source, [index], index.numel, False, 0)


@cost_of(
    "aten::scatter_add_",
    "aten::scatter_reduce_",
    "aten::scatter_.reduce",
    "aten::scatter_.value_reduce",
)
def scatter_add_in_place(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    src: object,
    *_: object,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """Return a sum (or product, or comparison) for each element that the index selects."""
    source = src if isinstance(src, TensorSpec) else None
    return _write_work(self, source, [index], index.numel, True, index.numel)


@cost_of(aten.scatter_add, aten.scatter_reduce, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_add(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """FLOPs = numel(index), on a copy."""
    return Work(other_flops=index.numel)


@cost_of("aten::index_add_", "aten::index_reduce_")
def index_add_in_place(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    source: TensorSpec,
    *_: object,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """Return a sum (or product, or comparison) for each element of the source; 2 if alpha ≠ 1."""
    flops = source.numel * (2 if alpha != 1 else 1)
    return _write_work(self, source, [index], source.numel, True, flops)


@cost_of(aten.index_add, aten.index_reduce)
def index_add(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    source: TensorSpec,
    *_: object,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """FLOPs = numel(source), twice that if alpha ≠ 1, on a copy."""
    flops = source.numel * (2 if alpha != 1 else 1)
    return Work(other_flops=flops)


@traffic_of("aten::index_copy_")
def index_copy_in_place(
    self: TensorSpec, dim: int, index: TensorSpec, source: TensorSpec, *, out: TensorSpec
) -> Work:
    """Return the cost of writing as many elements as the source has."""
    return _write_work(self, source, [index], source.numel, False, 0)


@traffic_of("aten::index_fill_")
def index_fill_in_place(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the cost of writing the slices that the index selects."""
    slice_size = self.numel // max(self.shape[dim], 1)
    return _write_work(self, None, [index], slice_size * index.numel, False, 0)


@cost_of("aten::put_")
def put_in_place(
    self: TensorSpec,
    index: TensorSpec,
    source: TensorSpec,
    accumulate: bool = False,
    *,
    out: TensorSpec,
) -> Work:
    """Return the cost of writing as many elements as the index selects."""
    return _write_work(
        self, source, [index], index.numel, accumulate, index.numel if accumulate else 0
    )


def _count_selected(
    shape: Sequence[int], indices: Sequence[TensorSpec | None], values: TensorSpec
) -> int:
    """Return the number of elements that indices select.

    For masks it follows from the shape of the values, or else is at most all that the mask covers.
    """
    masks: list[TensorSpec] = []
    others: list[tuple[int, ...]] = []
    for each in without_none(indices):
        if is_mask(each):
            masks.append(each)
        else:
            others.append(each.shape)
    rest = _sizes_without_index(shape, indices)
    beside = torch.broadcast_shapes(*others) if others else ()
    count = math.prod(beside)
    if masks and (not beside or beside[-1] == 1):
        has_many = values.shape[:1] not in ((), (1,))  # else one value for all
        if not others and has_many and list(values.shape[1:]) == rest:
            count *= values.shape[0]
        else:
            count *= max(each.numel for each in masks)
    return count * math.prod(rest)


def _sizes_without_index(shape: Sequence[int], indices: Sequence[TensorSpec | None]) -> list[int]:
    sizes = []
    position = 0
    for each in indices:
        if each is None:
            sizes.append(shape[position])
        position += len(each.shape) if each is not None and is_mask(each) else 1
    return [*sizes, *shape[position:]]
