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
#: of the largest and the smallest figure
_FAR = 12.0
#: … from which on ticks stand at powers of ten alone; and where an axis need not begin at 0
_MANY, _NEAR = 200.0, 2.0


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
    """Draw models as points, each with its name: what they cost against what they have, or against figures of yours.

    Args:
        table: of ``model_table``.
        x: a metric of it.
        y: another, or a figure for each model by its name: ``{"resnet50": 80.9}``.
        y_label: what these are: "Top-1 accuracy, %".
        ax: where to draw; by default in a new figure.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    across, of_x = _metric(table, x)
    up, of_y = _metric(table, y) if isinstance(y, str) else (_values_of_rows(table, y), "")
    spots = {
        name: Spot(across[name], up[name], (_AREA / 3.14) ** 0.5) for name in across if name in up
    }
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
        ax.scatter(
            [spot.x for spot in places],
            [spot.y for spot in places],
            _AREA,
            color=inks.colours["memory"],
            zorder=2,
            clip_on=False,
        )
        ax.margins(0.12)
        ax.set(xlabel=of_x, ylabel=y_label or of_y)
        if isinstance(y, str):
            _scale(ax, list(up.values()), "y")
        _scale(ax, list(across.values()), "x")
        label(ax, [(spot, name) for name, spot in spots.items()], places)
    return ax


def _scale(ax: Axes, values: Sequence[float], axis: Literal["x", "y"]) -> None:
    """From 0 on, unless all are alike; where the largest would push all others into a corner, by powers of ten."""
    is_far = min(values) > 0 and max(values) > _FAR * min(values)
    if is_far:
        from matplotlib.ticker import LogLocator, NullFormatter

        ax.set(**{f"{axis}scale": "log"})
        of_axis = getattr(ax, f"{axis}axis")
        of_axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if max(values) < _MANY * min(values) else (1,))
        )
        of_axis.set_major_formatter(
            lambda value, _: units.count(value, digits=0) if value >= 1 else f"{value:g}"
        )
        of_axis.set_minor_formatter(NullFormatter())
    elif max(values) < _NEAR * min(values):
        return
    elif axis == "x":
        ax.set_xlim(left=0)
    else:
        ax.set_ylim(bottom=0)


def _metric(table: Table, key: str) -> tuple[dict[str, float], str]:
    """Return a metric of each model, and its unit."""
    at = next(
        (number for number, column in enumerate(table.columns) if column.key == key and number),
        None,
    )
    if at is None:
        raise InputError(
            f"{key!r} is not a column of the table: choose from "
            f"{', '.join(column.key for column in table.columns[1:])}"
        )
    values = {row.cells[0].value: row.cells[at].value for row in table.rows}
    if any(not isinstance(value, int | float) for value in values.values()):
        raise InputError(f"{key!r} is not a number for some of the models: choose another metric")
    size, unit = table.columns[at].size, table.columns[at].heading
    return {name: value / size for name, value in values.items()}, unit


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
