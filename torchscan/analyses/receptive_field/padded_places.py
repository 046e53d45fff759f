"""The places of a tensor that see anything: those around them are padding, which sees nothing."""

from __future__ import annotations

from collections.abc import Mapping

from torchscan.analyses.receptive_field.envelope_reshapes import unchanged
from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.ops.windows import HERE, Along, At, Dim, Look, Reshape, Step, Taps, Unfold, Whole

#: dimension, start and stop of the places that see anything; dimensions left out have no padding
Inside = tuple[tuple[int, int, int], ...]


def inside_after(inside: Inside, shape: Shape, step: Step) -> Inside | None:
    """Return the places that see anything after a step, or None if there are none.

    A window that has a part of them counts.
    """
    known = {dim: (start, stop) for dim, start, stop in inside}
    if isinstance(step, Look):
        return _inside_after_look(known, shape, step)
    if isinstance(step, Reshape):
        if not known:
            return ()
        kept = unchanged(shape, step.shape)
        return tuple((kept[dim], *known[dim]) for dim in known if dim in kept)
    if isinstance(step, Unfold):
        return tuple(each for each in inside if each[0] != step.dim)
    return inside


def _inside_after_look(
    known: Mapping[int, tuple[int, int]], shape: Shape, step: Look
) -> Inside | None:
    inside: list[tuple[int, int, int]] = []
    for dim, (how, size) in enumerate(zip(step.dims, shape, strict=True)):
        if dim not in known and (isinstance(how, Whole) or is_in_place(how, size, step)):
            continue
        start, stop = known.get(dim, (0, size))
        if isinstance(how, At) and not start <= how.index < stop:
            return None
        if not isinstance(how, Along) or not is_slice(how.taps):
            continue

        ((first,),) = how.taps.table
        rise = how.taps.rise
        full = step.shape[how.dim]
        start = max(-((first - start) // rise), 0)
        stop = min(-((first - stop) // rise), full)
        if start >= stop:
            return None
        if (start, stop) != (0, full):
            inside.append((how.dim, start, stop))
    return tuple(inside)


def is_in_place(how: Dim, size: int, step: Look) -> bool:
    """Return whether a dimension is read at the same places of one with the same size."""
    return isinstance(how, Along) and how.taps is HERE and step.shape[how.dim] == size


def is_slice(taps: Taps) -> bool:
    """Return whether each index reads one place, at a constant distance from the one before."""
    return len(taps.table) == 1 and len(taps.table[0]) == 1 and taps.rise > 0
