"""``open_run``: one verb for runs that were inspected and for those that were watched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchscan.live.history import WatchedRun
from torchscan.report import run_data

_DATABASE = b"SQLite format 3\x00"


def open_run(path: str | os.PathLike[str]) -> Any:
    """A run that was saved or recorded.

    Returns:
        A :class:`RunFacts` of the file that ``run.save(path)`` wrote, a :class:`WatchedRun` of the folder that
        ``watch(model, path)`` writes, or of one file in it. Anything else is refused: a report, a newer schema, a broken file.
    """
    place = Path(path)
    return WatchedRun(place) if place.is_dir() or _is_database(place) else run_data.open_run(place)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except OSError:
        return False
