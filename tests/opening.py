"""Runs that tests open, by the type that they expect."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torchscan import open_run
from torchscan.types import GroupRun, RunFacts, WatchedRun
from torchscan.watching.opening import OpenedRun

_R = TypeVar("_R", bound=OpenedRun)


def watched_run(path: Path | str) -> WatchedRun:
    """Open what ``watch`` recorded."""
    return _of_type(open_run(path), WatchedRun)


def inspected_run(path: Path | str) -> RunFacts:
    """Open what an inspection saved."""
    return _of_type(open_run(path), RunFacts)


def group_run(path: Path | str) -> GroupRun:
    """Open what the inspections of several ranks saved."""
    return _of_type(open_run(path), GroupRun)


def _of_type(run: OpenedRun, kind: type[_R]) -> _R:
    assert isinstance(run, kind)
    return run
