"""Inspecting real steps: what was called, in which order and how long it took, and that nothing is changed by looking."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_torch
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls
from torchscan import InputError, inspect
from torchscan.inspecting.call_run import CallRun
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.run import RunFacts
from torchscan.inspection_run import Run

X = torch.ones(2, 4)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 1)
    )


def step(model: nn.Module, x: Tensor = X) -> None:
    model(x).sum().backward()


def inspected(
    model: nn.Module, run: Callable[[nn.Module], Any] = step, times: int = 1, **options: Any
) -> RunFacts:
    with inspect(model, **options) as found:
        for _ in range(times):
            run(model)
    return found.facts


def called(facts: RunFacts) -> list[tuple[str, int]]:
    return [(call.path, call.invocation) for call in facts.calls]


def by_path(facts: RunFacts) -> dict[str, CallRun]:
    return {call.path: call for call in facts.calls}


def hooks() -> list[dict[Any, Any]]:
    names = [
        name for name in vars(hooks_of_torch) if name.startswith("_global_") and "hook" in name
    ]
    return [
        dict(getattr(hooks_of_torch, name))
        for name in names
        if isinstance(getattr(hooks_of_torch, name), dict)
    ]


# -- what was called -----------------------------------------------------------------------------------------------------


def test_calls_are_nested_as_the_modules_are() -> None:
    facts = inspected(mlp())
    assert called(facts) == [("", 0), ("0", 0), ("1", 0), ("1.0", 0), ("1.1", 0), ("2", 0)]
    info = facts.info["Sequential"]
    assert list(info["children"]) == ["0", "1", "2"]
    assert list(info["children"]["1"]["children"]) == ["0", "1"]
    assert info["children"]["0"]["info"]["output_shapes"] == ((2, 8),)


def test_a_module_called_twice_has_two_calls() -> None:
    model = Calls(lambda self, x: self.shared(self.shared(x)), shared=nn.Linear(4, 4))
    facts = inspected(model)
    assert called(facts) == [("", 0), ("shared", 0), ("shared", 1)]
    assert list(facts.info["Calls"]["children"]) == ["shared", "shared (2)"]
    assert all(call.backward.median > 0 for call in facts.calls)


def test_keywords_and_dicts() -> None:
    inner = Calls(lambda self, *, x: {"y": self.linear(x)}, linear=nn.Linear(4, 3))
    facts = inspected(Calls(lambda self, x: self.inner(x=x)["y"], inner=inner))
    assert by_path(facts)["inner"].input_shapes == ((2, 4),)
    assert by_path(facts)["inner"].output_shapes == ((2, 3),)


def test_recursion() -> None:
    def forward(self: Any, x: Tensor, depth: int = 2) -> Any:
        return self(self.linear(x), depth - 1) if depth else x

    assert called(inspected(Calls(forward, linear=nn.Linear(4, 4)))) == [
        *(("", 0), ("linear", 0)),
        *(("", 1), ("linear", 1)),
        ("", 2),
    ]


def test_a_checkpoint_runs_its_block_again() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = Calls(
        lambda self, x: self.last(checkpoint(self.block, x, use_reentrant=False)),
        block=block,
        last=nn.Linear(4, 1),
    )
    facts = inspected(model)
    again = [(call.path, call.invocation) for call in facts.calls if call.is_again]
    assert again == [("block", 1), ("block.0", 1), ("block.1", 1)]
    assert by_path(facts)[""].backward.median > 0


# -- steps ---------------------------------------------------------------------------------------------------------------


def test_the_first_step_warms_up() -> None:
    facts = inspected(mlp(), times=4)
    assert (facts.steps, facts.warm_up) == (3, 1)
    assert (inspected(mlp(), times=4, warm_up=0).steps, inspected(mlp(), times=1).steps) == (4, 1)


def test_passes_without_gradients_are_steps_of_their_own() -> None:
    def twice(model: nn.Module) -> None:
        with torch.no_grad():
            model(X)
            model(X)

    facts = inspected(mlp(), twice, warm_up=0)
    assert facts.steps == 2
    assert facts.backward.median == 0


def test_several_forwards_before_a_backward_are_one_step() -> None:
    def pair(model: nn.Module) -> None:
        (model(X).sum() + model(2 * X).sum()).backward()

    facts = inspected(mlp(), pair, times=3, warm_up=0)
    assert facts.steps == 3
    assert [key for key in called(facts) if key[0] == ""] == [("", 0), ("", 1)]


def test_steps_with_other_calls_are_counted_apart() -> None:
    model = Calls(
        lambda self, x: self.a(x) if x.sum() > 0 else self.b(x),
        a=nn.Linear(4, 1),
        b=nn.Linear(4, 1),
    )

    def each(module: nn.Module) -> None:
        for sign in (1, -1, 1):
            step(module, sign * X)

    facts = inspected(model, each, warm_up=0)
    assert (facts.steps, facts.num_differing) == (3, 1)
    assert called(facts) == [("", 0), ("a", 0)]


def test_measuring_ends_by_itself_after_so_many_steps() -> None:
    """Then two hooks are left, of the checks for NaN, and torch's two notes about one of them."""
    before, model = hooks(), mlp()
    with inspect(model, steps=2) as run:
        for taken in range(6):
            step(model)
            left = sum(map(len, hooks())) - sum(map(len, before))
            assert (run.is_finished, left == 4) == (taken >= 3, taken >= 3)
    assert hooks() == before
    assert (run.facts.steps, run.facts.warm_up) == (2, 1)
    assert by_path(run.facts)["0"].macs == 2 * 32


