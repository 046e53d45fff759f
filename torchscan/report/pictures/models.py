"""Models beside each other, as points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from torchscan import units
from torchscan.errors import Argument, InputError
from torchscan.report.pictures.labels import Spot, label
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.report.table import Table
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AREA = 42.0
#: ratios of the largest and the smallest value: beyond which an axis is logarithmic, from which on
#: its ticks stand at powers of ten alone, and below which an axis need not begin at 0
_FAR, _MANY, _NEAR = 12.0, 200.0, 2.0


@explain_wrong_types
def draw_models(
    table: Table,
    x: str = "macs",
    y: str | Mapping[str, float] = "params",
    *,
    y_label: str | None = None,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw models as points with their names: one metric against another, or against given values.

    Args:
        table: of ``model_table``.
        x: a metric of it.
        y: another, or a value for each model by its name: ``{"resnet50": 80.9}``.
        y_label: what these are: "Top-1 accuracy, %".
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    across, of_x = _metric(table, x)
    up, of_y = _metric(table, y) if isinstance(y, str) else (_values_of_rows(table, y), "")
    radius = (_AREA / 3.14) ** 0.5
    spots = {name: Spot(across[name], up[name], radius) for name in across if name in up}
    if not spots:
        raise InputError(
            "there is nothing to draw: ",
            Argument("y"),
            f" has values for none of {', '.join(across)}",
        )
    with drawing(ax, size) as ax:
        inks = inks_of(ax)
        ax.grid(color=inks.hair, linewidth=0.5, alpha=0.6)
        ax.set_axisbelow(True)
        places = list(spots.values())
        xs = [spot.x for spot in places]
        ys = [spot.y for spot in places]
        ax.scatter(xs, ys, _AREA, color=inks.colours["memory"], zorder=2, clip_on=False)
        ax.margins(0.12)
        ax.set(xlabel=of_x, ylabel=y_label or of_y)
        if isinstance(y, str):
            _scale(ax, list(up.values()), "y")
        _scale(ax, list(across.values()), "x")
        label(ax, [(spot, name) for name, spot in spots.items()], places)
    return ax


def _scale(ax: Axes, values: Sequence[float], axis: Literal["x", "y"]) -> None:
    """Let an axis begin at 0, unless all values are alike.

    It is logarithmic if the largest value would push all others into a corner.
    """
    smallest, largest = min(values), max(values)
    if smallest > 0 and largest > _FAR * smallest:
        from matplotlib.ticker import LogLocator, NullFormatter

        ax.set(**{f"{axis}scale": "log"})
        of_axis = getattr(ax, f"{axis}axis")
        multiples = (1, 2, 5) if largest < _MANY * smallest else (1,)
        of_axis.set_major_locator(LogLocator(subs=multiples))
        of_axis.set_major_formatter(
            lambda value, _: units.count(value, digits=0) if value >= 1 else f"{value:g}"
        )
        of_axis.set_minor_formatter(NullFormatter())
    elif largest >= _NEAR * smallest:
        ax.set(**{f"{axis}lim": (0, None)})


def _metric(table: Table, key: str) -> tuple[dict[str, float], str]:
    """Return a metric of each model, and its unit."""
    metrics = [column.key for column in table.columns[1:]]
    if key not in metrics:
        known = ", ".join(metrics)
        raise InputError(f"{key!r} is not a column of the table: choose from {known}")
    index = 1 + metrics.index(key)
    values = {row.cells[0].value: row.cells[index].value for row in table.rows}
    if any(not isinstance(value, int | float) for value in values.values()):
        raise InputError(f"{key!r} is not a number for some of the models: choose another metric")
    column = table.columns[index]
    return {name: value / column.size for name, value in values.items()}, column.heading


def _values_of_rows(table: Table, figures: Mapping[str, float]) -> dict[str, float]:
    known = [row.cells[0].value for row in table.rows]
    unknown = next((name for name in figures if name not in known), None)
    if unknown is not None:
        raise InputError(
            Argument("y"),
            f" has a value for {unknown!r}, which is not in the table: choose from "
            f"{', '.join(known)}",
        )
    return dict(figures)
