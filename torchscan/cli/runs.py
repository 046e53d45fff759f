"""``torchscan runs``: what was watched, and how far it got."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.options import add_command, add_output, put_table
from torchscan.errors import InputError

if TYPE_CHECKING:
    from torchscan.live.history import WatchedRun
    from torchscan.report.table import Row, Table

_EXAMPLES = """\
examples
  torchscan runs
  torchscan runs experiments --format csv"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "runs", "list the runs that watch() has recorded", _EXAMPLES, run=_run
    )
    parser.add_argument(
        "folder", nargs="?", default="runs", type=Path, help="where they are (default runs)"
    )
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.live.history import runs_in

    if not options.folder.is_dir():
        raise InputError(f"{str(options.folder)!r} is no folder: give one that has runs")
    found = runs_in(options.folder)
    if not found:
        raise InputError(
            f"{str(options.folder)!r} has no runs: watch(model, 'runs/first') makes one"
        )
    put_table(_table(found, options.folder), options)


def _table(runs: list[WatchedRun], folder: Path) -> Table:
    from torchscan.report.table import Column, Table

    rows: list[Row] = []
    remarks: list[str] = []
    for run in runs:
        try:
            row, missing = _row(run, folder), run.missing
        except InputError as error:  # the others are listed all the same
            remarks.append(f"{_name(run, folder)} is left out: {error}.")
        else:
            rows.append(row)
            remarks += [f"{_name(run, folder)}: {each}." for each in missing]
            if run.has_only_evaluations:
                remarks.append(
                    f"{_name(run, folder)}: only evaluations were recorded, no training steps."
                )

    return Table(
        title="Runs",
        columns=[
            Column(key="run", heading="Run", is_number=False, min_width=8, truncate="head"),
            Column(key="model", heading="Model", is_number=False, min_width=8),
            Column(key="step", heading="Last step"),
            Column(key="kept", heading="Kept"),
            Column(key="series", heading="Series", priority=2),
            Column(key="ranks", heading="Processes", priority=3),
            Column(key="written", heading="Written", is_number=False, priority=1),
        ],
        rows=rows,
        remarks=remarks,
        noun="runs",
    )


def _row(run: WatchedRun, folder: Path) -> Row:
    from torchscan import units
    from torchscan.report.table import Cell, Row

    steps, written = run.steps(), run.written
    name = _name(run, folder)
    figures = (steps[-1] if steps else None, len(steps), len(run.series), run.ranks)
    cells = [Cell(figure, units.exact(figure) if figure is not None else "–") for figure in figures]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(written)) if written else "–"
    model = str(run.about.get("model", "–"))
    return Row(cells=[Cell(name, name), Cell(model, model), *cells, Cell(written, when)])


def _name(run: WatchedRun, folder: Path) -> str:
    return str(run.path.relative_to(folder)) if run.path != folder else run.path.name
