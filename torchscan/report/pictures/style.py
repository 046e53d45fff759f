"""What all pictures share: sizes, type, lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

from torchscan.errors import InputError
from torchscan.report.pictures.pyplot import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: of a figure: for a screen, for one column of a two-column page, or for the whole width of that page
Size = Literal["screen", "column", "page"]
#: inches across and up, and the size of the type in points
_SIZES: dict[Size, tuple[float, float, float]] = {
    "screen": (8.0, 4.4, 10.0),
    "column": (3.15, 2.4, 7.0),
    "page": (7.0, 3.2, 8.0),
}

INK, SOFT, HAIR, PANEL = "#1d1d1f", "#5c5f66", "#c9cbd0", "#f1f1ef"
_STYLE = {
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "legend.handlelength": 0.8,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.5,
}


@contextlib.contextmanager
def drawing(ax: Axes | None, size: Size, height: float | None = None) -> Iterator[Axes]:
    """The axes to draw on, in our style: those that are given, or new ones in a figure of this size."""
    if size not in get_args(Size):
        raise InputError(f"size is {size!r}: choose one of {', '.join(map(repr, get_args(Size)))}")
    across, up, points = _SIZES[size]
    plt = pyplot()
    with plt.rc_context({**_STYLE, "font.size": points}):
        if ax is None:
            ax = plt.subplots(figsize=(across, height or up), layout="constrained")[1]
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            ax.spines[side].set(color=HAIR, linewidth=0.8)
        ax.tick_params(which="both", color=HAIR, width=0.8, labelsize="small")
        yield ax


def below(ax: Axes, columns: int) -> None:
    """The legend in a line or two below the axes and what is written there."""
    from matplotlib.transforms import ScaledTranslation

    points = pyplot().rcParams["font.size"] * (3.6 if ax.get_xlabel() else 2.2)
    figure: Any = ax.figure
    place = ax.transAxes + ScaledTranslation(0, -points / 72, figure.dpi_scale_trans)
    ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=place, ncols=columns, borderaxespad=0.0)
