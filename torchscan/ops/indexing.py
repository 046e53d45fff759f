"""Reading and writing elements by index.

They cost traffic, and a sum where elements are added to existing ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from torchscan.ops.op_costs import Work, elements, stored_bytes
from torchscan.ops.registry import cost_of, declare_costless, traffic_of, window_of
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.ops.windows import (
    WHOLE,
    Dim,
    Look,
    Looks,
    Ways,
    broadcast,
    broadcast_dims,
    here,
    look,
    way,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

# -- reading elements ------------------------------------------------------------------------------


@traffic_of(aten.take)
def take(self: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """Reads the indices and one element for each output."""
    return _picked(self, [indices], out)


@traffic_of(aten.take_along_dim)
def take_along(
    self: TensorSpec,
    indices: TensorSpec,
    dim: int | None = None,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    if dim is None:
        return _picked(self, [indices], out)
    return routed(self, dim, indices, out, routing)


@traffic_of(aten.gather)
def gather(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    return routed(self, dim, index, out, routing)


@traffic_of(aten.index_select)
def index_select(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    return routed(self, dim, index, out, routing)


@traffic_of(aten.index, aten._unsafe_index)
def index(
    self: TensorSpec,
    indices: Sequence[TensorSpec | None],
    *,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    given = _without_none(indices)
    if len(given) != 1:
        return _picked(self, given, out)
    return routed(self, list(indices).index(given[0]), given[0], out, routing)


@window_of(aten.index, aten._unsafe_index)
def index_window(
    self: TensorSpec, indices: Sequence[TensorSpec | None], *, out: TensorSpec
) -> Looks:
    """Any place along the indexed dimensions: a record doesn't keep the indices."""
    rank = len(self.shape)
    dims: list[Dim] = []
    for index in [*indices, *[None] * rank]:
        if len(dims) >= rank:
            break
        if index is None:
            dims.append(here(0))
        else:
            dims += [WHOLE] * (len(index.shape) if _is_mask(index) else 1)
    named = [at for at, dim in enumerate(dims) if dim is WHOLE]
    added = len(out.shape) - (rank - len(named))
    is_together = not named or named == list(range(named[0], named[-1] + 1))
    first = named[0] if named and is_together else 0
    kept = iter([*range(first), *range(first + added, len(out.shape))])
    read = tuple(dim if dim is WHOLE else here(next(kept)) for dim in dims)
    return (way(Look(read, out.shape), note="hull"),)


@window_of(aten.gather)
def gather_window(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec
) -> Looks:
    """Any place along the dimension, by the index at the same place."""
    places = map(here, range(len(index.shape)))
    return (_anywhere(self, dim, out), look(out, *places))


