"""Window rules: which elements of its operands each element of a result depends on.

A rule (:func:`torchscan.window_of`) returns this for each operand, as a chain of steps from the
operand to the result::

    @window_of(aten.conv1d)
    def conv1d(input, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), *_, out):
        along = window(weight.shape[-1], stride[0], padding[0], dilation[0])
        return (look(out, here(0), WHOLE, Along(2, along)),)

An operand that a rule leaves out counts as read completely: a receptive field may be too large, but
never too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

# ``torchscan.windows`` is this module: it has the whole vocabulary of rules.
from torchscan.ops.window_types import HERE as HERE
from torchscan.ops.window_types import NOT_READ as NOT_READ
from torchscan.ops.window_types import WHOLE as WHOLE
from torchscan.ops.window_types import Along as Along
from torchscan.ops.window_types import At as At
from torchscan.ops.window_types import Dim as Dim
from torchscan.ops.window_types import EachOutput as EachOutput
from torchscan.ops.window_types import Look as Look
from torchscan.ops.window_types import Looks as Looks
from torchscan.ops.window_types import Note as Note
from torchscan.ops.window_types import Piece as Piece
from torchscan.ops.window_types import Reshape as Reshape
from torchscan.ops.window_types import Step as Step
from torchscan.ops.window_types import Taps as Taps
from torchscan.ops.window_types import Unfold as Unfold
from torchscan.ops.window_types import UpTo as UpTo
from torchscan.ops.window_types import Way as Way
from torchscan.ops.window_types import Ways as Ways
from torchscan.ops.window_types import Whole as Whole
from torchscan.ops.window_types import Windows as Windows
from torchscan.trace.events import OpSignature, TensorSpec


def way(*steps: Step, note: Note | None = None) -> Ways:
    """Return one way from an operand, as the only one."""
    return (Way(steps, note),)


def checked(windows: Windows | None, signature: OpSignature) -> Windows | None:
    """Return what a rule returned, or raise an error if it is malformed."""
    every = windows.looks if isinstance(windows, EachOutput) else (windows,)
    for looks in every:
        if looks is not None and not isinstance(looks, tuple):
            raise TypeError(
                f"it returned {looks!r}: give a tuple with what look(…) returns for each operand"
            )
        for ways, spec in zip(looks or (), signature.inputs, strict=False):
            if ways is not None:
                _check_ways(ways, spec)
    return windows


def _check_ways(ways: object, spec: TensorSpec) -> None:
    if not isinstance(ways, tuple) or not all(isinstance(each, Way) for each in ways):
        raise TypeError(
            f"it returned {ways!r} for an operand: give what look(…) returns, or None for all of it"
        )
    for each in ways:
        if each.steps:
            _check_step(each.steps[0], spec)


def _check_step(step: Step, spec: TensorSpec) -> None:
    if not isinstance(step, Look):
        return
    if len(step.dims) != len(spec.shape):
        raise ValueError(
            f"it describes {len(step.dims)} dimensions of an operand that has {len(spec.shape)}"
        )
    for how in step.dims:
        if isinstance(how, Along) and not 0 <= how.dim < len(step.shape):
            raise ValueError(
                f"it reads along dimension {how.dim} of a result that has {len(step.shape)}"
            )


# -- along one dimension -------------------------------------------------------------------------

#: keeps what is asked for again and again, as far as it goes
_cache = lru_cache(maxsize=1024)


@_cache
def window(size: int, step: int = 1, padding: int = 0, spacing: int = 1) -> Taps:
    """Return taps of a convolution or pool: ``i = step·j − padding + spacing·t`` for t < size."""
    return Taps((tuple(spacing * tap - padding for tap in range(size)),), step)


@_cache
def shifted(start: int, step: int = 1) -> Taps:
    """Return the taps of a slice or a padding: ``i = step·j + start``."""
    return HERE if (start, step) == (0, 1) else Taps(((start,),), step)


# -- whole operands --------------------------------------------------------------------------------


def look(out: TensorSpec, *dims: Dim) -> Ways:
    """Return a way of one step to the result."""
    return way(Look(dims, out.shape))


@_cache
def here(dim: int) -> Along:
    """Return a dimension that is read at the same place as a dimension of the result."""
    return Along(dim, HERE)


def same_dims(rank: int) -> list[Dim]:
    """Return dimensions that are each read at the same place of the result."""
    return [here(dim) for dim in range(rank)]


def broadcast(spec: TensorSpec, out: TensorSpec) -> Ways:
    """Return a way element by element; a dimension with a single place is read there."""
    return _broadcast(spec.shape, out.shape)


@_cache
def _broadcast(shape: tuple[int, ...], out: tuple[int, ...]) -> Ways:
    return way(Look(broadcast_dims(shape, out), out))


def broadcast_dims(shape: Sequence[int], out: Sequence[int]) -> tuple[Dim, ...]:
    """Return dimensions aligned at the right, each read along the result's or at its only place."""
    missing = len(out) - len(shape)
    dims: list[Dim] = []
    for dim, (size, full) in enumerate(zip(shape, out[missing:], strict=True), missing):
        if size == full:
            dims.append(here(dim))
        else:
            dims.append(At(0) if size == 1 else WHOLE)
    return tuple(dims)


