"""``torchscan runs``: list watched runs, open them in the browser, and merge their files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.cli.answers import put_table
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_command, add_command_group, add_output
from torchscan.cli.output import print_answer, print_written
from torchscan.errors import InputError

if TYPE_CHECKING:
    from torchscan.report.table import Table
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

        def put_url(url: str) -> None:
            print_answer(f"{url}\nPress Ctrl-C to stop.")
            sys.stdout.flush()

        port = PORT if options.port is None else options.port
        explore(options.runs, options.host, port, put_url)
        return
    from torchscan.watching.explore.run_page import page_of_run

    page_of_run(*options.runs).save(options.output)
    print_written(options.output)


def _merge(options: argparse.Namespace) -> None:
    from torchscan.watching.merging import merge

    merge(options.folder, options.file)
    print_written(options.file)


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


class _ListedRun(NamedTuple):
    """The values of a run that the list shows."""

    name: str
    model: str
    num_steps: int
    last_step: int | None
    num_kept: int
    num_series: int
    ranks: int
    #: seconds since 1970
    written: float | None

    @classmethod
    def of(cls, run: WatchedRun, name: str) -> _ListedRun:
        """Read the values from the run's file."""
        steps = run.steps()
        return cls(
            name=name,
            model=str(run.about.get("model", "–")),
            num_steps=run.num_steps,
            last_step=steps[-1] if steps else None,
            num_kept=len(steps),
            num_series=len(run.series),
            ranks=run.ranks,
            written=run.written,
        )


def _table(runs: list[WatchedRun], folder: Path) -> Table:
    from torchscan import units
    from torchscan.report.make_table import make_table, number, words

    rows: list[_ListedRun] = []
    remarks: list[str] = []
    for run in runs:
        name = run.path.name
        if run.path != folder:
            name = str(run.path.relative_to(folder))
        try:
            row, missing = _ListedRun.of(run, name), run.missing
        except InputError as error:  # the others are listed all the same
            remarks.append(f"{name} is left out: {error}.")
            continue
        rows.append(row)
        remarks += [f"{name}: {each}." for each in missing]
        if run.has_only_evaluations:
            remarks.append(f"{name}: only evaluations were recorded, no training steps.")

    columns = (
        words("run", "Run", "name", min_width=8, truncate="head"),
        words("model", "Model", min_width=8),
        number("num_steps", "Steps", text=units.exact),
        number("step", "Last recorded", "last_step", units.exact),
        number("kept", "Kept", "num_kept", units.exact, priority=4),
        number("series", "Series", "num_series", units.exact, priority=2),
        number("ranks", "Ranks", text=units.exact, priority=3),
        words("written", "Written", text=_format_time, priority=1),
    )
    return make_table("Runs", columns, rows, remarks=remarks, noun="runs")


def _format_time(written: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(written)) if written else "–"
