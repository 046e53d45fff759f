"""The memory of a pass over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from torchscan import units
from torchscan.analyses.memory_blocks import KINDS
from torchscan.analyses.memory_estimate import MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import Moment
from torchscan.errors import InputError
from torchscan.report.chart import ticks
from torchscan.report.memory_table import STACK, columns_of
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of, place_legend_below
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: a picture shows the largest moment of each of so many stretches, or a peak of one operator would not be seen
_MAX_COLUMNS = 400
#: a capacity that is more than so many times the peak would leave the picture empty, and is said instead
_FAR = 2.5


@explain_wrong_types
def draw_memory(estimate: MemoryEstimate, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the memory over the operators of the pass, stacked by kind, with the peak and the layer that it is in.

    Where a device was given, a line is what it has for programs; if that is far above, its title says so.

    Args:
        estimate: of ``estimate_memory``.
        ax: where to draw; by default in a new figure.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    if not estimate.timeline:
        raise InputError("there is nothing to draw: no operator ran")
    with drawing(ax, size) as ax:
        moments = list(columns_of(estimate.timeline, _MAX_COLUMNS))
        unit, name = units.unit_of_memory(estimate.peak_bytes)
        _draw_kinds(ax, moments, len(estimate.timeline), unit)
        top = max(estimate.peak_bytes, near_room(estimate) or 0) / unit
        ax.set(xlim=(0, len(estimate.timeline)), ylim=(0, 1.14 * top), ylabel=name)
        ax.set_yticks([0, *ticks(top, 4)])
        _name_phases(ax, estimate.timeline)
        _name_peak(ax, estimate, moments, unit)
        _draw_capacity(ax, estimate, unit)
        place_legend_below(ax, 4 if size == "column" else 7)
    return ax


def _draw_kinds(ax: Axes, moments: Sequence[Moment], operators: int, unit: float) -> None:
    present = [kind for kind in STACK if any(moment.by_kind[kind] for moment in moments)]
    scale = operators / len(moments)
    # the last one once more, or it would have no width
    sizes = [
        [moment.bytes_by_kind[KINDS.index(kind)] / unit for moment in (*moments, moments[-1])]
        for kind in present
    ]
    places = [scale * column for column in range(len(moments) + 1)]
    colours = [inks_of(ax).colours[kind] for kind in present]
    ax.stackplot(
        places, sizes, labels=present, colors=colours, step="post", alpha=0.75, linewidth=0
    )


def _name_phases(ax: Axes, timeline: Sequence[Moment]) -> None:
    """Below where each begins."""
    starts = list(_phases(timeline))
    ax.set_xticks([start for start, _ in starts], [name for _, name in starts], ha="left")
    for start, _ in starts[1:]:
        ax.axvline(start, color=inks_of(ax).soft, linewidth=0.8, linestyle=":")


def _phases(timeline: Sequence[Moment]) -> Iterator[tuple[int, str]]:
    start = 0
    for name, members in groupby(timeline, key=lambda moment: moment.phase):
        yield start, name
        start += len(list(members))


def _name_peak(ax: Axes, estimate: MemoryEstimate, moments: Sequence[Moment], unit: float) -> None:
    scale = len(estimate.timeline) / len(moments)
    column = max(range(len(moments)), key=lambda each: moments[each].total)
    x, y = scale * (column + 0.5), estimate.peak_bytes / unit
    is_late = column > len(moments) / 2
    said = f"peak {units.memory(estimate.peak_bytes)}, {estimate.peak_layer or 'the model itself'}"
    ax.plot([x], [y], "o", color=inks_of(ax).ink, markersize=4)
    ax.annotate(
        escape_name(said),
        (x, y),
        (-6 if is_late else 6, 5),
        textcoords="offset points",
        ha="right" if is_late else "left",
        fontsize="small",
    )


def near_room(estimate: MemoryEstimate) -> int | None:
    """Return the device's memory for tensors, or None if it is too far above the peak to draw."""
    verdict = estimate.verdict
    if (
        verdict is None
        or not 0 < verdict.capacity_bytes - verdict.cuda_context_bytes <= _FAR * estimate.peak_bytes
    ):
        return None
    return verdict.capacity_bytes - verdict.cuda_context_bytes


def say_far_room(ax: Axes, verdict: Verdict) -> None:
    """Write the device's memory into the title if no line shows it."""
    said = f"of {units.memory(verdict.capacity_bytes)} on {verdict.device}"
    ax.set_title(said, loc="right", fontsize="small", color=inks_of(ax).soft)


def _draw_capacity(ax: Axes, estimate: MemoryEstimate, unit: float) -> None:
    room, verdict = near_room(estimate), estimate.verdict
    if verdict is None:
        return
    if room is None:
        say_far_room(ax, verdict)
        return
    ax.axhline(room / unit, color=inks_of(ax).ink, linewidth=1)
    ax.annotate(
        room_said(room, verdict),
        (0, room / unit),
        (4, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize="small",
    )


def room_said(room: int, verdict: Verdict) -> str:
    """Return the label of the capacity line."""
    return f"{units.memory(room)} for tensors on {verdict.device}"