def elementwise(
    *, inputs: tuple[TensorSpec, ...], out: TensorSpec | tuple[TensorSpec, ...]
) -> Looks:
    """Read, for each element of the result, the operands' elements at the same place."""
    result = out[0] if isinstance(out, tuple) else out
    looks: list[Ways] = []
    for spec in inputs:
        fits = len(spec.shape) <= len(result.shape)
        looks.append(broadcast(spec, result) if fits else None)
    return tuple(looks)


def wrapped(dim: int, rank: int) -> int:
    """Return a dimension counted from the front."""
    return dim % rank if rank else 0


def reduced(spec: TensorSpec, dims: Sequence[int] | int | None, out: TensorSpec) -> Ways:
    """Read some dimensions as a whole, or all if none are named.

    The result keeps them with size one, or drops them.
    """
    rank = len(spec.shape)
    named = [dims] if isinstance(dims, int) else dims
    over = {wrapped(dim, rank) for dim in named or range(rank)}
    keeps = len(out.shape) == rank
    read: list[Dim] = []
    num_left = 0
    for dim in range(rank):
        if dim in over:
            read.append(WHOLE)
        else:
            read.append(here(dim if keeps else num_left))
            num_left += 1
    return look(out, *read)


def mixed(spec: TensorSpec, dims: Sequence[int] | int, out: TensorSpec) -> Ways:
    """Read some dimensions as a whole, for each place along them: softmax, attention."""
    rank = len(spec.shape)
    named = [dims] if isinstance(dims, int) else dims
    over = {wrapped(dim, rank) for dim in named}
    read = same_dims(rank)
    for dim in over.intersection(range(rank)):
        read[dim] = WHOLE
    return look(out, *read)


def along_last(
    spec: TensorSpec, taps: Sequence[Taps], out: TensorSpec, channels: Dim | None = None
) -> Ways:
    """Read the last dimensions by taps, the one before them as given, the others unchanged."""
    first = len(spec.shape) - len(taps)
    dims = same_dims(first)
    if channels is not None:
        dims[first - 1] = channels
    dims += [Along(first + axis, each) for axis, each in enumerate(taps)]
    return look(out, *dims)


def permuted(shape: Sequence[int], order: Sequence[int]) -> Look:
    """Return a step that permutes dimensions: dimension k of the result is ``order[k]``."""
    rank = len(shape)
    order = [wrapped(dim, rank) for dim in order]
    dims = tuple(here(order.index(dim)) for dim in range(rank))
    return Look(dims, tuple(shape[dim] for dim in order))


def moved(
    spec: TensorSpec, taps: Mapping[int, Taps], out: TensorSpec, note: Note | None = None
) -> Ways:
    """Read some dimensions by their taps, the others unchanged."""
    dims = same_dims(len(spec.shape))
    for dim in range(len(dims)):
        if dim in taps:
            dims[dim] = Along(dim, taps[dim])
    return way(Look(tuple(dims), out.shape), note=note)


def per_axis(value: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """Return one number per axis, from one for all or one for each."""
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) * axes if len(value) == 1 else tuple(value)
