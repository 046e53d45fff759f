"""What is worked out besides counts: dead units, saturated values, norms of a batch's elements, statistics of the user's."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan.types import WatchedRun

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch


class _Given(nn.Module):
    """Returns what it was made with: a layer whose results are known. It passes on where gradients go."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return self.values + 0 * x.sum()


def watched(model: nn.Module, folder: Path, *, backward: bool = True, **how: Any) -> WatchedRun:
    with watch(model, folder, every=100, **how):
        result = model(torch.zeros(1))
        if backward:
            result.sum().backward()
    run = watched_run(folder)
    assert isinstance(run, WatchedRun)
    return run


def figure(run: WatchedRun, series: str, name: str) -> float:
    (found,) = run.history(series).statistic(name)
    return found


def _with_dead(*shape: int, dim: int, dead: list[int]) -> Tensor:
    values = torch.rand(shape) + 0.5
    values.index_fill_(dim, torch.tensor(dead), -1.0)
    return values


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (_with_dead(8, 10, dim=1, dead=[2, 7]), 0.2),
        (_with_dead(2, 4, 5, 5, dim=1, dead=[3]), 0.25),
        (_with_dead(2, 4, 3, 5, 5, dim=1, dead=[0, 1, 2]), 0.75),
        (_with_dead(3, 6, 8, dim=2, dead=[5]), 1 / 8),
        (torch.ones(4, 4), 0.0),
        (-torch.ones(4, 4), 1.0),
        (torch.eye(4) - 0.5, 0.0),  # each is active for somebody
    ],
)
def test_units_that_are_zero_in_the_whole_batch_are_dead(
    values: Tensor, expected: float, tmp_path: Path
) -> None:
    run = watched(nn.Sequential(_Given(values), nn.ReLU()), tmp_path)
    assert figure(run, "1 output", "dead") == pytest.approx(expected)
    assert math.isnan(figure(run, "0 output", "dead")), (
        "what returns other values than zero has no dead units"
    )


def test_channels_come_before_positions_after_a_convolution(tmp_path: Path) -> None:
    conv = nn.Conv1d(1, 4, 1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, -1.0, -1.0, 1.0]).view(4, 1, 1))
    run = watched(nn.Sequential(_Given(torch.ones(2, 1, 7)), conv, nn.ReLU(inplace=True)), tmp_path)
    assert figure(run, "2 output", "dead") == 0.5


def test_channels_come_last_after_a_linear_layer(tmp_path: Path) -> None:
    linear = nn.Linear(1, 4, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([1.0, -1.0, -1.0, -1.0]).view(4, 1))
    run = watched(
        nn.Sequential(_Given(torch.ones(2, 3, 5, 1)), linear, nn.ReLU(), nn.Identity()), tmp_path
    )
    assert figure(run, "2 output", "dead") == 0.75
    assert math.isnan(figure(run, "3 output", "dead")), (
        "of the same tensor, which is no activation's here"
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("module", "values", "expected"),
    [
        (nn.Sigmoid(), [-10.0, -1.0, 0.0, 4.0, 10.0], 2 / 5),  # 4 → 0.982
        (nn.Tanh(), [-10.0, -1.0, 0.0, 2.0, 10.0], 2 / 5),  # 2 → 0.964
        (nn.Hardtanh(), [-1.5, -0.5, 0.0, 0.99, 3.0], 3 / 5),
        (nn.Hardtanh(0.0, 20.0), [-1.0, 5.0, 10.0, 15.0, 30.0], 2 / 5),
        (nn.ReLU6(), [-1.0, 0.0, 3.0, 5.0, 5.95], 3 / 5),
    ],
)
def test_values_at_the_ends_of_an_activation_s_range(
    module: nn.Module, values: list[float], expected: float, tmp_path: Path
) -> None:
    run = watched(nn.Sequential(_Given(torch.tensor(values)), module), tmp_path)
    assert figure(run, "1 output", "saturated") == pytest.approx(expected)
    assert math.isnan(figure(run, "0 output", "saturated"))


