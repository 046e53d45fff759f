"""Plot of the training speed of each mesh, and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchscan import units
from torchscan.analyses.mesh_layout import format_mesh
from torchscan.analyses.mesh_search import MeshChoice, MeshSearch
from torchscan.errors import Argument, InputError
from torchscan.report.chart import ticks
from torchscan.report.mesh_table import format_checkpoint
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
_BAR_HEIGHT, _MARGIN = 0.32, 1.15
#: of the longest bar, what is free beside it for a figure
_FREE = 1.3
#: steps that are drawn
_MAX_BARS = 16


@explain_wrong_types
def draw_meshes(search: MeshSearch, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the tokens per second of each mesh as a bar, with the part lost by waiting for links.

    Beside each bar is the memory that a device needs. Meshes that do not fit are pale.

    Args:
        search: of ``parallel.search``.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    if not isinstance(search, MeshSearch):
        raise InputError(
            Argument("search"),
            f" is a {type(search).__name__}: give what torchscan.parallel.search(…) returns",
        )
    choices = search.choices[:_MAX_BARS]
    labels = [format_mesh(each.mesh) for each in choices]
    if len({each.checkpoint for each in choices}) > 1:
        labels = [f"{format_mesh(each.mesh)}, {format_checkpoint(each)}" for each in choices]
    top = max(each.tokens_per_second for each in choices)
    with drawing(ax, size, _MARGIN + _BAR_HEIGHT * len(choices)) as ax:
        for place, each in enumerate(choices):
            _draw(ax, place, each, is_first=place == 0)
        ax.set_yticks(range(len(choices)), labels)
        rates = [0, *ticks(top, 4)]
        ax.set_xticks(rates, [f"{rate:,.0f}" for rate in rates])
        ax.set(ylim=(len(choices) - 0.4, -0.6), xlim=(0, _FREE * top), xlabel="tokens per second")
        ax.set_title(f"{search.num_gpus:,} {search.device}", loc="left", fontsize="medium")
        ax.tick_params(axis="y", length=0)
        place_legend_below(ax, 2)
    return ax


def _draw(ax: Axes, place: int, choice: MeshChoice, *, is_first: bool) -> None:
    """Draw a mesh: tokens per second, and those that are lost by waiting for links."""
    inks, rate = inks_of(ax), choice.tokens_per_second
    waits = rate * choice.waiting / choice.time_estimate
    alpha = 0.85 if choice.fits else 0.3
    parts = (
        ("computing", rate - waits, 0.0, "parameters"),
        ("waiting for links", waits, rate - waits, "gathered"),
    )
    for name, length, begin, kind in parts:
        label = name if is_first else None
        ax.barh(place, length, 0.7, begin, color=inks.colours[kind], alpha=alpha, label=label)
    fits = "" if choice.fits else ", does not fit"
    text = f"{units.memory(choice.needed_bytes, 0)}{fits}"
    write_beside(ax, text, (rate, place))
