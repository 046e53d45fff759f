"""Small tensors that are sampled together at the end of a pass, and models that write to them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan.watching.schema import Phase

NUM_STEPS = 6


class _Doubling(nn.Module):
    """A model that doubles the output of its first layer in place, in some of its calls."""

    def __init__(self, calls: Collection[int]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self._calls = calls
        self._num_calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        if self._num_calls in self._calls:
            hidden.mul_(2)
        self._num_calls += 1
        return self.second(hidden)


@pytest.mark.parametrize(
    ("calls", "lost"),
    [((), []), (range(NUM_STEPS), []), ((0, 4), []), ((3, 4), [3])],
    ids=["never", "always", "in the first step", "from a later step on"],
)
def test_values_that_a_model_overwrites_are_right_or_left_out(
    calls: Collection[int], lost: list[int], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = _Doubling(calls)
    inputs = [torch.randn(3, 4) + number for number in range(NUM_STEPS)]
    with watch(model, tmp_path / "run", every=1, graph=False):
        for each in inputs:
            model(each).square().sum().backward()

    with torch.no_grad():
        outputs = [model.first(each) for each in inputs]
    steps = [step for step in range(NUM_STEPS) if step not in lost]
    written = watched_run(tmp_path / "run").history("first output")
    assert list(written.steps) == steps
    means = [outputs[step].mean().item() for step in steps]
    assert written.statistic("mean") == pytest.approx(means, abs=1e-5)
    read = watched_run(tmp_path / "run").history("second input")
    expected = [outputs[step] * (2 if step in calls else 1) for step in read.steps]
    assert read.statistic("mean") == pytest.approx(
        [each.mean().item() for each in expected], abs=1e-5
    )


def test_gradients_that_the_program_scales_in_place_are_right_or_left_out(tmp_path: Path) -> None:
    """A hook of the user's writes to a gradient after torch has passed it on."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)
    model = nn.Sequential(first, second)
    passed: list[Tensor] = []

    def keep(_module: nn.Module, given: Any, _result: Any) -> None:
        passed.append(given[0])

    second.register_full_backward_hook(keep)
    inputs = torch.randn(3, 4)
    with watch(model, tmp_path / "run", every=1, graph=False, log=("output_grads",)):
        for step in range(NUM_STEPS):
            model(inputs).sum().backward()
            if step > 2:
                passed[-1].fill_(100.0)
    found = watched_run(tmp_path / "run").history("0 output gradient")
    expected = second.weight.detach().sum(0).mean().item()
    means = found.statistic("mean")
    assert means == pytest.approx([expected] * len(means), abs=1e-5)
    assert len(means) >= NUM_STEPS - 1


@pytest.mark.parametrize("has_gradients", [True, False])
def test_memory_that_the_program_fills_again_is_read_at_once(
    has_gradients: bool, tmp_path: Path
) -> None:
    """An environment of NumPy arrays writes the next state to the array of the last one."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    inputs = torch.zeros(3, 4)
    state = inputs.numpy()
    with watch(model, tmp_path / "run", every=1, graph=False):
        for step in range(NUM_STEPS):
            state[:] = step
            with torch.set_grad_enabled(has_gradients):
                result = model(inputs)
            state[:] = 100.0
            if has_gradients:
                result.sum().backward()
    phase: Phase = "train" if has_gradients else "eval"
    found = watched_run(tmp_path / "run").history("0 input", phase=phase)
    assert found.statistic("mean") == pytest.approx(range(NUM_STEPS))
