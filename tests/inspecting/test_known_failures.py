"""What tools of this kind are known to fail at: each a test, on models as they are."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.inspecting.test_inspection import by_path, hooks
from tests.recording.test_record import Calls
from tests.torchvision_cpu import torchvision
from torchscan import InputError, crawl_module, inspect
from torchscan.torch_versions import optimizer_hooks


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    tokens = torch.randint(50, (2, 6))
    return transformers.BertForSequenceClassification(config), {
        "input_ids": tokens,
        "labels": torch.tensor([0, 1]),
    }


def step(model: nn.Module, *args: Any, **kwargs: Any) -> list[Tensor]:
    """One step that any of these can take: everything that it computes."""
    torch.manual_seed(0)
    result = model(*args, **kwargs)
    tensors = [each for each in _tensors(result) if each.requires_grad]
    sum(each.float().square().mean() for each in tensors).backward()  # type: ignore[union-attr]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [*(each.detach() for each in tensors), *gradients, *model.buffers()]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _mutating(self: Any, x: Tensor) -> Tensor:
    """A submodule writes to what it is given."""
    hidden = self.first(x)
    self.inner(hidden)
    return self.last(hidden)


def _recursive(self: Any, x: Tensor, depth: int = 2) -> Any:
    return self(self.linear(x), depth - 1) if depth else x


X = torch.rand(2, 4)
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "in place: resnet18": lambda: (torchvision.models.resnet18(), (torch.rand(2, 3, 32, 32),), {}),
    "keywords: BERT": lambda: (bert()[0].eval(), (), bert()[1]),
    "LSTM": lambda: (nn.LSTM(4, 4, num_layers=2, batch_first=True), (torch.rand(2, 3, 4),), {}),
    "a dict": lambda: (
        Calls(lambda self, x: {"a": self.a(x), "b": [self.a(x)]}, a=nn.Linear(4, 2)),
        (X,),
        {},
    ),
    "keywords": lambda: (
        Calls(lambda self, *, x: self.a(input=x), a=nn.Linear(4, 2)),
        (),
        {"x": X},
    ),
    "recursion": lambda: (Calls(_recursive, linear=nn.Linear(4, 4)), (X,), {}),
    "writes to what it is given": lambda: (
        Calls(
            _mutating,
            first=nn.Linear(4, 4),
            inner=Calls(lambda _, x: x.mul_(2)),
            last=nn.Linear(4, 1),
        ),
        (X,),
        {},
    ),
    "not differentiable in between": lambda: (
        Calls(lambda self, x: self.a(x).round() * self.b(x), a=nn.Linear(4, 2), b=nn.Linear(4, 2)),
        (X,),
        {},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_run_and_compute_the_same(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    other = copy.deepcopy(model)
    plain = step(other, *args, **kwargs)
    with inspect(model) as run:
        watched = step(model, *args, **kwargs)
    assert len(plain) == len(watched)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
    assert run.facts.calls[0].forward.median > 0
    assert run.facts.nonfinite == ()


def test_an_infinity_hangs_nothing_and_each_step_is_told() -> None:
    model = Calls(lambda self, x: self.a(x) / 0, a=nn.Linear(4, 1))
    with inspect(model) as run:
        for _ in range(3):
            model(X).sum().backward()
    assert [each.step for each in run.facts.nonfinite] == [0, 1, 2]


def test_two_forwards_for_one_backward() -> None:
    model = nn.Linear(4, 1)
    with inspect(model) as run:
        (model(X) - model(2 * X)).sum().backward()
    assert [call.backward.median > 0 for call in run.facts.calls] == [True, True]


@pytest.mark.slow
def test_it_can_be_copied_and_saved_while_watched() -> None:
    model = torchvision.models.resnet18()
    with inspect(model):
        model.eval()(torch.rand(1, 3, 32, 32))
        torch.save(model, saved := io.BytesIO())
        copy.deepcopy(model)(torch.rand(1, 3, 32, 32))
    assert saved.tell() > 4 * 11e6


def test_gradients_that_accumulate_are_steps_of_their_own() -> None:
    model = nn.Linear(4, 1)
    with inspect(model, warm_up=0) as run:
        for _ in range(2):
            model(X).sum().backward()
    assert run.facts.steps == 2
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, 2 * X.sum(0))


def test_under_autocast_with_a_scaler() -> None:
    """A scaler looks for gradients that overflow, skips the step and goes on; that is counted, and not a finding."""
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu", init_scale=1e38, enabled=True)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=1.0), model.weight.detach().clone()
    with inspect(model) as run, torch.autocast("cpu", torch.bfloat16):
        scaler.scale(model(X * 1e3).float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(before, model.weight)
    assert scaler.get_scale() < 1e38
    assert (run.facts.nonfinite, run.facts.nonfinite_steps, run.facts.skipped_steps) == ((), 0, 1)
    assert run.facts.calls[0].output_memory == 2 * 2  # two values of bf16


@pytest.fixture
def one_process() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("which", ["wrapper", "module"])
def test_distributed_data_parallel(which: str) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    plain = step(copy.deepcopy(inner), X)
    wrapper = DistributedDataParallel(inner)
    with inspect(wrapper if which == "wrapper" else inner, warm_up=0) as run:
        for _ in range(2):
            inner.zero_grad()
            watched = step(wrapper, X)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
    assert run.facts.steps == 2
    first = "module.0" if which == "wrapper" else "0"
    assert by_path(run.facts)[first].backward.median > 0
    assert by_path(run.facts)[first].macs == 2 * 4 * 4


def test_modules_that_other_threads_call_are_theirs() -> None:
    model = nn.Linear(4, 1)
    with inspect(model, warm_up=0) as run:
        threads = [threading.Thread(target=lambda: model(X).sum().backward()) for _ in range(4)]
        for each in threads:
            each.start()
        model(X).sum().backward()
        for each in threads:
            each.join()
    assert run.facts.steps == 1
    assert len(run.facts.calls) == 1


# -- what is left behind -------------------------------------------------------------------------------------------------


def _state(model: nn.Module) -> list[Any]:
    tables = [
        (each._forward_hooks, each._forward_pre_hooks, each._backward_hooks)
        for each in model.modules()
    ]
    tensors = [(each._version, each._backward_hooks) for each in model.parameters()]
    own = [dict(each) for table in tables for each in table]
    return [
        hooks(),
        own,
        tensors,
        torch.get_rng_state().tolist(),
        list(map(dict, optimizer_hooks())),
    ]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["forward", "backward", "between"])
def test_nothing_is_left_behind(error: type[BaseException] | None, where: str) -> None:
    """Whether the step ends, raises or is interrupted, in any of its parts."""

    def fail(*_: Any) -> None:
        if error is not None:
            raise error

    def forward(_self: Any, x: Tensor) -> Tensor:
        if where == "forward":
            fail()
        return x * 1

    model = nn.Sequential(nn.Linear(4, 4), Calls(forward), nn.Linear(4, 1))
    before = _state(model)
    raised: list[type[BaseException]] = []
    try:
        with inspect(model) as run:
            result = model(X)
            if where == "between":
                fail()
            result.register_hook(fail if where == "backward" else lambda _: None)
            result.sum().backward()
    except (ValueError, KeyboardInterrupt) as caught:
        raised.append(type(caught))
    assert raised == ([] if error is None else [error])
    assert _state(model) == before
    assert run.facts.steps == 1


def test_a_context_that_is_entered_twice_is_refused_and_goes_on() -> None:
    model, before = nn.Linear(4, 1), hooks()
    run = inspect(model, warm_up=0)
    with run:
        with pytest.raises(InputError, match="has already started"):
            run.start()
        model(X).sum().backward()
    assert run.facts.steps == 1
    assert hooks() == before


def test_two_inspections_of_one_model_at_once() -> None:
    model, before = nn.Linear(4, 1), hooks()
    with inspect(model, warm_up=0) as outer, inspect(model, warm_up=0) as inner:
        model(X).sum().backward()
    assert outer.facts.steps == inner.facts.steps == 1
    assert hooks() == before


def test_a_recording_of_ones_own_inside_is_not_a_step() -> None:

    model = nn.Linear(4, 1)
    with inspect(model, warm_up=0) as run:
        crawl_module(model, (4,))
        model(X)
        crawl_module(model, (4,))
    assert run.facts.steps == 1
    assert run.facts.calls[0].input_shapes == ((2, 4),)


def test_a_graph_that_is_kept_is_looked_at_no_more() -> None:
    model = nn.Linear(4, 1)
    with inspect(model, on_nonfinite="raise") as run:
        result = model(X).sum()
        result.backward(retain_graph=True)
    assert run.facts.nonfinite == ()
    (result * math.inf).backward()
    assert model.weight.grad is not None


@pytest.mark.slow
def test_a_result_that_is_kept_does_not_keep_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    with inspect(model):
        result = model(X)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    result.sum().backward()


@pytest.mark.slow
@pytest.mark.sweep
def test_the_process_ends() -> None:
    """With a run that was never finished."""
    program = (
        "import torch; from torch import nn; from torchscan.inspection import inspect; model = nn.Linear(4, 1); "
        "run = inspect(model).start(); model(torch.ones(1, 4)).sum().backward(); print('over')"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert ended.stdout == "over\n"
    assert ended.stderr == ""


@pytest.mark.slow
def test_thousands_of_steps_are_thinned_out() -> None:
    """Of 3,000, about a thousand are kept, the last among them; all are counted."""
    model = nn.Linear(4, 1)
    with inspect(model, warm_up=2, expected=False) as run, torch.no_grad():
        for number in range(3000):
            model(X if number < 2999 else X * math.nan)
        inspector = run._inspector
    assert inspector is not None
    assert 500 < len(inspector.steps) <= 1024
    assert [inspector.steps[index].number for index in (0, 1, -1)] == [0, 1, 2999]
    assert run.facts.steps == 2998
    assert run.facts.nonfinite_steps == 1
    assert run.facts.nonfinite[0].step == 2999


def test_what_is_kept_of_a_step_does_not_grow_with_the_graph() -> None:
    """Nothing of the tensors, nodes or calls of a step outlives it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    kept = []
    with inspect(model, warm_up=0) as run:
        for _ in range(6):
            model(X).sum().backward()
            assert run._inspector is not None
            kept.append(len(run._inspector._tree.calls))
    assert kept == [4] * 6
    assert math.isclose(len(run.facts.calls), 4)