def test_the_call_that_it_is_started_in_is_part_of_the_step() -> None:
    model = mlp()
    run = inspect(model, warm_up=0)
    handle = model.register_forward_pre_hook(
        lambda *begun: None if handles else handles.append(run.start(begun))
    )
    handles: list[Any] = []
    step(model)
    step(model)
    handle.remove()
    facts = run.finish()
    assert (facts.steps, facts.num_differing) == (2, 0)
    assert called(facts)[0] == ("", 0)


@pytest.mark.slow
def test_what_is_abandoned_holds_nothing() -> None:
    before, model = hooks(), mlp()
    run = inspect(model).start()
    step(model)
    run.abandon()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert (hooks(), gone(), run.is_finished) == (before, None, False)


# -- times ---------------------------------------------------------------------------------------------------------------


def test_a_parent_takes_no_less_than_its_children() -> None:
    facts = inspected(mlp(), warm_up=0)
    for index, call in enumerate(facts.calls):
        inside = [child for child in facts.calls if child.parent == index]
        forward, backward = (
            math.fsum(getattr(child, name).median for child in inside)
            for name in ("forward", "backward")
        )
        assert call.forward.median >= forward * (1 - 1e-9)
        assert call.backward.median >= backward * (1 - 1e-9)
        assert forward > 0 or not inside


def test_what_belongs_to_no_module_is_a_line_of_its_own() -> None:
    """The backward pass is its modules, what stores gradients, and the rest: the loss among it."""
    facts = inspected(mlp(), lambda model: torch.exp(model(X)).sum().backward(), warm_up=0)
    (whole,) = (call.backward.median for call in facts.calls if call.parent is None)
    assert facts.backward.median == pytest.approx(
        whole + facts.storing_gradients.median + facts.outside_modules.median
    )
    assert facts.outside_modules.median > 0 < facts.storing_gradients.median
    assert "of which outside modules" in str(facts)


# -- nothing is changed --------------------------------------------------------------------------------------------------


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    output = model(x)
    output.square().sum().backward()
    return [output.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def test_results_are_the_same_bit_by_bit() -> None:
    model = nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(inplace=True), nn.Dropout(), nn.BatchNorm1d(64), nn.Linear(64, 2)
    )
    other, x = copy.deepcopy(model), torch.randn(16, 4)
    plain = gradients(model, x)
    with inspect(other):
        watched = gradients(other, x)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
    assert all(
        torch.equal(one, two) for one, two in zip(model.buffers(), other.buffers(), strict=True)
    )


def test_a_model_that_is_watched_can_be_copied_and_saved() -> None:
    model = mlp()
    with inspect(model):
        step(model)
        torch.save(copy.deepcopy(model), io.BytesIO())
        step(model)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_hooks_are_gone_whatever_happens(error: type[BaseException]) -> None:
    before = hooks()

    def fail(_self: Any, _x: Tensor) -> Tensor:
        raise error

    model = Calls(lambda self, x: self.inner(x), inner=Calls(fail))
    with pytest.raises(error), inspect(model) as run:
        model(X)
    assert hooks() == before
    assert called(run.facts) == [("", 0), ("inner", 0)]