def test_the_norm_of_the_elements_of_a_batch(tmp_path: Path) -> None:
    """d(Σ wᵢⱼ hᵢⱼ)/dh = w: two elements with gradients of lengths 5 and 13, so 9 in the mean."""
    weights = torch.tensor([[3.0, 4.0, 0.0], [5.0, 0.0, 12.0]])

    class Weighted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * weights).sum()

    model = nn.Sequential(_Given(torch.ones(2, 3)), Weighted())
    run = watched(
        model, tmp_path, sample_norms=True, log=("outputs", "output_grads", "input_grads")
    )
    assert figure(run, "0 output gradient", "sample_norm") == pytest.approx(9.0)
    assert figure(run, "1 input gradient", "sample_norm") == pytest.approx(9.0)
    assert math.isnan(figure(run, "0 output", "sample_norm"))


def _spread(values: Tensor) -> float:
    return float(values.max() - values.min())


def _rank(values: Tensor) -> float:
    return float(torch.linalg.matrix_rank(values))


def test_statistics_of_the_user_s(tmp_path: Path) -> None:
    """They are given the values in their shape where the whole is asked for, which may be more than are sampled."""
    values = torch.ones(40, 50)
    values[0, 0] = 3.0
    model = nn.Sequential(_Given(values), nn.ReLU())
    run = watched(model, tmp_path / "a", custom={"spread": _spread}, whole=["0.*"])
    assert figure(run, "0.values", "spread") == 2.0
    run = watched(
        model, tmp_path / "b", custom={"rank": _rank}, whole=["* output"], log=("outputs",)
    )
    assert figure(run, "1 output", "rank") == 2.0
    assert set(run.to_pandas()["rank"]) == {2.0}


def test_a_statistic_that_raises_is_told_once_and_is_not_a_number(tmp_path: Path) -> None:
    model = nn.Sequential(_Given(torch.ones(40)), nn.ReLU())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = watched(model, tmp_path, custom={"rank": _rank, "spread": _spread}, log=("outputs",))
    told = [
        str(each.message) for each in said if "statistic 'rank' is disabled" in str(each.message)
    ]
    assert len(told) == 1
    assert math.isnan(figure(run, "1 output", "rank"))
    assert figure(run, "1 output", "spread") == 0.0
    (note,) = [each.note for each in run.events]
    assert (note.code, note.values["name"]) == ("statistic-disabled", "rank")


class _Parts(nn.Module):
    """As people train with Lightning: nobody calls the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2)

    def loss(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)).square().mean()


@pytest.mark.parametrize("every", [1, 2])
def test_a_model_of_which_only_parts_are_called(every: int, tmp_path: Path) -> None:
    model = _Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, tmp_path / "run", every=every):
        for step in range(6):
            optimizer.zero_grad()
            model.loss(torch.rand(3, 4)).backward()
            optimizer.step()
            if step % 3 == 2:
                model.eval()
                with torch.no_grad():
                    model.loss(torch.rand(3, 4))
                model.train()
    run = watched_run(tmp_path / "run")
    assert run.steps() == list(range(0, 6, every))
    assert (
        len(run.history("head output")) == len(run.history("encoder.0 output")) == len(run.steps())
    )
    assert len(run.history("head output gradient")) == len(run.steps())
    assert (
        len(run.history("encoder.0 output", "eval")) == len(run.history("head output", "eval")) == 2
    )
    assert {each.path for each in run.series} == {"encoder", "encoder.0", "encoder.1", "head"}


def test_a_model_whose_part_is_tried_before_it_is_trained(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with watch(model, tmp_path / "run", every=1, log=("outputs",)):
        model[0](torch.rand(2, 4))
        for _ in range(3):
            model(torch.rand(2, 4)).sum().backward()
        model.eval()
        model(torch.rand(2, 4))
    run = watched_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2], "nobody asked for gradients of what was tried"
    assert len(run.history("1 output")) == 3
    assert len(run.steps("eval")) == 1
