"""The memory of a pass over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torchscan import units
from torchscan.analyses.memory_blocks import KINDS
from torchscan.analyses.memory_estimate import MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import Moment
from torchscan.errors import InputError
from torchscan.report.chart import ticks
from torchscan.report.memory_chart import columns_of, kinds_present
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of, place_legend_below
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: stretches of which a plot shows the largest moment, as a peak of one operator would be invisible
_MAX_COLUMNS = 400
#: multiple of the peak beyond which a capacity is written, as a line would leave the plot empty
_FAR = 2.5


@explain_wrong_types
def draw_memory(estimate: MemoryEstimate, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the memory over the operators of the pass by kind, with the peak and its layer.

    If a device was given, a line is what it has for tensors; if that is far above, the title says
    how much memory it has.

    Args:
        estimate: of ``estimate_memory``.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
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
    kinds = kinds_present(moments)
    scale = operators / len(moments)
    # The last moment is repeated, as it would have no width.
    shown = [*moments, moments[-1]]
    sizes = []
    for kind in kinds:
        index = KINDS.index(kind)
        sizes.append([moment.bytes_by_kind[index] / unit for moment in shown])
    places = [scale * column for column in range(len(shown))]
    colors = [inks_of(ax).colours[kind] for kind in kinds]
    ax.stackplot(places, sizes, labels=kinds, colors=colors, step="post", alpha=0.75, linewidth=0)


def _name_phases(ax: Axes, timeline: Sequence[Moment]) -> None:
    """Write the names of phases below their starts."""
    starts, names, start = [], [], 0
    for name, members in groupby(timeline, key=attrgetter("phase")):
        starts.append(start)
        names.append(name)
        start += len(list(members))
    ax.set_xticks(starts, names, ha="left")
    for start in starts[1:]:
        ax.axvline(start, color=inks_of(ax).soft, linewidth=0.8, linestyle=":")


def _name_peak(ax: Axes, estimate: MemoryEstimate, moments: Sequence[Moment], unit: float) -> None:
    scale = len(estimate.timeline) / len(moments)
    column = max(range(len(moments)), key=lambda each: moments[each].total)
    x, y = scale * (column + 0.5), estimate.peak_bytes / unit
    distance, side = 6, "left"
    if column > len(moments) / 2:
        distance, side = -6, "right"
    text = f"peak {units.memory(estimate.peak_bytes)}, {estimate.peak_layer or 'the model itself'}"
    ax.plot([x], [y], "o", color=inks_of(ax).ink, markersize=4)
    options: Any = {"textcoords": "offset points", "ha": side, "fontsize": "small"}
    ax.annotate(escape_name(text), (x, y), (distance, 5), **options)


def near_room(estimate: MemoryEstimate) -> int | None:
    """Return the device's memory for tensors, or None if it is too far above the peak to draw."""
    verdict = estimate.verdict
    if verdict is None:
        return None
    room = verdict.capacity_bytes - verdict.cuda_context_bytes
    return room if 0 < room <= _FAR * estimate.peak_bytes else None


def say_far_room(ax: Axes, verdict: Verdict) -> None:
    """Write the device's memory into the title if no line shows it."""
    text = f"{units.memory(verdict.capacity_bytes)} on {verdict.device}, beyond the axis"
    ax.set_title(text, loc="right", fontsize="small", color=inks_of(ax).soft)


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
