"""Which steps of a run are lost: what is counted, and the sentence about it."""

from __future__ import annotations

import pytest

from torchscan.notes import Note
from torchscan.watching.lost_steps import (
    Losses,
    LostSteps,
    lost_from,
    lost_step,
    note_of_lost,
)

WHY = Note.from_text("why")


def lost_steps(*steps: int, why: Note = WHY) -> Losses:
    losses = Losses()
    for step in steps:
        losses.add(lost_step("train", step, why))
    return losses


def test_neighbors_are_one_range_and_counts_are_kept_however_many_there_are() -> None:
    assert lost_steps(3, 4, 5, 9).ranges == [
        LostSteps(phase="train", first=3, last=5, count=3, why=WHY),
        LostSteps(phase="train", first=9, last=9, count=1, why=WHY),
    ]
    many = lost_steps(*range(0, 1000, 2))
    assert len(many.ranges) == 32
    assert (many.count, many.ranges[0].first, many.ranges[-1].last) == (500, 0, 998)
    assert Losses(lost_from(many.to_data())).ranges == many.ranges


def test_steps_that_are_trained_again_are_no_longer_lost() -> None:
    losses = lost_steps(3, 4, 5, 9)
    losses.forget_from(5)
    assert losses.ranges == [LostSteps(phase="train", first=3, last=4, count=2, why=WHY)]


def test_losses_are_said_in_a_sentence() -> None:
    assert note_of_lost([]) is None
    one = note_of_lost(lost_steps(7).ranges)
    assert str(one) == "1 sampled step is not in the run: step 7 (why)"
    several = str(note_of_lost(lost_steps(3, 4, 9).ranges, rank=1, num_ranks=4))
    lost = "3 sampled steps are not in the run: 2 steps, 3 to 4 (why); step 9 (why)"
    assert several == f"rank 1 of 4: {lost}"


def test_reasons_of_older_files_are_sentences() -> None:
    (lost,) = lost_from([{"phase": "train", "first": 1, "last": 2, "count": 2, "why": "why"}])
    assert (lost.why, str(lost)) == (WHY, "2 steps, 1 to 2 (why)")


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        "lost",
        [3],
        [{}],
        [{"phase": "train", "first": -1, "last": 2, "count": 1, "why": "x"}],
    ],
)
def test_malformed_losses_are_none(wrong: object) -> None:
    assert lost_from(wrong) == []
