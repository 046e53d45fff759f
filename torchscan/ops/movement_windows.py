"""Windows of copies, allocations, flips and padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchscan.ops.per_element import Output
from torchscan.ops.registry import pointwise, window_of
from torchscan.ops.windows import (
    NOT_READ,
    Along,
    Dim,
    Looks,
    Note,
    Taps,
    Ways,
    broadcast,
    here,
    look,
    moved,
    shifted,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Sizes = Sequence[int] | int

pointwise(
    aten.contiguous,
    aten.clone,
    aten.to,
    aten._to_copy,
    aten.detach,
    aten.alias,
    aten.lift_fresh,
    aten.lift,
)
pointwise(
    aten.lift_fresh_copy,
    aten.positive,
    aten.data,
    aten._conj,
    aten.conj,
    aten.resolve_conj,
    aten.resolve_neg,
)
pointwise(
    aten._neg_view,
    aten.tril,
    aten.triu,
    aten.bernoulli,
    "aten::detach_copy",
    "aten::alias_copy",
    aten.to_dense,
)
pointwise(aten._lazy_clone, aten.pin_memory, aten._pin_memory)


@window_of(
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
)
@window_of(
    aten.new_zeros,
    aten.new_ones,
    aten.rand_like,
    aten.randn_like,
    aten.randint_like,
    aten.zero,
    aten.uniform,
)
@window_of(
    aten.normal_,
    aten.random,
    aten.exponential,
    aten.cauchy,
    aten.geometric,
    aten.log_normal,
    aten.fill.Scalar,
)
@window_of(
    aten._has_same_storage_numel, aten._new_zeros_with_same_feature_meta, aten.bernoulli_.float
)
def nothing_is_read(*, inputs: tuple[TensorSpec, ...], out: Output) -> Looks:
    """Read the shape of an operand, and no values."""
    return (NOT_READ,) * len(inputs)


@window_of(aten.fill.Tensor, aten.copy, aten.new_full, aten.full)
def overwritten_window(*, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks:
    """Read the last operand, which is written; nothing of the overwritten operand remains."""
    if len(inputs) < 2:
        return (NOT_READ,) * len(inputs)
    *overwritten, written = inputs
    return (*[NOT_READ] * len(overwritten), broadcast(written, out))


@window_of(aten.rot90)
def rotation_window(
    self: TensorSpec, k: int = 1, dims: Sequence[int] = (0, 1), *, out: TensorSpec
) -> Looks:
    """Return the window of quarter turns, which swap two dimensions or read them backwards."""
    rank = len(self.shape)
    first, second = (wrapped(dim, rank) for dim in dims)
    first_back, second_back = _reversed_taps(self.shape[first]), _reversed_taps(self.shape[second])
    read: list[Dim] = [here(dim) for dim in range(rank)]
    turns = k % 4
    if turns == 1:
        read[first], read[second] = here(second), Along(first, second_back)
    elif turns == 2:
        read[first], read[second] = Along(first, first_back), Along(second, second_back)
    elif turns == 3:
        read[first], read[second] = Along(second, first_back), here(first)
    return (look(out, *read),)


def _reversed_taps(size: int) -> Taps:
    return Taps(((size - 1,),), -1)


@window_of(aten.roll)
def roll_window(self: TensorSpec, shifts: Sizes, dims: Sizes = (), *, out: TensorSpec) -> Looks:
    """Read a place shifted in the shorter direction; one side continues on the other."""
    at = [dims] if isinstance(dims, int) else dims
    by = [shifts] if isinstance(shifts, int) else shifts
    if not at:
        return (None,)
    rank = len(self.shape)
    total: Counter[int] = Counter()
    for dim, shift in zip(at, by, strict=True):
        total[wrapped(dim, rank)] += shift
    taps = {}
    for dim, shift in total.items():
        size = self.shape[dim]
        shift %= max(size, 1)
        taps[dim] = shifted(-shift if 2 * shift <= size else size - shift)
    return (moved(self, taps, out, "wraps"),)


@window_of(aten.flip, aten.fliplr, aten.flipud)
def flip_window(self: TensorSpec, dims: Sequence[int] = (), *, out: TensorSpec) -> Looks | None:
    """Read from the last place to the first."""
    rank = len(self.shape)
    named = {wrapped(dim, rank) for dim in dims}
    if not named:
        return None
    taps = {dim: _reversed_taps(self.shape[dim]) for dim in named}
    return (moved(self, taps, out),)


@window_of(aten.constant_pad_nd)
def constant_pad_window(self: TensorSpec, pad: Sequence[int], *_: object, out: TensorSpec) -> Looks:
    """Read a place that is shifted by the padding in front."""
    return (_shift_by_padding(self, pad, out, None),)


@window_of(aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
@window_of(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)
def mirrored_pad_window(self: TensorSpec, padding: Sequence[int], *, out: TensorSpec) -> Looks:
    """Read a place that is shifted by the padding in front, which is made from the border."""
    return (_shift_by_padding(self, padding, out, "padded"),)


@window_of(aten._pad_circular)
def circular_pad_window(self: TensorSpec, pad: Sequence[int], *, out: TensorSpec) -> Looks:
    """Read a place that is shifted by the padding in front, made from the opposite side."""
    return (_shift_by_padding(self, pad, out, "wraps"),)


@window_of(aten.pad)
def pad_window(
    self: TensorSpec, pad: Sequence[int], mode: str = "constant", *_: object, out: TensorSpec
) -> Looks:
    """Read as the padding of this mode."""
    notes: dict[str, Note | None] = {"constant": None, "circular": "wraps"}
    return (_shift_by_padding(self, pad, out, notes.get(mode, "padded")),)


def _shift_by_padding(
    self: TensorSpec, pad: Sequence[int], out: TensorSpec, note: Note | None
) -> Ways:
    """Return the window of padding: ``pad`` starts with the last dimension: before, behind."""
    last = len(self.shape) - 1
    taps = {last - at: shifted(-before) for at, before in enumerate(pad[::2])}
    return moved(self, taps, out, note)