# -- steps ---------------------------------------------------------------------------------------------------------------


def test_an_interrupt_leaves_no_open_call() -> None:
    """Torch tells hooks nothing of it: the next pass is no child of the one that was interrupted."""
    interrupts = [False, True, False, False]

    def forward(self: Any, x: Tensor) -> Any:
        if interrupts.pop(0):
            raise KeyboardInterrupt
        return self.last(x)

    model = Calls(forward, last=nn.Linear(4, 1))
    run = inspect(model, warm_up=0).start()
    for _ in range(4):
        with contextlib.suppress(KeyboardInterrupt):
            model(X).sum().backward()
    run.finish()
    assert [call.depth for call in run.facts.calls] == [0, 1]
    assert run.facts.evaluation is not None
    assert (run.facts.steps, run.facts.num_differing, run.facts.evaluation.passes) == (3, 0, 1)


def test_the_usual_steps_are_told_of() -> None:
    """Ten of training, and one that validates."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with inspect(model, warm_up=0) as run:
        for _ in range(10):
            model(X).sum().backward()
        with torch.no_grad():
            model(X)
    assert run.facts.evaluation is not None
    assert (run.facts.steps, run.facts.num_differing, run.facts.evaluation.passes) == (10, 0, 1)
    assert run.facts.calls[1].grad_out_shapes == ((2, 4),)
    assert run.facts.backward.min > 0


@pytest.mark.parametrize("rows", [[3, 8, 8, 8], [8, 8, 8, 3]])
def test_steps_on_other_shapes_are_of_another_sort(rows: list[int]) -> None:
    """A smaller batch, first or last: shapes, memory and costs are those of the others."""
    model = nn.Linear(4, 1)
    with inspect(model, warm_up=0) as run:
        for number in rows:
            model(torch.rand(number, 4)).sum().backward()
    (call,) = run.facts.calls
    assert (call.input_shapes, call.macs, call.input_memory) == (((8, 4),), 32, 128)
    assert (run.facts.steps, run.facts.num_differing) == (4, 1)


def test_what_was_not_started_cannot_be_finished() -> None:
    run = inspect(nn.Linear(1, 1))
    with pytest.raises(InputError, match="has not started"):
        run.finish()
    run.start()
    assert run.finish().steps == 0


def test_passes_whose_graphs_are_gone_are_over() -> None:
    model = nn.Linear(4, 1)
    with inspect(model, warm_up=0) as run:
        for _ in range(5):
            model(X)
    assert run.facts.steps == 5


@pytest.mark.parametrize(
    "options",
    [{"warm_up": -1}, {"steps": 0}, {"warm_up": 1.5}, {"checks": len}, {"device": "nonsense"}],
)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        inspect(nn.Linear(1, 1), **options)


def test_the_users_exception_is_not_replaced() -> None:
    model = nn.Linear(4, 1)

    def spoil() -> None:
        model(X)
        with torch.no_grad():
            model.weight.fill_(math.nan)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), inspect(model, on_nonfinite="raise"):
        spoil()
