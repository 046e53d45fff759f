"""Findings about the training of a run: a loss that diverges, and layers that do not learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.watching.watching import watch
from torchscan.notes import Note
from torchscan.report.paging.layer_findings import LayerValues
from torchscan.report.paging.training_findings import CurveValues, find_problems
from torchscan.watching.history import WatchedRun


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


# -- layers that do not learn ----------------------------------------------------------------------

NAN = math.nan


def with_updates(
    *layers: Sequence[float], gradient: float = 0.1, type_name: str = "Linear"
) -> list[LayerValues]:
    """Return layers with these updates and constant gradients."""
    return [
        LayerValues(
            path=str(at),
            name=str(at),
            type_name=type_name,
            gradient=[gradient] * len(updates),
            update=updates,
            dead=[],
        )
        for at, updates in enumerate(layers)
    ]


def with_rates(
    rates: Sequence[float | None], losses: Sequence[float | None] | None = None
) -> CurveValues:
    """Return learning rates of consecutive steps, by default with a constant loss."""
    return CurveValues(
        steps=range(len(rates)),
        losses=[1.0] * len(rates) if losses is None else losses,
        gradient_norms=[None] * len(rates),
        learning_rates=rates,
    )


@pytest.mark.parametrize(
    ("update", "gradient", "rate", "reason"),
    [
        pytest.param(
            0.0,
            0.1,
            0.0,
            "Update ÷ weight has been 0 in both layers from the first recorded step on, with "
            "gradient norms of up to 0.1; 32-bit weights hardly change below 1e−7; the learning "
            "rate is 0: try a larger one.",
            id="no rate",
        ),
        pytest.param(
            1e-8,
            1e-9,
            0.5,
            "Update ÷ weight has been at most 1e−8 in both layers from the first recorded step on, "
            "with gradient norms of up to 1e−9; 32-bit weights hardly change below 1e−7; the "
            "learning rate is 0.5: look for saturated activations.",
            id="small gradients",
        ),
        pytest.param(
            1e-5,
            0.0,
            0.5,
            "The gradients of both layers have been 0 from the first recorded step on; look for "
            "dead units, saturated activations, or a loss without these weights.",
            id="zero gradients, and weight decay",
        ),
        pytest.param(
            0.0,
            0.1,
            None,
            "Update ÷ weight has been 0 in both layers from the first recorded step on, with "
            "gradient norms of up to 0.1; 32-bit weights hardly change below 1e−7; check that an "
            "optimizer has these weights and makes steps.",
            id="no optimizer",
        ),
    ],
)
def test_a_network_that_stands_still_is_stuck(
    update: float, gradient: float, rate: float | None, reason: str
) -> None:
    layers = with_updates([update] * 8, [update] * 8, gradient=gradient)
    (note,) = find_problems(with_rates([rate] * 8), layers, range(8))
    reason = reason[0].lower() + reason[1:]
    assert note.sentence == f"Stuck network: {reason}"


@pytest.mark.parametrize(
    ("updates", "losses", "step"),
    [
        pytest.param([1e-3] * 5 + [0.0] * 8, [1.0] * 13, 5, id="the loss stayed high"),
        pytest.param([1e-3] * 5 + [0.0] * 8, [1.0] * 5 + [0.8] * 8, None, id="the loss fell"),
        pytest.param([1e-3] * 5 + [0.0] * 8, [None] * 13, None, id="the loss is unknown"),
        pytest.param([1e-3] * 9 + [0.0] * 8, [1.0] * 17, None, id="less than half of the run"),
        pytest.param([0.0] * 12 + [1e-3], [1.0] * 13, None, id="it learns now"),
        pytest.param([0.0] * 6 + [1.1e-7] * 7, [1.0] * 13, None, id="above the limit"),
    ],
)
def test_a_network_that_stops_is_stuck_unless_its_loss_fell(
    updates: list[float], losses: list[float | None], step: int | None
) -> None:
    curves = with_rates([0.1] * len(updates), losses)
    notes = find_problems(curves, with_updates(updates), range(len(updates)))
    assert [note.values["step"] for note in notes] == ([] if step is None else [step])


def test_seven_columns_are_too_few_for_a_stuck_network() -> None:
    assert find_problems(with_rates([0.0] * 7), with_updates([0.0] * 7), range(7)) == []


def test_frozen_layers_and_embeddings_are_not_stuck() -> None:
    """Frozen layers have no gradients, and few rows of an embedding change in a step."""
    still = [0.0] * 8
    for layers in (
        with_updates(still, gradient=NAN),
        with_updates(still, type_name="Embedding"),
        with_updates([NAN] * 8),
    ):
        learning = replace(with_updates([1e-3] * 8)[0], path="learning")
        assert find_problems(with_rates([0.1] * 8), layers, range(8)) == []
        assert find_problems(with_rates([0.1] * 8), [*layers, learning], range(8)) == []


def test_steps_that_accumulate_gradients_do_not_make_a_network_stuck() -> None:
    """The optimizer makes every fourth step. Recorded are all steps, or those between."""
    rates = [0.1 if step % 4 == 3 else None for step in range(40)]
    every = with_updates([1e-3 if step % 4 == 3 else 0.0 for step in range(40)])
    assert find_problems(with_rates(rates), every, range(40)) == []
    between = with_updates([0.0] * 10)
    assert find_problems(with_rates(rates), between, range(0, 40, 4)) == []


def test_a_layer_that_stands_still_is_found_in_a_network_of_two() -> None:
    (note,) = find_problems(with_rates([0.1] * 8), with_updates([1e-9] * 8, [1e-3] * 8), range(8))
    assert note.sentence == (
        "Slow layer: 0 does not learn; update ÷ weight is 1e−9 in 0, 0.001 in the median layer."
    )
    once = with_updates([1e-9] * 7 + [1e-6], [1e-3] * 8)
    assert find_problems(with_rates([0.1] * 8), once, range(8)) == []


def test_most_layers_may_stand_still() -> None:
    """The median of all would be that of those."""
    layers = with_updates([1e-9] * 8, [1e-9] * 8, [1e-9] * 8, [1e-3] * 8)
    (note,) = find_problems(with_rates([0.1] * 8), layers, range(8))
    assert (note.code, note.values["others"]) == ("layer-does-not-learn", 2)
    assert note.values["typical"] == 1e-3


def train(run: Path, model: nn.Module, rate: float) -> list[str]:
    """Train a model and return the codes of what is found."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with watch(model, run, every=1):
        for _ in range(20):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
            optimizer.step()
    return [note.code for note in WatchedRun(run).findings]


def make_net(bias: float = 0.0, act: nn.Module | None = None) -> nn.Sequential:
    """Return a network of two layers, the first with this bias."""
    first = nn.Linear(8, 16)
    nn.init.constant_(first.bias, bias)
    return nn.Sequential(first, act or nn.ReLU(), nn.Linear(16, 2))


def test_small_networks_that_do_not_learn_are_found_in_runs(tmp_path: Path) -> None:
    assert train(tmp_path / "small", make_net(), 1e-12) == ["network-stuck"]
    saturated = make_net(200, nn.Sigmoid())
    assert train(tmp_path / "saturated", saturated, 0.1) == ["layer-does-not-learn"]
    frozen = make_net()
    frozen[0].requires_grad_(False)
    assert train(tmp_path / "frozen", frozen, 0.1) == []
