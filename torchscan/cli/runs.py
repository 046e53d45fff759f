"""``torchscan runs``: list watched runs, open them in the browser, and merge their files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_command, add_command_group, add_output, put_table
from torchscan.cli.output import print_answer
from torchscan.errors import InputError

if TYPE_CHECKING:
    from torchscan.report.table import Row, Table
    from torchscan.watching.history import WatchedRun

_LIST_EXAMPLES = """\
examples
  torchscan runs list
  torchscan runs list experiments --format csv
torchscan runs is short for torchscan runs list."""
_OPEN_EXAMPLES = """\
examples
  torchscan runs open runs/first
  torchscan runs open runs/first runs/second
  torchscan runs open runs/first -o run.html"""
_MERGE_EXAMPLES = """\
examples
  torchscan runs merge runs/first first.sqlite"""


def add_to(commands: Any) -> None:
    """Register the commands."""
    group = add_command_group(commands, "runs", "List, open and merge runs that watch() recorded.")
    listing = add_command(
        group, "list", "List the runs in a folder.", _LIST_EXAMPLES, run=_list_runs
    )
    help_ = "List the runs in this folder (default: runs)."
    listing.add_argument(
        "folder", metavar="FOLDER", nargs="?", default="runs", type=Path, help=help_
    )
    add_output(listing)

    help_ = "Open a watched run in the browser, while it is written or afterwards."
    opening = add_command(group, "open", help_, _OPEN_EXAMPLES, run=_open)
    help_ = "Open the run in this folder; further runs are shown beside it."
    opening.add_argument("runs", nargs="+", metavar="RUN", type=Path, help=help_)
    add_options(opening, "host", "port")
    add_option(opening, "output", help="Write one HTML file instead, which needs no server")

    help_ = "Merge the files of a watched run's ranks into one file."
    merging = add_command(group, "merge", help_, _MERGE_EXAMPLES, run=_merge)
    merging.add_argument(
        "folder", metavar="FOLDER", type=Path, help="Merge the files in this folder."
    )
    help_ = "Write this file, which open_run() reads."
    merging.add_argument("file", metavar="FILE", type=Path, help=help_)


def with_default_command(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a call, in which ``runs`` alone is ``runs list``."""
    first, rest = words[:1], words[1:]
    is_complete = bool(rest) and (not rest[0].startswith("-") or rest[0] in ("-h", "--help"))
    if list(first) != ["runs"] or is_complete:
        return words
    return ["runs", "list", *rest]


def _open(options: argparse.Namespace) -> None:
    if options.output is None:
        from torchscan.watching.explore.serving import PORT, explore

        port = PORT if options.port is None else options.port
        explore(options.runs, options.host, port, _put_url)
        return
    from torchscan.watching.explore.run_page import page_of_run

    page_of_run(*options.runs).save(options.output)
    print_answer(f"written to {options.output}")


def _put_url(url: str) -> None:
    print_answer(f"{url}\nPress Ctrl-C to stop.")
    sys.stdout.flush()


def _merge(options: argparse.Namespace) -> None:
    from torchscan.watching.merging import merge

    merge(options.folder, options.file)


def _list_runs(options: argparse.Namespace) -> None:
    from torchscan.watching.history import runs_in

    if not options.folder.is_dir():
        raise InputError(
            f"FOLDER is {str(options.folder)!r}, which is not a folder: give one that has runs"
        )
    found = runs_in(options.folder)
    if not found:
        raise InputError(
            f"{str(options.folder)!r} has no runs: give another folder; watch(model, "
            "'runs/first') records a run"
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
            Column(key="num_steps", heading="Steps"),
            Column(key="step", heading="Last recorded"),
            Column(key="kept", heading="Kept", priority=4),
            Column(key="series", heading="Series", priority=2),
            Column(key="ranks", heading="Ranks", priority=3),
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
    last = steps[-1] if steps else None
    figures = (run.num_steps, last, len(steps), len(run.series), run.ranks)
    cells = [Cell(figure, units.exact(figure) if figure is not None else "–") for figure in figures]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(written)) if written else "–"
    model = str(run.about.get("model", "–"))
    return Row(cells=[Cell(name, name), Cell(model, model), *cells, Cell(written, when)])


def _name(run: WatchedRun, folder: Path) -> str:
    return str(run.path.relative_to(folder)) if run.path != folder else run.path.name
