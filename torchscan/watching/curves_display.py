"""Formatters of curves: a table with a row per step, and the loss over the steps."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING

from torchscan import units
from torchscan.report.make_table import make_table, number
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.report.table import Table
from torchscan.results import register_formatters
from torchscan.watching.curves import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves_table(curves: Curves) -> Table:
    """Return one row per step."""
    columns = [number("step", "Step", itemgetter(0), units.exact)]
    columns.append(number("number", "Number", itemgetter(1), units.exact, priority=2))
    columns.append(number("time", "Time", itemgetter(2), _format, priority=3))
    columns.append(number("loss", "Loss", itemgetter(3), _format))
    columns.append(number("learning_rate", "Learning rate", itemgetter(4), _format, priority=1))
    columns.append(number("gradient_norm", "Gradient norm", itemgetter(5), _format))
    places = (curves.steps, curves.numbers, curves.times)
    values = (curves.losses, curves.learning_rates, curves.gradient_norms)
    rows = list(zip(*places, *values, strict=True))
    return make_table("Curves", columns, rows)


def _format(value: float) -> str:
    return f"{value:.4g}"


def draw_curves(curves: Curves, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw the loss over the steps."""
    with drawing(ax, size) as ax:
        ax.grid(color=inks_of(ax).hair, linewidth=0.5, alpha=0.6)
        losses = [math.nan if loss is None else loss for loss in curves.losses]
        ax.plot(curves.steps, losses, linewidth=1.2)
        ax.set(xlabel="step", ylabel="loss")
    return ax


register_formatters(Curves, curves_table, plot=draw_curves)
