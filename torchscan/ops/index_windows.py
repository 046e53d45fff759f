"""Windows of operators that read and write elements by index: any place, as indices are unknown."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.indexing import is_mask
from torchscan.ops.registry import window_of
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
    same_dims,
    way,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@window_of(aten.index, aten._unsafe_index)
def index_window(
    self: TensorSpec, indices: Sequence[TensorSpec | None], *, out: TensorSpec
) -> Looks:
    """Read any place along the indexed dimensions: a trace does not keep the indices."""
    rank = len(self.shape)
    indexed: list[int] = []
    at = 0
    for index in indices:
        num_covered = 1 if index is None or not is_mask(index) else len(index.shape)
        if index is not None:
            indexed += range(at, at + num_covered)
        at += num_covered
    num_kept = rank - len(indexed)
    num_added = len(out.shape) - num_kept
    # Adjacent dimensions are replaced at their place; else the new ones are the first.
    first = 0
    if indexed and indexed[-1] - indexed[0] < len(indexed):
        first = indexed[0]
    kept = [at for at in range(rank) if at not in indexed]
    places = [*range(first), *range(first + num_added, len(out.shape))]
    dims: list[Dim] = [WHOLE] * rank
    for at, place in zip(kept, places, strict=True):
        dims[at] = here(place)
    return (way(Look(tuple(dims), out.shape), note="hull"),)


@window_of(aten.gather)
def gather_window(
    self: TensorSpec, dim: int, index: TensorSpec, *_: object, out: TensorSpec
) -> Looks:
    """Read any place along the dimension, and the index at the same place."""
    places = same_dims(len(index.shape))
    return (_read_anywhere(self, dim, out), look(out, *places))


@window_of(aten.take_along_dim)
def take_along_window(
    self: TensorSpec, indices: TensorSpec, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Read any place along the dimension; without a dimension, any place at all."""
    if dim is None or len(self.shape) != len(indices.shape):
        return ()
    dims = list(broadcast_dims(self.shape, out.shape))
    if dims:
        dims[wrapped(dim, len(dims))] = WHOLE
    return (way(Look(tuple(dims), out.shape), note="hull"), broadcast(indices, out))


@window_of(aten.index_select)
def index_select_window(self: TensorSpec, dim: int, *_: object, out: TensorSpec) -> Looks:
    """Read any place along the dimension."""
    return (_read_anywhere(self, dim, out),)


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
    """Read the previous elements, and any place along the dimension of the new ones."""
    ways = [look(out, *same_dims(len(self.shape)))]
    for spec in inputs[1:]:
        is_along = len(spec.shape) == len(out.shape)
        ways.append(_read_anywhere(spec, dim, out) if is_along else None)
    return tuple(ways)


@window_of(aten.index_put, "aten::_index_put_impl", "aten::_unsafe_index_put")
def index_put_window(
    self: TensorSpec, *_: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks:
    """Read the previous elements, and all of the new ones."""
    others = []
    for spec in inputs[1:]:
        dims = (WHOLE,) * len(spec.shape)
        others.append(way(Look(dims, out.shape), note="hull"))
    previous = look(out, *same_dims(len(self.shape)))
    return (previous, *others)


def _read_anywhere(spec: TensorSpec, dim: int, out: TensorSpec) -> Ways:
    dims = same_dims(len(spec.shape))
    if dims:
        dims[wrapped(dim, len(dims))] = WHOLE
    return way(Look(tuple(dims), out.shape), note="hull")
