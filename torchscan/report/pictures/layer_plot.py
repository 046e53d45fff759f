"""Layers as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchscan import units
from torchscan.errors import Argument, InputError
from torchscan.report.columns import COLUMNS, check_columns, check_estimates, full_name_of
from torchscan.report.info_data import InfoDict, data_of
from torchscan.report.pictures.bars import Bar, check_number_of_bars, draw_bars
from torchscan.report.pictures.style import Size
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: the colours of bars, where it is not that of compute
_KINDS = {
    **dict.fromkeys(("params", "grad_params", "nograd_params", "param_size"), "parameters"),
    **dict.fromkeys(("buffers", "buffer_size"), "buffers"),
    **dict.fromkeys(("activations", "peak"), "activations"),
    **dict.fromkeys(("dmas", "bytes_read", "bytes_written", "latency"), "memory"),
}


@explain_wrong_types
def draw_layers(
    info: InfoDict,
    by: str = "macs",
    *,
    top: int = 15,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw the layers with the most of something as bars, with their shares of the whole.

    Args:
        info: what ``crawl_module`` returned; of what ``aggregate_info(info, 2)`` makes of it, blocks are bars.
        by: a column of figures: "macs", "params", "bytes_read"; if they were asked for, "latency", "activations", "peak".
        top: how many bars; the rest is a line of text where the figures add up.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    heading, bars = _bars(info, by, top)
    return draw_bars(bars, heading, _KINDS.get(by, "compute"), ax=ax, size=size)


def _bars(info: InfoDict, by: str, top: int) -> tuple[str, list[Bar]]:
    """The heading, with its unit, and the longest bars first."""
    check_columns([by])
    data, column = data_of(info), COLUMNS[by]
    if column.scale is None:
        raise InputError(
            Argument("by"),
            f" is {by!r}, which is not a numeric column: give 'macs', 'params', 'flops', "
            "'latency', …",
        )
    check_number_of_bars(top)
    check_estimates([by], data["layers"])
    heading, cells = column.written(data["layers"], data["overall"])
    found = [
        (full_name_of(layer), cell)
        for layer, cell in zip(data["layers"], cells, strict=True)
        if cell.value
    ]
    if not found:
        raise InputError(f"there is nothing to draw: no layer has any {heading.heading}")
    found.sort(key=lambda each: -each[1].value)
    whole = sum(cell.value for _, cell in found) if column.is_of_all else 0
    top += len(found) == top + 1  # one more says more than that there is one
    shown, rest = found[:top], found[top:] if column.is_of_all else []
    bars = [
        Bar(name, cell.value, f"{cell.text}{_share(cell.value, whole)}") for name, cell in shown
    ]
    if rest:
        remainder = sum(cell.value for _, cell in rest)
        said = column.scale(cell.value for cell in cells).text(remainder)
        bars.append(Bar(f"and {len(rest)} others", 0.0, f"{said}{_share(remainder, whole)}"))
    return heading.heading, bars


def _share(value: float, whole: float) -> str:
    return f"  ·  {units.share(value / whole)}" if whole else ""
