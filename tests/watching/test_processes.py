"""The process that trains, as the process that writes its run sees it."""

from __future__ import annotations

import os
import time

from torchscan.watching.processes import Parent


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