def test_another_model_is_not_followed() -> None:
    with inspect(mlp()) as run:
        step(mlp())
    assert run.facts.steps == 0


def test_an_exception_that_the_model_catches_ends_its_call() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        try:
            self.first(torch.ones(3, 3))
        except RuntimeError:
            return self.second(x)

    facts = inspected(Calls(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 1)))
    assert called(facts) == [("", 0), ("first", 0), ("second", 0)]
    assert by_path(facts)["second"].parent == 0


@pytest.mark.slow
def test_graphs_and_results_are_let_go() -> None:
    model = mlp()
    with inspect(model):
        output = model(X)
        gone = weakref.ref(output)
        del output
        gc.collect()
        assert gone() is None


def test_starting_twice_is_refused_and_changes_nothing() -> None:
    before, run = hooks(), inspect(mlp())
    with run, pytest.raises(InputError, match="has already started"):
        run.start()
    assert hooks() == before


def test_a_run_that_goes_on_has_no_facts_yet() -> None:
    with inspect(mlp()) as run, pytest.raises(InputError, match="not finished"):
        run.facts  # noqa: B018 - it raises
    assert isinstance(run, Run)
    assert "not finished" in repr(inspect(mlp()))


def test_a_module_in_another_thread_is_not_followed() -> None:
    model = mlp()
    with inspect(model) as run:
        thread = threading.Thread(target=lambda: model(X))
        thread.start()
        thread.join()
    assert run.facts.steps == 0


def test_facts_are_plain_data() -> None:
    facts = inspected(mlp())
    assert json.loads(json.dumps(facts.to_dict()))["calls"][1]["path"] == "0"
    assert str(facts).splitlines()[1].split()[:3] == ["Layer", "Type", "Forward"]


# -- beside what it should cost ------------------------------------------------------------------------------------------


def test_each_call_has_what_its_forward_pass_costs() -> None:
    """2 rows through 4 × 8, 8 × 8 and 8 × 1 weights; keywords and integers as they were given."""
    found = by_path(inspected(mlp()))
    macs = {path: call.macs for path, call in found.items()}
    assert macs == {
        "": 2 * (32 + 64 + 8),
        "0": 2 * 32,
        "1": 2 * 64,
        "1.0": 0,
        "1.1": 2 * 64,
        "2": 2 * 8,
    }
    first = found["0"]
    assert first.flops is not None
    assert first.flops_per_second == pytest.approx(first.flops / first.forward.median)


def test_a_model_that_has_no_shapes_alone_goes_without_costs() -> None:
    model = Calls(lambda self, x: self.a(x) if x.sum() > 0 else x, a=nn.Linear(4, 1))
    assert by_path(inspected(model))["a"].macs is None


# -- times that add up ---------------------------------------------------------------------------


def test_the_parts_of_a_step_add_up_to_the_time_from_step_to_step() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inspect(model, warm_up=1, steps=1) as run:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.ones(4, 8)), torch.ones(4, 2)).backward()
            optimizer.step()
    facts = run.facts
    assert facts.rest is not None
    parts = (facts.forward, facts.backward, facts.optimizer, facts.rest, facts.between)
    assert min(each.median for each in parts) > 0
    assert sum(each.median for each in parts) == pytest.approx(facts.period.median)


def test_an_optimizer_that_steps_after_every_second_backward_pass_is_counted() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inspect(model, warm_up=1, steps=6) as run:
        for number in range(8):
            model(torch.ones(4, 8)).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    # steps 1 to 6, of which 1, 3 and 5 end with the optimizer
    assert (run.facts.num_timed, run.facts.optimizer_steps) == (6, 3)


def test_overhead_inside_overhead_is_excluded_once() -> None:
    model = nn.Linear(8, 2)
    inspector = Inspector(model, lambda _: None)
    inspector.start()
    try:
        model(torch.ones(4, 8))
        before, begin = inspector.looking, time.perf_counter_ns()
        with inspector.as_overhead(), inspector.as_overhead():
            time.sleep(0.01)
        assert 10_000_000 <= inspector.looking - before <= time.perf_counter_ns() - begin
    finally:
        inspector.finish()
