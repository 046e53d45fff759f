"""Formatters of watched runs and their curves: tables, lines over steps, and the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter, methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torchscan import units
from torchscan.errors import InputError
from torchscan.formatters import register_formatters
from torchscan.report.make_table import make_table, number, words
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of
from torchscan.report.run_texts import to_remark
from torchscan.report.table import Table
from torchscan.report.table_rows import NONE, Cell, Row
from torchscan.watching.curves import Curves
from torchscan.watching.distributions import merge_distributions
from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.explore.training import findings_of
from torchscan.watching.history import WatchedRun
from torchscan.watching.merging import steps_of_ranks
from torchscan.watching.rank_readers import readers_of, require_phase
from torchscan.watching.run_files import ranks_in
from torchscan.watching.schema import STATISTICS, Distribution, Phase, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: statistics of the table; in a narrow one, the last ones are left out first
_SHOWN = ("mean", "std", "update", "nan", "inf", "min", "max")
_HEADINGS = {"nan": "NaN", "inf": "Inf"}
_MAX_LINES = 8
#: steps at each end of curves as text
_NUM_ENDS = 20


def series_table(run: WatchedRun, phase: Phase | None = None) -> Table:
    """Return one row per series, with the statistics of its last sampled step."""
    phase = _choose_phase(run, phase)
    columns = [
        words("series", "Series", min_width=12),
        number("step", "Step", text=units.exact),
    ]

    def write(value: float) -> str:
        return NONE if math.isnan(value) else f"{value:.4g}"

    for priority, name in enumerate(_SHOWN):
        heading = _HEADINGS.get(name, name.capitalize())
        columns.append(number(name, heading, text=write, priority=priority))
    name = str(run.about.get("model", run.path.name))
    steps = run.steps(phase)
    count, notes = f"{len(steps):,} recorded evaluations", [*run.missing]
    if phase == "train":
        last = f", the last is {steps[-1]:,}" if steps else ""
        count = f"{run.num_steps:,} training steps ({len(steps):,} recorded{last})"
        notes = [*run.findings, *notes]
    return make_table(
        f"Last values of {name}",
        columns,
        _last_values(run, phase),
        summary=[f"{count} of {name} in {run.path}"],
        remarks=[to_remark(note) for note in notes],
        noun="series",
    )


def _choose_phase(run: WatchedRun, phase: Phase | None) -> Phase:
    """Return the phase that was asked for, or training unless only evaluations were recorded."""
    if phase is None:
        return run.shown_phase
    require_phase(phase)
    return phase


def _last_values(run: WatchedRun, phase: Phase) -> list[SimpleNamespace]:
    """Return the label, the last sampled step and its statistics of each series."""
    found: dict[Series, list[tuple[int, Distribution]]] = defaultdict(list)
    for reader in readers_of(ranks_in(run.path)):
        sampled = reader.newest(phase)
        if sampled is not None:
            for number, series in reader.series().items():
                if number in sampled.distributions:
                    found[series].append((sampled.step, sampled.distributions[number]))
    last = []
    for series, parts in found.items():
        step = max(each for each, _ in parts)
        ranks = [distribution for each, distribution in parts if each == step]
        distribution = merge_distributions(ranks, series.kind)
        statistics = {name: getattr(distribution, name) for name in _SHOWN}
        if distribution.min > distribution.max:  # there was no number
            statistics |= {"min": None, "max": None}
        last.append(SimpleNamespace(series=series.label, step=step, **statistics))
    return last


def steps_table(run: WatchedRun, phase: Phase | None = None) -> Table:
    """Return one row per series and step, with all statistics."""
    rows = list(_rows_of(run, _choose_phase(run, phase)))
    keys = ["step", "path", "kind", "name", "invocation", *STATISTICS]
    keys += dict.fromkeys(key for row in rows for key in row if key not in keys)
    columns = [number(key, key, methodcaller("get", key)) for key in keys]
    return make_table("Statistics of all steps", columns, rows)


def _rows_of(run: WatchedRun, phase: Phase) -> Iterator[dict[str, Any]]:
    """Yield the values of each series in each step, all ranks together."""
    for step in steps_of_ranks(ranks_in(run.path), phase):
        for series, found in step.distributions.items():
            row: dict[str, Any] = {
                "step": step.step,
                "path": series.path,
                "kind": series.kind,
                "name": series.name,
                "invocation": series.invocation,
            }
            for name in STATISTICS:
                row[name] = getattr(found, name)
            yield row | dict(found.custom)


def draw_series(
    run: WatchedRun,
    series: str | Sequence[str] | None = None,
    statistic: str = "mean",
    *,
    phase: Phase | None = None,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw a statistic of series over the steps, by default of the outputs of outer modules."""
    phase = _choose_phase(run, phase)
    outputs = [each for each in run.series if each.kind == "output"]
    outputs.sort(key=lambda each: each.path.count(".") + bool(each.path))
    chosen = (outputs or list(run.series))[:_MAX_LINES]
    if series is not None:
        labels = [series] if isinstance(series, str) else series
        chosen = [run.history(label, phase).series for label in labels]
    histories = run.histories(chosen, phase)
    if not any(len(history) for history in histories):
        raise InputError("these series have no recorded step: choose others from run.series")
    with drawing(ax, size) as ax:
        ax.grid(color=inks_of(ax).hair, linewidth=0.5, alpha=0.6)
        for history in histories:
            label = escape_name(history.series.label)
            ax.plot(history.steps, history.statistic(statistic), label=label, linewidth=1.2)
        ax.set(xlabel="step", ylabel=statistic)
        ax.legend()
    return ax


def run_page(run: WatchedRun, others: Sequence[Any] = ()) -> str:
    """Return the page of a run, with distributions of ``others``, paths of runs, beside it."""
    return page_of_run(run.path, *others)


register_formatters(
    WatchedRun,
    series_table,
    page=run_page,
    page_part=lambda run: series_table(run)._repr_html_(),
    data_table=steps_table,
    plot=draw_series,
    findings=findings_of,
)


def curves_table(curves: Curves) -> Table:
    """Return one row per step."""
    columns = [number("step", "Step", itemgetter(0), units.exact)]
    columns.append(number("number", "Number", itemgetter(1), units.exact, priority=2))
    start = min(curves.times, default=0.0)
    columns.append(
        number("time", "Time (s)", lambda row: Cell(row[2], _format(row[2] - start)), priority=3)
    )
    columns.append(number("loss", "Loss", itemgetter(3), _format))
    columns.append(number("learning_rate", "Learning rate", itemgetter(4), _format, priority=1))
    columns.append(number("gradient_norm", "Gradient norm", itemgetter(5), _format))
    places = (curves.steps, curves.numbers, curves.times)
    values = (curves.losses, curves.learning_rates, curves.gradient_norms)
    rows = list(zip(*places, *values, strict=True))
    return make_table("Curves", columns, rows)


def write_curves(curves: Curves, *, width: int = 80) -> str:
    """Return the first and last steps as text."""
    table = curves_table(curves)
    num_left_out = len(table.rows) - 2 * _NUM_ENDS
    if num_left_out <= 0:
        return table.write("text", width=width)
    dots = Row(cells=[Cell(None, "…") for _ in table.columns])
    rows = [*table.rows[:_NUM_ENDS], dots, *table.rows[-_NUM_ENDS:]]
    remark = f"{num_left_out:,} steps are left out: to_pandas() has all."
    return replace(table, rows=rows, remarks=[remark]).write("text", width=width)


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


register_formatters(Curves, curves_table, text=write_curves, plot=draw_curves)
