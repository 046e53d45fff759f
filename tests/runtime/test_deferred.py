"""Values that are looked at when the step is over, as on a device; everything but the copying is the same on a CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.runtime.faults import FAULTS, Attention
from torchscan.runtime.deferred import DeferredValues
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.inspector import Inspector
from torchscan.runtime.timing import StepTimes
from torchscan.runtime.values import Values

#: what is not seen afterwards: what was replaced before it was returned, or what has no module of its own
_LATER = "NaN in a weight", "1 / 0", "between two modules", "NaN in the input", "a loss of 0 / 0", "gradient of a root at 0"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Inspector._values

    def as_on_a_device(self: Inspector, times: StepTimes) -> Values:
        if self._found.is_alarmed:
            return now(self, times)
        place = torch.device("cpu")
        return DeferredValues(self._number, self._found, self._listener, device=place, allocated=self._memory, times=times)

    monkeypatch.setattr(Inspector, "_values", as_on_a_device)


def found_in(model: nn.Module, *runs: tuple[object, ...]) -> list[NonFinite]:
    found: list[NonFinite] = []
    inspector = Inspector(model, found.append)
    inspector.start()
    for inputs in runs:
        model(*inputs).float().square().mean().backward()
    inspector.finish()
    return found


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("name", _LATER)
def test_the_module_is_named_after_the_step_and_the_operator_in_the_next(name: str) -> None:
    fault, found = FAULTS[name], list[NonFinite]()
    torch.manual_seed(0)
    model = fault.model()
    inspector = Inspector(model, found.append)
    inspector.start()
    for _ in range(2):
        fault.run(model, *fault.inputs())
    inspector.finish()
    assert [(each.step, each.path, each.phase) for each in found] == [(n, fault.path, fault.phase) for n in range(2)]
    if fault.phase != "update":
        assert found[0].operator is None
        assert "after the step" in str(found[0].unknown)
    assert found[1].operator is None if fault.operator is None else fault.operator in str(found[1].operator)


@pytest.mark.usefixtures("later")
def test_an_overflow_of_the_sum_is_none_of_the_values() -> None:
    big = torch.full((1000,), 1e38, requires_grad=True)
    found: list[NonFinite] = []
    inspector = Inspector(model := nn.Sequential(nn.Identity(), nn.Linear(1000, 1)), found.append)
    inspector.start()
    model[0](big)
    inspector.finish()
    assert not found


@pytest.mark.usefixtures("later")
def test_a_mask_is_no_fault() -> None:
    """It alarms: in the next step it is seen to be on purpose. What is NaN afterwards is still found."""
    mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    fine, bad = (torch.rand(2, 3, 4), mask), (torch.full((2, 3, 4), math.nan), mask)
    assert not found_in(Attention(), *[fine] * 4)
    assert [each.step for each in found_in(Attention(), *[fine] * 4, bad)] == [4]
