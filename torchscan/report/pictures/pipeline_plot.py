"""Plot of a pipeline's schedule: what each rank runs when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchscan import units
from torchscan.analyses.pipeline_result import PipelinePlan
from torchscan.analyses.pipeline_schedule import Action
from torchscan.errors import Argument, InputError
from torchscan.report.pictures.style import Size, drawing, inks_of, place_legend_below
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: inches: of a process, and of what is above and below all
_HEIGHT, _MARGIN = 0.34, 1.15
#: of the step: what is narrower has no number in it
_MIN_WIDTH = 0.025


@explain_wrong_types
def draw_pipeline(plan: PipelinePlan, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the passes of each process over time, by microbatch; what is empty is a bubble.

    Args:
        plan: of ``parallel.pipeline``.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    if not isinstance(plan, PipelinePlan):
        raise InputError(
            Argument("plan"),
            f" is a {type(plan).__name__}: give what torchscan.parallel.pipeline(…) returns",
        )
    number = len(plan.ranks)
    unit, name, *_ = units.scale_of_durations([plan.passes], least=1.0)
    with drawing(ax, size, _MARGIN + _HEIGHT * number) as ax:
        for action in plan.actions:
            _draw(ax, plan, action, unit)
        names = [f"rank {rank}" for rank in range(number)]
        ax.set_yticks(range(number), names)
        ax.set(ylim=(number - 0.45, -0.55), xlim=(0, plan.passes / unit), xlabel=name)
        bubbles = units.share(plan.bubble)
        title = f"{plan.schedule}: {bubbles} bubbles"
        ax.set_title(title, loc="left", fontsize="medium")
        ax.tick_params(axis="y", length=0)
        place_legend_below(ax, 2)
    return ax


def _draw(ax: Axes, plan: PipelinePlan, action: Action, unit: float) -> None:
    """Draw a pass. Of several stages on a rank, later ones are paler."""
    inks, task = inks_of(ax), action.task
    num_ranks = len(plan.ranks)
    chunk, chunks = task.stage // num_ranks, len(plan.stages) // num_ranks
    kind = "activations" if task.direction == "forward" else "gradients"
    style: Any = {"edgecolor": ax.get_facecolor(), "linewidth": 0.6}
    style["color"] = inks.colours[kind]
    style["alpha"] = 0.9 - 0.5 * chunk / chunks
    if task.microbatch == 0 and task.stage == 0:
        style["label"] = task.direction
    start, duration = action.start, action.end - action.start
    ax.barh(action.rank, duration / unit, 0.86, start / unit, **style)
    if duration > _MIN_WIDTH * plan.passes:
        middle = (action.start + action.end) / 2 / unit
        centered: Any = {"ha": "center", "va": "center", "fontsize": "x-small"}
        ax.text(middle, action.rank, f"{task.microbatch}", color=inks.ink, **centered)
