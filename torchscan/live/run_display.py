"""How watched runs are formatted: a table of series, lines over steps, and the page of the run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchscan import units
from torchscan.errors import InputError
from torchscan.live.explore.run_page import page_of_run
from torchscan.live.history import WatchedRun
from torchscan.live.schema import STATISTICS, Distribution, Phase, Series
from torchscan.live.uniting import merge_distributions
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.report.table import NONE, Cell, Column, Row, Table
from torchscan.results import register_formatters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = ("mean", "std", "min", "max", "nan", "inf", "update")
_HEADINGS = {"nan": "NaN", "inf": "Inf"}
_MAX_LINES = 8


def series_table(run: WatchedRun, phase: Phase | None = None) -> Table:
    """Return one row per series, with the statistics of its last sampled step."""
    phase = phase or run.shown_phase
    columns = [
        Column(key="series", heading="Series", is_number=False, min_width=12),
        Column(key="step", heading="Step"),
    ]
    for place, name in enumerate(_SHOWN):
        heading = _HEADINGS.get(name, name.capitalize())
        columns.append(Column(key=name, heading=heading, priority=place))
    rows = [
        Row(cells=[Cell(series.label, series.label), *_last_cells(*last)])
        for series, last in _last_by_series(run, phase).items()
    ]
    name = str(run.about.get("model", run.path.name))
    passes = "training steps" if phase == "train" else "evaluations"
    return Table(
        title=f"Last values of {name}",
        columns=columns,
        rows=rows,
        summary=[f"{len(run.steps(phase)):,} sampled {passes} of {name} in {run.path}"],
        remarks=[f"{text}." for text in run.missing],
        noun="series",
    )


def _last_by_series(run: WatchedRun, phase: Phase) -> dict[Series, tuple[int, Distribution]]:
    found: dict[Series, list[tuple[int, Distribution]]] = defaultdict(list)
    for reader in run._readers():
        sampled = reader.newest(phase)
        if sampled is not None:
            for number, series in reader.series().items():
                if number in sampled.distributions:
                    found[series].append((sampled.step, sampled.distributions[number]))
    last = {}
    for series, parts in found.items():
        step = max(each for each, _ in parts)
        ranks = [distribution for each, distribution in parts if each == step]
        last[series] = (step, merge_distributions(ranks))
    return last


def _last_cells(step: int, distribution: Distribution) -> list[Cell]:
    cells = [Cell(step, units.exact(step))]
    for name in _SHOWN:
        value = getattr(distribution, name)
        cells.append(Cell(value, NONE if math.isnan(value) else f"{value:.4g}"))
    return cells


def steps_table(run: WatchedRun, phase: Phase | None = None) -> Table:
    """Return one row per series and step, with all statistics."""
    rows = list(run._rows(phase or run.shown_phase))
    keys = ["step", "path", "kind", "name", "invocation", *STATISTICS]
    keys += dict.fromkeys(key for row in rows for key in row if key not in keys)
    return Table(
        title="Statistics of all steps",
        columns=[Column(key=key, heading=key) for key in keys],
        rows=[Row(cells=[Cell(row.get(key), str(row.get(key))) for key in keys]) for row in rows],
    )


def draw_series(
    run: WatchedRun,
    series: str | Sequence[str] | None = None,
    statistic: str = "mean",
    *,
    phase: Phase | None = None,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw a statistic of series over the steps."""
    phase = phase or run.shown_phase
    labels = [series] if isinstance(series, str) else series
    if labels is None:
        labels = [each.label for each in _outer_series(run)]
    histories = [run.history(label, phase) for label in labels]
    if not any(len(history) for history in histories):
        raise InputError("there is nothing to draw: no step of these series was recorded")
    with drawing(ax, size) as ax:
        ax.grid(color=inks_of(ax).hair, linewidth=0.5, alpha=0.6)
        for history in histories:
            label = history.series.label
            ax.plot(history.steps, history.statistic(statistic), label=label, linewidth=1.2)
        ax.set(xlabel="step", ylabel=statistic)
        ax.legend()
    return ax


def _outer_series(run: WatchedRun) -> list[Series]:
    """Return the outputs of the outermost modules; without outputs, the first series."""
    outputs = [each for each in run.series if each.kind == "output"]
    outputs.sort(key=lambda each: each.path.count(".") + bool(each.path))
    return (outputs or list(run.series))[:_MAX_LINES]


def run_page(run: WatchedRun, others: Sequence[Any] = ()) -> str:
    """Return the page of a run, with the distributions of other runs beside its own."""
    return page_of_run(run.path, *others)


register_formatters(
    WatchedRun,
    series_table,
    page=run_page,
    page_part=lambda run: series_table(run)._repr_html_(),
    data_table=steps_table,
    plot=draw_series,
)
