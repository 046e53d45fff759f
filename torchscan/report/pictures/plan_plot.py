"""The memory of processes beside that of their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchscan import units
from torchscan.analyses.plan_result import Plan, RankPlan
from torchscan.errors import Argument, InputError
from torchscan.report.chart import ticks
from torchscan.report.memory_table import STACK
from torchscan.report.pictures.memory_plot import near_room, room_said, say_far_room
from torchscan.report.pictures.style import Size, drawing, inks_of, place_legend_below
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: inches: of a bar with what is around it, and of what is above and below all
_BAR_HEIGHT, _MARGIN = 0.42, 1.25
#: of the longest of the bars and the line, what is free beside it for a figure
_FREE = 1.16


@explain_wrong_types
def draw_plan(plan: Plan, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the peak memory of each planned process as a bar, stacked by kind, beside what its device has for tensors.

    If the device has far more, the title says so instead of a line.

    Args:
        plan: of ``plan``; with ``ranks="ends"``, of three processes.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    if not isinstance(plan, Plan):
        raise InputError(
            Argument("plan"),
            f" is a {type(plan).__name__}: give what torchscan.parallel.plan(…) returns",
        )
    top = max(plan.memory.peak_bytes, near_room(plan.memory) or 0)
    unit, name = units.unit_of_memory(top)
    with drawing(ax, size, _MARGIN + _BAR_HEIGHT * len(plan.ranks)) as ax:
        _draw_kinds(ax, plan, unit)
        _draw_room(ax, plan, unit)
        ax.set_yticks(range(len(plan.ranks)), [_name(each) for each in plan.ranks])
        ax.set_xticks([0, *ticks(top / unit, 4)])
        ax.set(ylim=(len(plan.ranks) - 0.4, -0.6), xlim=(0, _FREE * top / unit), xlabel=name)
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
        said, beside = units.memory(each.memory.peak_bytes), (begins[place], place)
        ax.annotate(
            said,
            beside,
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color=inks_of(ax).soft,
        )


def _draw_room(ax: Axes, plan: Plan, unit: float) -> None:
    """Above the bars is what the line says, at its left, or at its right where there is more room."""
    verdict, room = plan.memory.verdict, near_room(plan.memory)
    if verdict is None:
        return
    if room is None:
        say_far_room(ax, verdict)
        return
    ax.axvline(room / unit, color=inks_of(ax).ink, linewidth=1)
    place, said = (room / unit, 1.0), room_said(room, verdict)
    is_late = room > plan.memory.peak_bytes / 2
    ax.annotate(
        said,
        place,
        (0, 3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if is_late else "left",
        fontsize="small",
    )


def _name(rank: RankPlan) -> str:
    place = ", ".join(f"{name} {place}" for name, place in rank.place.items())
    return f"Rank {rank.rank}\n{place}"
