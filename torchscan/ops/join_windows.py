"""Windows of joins and repetitions: several operands in one result, or an operand several times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchscan.ops.per_element import Output
from torchscan.ops.registry import window_of
from torchscan.ops.taps import repeated_taps, tiled_taps
from torchscan.ops.windows import (
    NOT_READ,
    Along,
    At,
    Dim,
    EachOutput,
    Look,
    Looks,
    Piece,
    Reshape,
    Ways,
    broadcast,
    here,
    look,
    moved,
    way,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@window_of(aten.meshgrid)
def meshgrid_window(
    tensors: Sequence[TensorSpec], *, indexing: str = "ij", out: Output
) -> EachOutput:
    """Read, for each result, one operand along one dimension; "xy" swaps the first two."""
    results = out if isinstance(out, tuple) else (out,)
    dims = list(range(len(tensors)))
    if indexing == "xy":
        dims[:2] = dims[:2][::-1]
    looks = []
    for at, each in enumerate(results):
        rank = len(tensors[at].shape)
        looks.append(look(each, *map(here, dims[at : at + rank])))
    return _one_operand_each(looks, len(tensors))


@window_of(aten.broadcast_tensors)
def broadcast_window(tensors: Sequence[TensorSpec], *, out: Output) -> EachOutput:
    """Read, for each result, one operand, broadcast."""
    results = out if isinstance(out, tuple) else (out,)
    pairs = zip(tensors, results, strict=True)
    looks = [broadcast(spec, each) for spec, each in pairs]
    return _one_operand_each(looks, len(tensors))


def _one_operand_each(looks: Iterable[Ways], num_operands: int) -> EachOutput:
    """Return the windows of results that each read the operand at their position only."""
    windows = []
    for position, each in enumerate(looks):
        row: list[Ways] = [NOT_READ] * num_operands
        row[position] = each
        windows.append(tuple(row))
    return EachOutput(tuple(windows))


@window_of(aten.cat, aten.concat, aten.concatenate, "quantized::cat")
def cat_window(
    tensors: Sequence[TensorSpec], dim: int = 0, *_: object, out: TensorSpec, **_kwargs: object
) -> Looks:
    """Read one operand after another; an empty vector adds nothing."""
    at = wrapped(dim, len(out.shape))
    looks: list[Ways] = []
    start = 0
    for each in tensors:
        if len(each.shape) == len(out.shape):
            stop = start + each.shape[at]
            looks.append(way(Piece(at, start, stop)))
            start = stop
        else:
            looks.append(NOT_READ)
    return tuple(looks)


@window_of(aten.stack)
def stack_window(tensors: Sequence[TensorSpec], dim: int = 0, *, out: TensorSpec) -> Looks:
    """Read each operand at one place of a new dimension."""
    at = wrapped(dim, len(out.shape))
    shape = (*out.shape[:at], 1, *out.shape[at + 1 :])
    places = [*range(at), *range(at + 1, len(shape))]
    added = Look(tuple(map(here, places)), shape)
    return tuple(way(added, Piece(at, index, index + 1)) for index in range(len(tensors)))


@window_of(aten.hstack, aten.vstack)
def joined_window(
    tensors: Sequence[TensorSpec], *, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks | None:
    """Read along the only dimension that grows, if operands have as many as the result."""
    ranks = {len(each.shape) for each in tensors}
    if ranks != {len(out.shape)}:
        return None
    sizes = zip(out.shape, tensors[0].shape, strict=True)
    grown = [dim for dim, (size, before) in enumerate(sizes) if size != before]
    if len(grown) != 1:
        return None
    return cat_window(tensors, *grown, out=out)


@window_of(aten.repeat, aten.tile)
def repeat_window(self: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """Read all places, repeatedly."""
    missing = len(out.shape) - len(self.shape)
    sizes = zip(self.shape, out.shape[missing:], strict=True)
    dims: list[Dim] = []
    for dim, (size, full) in enumerate(sizes, missing):
        if size == full:
            dims.append(here(dim))
        elif size == 1:
            dims.append(At(0))
        else:
            dims.append(Along(dim, tiled_taps(size)))
    return (look(out, *dims),)


@window_of(aten.repeat_interleave.self_int)
def repeat_interleave_window(
    self: TensorSpec, repeats: int, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Read each place, repeatedly."""
    taps = repeated_taps(repeats)
    if dim is None:
        repeat = Look((Along(0, taps),), out.shape)
        return (way(Reshape((self.numel,)), repeat),)
    at = wrapped(dim, len(self.shape))
    return (moved(self, {at: taps}, out),)
