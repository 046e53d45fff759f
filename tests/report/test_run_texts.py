"""Sentences of notes about watched and inspected runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torchscan.notes import Note

FULL = {"code": "disk-full", "values": {}}


def lost_range(first: int, last: int, count: int, phase: str = "train") -> dict[str, Any]:
    return {"phase": phase, "first": first, "last": last, "count": count, "why": FULL}


def nan_seen(**values: Any) -> Note:
    return Note.of("nan-seen", step=7, series="fc output", path="fc", invocation=0, **values)


def written_after_loss(*, has_weights: bool) -> Note:
    return Note.of("nonfinite-after-loss", step=9, loss_step=4, has_weights=has_weights)


def masked(path: str | None, name: str | None, operator: str | None, line: str | None) -> Note:
    return Note.of("mask-written", path=path, type_name=name, operator=operator, line=line)


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (nan_seen(others=0), "step 7 has NaN in 'fc output'"),
        (nan_seen(others=1), "step 7 has NaN in 'fc output' and 1 more tensor"),
        (
            nan_seen(others=2, loss_step=5, loss="Inf"),
            "the loss is Inf from step 5 on, and step 7 has NaN in 'fc output' and 2 more tensors",
        ),
        (
            Note.of("first-nonfinite", step=3, series="fc output", path="fc", invocation=0),
            "step 3 has the first NaN or Inf, in 'fc output'",
        ),
        (
            written_after_loss(has_weights=False),
            "after step 4, step 9 is the first recorded step with NaN or Inf",
        ),
        (
            written_after_loss(has_weights=True),
            "after step 4, step 9 is the first recorded step with NaN or Inf; "
            "the weights were not finite by then",
        ),
    ],
)
def test_sentences_about_values_that_are_not_finite_say_what_to_do(
    note: Note, sentence: str
) -> None:
    assert str(note) == f"{sentence}: run torchscan.inspect(model) to find the operator"


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (Note.of("write-failed", error="database is locked", reason=None), "database is locked"),
        (Note.of("write-failed", error="I/O error", reason="bad disk"), "I/O error (bad disk)"),
        (Note.of("lost-range", **lost_range(4, 4, 1)), "step 4 (the disk is full)"),
        (Note.of("lost-range", **lost_range(4, 9, 3)), "3 steps, 4 to 9 (the disk is full)"),
        (
            Note.of("lost-range", **lost_range(4, 4, 1, "eval")),
            "evaluation at step 4 (the disk is full)",
        ),
        (
            Note.of("lost-range", **lost_range(4, 9, 3, "eval")),
            "3 evaluations, 4 to 9 (the disk is full)",
        ),
        (
            Note.of("steps-lost", ranges=[lost_range(2, 2, 1)], rank=1, num_ranks=4),
            "rank 1 of 4: 1 sampled step is not in the run: step 2 (the disk is full)",
        ),
        (
            Note.of("steps-lost", ranges=[lost_range(2, 3, 2)] * 3),
            "6 sampled steps are not in the run: "
            + "; ".join(["2 steps, 2 to 3 (the disk is full)"] * 3),
        ),
        (
            Note.of("steps-lost", ranges=[lost_range(2, 3, 2)] * 5),
            "10 sampled steps are not in the run: "
            + "2 steps, 2 to 3 (the disk is full); " * 3
            + "and 2 more ranges",
        ),
        (
            Note.of("steps-pending", count=1, rank=0, num_ranks=1),
            "1 sampled step is not written yet; the worker process is still running",
        ),
        (
            Note.of("steps-pending", count=3, rank=2, num_ranks=4),
            "rank 2 of 4: 3 sampled steps are not written yet; the worker process is still running",
        ),
        (Note.of("rank-absent", rank=2, num_ranks=4), "rank 2 of 4 recorded nothing"),
        (Note.of("ranks-absent", count=1, num_ranks=4), "1 other rank of 4 recorded nothing"),
        (Note.of("ranks-absent", count=2, num_ranks=4), "2 other ranks of 4 recorded nothing"),
    ],
)
def test_sentences_about_steps_that_are_not_in_a_run(note: Note, sentence: str) -> None:
    assert str(note) == sentence


def ended_rank(rank: int, step: int | None, **values: Any) -> dict[str, Any]:
    at = time.mktime((2026, 3, 5, 6, 7, 8, 0, 0, -1))
    return {"rank": rank, "time": at, "raised": None, "has_lost_peer": False, "step": step} | values


@pytest.mark.parametrize(
    ("num_ranks", "ranks", "sentence"),
    [
        (
            1,
            [ended_rank(0, None)],
            "the training process was last active at 2026-03-05 06:07:08 and did not close the run; "
            "it recorded no step",
        ),
        (
            4,
            [ended_rank(2, 0, raised="OSError"), ended_rank(3, 1)],
            "rank 2 of 4 ended at 2026-03-05 06:07:08 by an exception, OSError; "
            "its last recorded step is 0; then rank 3 (last step 1)",
        ),
        (
            4,
            [
                ended_rank(1, 5, raised="RuntimeError", has_lost_peer=True),
                ended_rank(0, 0),
                ended_rank(3, None),
            ],
            "rank 1 of 4 ended at 2026-03-05 06:07:08 because it lost its connection to another "
            "rank (RuntimeError); its last recorded step is 5; then ranks 0 (last step 0), 3",
        ),
    ],
)
def test_the_rank_that_ended_first_is_named_with_those_that_followed(
    num_ranks: int, ranks: list[dict[str, Any]], sentence: str
) -> None:
    assert str(Note.of("ranks-ended", num_ranks=num_ranks, ranks=ranks)) == sentence


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (masked(None, None, "aten.add.Tensor", None), "aten.add.Tensor"),
        (masked(None, None, "aten.add.Tensor", "net.py:3"), "aten.add.Tensor at net.py:3"),
        (masked("", "Net", None, None), "the model (Net)"),
        (
            masked("fc", "Linear", "aten.add.Tensor", "net.py:3"),
            "fc (Linear), by aten.add.Tensor at net.py:3",
        ),
        (
            Note.of("written-after-backward", line=None),
            "backward() stored finite values, so code after it wrote to them",
        ),
        (
            Note.of("written-after-backward", line="net.py:3"),
            "backward() at net.py:3 stored finite values, so code after it wrote to them",
        ),
        (Note.of("checked-gradient", name="fc.weight", root=None), "the gradient of fc.weight"),
        (
            Note.of("checked-gradient", name=None, root="critic (Net)"),
            "the gradient of a parameter of critic (Net)",
        ),
        (Note.of("checked-parameter", name="fc.bias", root="Net"), "fc.bias of Net"),
    ],
)
def test_sentences_about_inspected_values_name_modules_operators_and_lines(
    note: Note, sentence: str
) -> None:
    assert str(note) == sentence


def test_a_sentence_begins_with_a_capital_and_ends_with_a_period() -> None:
    assert Note.of("run-continued", step=3).sentence == "The run continues at step 3."
