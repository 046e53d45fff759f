"""Windows of views: the same elements in other shapes, orders and parts."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.per_element import Output
from torchscan.ops.registry import window_of
from torchscan.ops.windows import (
    NOT_READ,
    Along,
    At,
    EachOutput,
    Looks,
    Reshape,
    Unfold,
    Ways,
    broadcast,
    here,
    look,
    moved,
    permuted,
    same_dims,
    shifted,
    way,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@window_of(
    aten.view,
    aten.reshape,
    aten._unsafe_view,
    aten._reshape_alias,
    aten.flatten,
    aten.unflatten,
    aten.ravel,
)
@window_of(
    aten.reshape_as,
    aten.view_as,
    aten.squeeze,
    aten.unsqueeze,
    "aten::view_copy",
    "aten::squeeze_copy",
)
@window_of("aten::unsqueeze_copy", "aten::_reshape_copy")
def reshape_window(
    self: TensorSpec, *others: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks | None:
    """Return elements in the same order, or None if they are viewed as a type of another size."""
    if self.numel != out.numel:
        return None
    unread = [NOT_READ] * (len(inputs) - 1)
    return (way(Reshape(out.shape)), *unread)


@window_of(aten.expand, aten.expand_as, aten.type_as, "aten::expand_copy")
def expand_window(self: TensorSpec, *, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks:
    """Read a dimension with a single place there, the others at the same place."""
    unread = [NOT_READ] * (len(inputs) - 1)
    return (broadcast(self, out), *unread)


@window_of(aten.permute, "aten::permute_copy")
def permute_window(self: TensorSpec, dims: Sequence[int], *, out: TensorSpec) -> Looks:
    """Read the dimensions permuted."""
    return (way(permuted(self.shape, dims)),)


@window_of(
    "aten::transpose_", aten.transpose.int, aten.swapaxes, aten.swapdims, "aten::transpose_copy"
)
def transpose_window(self: TensorSpec, dim0: int, dim1: int, *, out: TensorSpec) -> Looks:
    """Read two dimensions swapped."""
    rank = len(self.shape)
    order = list(range(rank))
    one, other = wrapped(dim0, rank), wrapped(dim1, rank)
    if rank:
        order[one], order[other] = other, one
    return (way(permuted(self.shape, order)),)


@window_of(aten.t, aten.mT, aten.mH, aten.adjoint, "aten::t_copy")
def matrix_transpose_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read the last two dimensions swapped."""
    if len(self.shape) > 1:
        return transpose_window(self, -1, -2, out=out)
    return (look(out, *same_dims(len(self.shape))),)


@window_of(aten.numpy_T)
def reverse_dims_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read the dimensions in reverse order."""
    backwards = range(len(self.shape))[::-1]
    return (way(permuted(self.shape, backwards)),)


@window_of(aten.movedim.intlist, aten.moveaxis.intlist)
def movedim_window(
    self: TensorSpec, source: Sequence[int], destination: Sequence[int], *, out: TensorSpec
) -> Looks:
    """Read some dimensions moved; the others keep their order."""
    rank = len(self.shape)
    pairs = zip(destination, source, strict=True)
    moved = {wrapped(to, rank): wrapped(of, rank) for to, of in pairs}
    others = (dim for dim in range(rank) if dim not in moved.values())
    order = []
    for position in range(rank):
        is_destination = position in moved
        order.append(moved[position] if is_destination else next(others))
    return (way(permuted(self.shape, order)),)


@window_of(aten.select.int, "aten::select_copy")
def select_window(self: TensorSpec, dim: int, index: int, *, out: TensorSpec) -> Looks:
    """Read one place of a dimension."""
    return (_select_place(self, wrapped(dim, len(self.shape)), index, out),)


@window_of(aten.unbind.int, "aten::unbind_copy")
def unbind_window(self: TensorSpec, dim: int = 0, *, out: Output) -> EachOutput:
    """Read each place of a dimension."""
    results = out if isinstance(out, tuple) else (out,)
    at = wrapped(dim, len(self.shape))
    looks = [(_select_place(self, at, index, each),) for index, each in enumerate(results)]
    return EachOutput(tuple(looks))


def _select_place(self: TensorSpec, dim: int, index: int, out: TensorSpec) -> Ways:
    size = self.shape[dim]
    dims = same_dims(len(self.shape) - 1)
    dims.insert(dim, At(index % size if size else 0))
    return look(out, *dims)


@window_of(aten.slice.Tensor, "aten::slice_copy")
def slice_window(
    self: TensorSpec,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: TensorSpec,
) -> Looks:
    """Read from one place on, in steps."""
    at = wrapped(dim, len(self.shape))
    first_place, _, _ = slice(start, end).indices(self.shape[at])
    return (moved(self, {at: shifted(first_place, step)}, out),)


@window_of(aten.narrow, "aten::narrow_copy")
def narrow_window(self: TensorSpec, dim: int, start: int, length: int, *, out: TensorSpec) -> Looks:
    """Read from one place on."""
    return slice_window(self, dim, start, None, out=out)


@window_of(
    aten.split,
    aten.split_with_sizes,
    aten.chunk,
    aten.tensor_split,
    aten.unsafe_split,
    aten.unsafe_chunk,
)
@window_of(aten.unsafe_split_with_sizes, "aten::split_copy", "aten::split_with_sizes_copy")
def split_window(self: TensorSpec, *_: object, dim: int = 0, out: Output) -> EachOutput:
    """Read each piece from the end of the previous one on."""
    results = out if isinstance(out, tuple) else (out,)
    at = wrapped(dim, len(self.shape))
    start = 0
    looks = []
    for each in results:
        ways = moved(self, {at: shifted(start)}, each)
        looks.append((ways,))
        start += each.shape[at]
    return EachOutput(tuple(looks))


@window_of(aten.diagonal, "aten::diagonal_copy")
def diagonal_window(
    self: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: TensorSpec
) -> Looks:
    """Return the window: equal indices in two dimensions, one of them shifted."""
    rank = len(self.shape)
    last = len(out.shape) - 1
    first, second = wrapped(dim1, rank), wrapped(dim2, rank)
    starts = {first: max(-offset, 0), second: max(offset, 0)}
    others = iter(range(last))
    dims = []
    for dim in range(rank):
        if dim in starts:
            dims.append(Along(last, shifted(starts[dim])))
        else:
            dims.append(here(next(others)))
    return (look(out, *dims),)


@window_of(aten.unfold, "aten::unfold_copy")
def unfold_window(
    self: TensorSpec, dimension: int, size: int, step: int, *, out: TensorSpec
) -> Looks:
    """Read the windows of a dimension, as a new last dimension."""
    if not self.shape:
        return (None,)
    dim = wrapped(dimension, len(self.shape))
    return (way(Unfold(dim, size, step)),)


@window_of(aten.hsplit, aten.vsplit, aten.dsplit)
def split_along_window(self: TensorSpec, *_: object, out: Output) -> EachOutput:
    """Read pieces along the dimension in which they are smaller than the whole."""
    pieces = out if isinstance(out, tuple) else (out,)
    for dim, size in enumerate(self.shape):
        if any(each.shape[dim] != size for each in pieces):
            return split_window(self, dim=dim, out=out)
    return split_window(self, dim=0, out=out)
