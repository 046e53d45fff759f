"""Reading and writing elements by index: traffic, and a sum where they are added to existing elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from torchscan.ops.registry import (
    Work,
    cost_of,
    declare_costless,
    elements,
    stored_bytes,
    traffic_of,
    window_of,
)
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

# -- reading elements ----------------------------------------------------------------------------------------------------


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
    """Reads the indices and one element for each output; of what a router picks, each choice once."""
    return (
        _picked(self, [indices], out) if dim is None else routed(self, dim, indices, out, routing)
    )


@traffic_of(aten.gather)
def gather(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Reads the indices and one element for each output; of what a router picks, each choice once."""
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
    """Reads the indices and one element for each output; of what a router picks, each choice once."""
    return routed(self, dim, index, out, routing)


@traffic_of(aten.index, aten._unsafe_index)
def index(
    self: TensorSpec,
    indices: Sequence[TensorSpec | None],
    *,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Reads the indices and one element for each output; of what a router picks, each choice once."""
    given = _without_none(indices)
    if len(given) != 1:
        return _picked(self, given, out)
    return routed(self, list(indices).index(given[0]), given[0], out, routing)


@window_of(aten.index, aten._unsafe_index)
def index_window(
    self: TensorSpec, indices: Sequence[TensorSpec | None], *, out: TensorSpec
) -> Looks:
    """Any place along the indexed dimensions: a record doesn't keep the indices."""
    given = list(indices) + [None] * len(self.shape)
    dims: list[Dim] = []
    for index in given:
        if len(dims) < len(self.shape):
            dims += (
                [here(0)]
                if index is None
                else [WHOLE] * (len(index.shape) if _is_mask(index) else 1)
            )
    named = [at for at, dim in enumerate(dims) if dim is WHOLE]
    added = len(out.shape) - (len(self.shape) - len(named))
    is_together = named == list(range(named[0], named[-1] + 1)) if named else True
    first = named[0] if named and is_together else 0
    kept = iter([*range(first), *range(first + added, len(out.shape))])
    return (
        way(
            Look(tuple(dim if dim is WHOLE else here(next(kept)) for dim in dims), out.shape),
            note="hull",
        ),
    )


@window_of(aten.gather)
def gather_window(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec
) -> Looks:
    """Any place along the dimension, by the index at the same place."""
    return (_anywhere(self, dim, out), look(out, *map(here, range(len(index.shape)))))


@window_of(aten.take_along_dim)
def take_along_window(
    self: TensorSpec, indices: TensorSpec, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Any place along the dimension; without a dimension, any place at all."""
    if dim is None or len(self.shape) != len(indices.shape):
        return ()
    dims = broadcast_dims(self.shape, out.shape)
    along = wrapped(dim, len(self.shape))
    looked = Look(tuple(WHOLE if at == along else how for at, how in enumerate(dims)), out.shape)
    return (way(looked, note="hull"), broadcast(indices, out))


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
    others = (
        _anywhere(spec, dim, out) if len(spec.shape) == len(out.shape) else None
        for spec in inputs[1:]
    )
    return (look(out, *map(here, range(len(self.shape)))), *others)


@window_of(aten.index_put, "aten::_index_put_impl", "aten::_unsafe_index_put")
def index_put_window(
    self: TensorSpec, *_: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks:
    """The previous elements, and all of the new ones."""
    others = (way(Look((WHOLE,) * len(spec.shape), out.shape), note="hull") for spec in inputs[1:])
    return (look(out, *map(here, range(len(self.shape)))), *others)


def _anywhere(spec: TensorSpec, dim: int, out: TensorSpec) -> Ways:
    along = wrapped(dim, len(spec.shape))
    return way(
        Look(tuple(WHOLE if at == along else here(at) for at in range(len(spec.shape))), out.shape),
        note="hull",
    )


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
    return Work(
        elements_read=out.numel + sum(each.numel for each in indices),
        bytes_read=min(out.numel, source.numel) * source.dtype.itemsize
        + sum(each.stored_bytes for each in indices),
    )


def routed(
    source: TensorSpec, dim: int, index: TensorSpec, out: TensorSpec, routing: Routing
) -> Work:
    """Return the cost of rows that a router picks.

    Of n choices, n·(1 − (1 − k/n)^rows) are expected among the indices, and at least k.
    """
    work, choices = _picked(source, [index], out), source.shape[dim] if source.shape else 1
    size = source.numel // max(choices, 1)
    if not _takes_whole(index, out, size, routing) or routing.choices != choices:
        return work
    each = size * source.dtype.itemsize
    return replace(
        work,
        bytes_read=round(routing.expected * each) + index.stored_bytes,
        avoidable_bytes_read=round(routing.expected * each) - routing.fewest * each,
    )


def _takes_whole(index: TensorSpec, out: TensorSpec, size: int, routing: Routing) -> bool:
    """Return whether each slot takes a complete choice: one index, or an index per element."""
    return out.numel == routing.slots * size and index.numel in (routing.slots, out.numel)


# -- writing elements ----------------------------------------------------------------------------------------------------
# The operators that return a new tensor read and write all of it. Those that work in place read the indices and the new
# elements, and write as many; if they add to existing elements, those are read too, and each costs a sum.

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
    operands = [*indices, *([] if source is None else [source])]
    itemsize = target.dtype.itemsize
    return Work(
        other_flops=flops,
        elements_read=elements(operands) + (count if adds else 0),
        bytes_read=stored_bytes(operands) + (count * itemsize if adds else 0),
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
    """The number of elements that the indices select, broadcast together, times the dimensions without an index."""
    count = _named(self.shape, indices, values)
    return _put(self, values, _without_none(indices), count, accumulate, count if accumulate else 0)


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
    return _put(self, src if isinstance(src, TensorSpec) else None, [index], index.numel, False, 0)


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
    return _put(
        self, src if isinstance(src, TensorSpec) else None, [index], index.numel, True, index.numel
    )


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
    return Work(other_flops=source.numel * (2 if alpha != 1 else 1))


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
    return _put(self, None, [index], self.numel // max(self.shape[dim], 1) * index.numel, False, 0)


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


def _named(shape: Sequence[int], indices: Sequence[TensorSpec | None], values: TensorSpec) -> int:
    """Return the number of elements that indices select.

    For masks it follows from the shape of the values, or else is at most all that the mask covers.
    """
    masks = [each for each in _without_none(indices) if _is_mask(each)]
    others = [each.shape for each in _without_none(indices) if not _is_mask(each)]
    whole, position = [], 0
    for each in indices:
        whole += [shape[position]] if each is None else []
        position += len(each.shape) if each is not None and _is_mask(each) else 1
    rest = [*whole, *shape[position:]]
    beside = torch.broadcast_shapes(*others) if others else ()
    named = math.prod(beside)
    if masks and (not beside or beside[-1] == 1):
        told = (
            not others and values.shape[:1] not in ((), (1,)) and list(values.shape[1:]) == rest
        )  # one value for all
        named *= values.shape[0] if told else max(each.numel for each in masks)
    return named * math.prod(rest)


def _is_mask(index: TensorSpec) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _without_none(indices: Sequence[TensorSpec | None]) -> list[TensorSpec]:
    return [each for each in indices if each is not None]
