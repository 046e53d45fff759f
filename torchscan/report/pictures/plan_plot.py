"""The memory of processes beside that of their device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchscan import units
from torchscan.analyses.plan_result import Plan
from torchscan.errors import Argument, InputError
from torchscan.report.chart import ticks
from torchscan.report.memory_chart import STACK
from torchscan.report.pictures.memory_plot import near_room, room_said, say_far_room
from torchscan.report.pictures.style import (
    Size,
    drawing,
    inks_of,
    place_legend_below,
    write_beside,
)
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: inches: of a bar with what is around it, and of what is above and below all
_BAR_HEIGHT, _MARGIN = 0.42, 1.25
#: of the longest of the bars and the line, what is free beside it for a figure
_FREE = 1.16


@explain_wrong_types
def draw_plan(plan: Plan, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the peak memory of each planned rank by kind, and what its device has for tensors.

    If the device has far more, the title says so instead of a line.

    Args:
        plan: of ``plan``; with ``ranks="ends"``, of three ranks.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    if not isinstance(plan, Plan):
        raise InputError(
            Argument("plan"),
            f" is a {type(plan).__name__}: give what torchscan.parallel.plan(…) returns",
        )
    top = max(plan.memory.peak_bytes, near_room(plan.memory) or 0)
    unit, unit_name = units.unit_of_memory(top)
    with drawing(ax, size, _MARGIN + _BAR_HEIGHT * len(plan.ranks)) as ax:
        _draw_kinds(ax, plan, unit)
        _draw_room(ax, plan, unit)
        names = []
        for each in plan.ranks:
            place = ", ".join(f"{name} {index}" for name, index in each.place.items())
            names.append(f"Rank {each.rank}\n{place}")
        ax.set_yticks(range(len(plan.ranks)), names)
        ax.set_xticks([0, *ticks(top / unit, 4)])
        ax.set(ylim=(len(plan.ranks) - 0.4, -0.6), xlim=(0, _FREE * top / unit), xlabel=unit_name)
        ax.tick_params(axis="y", length=0)
        place_legend_below(ax, 3 if size == "column" else 7)
    return ax


def _draw_kinds(ax: Axes, plan: Plan, unit: float) -> None:
    colours = inks_of(ax).colours
    begins = [0.0] * len(plan.ranks)
    for kind in STACK:
        sizes = [each.memory.by_kind[kind] / unit for each in plan.ranks]
        if any(sizes):
            ax.barh(
                range(len(sizes)), sizes, 0.68, begins, color=colours[kind], alpha=0.85, label=kind
            )
        begins = [begin + length for begin, length in zip(begins, sizes, strict=True)]
    for place, each in enumerate(plan.ranks):
        write_beside(ax, units.memory(each.memory.peak_bytes), (begins[place], place))


def _draw_room(ax: Axes, plan: Plan, unit: float) -> None:
    """Draw a line for the capacity, with a label above the bars, on the side with more room."""
    verdict, room = plan.memory.verdict, near_room(plan.memory)
    if verdict is None:
        return
    if room is None:
        say_far_room(ax, verdict)
        return
    ax.axvline(room / unit, color=inks_of(ax).ink, linewidth=1)
    is_late = room > plan.memory.peak_bytes / 2
    side = "right" if is_late else "left"
    options: Any = {"textcoords": "offset points", "ha": side, "fontsize": "small"}
    place, text = (room / unit, 1.0), room_said(room, verdict)
    ax.annotate(text, place, (0, 3), xycoords=("data", "axes fraction"), **options)
