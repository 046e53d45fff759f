"""Sizes, fonts and lines that all plots share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from torchscan.errors import Argument, InputError
from torchscan.escapes import printable_text
from torchscan.report.colours import COLOURS, DARK_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: of a figure: for a screen, or as wide as one column or both columns of a page
Size = Literal["screen", "column", "page"]
#: inches across and up, and the size of the type in points
_SIZES: dict[Size, tuple[float, float, float]] = {
    "screen": (8.0, 4.4, 10.0),
    "column": (3.15, 2.4, 7.0),
    "page": (7.0, 3.2, 8.0),
}
#: how opaque a ground must be to count, and how bright for dark ink
_HALF = 0.5


class Inks(NamedTuple):
    """The colors of a plot on one background."""

    ink: str
    soft: str
    hair: str
    panel: str
    colours: Mapping[str, str]


LIGHT = Inks("#1d1d1f", "#5c5f66", "#c9cbd0", "#f1f1ef", COLOURS)
DARK = Inks("#e8e8e6", "#a6abb3", "#4a4e55", "#24272b", DARK_COLOURS)
_STYLE = {
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.fontsize": "small",
    "legend.handlelength": 0.8,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.5,
}


@contextlib.contextmanager
def drawing(ax: Axes | None, size: Size, height: float | None = None) -> Iterator[Axes]:
    """Yield the given axes in torchscan's style, or new ones in a figure of this size."""
    if size not in get_args(Size):
        raise InputError.of_choice("size", size, get_args(Size))
    if ax is not None and not hasattr(ax, "figure"):
        raise InputError(
            Argument("ax"),
            f" is a {type(ax).__name__}: give axes of matplotlib, such as plt.gca()",
        )
    across, up, points = _SIZES[size]
    plt = import_pyplot()
    if ax is None:
        grounds = [plt.rcParams["axes.facecolor"], plt.rcParams["figure.facecolor"]]
    else:
        grounds = _grounds(ax)
    inks, around = _on(*grounds), _on(*grounds[1:])
    colors = {"text.color": inks.ink, "legend.labelcolor": around.ink}
    for name in ("axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"):
        colors[name] = around.soft
    with plt.rc_context({**_STYLE, **colors, "font.size": points}):
        is_own = ax is None
        if ax is None:
            ax = _new_axes(across, height or up)
        for label in (ax.title, ax.xaxis.label, ax.yaxis.label):
            label.set_color(around.soft)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            ax.spines[side].set(color=inks.hair, linewidth=0.8)
        ax.tick_params(
            which="both", color=inks.hair, labelcolor=around.soft, width=0.8, labelsize="small"
        )
        yield ax
        if is_own:
            # The first layout does not know how wide axes of a fixed aspect become, and would clip
            # what is beside them.
            figure: Any = ax.figure
            figure.draw_without_rendering()


def import_pyplot() -> Any:
    """Return matplotlib's ``pyplot``, or raise an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: run pip install matplotlib") from error
    return plt


def _new_axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure, which pyplot manages except in ``detached_figures``."""
    options: Any = {"figsize": (width, height), "layout": "constrained"}
    if not _is_detached.get():
        axes: Axes
        _, axes = import_pyplot().subplots(**options)
        return axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)  # measures text
    return figure.add_subplot()


_is_detached: ContextVar[bool] = ContextVar("_is_detached", default=False)


@contextlib.contextmanager
def detached_figures() -> Iterator[None]:
    """Create figures without pyplot: it would choose a backend and open or repeat them."""
    token = _is_detached.set(True)
    try:
        yield
    finally:
        _is_detached.reset(token)


def inks_of(ax: Axes) -> Inks:
    """Return colors that are visible on the background, which may be the user's dark style."""
    return _on(*_grounds(ax))


def _grounds(ax: Axes) -> list[Any]:
    """Return the backgrounds of axes: their own, that of their subfigure, and the figure's."""
    figure: Any = ax.figure
    return [each.get_facecolor() for each in (ax, figure, figure.figure)]


def _on(*grounds: Any) -> Inks:
    """Return the colors for the first background that is not transparent."""
    from matplotlib.colors import to_rgba

    for red, green, blue, opacity in map(to_rgba, grounds):
        if opacity > _HALF:
            brightness = 0.299 * red + 0.587 * green + 0.114 * blue
            return DARK if brightness < _HALF else LIGHT
    return LIGHT


def escape_name(text: str) -> str:
    r"""Return text with names of modules as matplotlib shows it literally.

    matplotlib reads ``$…$`` as a formula, refuses some control characters, and leaves labels that
    begin with an underscore out of a legend.
    """
    escaped = printable_text(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def write_beside(ax: Axes, text: str, place: tuple[float, float]) -> None:
    """Write a text to the right of the end of a bar."""
    ax.annotate(
        text,
        place,
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        color=inks_of(ax).soft,
    )


def place_legend_below(ax: Axes, columns: int) -> None:
    """Place the legend in a line or two below the axes and what is written there."""
    from matplotlib.transforms import ScaledTranslation

    points = import_pyplot().rcParams["font.size"] * (3.6 if ax.get_xlabel() else 2.2)
    figure: Any = ax.figure
    place = ax.transAxes + ScaledTranslation(0, -points / 72, figure.dpi_scale_trans)
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=place,
        ncols=columns,
        borderaxespad=0.0,
    )
