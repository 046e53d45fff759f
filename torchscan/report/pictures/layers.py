"""Layers as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.colours import COLOURS
from torchscan.report.columns import COLUMNS, check_columns, check_estimates, full_name_of
from torchscan.report.info_data import InfoDict, data_of
from torchscan.report.pictures.style import SOFT, Size, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_HEIGHT, _MARGIN = 0.24, 0.7
#: how the name of those that have no bar of their own begins, as no layer's does
_OTHERS = "and "
#: the colours of bars, where it is not that of compute
_KINDS = {
    **dict.fromkeys(("params", "grad_params", "nograd_params", "param_size"), "parameters"),
    **dict.fromkeys(("buffers", "buffer_size"), "buffers"),
    **dict.fromkeys(("activations", "peak"), "activations"),
    **dict.fromkeys(("dmas", "bytes_read", "bytes_written", "latency"), "memory"),
}


class _Bar(NamedTuple):
    name: str
    value: float
    text: str


def draw_layers(info: InfoDict, by: str = "macs", *, top: int = 15, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the layers with the most of something as bars, with their shares of the whole.

    Args:
        info: what ``crawl_module`` returned; of what ``aggregate_info(info, 2)`` makes of it, blocks are bars.
        by: a column of figures: "macs", "params", "bytes_read"; if they were asked for, "latency", "activations", "peak".
        top: how many bars; what remains is one more where the figures add up.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    check_columns([by])
    column = COLUMNS[by]
    data = data_of(info)
    if column.scale is None:
        raise InputError(f"by is {by!r}, which is no figure: choose macs, params, flops, latency, …")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError(f"top is {top!r}: give a number of bars")
    check_estimates([by], data["layers"])
    heading, cells = column.written(data["layers"], data["overall"])
    named = zip(map(full_name_of, data["layers"]), cells, strict=True)
    bars = sorted((_Bar(name, cell.value, cell.text) for name, cell in named if cell.value), key=lambda bar: -bar.value)
    if not bars:
        raise InputError(f"there is nothing to draw: no layer has any {heading.heading}")
    whole = sum(bar.value for bar in bars) if column.is_of_all else 0.0
    scale = column.scale(bar.value for bar in bars)
    shown = _with_others(bars, top, scale) if column.is_of_all else bars[:top]
    with drawing(ax, size, _MARGIN + _BAR_HEIGHT * len(shown)) as ax:
        places = range(len(shown))
        lengths = [0.0 if bar.name.startswith(_OTHERS) else bar.value for bar in shown]  # of those as many as there are
        ax.barh(places, lengths, height=0.68, color=COLOURS[_KINDS.get(by, "compute")], alpha=0.85)
        for place, bar, length in zip(places, shown, lengths, strict=True):
            share = f"  ·  {units.share(bar.value / whole)}" if whole else ""
            said = f"{bar.text}{share}"
            ax.annotate(said, (length, place), (4, 0), textcoords="offset points", va="center", fontsize="small", color=SOFT)
        ax.set_yticks(places, [bar.name for bar in shown])
        ax.set(ylim=(len(shown) - 0.4, -0.6), xlim=(0, 1.25 * max(lengths)), title=heading.heading)
        ax.title.set(ha="left", x=0.0, fontsize="medium")
        ax.set_xticks([])
        ax.tick_params(axis="y", length=0)
        for side in ("bottom", "left"):
            ax.spines[side].set_visible(False)
    return ax


def _with_others(bars: list[_Bar], top: int, scale: units.Scale) -> list[_Bar]:
    if len(bars) <= top + 1:
        return bars
    rest = bars[top:]
    whole = sum(bar.value for bar in rest)
    return [*bars[:top], _Bar(f"{_OTHERS}{len(rest)} others", whole, scale.text(whole))]
