"""Values of named rows as horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchscan.errors import InputError
from torchscan.formatters import table_of
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of
from torchscan.report.table import Table
from torchscan.report.table_rows import Row
from torchscan.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_HEIGHT, _MARGIN = 0.24, 0.7


class Bar(NamedTuple):
    """One bar, with the text beside it."""

    name: str
    #: 0 for a bar that stands for many
    length: float
    text: str


def draw_bars(
    bars: Sequence[Bar],
    heading: str,
    color: str = "compute",
    *,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw bars from the top down, with names to the left and texts to the right."""
    places = range(len(bars))
    longest = max(abs(bar.length) for bar in bars)
    with drawing(ax, size, _MARGIN + _BAR_HEIGHT * len(bars)) as ax:
        inks = inks_of(ax)
        lengths = [bar.length for bar in bars]
        ax.barh(places, lengths, height=0.68, color=inks.colours[color], alpha=0.85)
        for place, bar in enumerate(bars):
            ax.annotate(
                bar.text,
                (max(bar.length, 0), place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                color=inks.soft,
            )
        ax.set_yticks(places, [escape_name(bar.name) for bar in bars])
        left = -1.05 * longest if min(lengths) < 0 else 0
        ax.set(ylim=(len(bars) - 0.4, -0.6), xlim=(left, 1.25 * longest), title=heading)
        ax.title.set(ha="left", x=0.0, fontsize="medium")
        ax.set_xticks([])
        ax.tick_params(axis="y", length=0)
        for side in ("bottom", "left"):
            ax.spines[side].set_visible(False)
    return ax


def draw_rows(
    result: Result,
    by: str | None = None,
    *,
    top: int = 15,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw a column of a result's table as bars.

    Args:
        result: any result with a table.
        by: the key of the column; by default the first one with a value other than 0.
        top: how many rows to draw, the largest values first.
        ax: where to draw; by default in a new figure, as high as it takes.
        size: of a new figure.
    """
    check_number_of_bars(top)
    table = table_of(result).shown
    keys = [column.key for column in table.columns]
    rows = [row for row in table.rows if not row.is_total]
    index = keys.index(_find_column(table, rows, by))
    rows = [row for row in rows if _has_bar(row.shown[index].value)]
    if not rows:
        raise InputError(f"there is nothing to draw: no row has a value in {keys[index]!r}")
    rows.sort(key=lambda row: -abs(row.shown[index].value))
    name_index = keys.index("layer") if "layer" in keys else 0
    bars = []
    for row in rows[:top]:
        name = row.full_name or row.shown[name_index].text or "model"
        bars.append(Bar(name, row.shown[index].value, row.shown[index].text))
    return draw_bars(bars, table.columns[index].heading, ax=ax, size=size)


def check_number_of_bars(top: object) -> None:
    """Raise an InputError unless a number of bars is a positive integer."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError.of_value("top", top, "give a number of bars, 1 or more")


def _has_bar(value: object) -> bool:
    """Return whether a value of a cell has a bar: a column of numbers may hold words, too."""
    return isinstance(value, int | float) and value != 0 and math.isfinite(value)


def _find_column(table: Table, rows: Sequence[Row], by: str | None) -> str:
    """Return the key of the column to draw, by default the first one with a bar."""
    values_by_key = {}
    for index, column in enumerate(table.columns):
        values = [row.shown[index].value for row in rows]
        if column.is_number and any(isinstance(value, int | float) for value in values):
            values_by_key[column.key] = values
    keys = list(values_by_key)
    if not keys:
        raise InputError(f"there is nothing to draw: {table.title!r} has no numbers")
    if by is not None and by not in keys:
        raise InputError.of_value("by", by, f"choose from {', '.join(keys)}")
    drawable = (key for key in keys if any(map(_has_bar, values_by_key[key])))
    return by or next(drawable, keys[0])
