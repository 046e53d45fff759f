"""Layers as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchscan import units
from torchscan.errors import Argument, InputError
from torchscan.report.columns import COLUMNS, full_name_of
from torchscan.report.info_data import InfoDict, data_of
from torchscan.report.layer_table import check_columns, check_estimates
from torchscan.report.pictures.bars import Bar, check_number_of_bars, draw_bars
from torchscan.report.pictures.style import Size
from torchscan.report.table import Scaling
from torchscan.report.table_rows import Cell
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
        info: what ``crawl_module`` returned; of what ``aggregate_info(info, 2)`` makes of it,
            blocks are bars.
        by: a column of numbers: "macs", "params", "bytes_read"; if they were asked for, "latency",
            "activations", "peak".
        top: how many bars; the rest is a line of text where the numbers add up.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    check_columns([by])
    data, column = data_of(info), COLUMNS[by]
    layers = data["layers"]
    if column.scale is None:
        raise InputError(
            Argument("by"),
            f" is {by!r}, which is not a numeric column: give 'macs', 'params', 'flops', "
            "'latency', …",
        )
    check_number_of_bars(top)
    check_estimates([by], layers)
    heading, cells = column.write(layers, data["overall"])
    if not any(cell.value for cell in cells):
        raise InputError(f"there is nothing to draw: no layer has any {heading.heading}")
    names = list(map(full_name_of, layers))
    bars = _longest_bars(names, cells, top, column.scale if column.is_of_all else None)
    return draw_bars(bars, heading.heading, _KINDS.get(by, "compute"), ax=ax, size=size)


def _longest_bars(
    names: Sequence[str], cells: Sequence[Cell], top: int, scaling: Scaling | None
) -> list[Bar]:
    """Return the longest bars, and a line on the rest if values add up: with a ``scaling``."""
    found = [(name, cell) for name, cell in zip(names, cells, strict=True) if cell.value]
    found.sort(key=lambda each: -each[1].value)
    if len(found) == top + 1:
        top += 1  # its bar says more than a line on one other
    whole = 0.0
    if scaling is not None:
        whole = sum(cell.value for _, cell in found)
    bars = []
    for name, cell in found[:top]:
        text = f"{cell.text}{_format_share(cell.value, whole)}"
        bars.append(Bar(name, cell.value, text))
    rest = found[top:]
    if rest and scaling is not None:
        remainder = sum(cell.value for _, cell in rest)
        text = scaling(cell.value for cell in cells).text(remainder)
        text += _format_share(remainder, whole)
        bars.append(Bar(f"and {len(rest)} others", 0.0, text))
    return bars


def _format_share(value: float, whole: float) -> str:
    return f"  ·  {units.share(value / whole)}" if whole else ""
