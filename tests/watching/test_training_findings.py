"""Findings about the training of a run: a loss that diverges, and layers that do not learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from torchscan.notes import Note
from torchscan.report.paging.training_findings import CurveValues, find_problems


def with_losses(losses: Sequence[float | None]) -> CurveValues:
    """Return losses of every tenth step."""
    return CurveValues(
        steps=range(0, 10 * len(losses), 10),
        losses=losses,
        gradient_norms=[None] * len(losses),
    )


def find(losses: Sequence[float | None]) -> list[Note]:
    """Return what is found in losses alone."""
    return find_problems(with_losses(losses), [], [])


# -- a loss that diverges --------------------------------------------------------------------------


def test_a_loss_that_jumps_and_stays_high_diverges() -> None:
    """The first five of 100 losses have the median 0.7; twice as much is exceeded from 50 on."""
    (note,) = find([0.7] * 50 + [40.0] * 10 + [3e6] * 40)
    assert note.sentence == (
        "Diverging loss: it has risen from 0.7 to 3e6, and has been above 1.4 since step 500; try "
        "a smaller learning rate, a longer warm-up or gradient clipping."
    )


@pytest.mark.parametrize(
    ("losses", "start", "step"),
    [
        pytest.param([0.7, 40.0, *[3e6] * 20], 0.7, 10, id="at once"),
        pytest.param([1.0 + at / 8 for at in range(101)], 1.25, 130, id="slowly"),
        pytest.param([-2.0] * 50 + [7.0] * 50, -2.0, 500, id="from below zero"),
        pytest.param([0.0] * 50 + [3.0] * 50, 0.0, 500, id="from zero"),
        pytest.param([None, 0.7] * 50 + [None, 40.0] * 50, 0.7, 1010, id="in some steps"),
        pytest.param([0.7] * 90 + [math.nan, *[40.0] * 10], 0.7, 910, id="after one NaN"),
    ],
)
def test_divergence_is_found(losses: list[float | None], start: float, step: int) -> None:
    """The first five losses of the slow rise have the median 1.25, and the 14th is above 2.5."""
    notes = [note for note in find(losses) if note.code == "loss-diverges"]
    assert [note.values["start"] for note in notes] == [pytest.approx(start)]
    assert notes[0].values["step"] == step


def test_single_low_losses_do_not_hide_a_divergence() -> None:
    high = [40.0, 55.0, 38.0, 61.0, 0.5] * 10
    (note,) = find([0.7] * 50 + high)
    assert (note.code, note.values["step"]) == ("loss-diverges", 500)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([2.3] * 20 + [60.0] * 9, id="nine losses, which may be a spike"),
        pytest.param([2.3] * 180 + [60.0] * 19, id="less than a tenth of all"),
        pytest.param([5.0] * 50 + [24.0] * 50, id="less than five times as high"),
        pytest.param([2.3] * 50 + [2.6] * 50, id="a little higher"),
        pytest.param([-5.0] * 50 + [10.0] * 50, id="less than four sizes above a negative one"),
        pytest.param([1e-8] * 50 + [0.3] * 50, id="a penalty that starts at zero"),
        pytest.param([0.1, 2.3, 2.2, *[2.1] * 97], id="one low loss at first"),
        pytest.param([math.exp(3 * (at % 2)) for at in range(100)], id="up and down"),
    ],
)
def test_other_losses_do_not_diverge(losses: list[float]) -> None:
    assert "loss-diverges" not in {note.code for note in find(losses)}


@pytest.mark.parametrize("start", [1, 3, 10])
def test_a_spike_of_the_warm_up_that_recovers_is_not_a_divergence(start: int) -> None:
    losses = [2.3] * start + [2.3 * 1.5**at for at in range(10)]
    losses += [60.0 * 0.8**at + 1.0 for at in range(100)]
    assert "loss-diverges" not in {note.code for note in find(losses)}


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_a_divergence(seed: int) -> None:
    """Losses of single samples: squares, and values around zero."""
    noise = torch.randn(200, generator=torch.Generator().manual_seed(seed)).tolist()
    for losses in (noise, [each**2 for each in noise], [math.exp(each) for each in noise]):
        assert "loss-diverges" not in {note.code for note in find(losses)}


def test_a_loss_that_ends_as_nan_is_reported_as_that_alone() -> None:
    notes = find([0.7] * 50 + [40.0] * 50 + [math.nan] * 5)
    assert [note.code for note in notes] == ["loss-not-finite", "loss-spike"]
