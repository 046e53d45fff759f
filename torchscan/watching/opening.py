"""``open_run``, which opens inspected and watched runs."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from pathlib import Path

from torchscan.errors import InputError
from torchscan.files import path_of
from torchscan.inspecting.group_run import GroupRun, group_run_of
from torchscan.inspecting.run import RunFacts
from torchscan.report import run_data
from torchscan.watching.history import WatchedRun
from torchscan.watching.validation import is_plain_file
from torchscan.wrong_arguments import explain_wrong_types

#: what the file of a rank is called; copies of it are called otherwise
_RANK_FILE = re.compile(r"rank(0|[1-9][0-9]{0,6})\.json")


#: what a run is, by how it was saved: inspected in one process or in several, or watched
OpenedRun = RunFacts | GroupRun | WatchedRun


@explain_wrong_types
def open_run(path: str | os.PathLike[str]) -> OpenedRun:
    """Return a run that was saved or recorded.

    Returns:
        A :class:`RunFacts` of the file that ``run.save(path)`` wrote, a :class:`WatchedRun` of the
        folder that ``watch(model, path)`` writes, or of one file in it, a :class:`GroupRun` of the
        folder that several processes have saved what they inspected to. Anything else is refused: a
        report, a newer schema, a broken file.
    """
    place = path_of(path)
    # Reading another kind of file may never end.
    if place.exists() and not place.is_dir() and not is_plain_file(place):
        raise InputError(f"{str(place)!r} is not a file or a folder: give a saved or watched run")
    if place.is_dir():
        saved = saved_in(place)
        if saved:
            return group_run_of([run_data.open_run(each) for each in saved])
        return WatchedRun(place)
    return WatchedRun(place) if _is_database(place) else run_data.open_run(place)


def await_group(folder: Path, own: RunFacts, seconds: float) -> GroupRun:
    """Return the saved runs of all ranks of this launch, after waiting for them up to a limit."""
    end = time.monotonic() + seconds
    group = group_run_of([own])
    while group.missing and time.monotonic() < end:
        time.sleep(0.1)
        others = [each for each in saved_in(folder) if each.name != "rank0.json"]
        with contextlib.suppress(InputError):  # of another version
            group = group_run_of([own, *map(run_data.open_run, others)])
    return group


def saved_in(folder: Path) -> list[Path]:
    """Return the files that ranks have saved in a folder."""
    found = folder.glob("rank*.json")
    return sorted(each for each in found if _RANK_FILE.fullmatch(each.name) and is_plain_file(each))


def _is_database(path: Path) -> bool:
    # SQLite is asked: closing a file that the process opened by itself takes SQLite's locks away.
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(connection) as database:
            # A file of a few bytes is an empty database to SQLite, whose schema has version 0.
            (version,) = database.execute("PRAGMA schema_version").fetchone()
            return bool(version > 0)
    except (OSError, ValueError, sqlite3.Error):
        return False
