"""The process that trains, as the process that writes its run sees it, and standard files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests import forked
from torchscan.watching.processes import Parent, open_standard_files


def test_a_process_that_runs_is_not_gone() -> None:
    parent = Parent(os.getpid())
    assert not parent.was_gone(0.0)
    assert parent.ended_at is None


def test_a_process_has_been_gone_since_its_end_was_noted() -> None:
    parent = Parent(os.getpid())
    before = time.time()
    parent.note_gone()
    assert parent.was_gone(0.0)
    assert not parent.was_gone(60.0)
    assert parent.ended_at is not None
    assert before <= parent.ended_at <= time.time()


def _open_after_closing(closed: list[int]) -> list[tuple[bool, bool]]:
    """Return whether each standard file is ``/dev/null``, and passed on to subprocesses."""
    with open("other", "w") as other:
        for number in range(3):
            os.dup2(other.fileno(), number)
        for number in closed:
            os.close(number)
        before = os.stat(os.devnull)
        open_standard_files()
        found = [os.path.samestat(os.fstat(number), before) for number in range(3)]
    return [(is_null, os.get_inheritable(number)) for number, is_null in enumerate(found)]


@pytest.mark.parametrize("closed", [[], [0, 2], [0, 1, 2]])
def test_standard_files_that_are_closed_are_opened(
    closed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = forked.call(_open_after_closing, closed)
    assert found == [(number in closed, True) for number in range(3)]
