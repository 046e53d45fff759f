"""Values that are looked at when the step is over, as on a device; everything but the copying is the same on a CPU."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchscan.inspection_run
from tests.inspecting.faults import FAULTS, Attention
from tests.recording.test_record import Calls
from torchscan.inspecting import training_checks
from torchscan.inspecting.deferred_values import DeferredValues
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.step_maker import StepMaker
from torchscan.inspecting.timing import StepTimes
from torchscan.inspecting.value_peaks import Peaks
from torchscan.inspecting.values import Values
from torchscan.inspection import inspect

#: what is not seen afterwards: what was replaced before it was returned, or what has no module of its own
_LATER = (
    "NaN in a weight",
    "1 / 0",
    "between two modules",
    "NaN in the input",
    "a loss of 0 / 0",
    "gradient of a root at 0",
)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = StepMaker._make_values

    def as_on_a_device(self: StepMaker, number: int, times: StepTimes) -> Values:
        if self.found_before.is_alarmed:
            return now(self, number, times)
        place = torch.device("cpu")
        return DeferredValues(
            number,
            self.found_before,
            self._listener,
            device=place,
            allocated=self._memory,
            times=times,
        )

    monkeypatch.setattr(StepMaker, "_make_values", as_on_a_device)


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
    assert [(each.step, each.path, each.phase) for each in found] == [
        (n, fault.path, fault.phase) for n in range(2)
    ]
    if fault.phase != "update":
        assert found[0].operator is None
        assert "after the step" in str(found[0].unknown)
    is_known = fault.operator is not None and fault.phase != "loss"  # of a loss, the guard knows it
    assert str(fault.operator) in str(found[1].operator) if is_known else found[1].operator is None


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("name", ["NaN in an embedding", "NaN in a convolution"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_the_operator_is_known_in_whichever_order_values_arrive(
    name: str, is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the device is behind, the second step is checked afterwards as well.

    The guard has its loss by then, and has repeated the call.
    """
    monkeypatch.setattr(training_checks, "is_on_device", lambda _: True)
    monkeypatch.setattr(torchscan.inspection_run, "is_on_cuda", lambda _: True)
    asked: list[DeferredValues] = []

    def is_known(values: DeferredValues) -> bool:
        asked.append(values)
        return not is_behind or asked.count(values) > 1

    monkeypatch.setattr(DeferredValues, "is_known", property(is_known))
    fault = FAULTS[name]
    torch.manual_seed(0)
    model = fault.model()
    with inspect(model, warm_up=0) as run:
        for _ in range(3):
            fault.run(model, *fault.inputs())
    found = run.facts.nonfinite
    assert [(each.step, each.path, each.phase) for each in found] == [
        (number, fault.path, "forward") for number in range(2 if is_behind else 3)
    ]
    assert all(str(fault.operator) in str(each.operator) for each in found[1:])
    assert [each.name for each in found[1].weights] == list(fault.weights)


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


@pytest.mark.usefixtures("later")
def test_what_is_not_counted_is_unknown() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.rand(2, 4)
    with inspect(model, warm_up=0) as fine:
        model(x).sum().backward()
    with inspect(model, warm_up=0) as bad:
        model(x * math.nan).sum().backward()
    assert {each.grad_out_nan for each in fine.facts.calls} == {0}
    assert {each.grad_out_nan for each in bad.facts.calls} == {None}


class Spoils(nn.Module):
    """Writes NaN to its second input."""

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        memory.mul_(math.nan)
        return x + memory.mean()