@window_of(aten.take_along_dim)
def take_along_window(
    self: TensorSpec, indices: TensorSpec, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Any place along the dimension; without a dimension, any place at all."""
    if dim is None or len(self.shape) != len(indices.shape):
        return ()
    dims = list(broadcast_dims(self.shape, out.shape))
    if dims:
        dims[wrapped(dim, len(dims))] = WHOLE
    return (way(Look(tuple(dims), out.shape), note="hull"), broadcast(indices, out))


@window_of(aten.index_select)
def index_select_window(self: TensorSpec, dim: int, *_: object, out: TensorSpec) -> Looks:
    """Any place along the dimension."""
    return (_anywhere(self, dim, out),)


@window_of(
    aten.index_copy,
    aten.index_add,
    aten.index_fill,
    aten.index_reduce,
    aten.scatter,
    aten.scatter_add,
)
@window_of(aten.scatter_reduce)
def put_along_window(
    self: TensorSpec, dim: int, *_: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks:
    """The previous elements, and any place along the dimension of the new ones."""
    ways = [look(out, *map(here, range(len(self.shape))))]
    for spec in inputs[1:]:
        is_along = len(spec.shape) == len(out.shape)
        ways.append(_anywhere(spec, dim, out) if is_along else None)
    return tuple(ways)


@window_of(aten.index_put, "aten::_index_put_impl", "aten::_unsafe_index_put")
def index_put_window(
    self: TensorSpec, *_: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks:
    """The previous elements, and all of the new ones."""
    others = []
    for spec in inputs[1:]:
        dims = (WHOLE,) * len(spec.shape)
        others.append(way(Look(dims, out.shape), note="hull"))
    return (look(out, *map(here, range(len(self.shape)))), *others)


def _anywhere(spec: TensorSpec, dim: int, out: TensorSpec) -> Ways:
    dims: list[Dim] = [here(at) for at in range(len(spec.shape))]
    if dims:
        dims[wrapped(dim, len(dims))] = WHOLE
    return way(Look(tuple(dims), out.shape), note="hull")


@cost_of("aten::_unsafe_masked_index")
def masked_index(
    self: TensorSpec,
    mask: TensorSpec,
    indices: Sequence[TensorSpec | None],
    *_: object,
    out: TensorSpec,
) -> Work:
    """Return the cost of picking elements, and a selection per output."""
    return replace(_picked(self, [mask, *_without_none(indices)], out), other_flops=out.numel)


def _picked(source: TensorSpec, indices: Sequence[TensorSpec], out: TensorSpec) -> Work:
    bytes_of_indices = sum(each.stored_bytes for each in indices)
    elements_read = out.numel + sum(each.numel for each in indices)
    bytes_read = min(out.numel, source.numel) * source.dtype.itemsize + bytes_of_indices
    return Work(elements_read=elements_read, bytes_read=bytes_read)


def routed(
    source: TensorSpec, dim: int, index: TensorSpec, out: TensorSpec, routing: Routing
) -> Work:
    """Return the cost of rows that a router picks.

    Of n choices, n·(1 − (1 − k/n)^rows) are expected among the indices, and at least k.
    """
    work = _picked(source, [index], out)
    choices = source.shape[dim] if source.shape else 1
    size = source.numel // max(choices, 1)
    # Each slot takes a complete choice: with one index, or with an index per element.
    has_slots = out.numel == routing.slots * size and index.numel in (routing.slots, out.numel)
    if not has_slots or routing.choices != choices:
        return work
    bytes_of_choice = size * source.dtype.itemsize
    expected = round(routing.expected * bytes_of_choice)
    avoidable_bytes_read = expected - routing.fewest * bytes_of_choice
    return replace(
        work, bytes_read=expected + index.stored_bytes, avoidable_bytes_read=avoidable_bytes_read
    )


# -- writing elements ------------------------------------------------------------------------------
# The operators that return a new tensor read and write all of it. Those that work in place read the
# indices and the new elements, and write as many; if they add to existing elements, those are read
# too, and each costs a sum.

declare_costless(
    aten.masked_scatter, aten.index_put, aten.index_copy, aten.index_fill, aten.put, aten.scatter
)


def _put(
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
    return _put(self, values, _without_none(indices), count, accumulate, flops)


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
    return _put(self, source, [index], index.numel, False, 0)


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
    """A sum (or product, or comparison) for each element that the index selects."""
    source = src if isinstance(src, TensorSpec) else None
    return _put(self, source, [index], index.numel, True, index.numel)


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
    """A sum (or product, or comparison) for each element of the source; 2 if alpha ≠ 1."""
    flops = source.numel * (2 if alpha != 1 else 1)
    return _put(self, source, [index], source.numel, True, flops)


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
    return _put(self, source, [index], source.numel, False, 0)


@traffic_of("aten::index_fill_")
def index_fill_in_place(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the cost of writing the slices that the index selects."""
    slice_size = self.numel // max(self.shape[dim], 1)
    return _put(self, None, [index], slice_size * index.numel, False, 0)


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
    return _put(self, source, [index], index.numel, accumulate, index.numel if accumulate else 0)


def _count_selected(
    shape: Sequence[int], indices: Sequence[TensorSpec | None], values: TensorSpec
) -> int:
    """Return the number of elements that indices select.

    For masks it follows from the shape of the values, or else is at most all that the mask covers.
    """
    masks: list[TensorSpec] = []
    others: list[tuple[int, ...]] = []
    for each in _without_none(indices):
        if _is_mask(each):
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
        position += len(each.shape) if each is not None and _is_mask(each) else 1
    return [*sizes, *shape[position:]]


def _is_mask(index: TensorSpec) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _without_none(indices: Sequence[TensorSpec | None]) -> list[TensorSpec]:
    return [each for each in indices if each is not None]