class GivesMemory(nn.Module):
    """Gives one of its layers a tensor by position or by keyword."""

    def __init__(self, by_name: bool, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.by_name = nn.Linear(4, 4), layer, by_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.ones(2, 4)
        hidden = self.first(x)
        if self.by_name:
            result = self.layer(hidden, memory=memory)
        else:
            result = self.layer(hidden, memory)
        assert isinstance(result, torch.Tensor)
        return result


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_layer_that_spoils_its_input_is_blamed_however_it_was_given(
    by_name: bool, is_later: bool, request: pytest.FixtureRequest
) -> None:
    if is_later:
        request.getfixturevalue("later")
    run = (torch.rand(2, 4),)
    found = found_in(GivesMemory(by_name, Spoils()), run, run)
    assert [(each.step, each.path, each.phase) for each in found] == [
        (step, "layer", "forward") for step in range(2)
    ]
    assert {each.unknown.code for each in found[is_later:] if each.unknown} == {"writes-to-input"}


@pytest.mark.parametrize("is_later", [False, True])
def test_caller_is_the_source_of_a_nan_keyword_input_that_the_call_overwrites(
    is_later: bool, request: pytest.FixtureRequest
) -> None:
    """After the call, the input is finite."""
    if is_later:
        request.getfixturevalue("later")

    class Mends(nn.Module):
        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            result = x + memory.mean()
            memory.fill_(1.0)
            return result

    class Net(GivesMemory):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(self.first(x), memory=torch.ones(2, 4) * math.nan)
            return result

    (found, *_) = found_in(Net(True, Mends()), (torch.rand(2, 4),))
    assert (found.path, found.phase, found.unsure) == ("", "forward", None)


@pytest.mark.usefixtures("later")
def test_keywords_that_begin_later_are_checked_after_the_call() -> None:
    class Sometimes(GivesMemory):
        def forward(self, x: torch.Tensor) -> Any:
            given = {"memory": torch.ones(2, 4) * math.nan} if self.by_name else {}
            return self.layer(self.first(x), **given)

    model = Sometimes(False, Calls(lambda _, x, memory=0.0: x + memory))
    found: list[NonFinite] = []
    inspector = Inspector(model, found.append)
    inspector.start()
    for step in range(2):
        model.by_name = step == 1
        model(torch.rand(2, 4)).sum().backward()
    inspector.finish()
    assert [(each.step, each.path, str(each.unsure)) for each in found] == [
        (1, "", "inputs given by keyword are checked after the call")
    ]


class Good(nn.Module):
    """Returns what it is given, and NaN in the fourth step: the values of the others have waited for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * math.nan if self.calls == 4 else x * 1.0


class Residual(nn.Module):
    """What a norm returns is written to by its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bad, self.last = nn.Linear(4, 4), Good(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.bad(self.first(x))
        out += x
        return self.last(torch.relu_(out))


def _in_fourth_step(
    model: nn.Module, *, after: object = None, trains: bool = True
) -> list[tuple[int, str, str]]:
    found: list[NonFinite] = []
    inspector = Inspector(model, found.append)
    inspector.start()
    for _ in range(4):
        with torch.set_grad_enabled(trains):
            result = model(torch.rand(2, 4))
        if trains:
            result.square().mean().backward()
        elif after == "written":
            result.fill_(0.0)
    inspector.finish()
    return [(each.step, each.path, each.phase) for each in found]


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("trains", [True, False])
def test_many_tensors_that_wait_are_looked_at_each(trains: bool) -> None:
    """Python gives the identity of one that is gone to the next."""
    model = nn.Sequential(
        *(nn.Linear(4, 4) for _ in range(3)),
        Good(),
        Calls(lambda _, x: x.nan_to_num()),
        nn.Linear(4, 4),
    )
    assert _in_fourth_step(model, trains=trains) == [(3, "3", "forward")]


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("trains", [True, False])
def test_what_its_caller_writes_to_is_looked_at_before(trains: bool) -> None:
    assert _in_fourth_step(Residual(), trains=trains) == [(3, "bad", "forward")]


@pytest.mark.usefixtures("later")
def test_what_is_written_to_after_the_call_is_looked_at_before() -> None:
    assert _in_fourth_step(
        nn.Sequential(nn.Linear(4, 4), Good()), after="written", trains=False
    ) == [(3, "1", "forward")]


@pytest.mark.usefixtures("later")
def test_each_peak_is_computed_once_and_in_order() -> None:
    """The first two wait for each other, and the last two come after they were computed."""
    peaks: Peaks[str] = Peaks(torch.device("cpu"), nullcontext)
    peaks.add("a", torch.tensor([1.0, -3.0]), waits=True)
    peaks.add("b", torch.tensor([2.0]), waits=False)
    peaks.add("c", torch.tensor([4.0, math.inf]), waits=False)
    peaks.add("d", torch.tensor([5.0]), waits=True)
    peaks.send()
    assert [(each.label, each.value) for each in peaks.read()] == [
        ("a", 3),
        ("b", 2),
        ("c", math.inf),
        ("d", 5),
    ]
    assert peaks.read() == []


def test_the_end_of_a_backward_pass_is_awaited_after_one_that_was_left() -> None:
    """The gradient is NaN when the second pass ends, and zero when the step does."""
    found: list[NonFinite] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    inspector = Inspector(model, found.append)
    inspector.start()
    for step in range(4):
        loss = model(torch.rand(2, 4)).sum()
        if step == 3:
            handle = loss.grad_fn.next_functions[0][0].register_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                loss.backward(retain_graph=True)
            handle.remove()
        (loss * (math.nan if step == 3 else 1.0)).backward()
        model.zero_grad(set_to_none=False)
    inspector.finish()
    assert [each.step for each in found] == [3]


@pytest.mark.usefixtures("later")
def test_a_check_may_end_the_inspection() -> None:
    model = nn.Linear(4, 1)
    inspector = Inspector(
        model,
        lambda _: None,
        [lambda path, kind, tensor: inspector.finish() if "grad" in kind else None],
    )
    inspector.start()
    model(torch.rand(2, 4)).sum().backward()
    assert model.weight.grad is not None


class Sees(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("later")
def test_modes_of_the_users_see_nothing_of_it() -> None:
    def seen(watches: bool) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        inspector = Inspector(model, lambda _: None)
        with Sees() as mode:
            if watches:
                inspector.start()
            for _ in range(3):
                model(torch.rand(2, 4)).sum().backward()
            inspector.finish()
        return mode.seen

    assert seen(True) == seen(False)
