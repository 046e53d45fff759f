"""Steps of a model as the process that trains samples them, without a process that writes a run."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan.observing.model_hook import ModelHook
from torchscan.watching.call_sites import CallSites, SeriesNumbers
from torchscan.watching.row_statistics import columns_of
from torchscan.watching.sampled import Sampled, SampledValues
from torchscan.watching.step_samples import StepSamples, read_header
from torchscan.watching.wanted import wanted_of
from torchscan.watching.watcher import Watcher


class Process:
    """A writer that keeps the samples of each step."""

    last, reached, is_first = None, 0, False
    path = Path("rank0.sqlite")

    def __init__(self) -> None:
        self.samples: list[tuple[StepSamples, SeriesNumbers]] = []

    def put(self, samples: StepSamples, numbers: SeriesNumbers) -> None:
        """Keep the samples of a step."""
        self.samples.append((samples, numbers))

    def ignore(self, *_: object) -> None:
        """Do nothing."""

    begin_at = begin = send = send_row = lose = close = ignore


@contextmanager
def watching(model: nn.Module, log: str) -> Iterator[Process]:
    """Watch a model without a process that writes the run."""
    process: Any = Process()
    wanted = wanted_of(
        model,
        every=1,
        log=[log],
        modules=None,
        sample_n=512,
        sample_norms=False,
        whole=None,
        sinks=(),
        overhead_budget=0.01,
        graph=False,
    )
    watcher = Watcher(model, process, wanted, None)
    try:
        yield process
    finally:
        watcher.close()


class Step:
    """A sampled step, as a worker reads it from the memory."""

    def __init__(self, process: Process) -> None:
        ((samples, numbers),) = process.samples
        memory = mmap.mmap(-1, max(1, samples.nbytes))
        samples.write(memory, 0)
        self.sampled = Sampled.read(memory, 0, read_header(samples.header()))
        self.series = []
        for number, _ in self.sampled.series.tolist():
            self.series.append(numbers.new[number].series)

    def values(self) -> dict[str, list[float]]:
        """Return the sampled values of each series, by its label."""
        values = SampledValues(self.sampled, self.series)
        return {each.label: values[each].tolist() for each in self.series}


def input_gradients(model: nn.Module) -> dict[str, list[float]]:
    """Return what a step with an input of 1 records."""
    with watching(model, "input_grads") as process:
        model(torch.ones(1, 1)).sum().backward()
    return Step(process).values()


def layer(weight: float) -> nn.Linear:
    """Return a layer that multiplies by a number."""
    found = nn.Linear(1, 1, bias=False)
    nn.init.constant_(found.weight, weight)
    return found


class Readers(nn.Module):
    """``2 h + 100 · 3 h``: two layers read one tensor, given by position or by keyword."""

    def __init__(self, *, by_keyword: bool) -> None:
        super().__init__()
        self.first, self.a, self.b = layer(1.0), layer(2.0), layer(3.0)
        self.by_keyword = by_keyword

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.by_keyword:
            return self.a(input=hidden) + 100 * self.b(input=hidden)
        return self.a(hidden) + 100 * self.b(hidden)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_layers_that_read_one_tensor_have_the_gradients_that_they_contribute(
    *, by_keyword: bool
) -> None:
    """The gradient of the tensor itself, 302, belongs to neither."""
    model = Readers(by_keyword=by_keyword)
    assert input_gradients(model) == {"a input gradient": [2.0], "b input gradient": [300.0]}


class Product(nn.Module):
    """``3 x y``, and the result is written to ``y`` if ``writes``."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
        if self.writes:
            return 3 * y.mul_(x)
        return 3 * (x * y)


class Products(nn.Module):
    """A product of two results, 5 and 7."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.five, self.seven = layer(5.0), layer(7.0)
        self.product = Product(writes=writes)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.five(x), y=self.seven(x))


def test_inputs_by_position_and_by_keyword_are_numbered_together() -> None:
    """The derivatives of ``3 x y`` are 21 and 15."""
    model = Products(writes=False)
    assert input_gradients(model) == {
        "product input gradient": [21.0],
        "product input gradient 1": [15.0],
    }


def test_the_gradient_of_a_keyword_that_the_call_writes_to_is_that_of_what_it_was_given() -> None:
    """The derivative of ``3 x y`` by ``y`` is 15, and that by the product in its place 3."""
    model = Products(writes=True)
    # the product needs the value of 7 for the gradient of 5, so that is not computed
    model.five.requires_grad_(False)
    assert input_gradients(model) == {"product input gradient 1": [15.0]}


def test_the_values_of_a_keyword_are_those_before_the_call() -> None:
    """They are 5 and 7, and 35 afterwards, in the first step and in those with known calls."""
    model = Products(writes=True).requires_grad_(False)
    with watching(model, "inputs") as process:
        for _ in range(2):
            model(torch.ones(1, 1))
    steps = process.samples
    assert len(steps) == 2
    for sampled_step in steps:
        process.samples = [sampled_step]
        values = Step(process).values()
        assert values["product input"] == [5.0]
        assert values["product input 1"] == [7.0]


class Sum(nn.Module):
    """``2 x + 3 y``, or ``2 x`` alone."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return 2 * x if y is None else 2 * x + 3 * y


class Sums(nn.Module):
    """A sum of 5, and of 7 from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        self.five, self.seven, self.sum = layer(5.0), layer(7.0), Sum()
        self.options: list[dict[str, Any]] = [{}]

    def forward(self, x: Tensor) -> Tensor:
        results = self.sum(self.five(x), **self.options[-1])
        self.options.append({"y": self.seven(x)})
        return results


@pytest.mark.parametrize(
    ("log", "values"),
    [
        ("inputs", {"sum input": [5.0], "sum input 1": [7.0]}),
        ("input_grads", {"sum input gradient": [2.0], "sum input gradient 1": [3.0]}),
    ],
)
def test_a_keyword_input_that_first_appears_later_is_sampled(
    log: str, values: dict[str, list[float]]
) -> None:
    model = Sums()
    with watching(model, log) as process:
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
    first, second = process.samples
    for samples, known in ((first, 1), (second, 2)):
        process.samples = [samples]
        found = Step(process).values()
        of_sum = {label: each for label, each in found.items() if label.startswith("sum")}
        assert of_sum == dict(list(values.items())[:known])


def test_the_norm_of_a_large_gradient_is_that_of_all_values() -> None:
    """Two of 5,000 values are not 0: 3 and 4. The 512 sampled ones probably have neither."""
    model = nn.Linear(1, 5000, bias=False)
    factors = torch.zeros(5000)
    factors[3], factors[4321] = 3.0, -4.0
    with watching(model, "param_grads") as process:
        (factors * model(torch.ones(1, 1))).sum().backward()
    step = Step(process)
    assert len(step.values()["Linear.weight gradient"]) == 512
    assert columns_of(step.sampled).figures["norm"].tolist() == [5.0]


class Part(Tensor):
    """A stand-in for a sharded tensor: torch takes seconds to import those."""


class Gathers(nn.Module):
    """A layer whose parameter is replaced by another tensor while it runs, as FSDP does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1).as_subclass(Part))

    def forward(self, x: Tensor) -> Tensor:
        gathered = self.weight.detach().as_subclass(Tensor).clone().requires_grad_()
        return gathered * x


def test_steps_of_sharded_parameters_end_with_gradients_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No graph leads to the parameter, and no optimizer has stepped."""
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor._api", SimpleNamespace(DTensor=Part))
    model = Gathers()
    with watching(model, "outputs") as process:
        for _ in range(3):
            model(torch.ones(1)).sum().backward()
    assert [samples.step for samples, _ in process.samples] == [0, 1, 2]


class Listener:
    """A listener that keeps the modules of calls."""

    def __init__(self) -> None:
        self.open_calls: list[tuple[nn.Module, Any]] = []
        self.modules: list[nn.Module] = []

    def forget_open(self) -> None:
        """Forget calls that were interrupted."""
        self.open_calls.clear()

    def note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Keep the module of a call."""
        self.open_calls.append((module, args))
        self.modules.append(module)

    def note_end(self, *_: Any) -> None:
        """Note the end of a call."""
        self.open_calls.pop()


def test_calls_after_a_sampled_step_are_not_reported() -> None:
    begun: list[nn.Module] = []
    model, listener = nn.Sequential(nn.Linear(1, 1)), Listener()
    hook = ModelHook(model, lambda module, _: begun.append(module), lambda: None)
    hook.follow(listener)
    model(torch.ones(1))
    hook.forget_listener()
    hook.await_call()
    model(torch.ones(1))
    hook.close()
    assert listener.modules == [model, model[0]]
    assert begun[:2] == [model, model]


@pytest.mark.parametrize(("path", "is_sampled"), [("", True), ("0", False)])
def test_a_compiled_module_around_the_model_is_sampled_as_the_model(
    path: str, *, is_sampled: bool
) -> None:
    """``torch.compile`` returns a module that holds the model; the user has chosen one path."""
    model = nn.Sequential(nn.Linear(1, 1))
    around = nn.Sequential(model)
    sites = CallSites(SeriesNumbers(), lambda each, _: each == path)
    sites.update(model, around)
    of_model, of_around = sites.site(model, 0), sites.site(around, 0)
    assert of_model is not None
    assert of_around is not None
    assert (of_model.is_sampled, of_around.is_sampled) == (is_sampled, is_sampled)
    assert (of_model.path, of_around.path) == ("", "")


class Interruption(BaseException):
    """An exception like that of Ctrl-C: torch runs no hook of the calls that it leaves."""


class Interrupted(nn.Module):
    """Never returns."""

    def forward(self, x: Tensor) -> Tensor:
        raise Interruption


class Recovers(nn.Module):
    """Returns ``2 x`` instead of the result of a module that is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Interrupted()

    def forward(self, x: Tensor) -> Tensor:
        with pytest.raises(Interruption):
            self.part(x)
        return 2 * x


def test_the_result_of_a_call_is_sampled_if_calls_inside_it_were_interrupted() -> None:
    """The calls of both modules are open when the inner one ends without notice.

    The layer behind them doubles 2 and adds nothing.
    """
    model = nn.Sequential(Recovers(), layer(2.0))
    with watching(model, "outputs") as process:
        model(torch.ones(1, 1)).sum().backward()
    assert Step(process).values() == {
        "0 output": [2.0],
        "1 output": [4.0],
        "Sequential output": [4.0],
    }


class Unbound(nn.Module):
    """Twice, three times and four times the input, as results of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.weights * x).unbind(1)


def test_a_later_hook_of_any_result_of_an_operator_changes_no_recorded_gradient() -> None:
    """The loss is 5 a + 7 c, and the hooks multiply what the operator gets."""
    model = Unbound()
    with watching(model, "output_grads") as process:
        first, _, third = model(torch.ones(1, 1))
        for result, factor in ((first, 10), (third, 1000)):
            result.register_hook(partial(torch.mul, other=factor))
        (5 * first + 7 * third).sum().backward()
    assert Step(process).values() == {
        "Unbound output gradient": [5.0],
        "Unbound output gradient 2": [7.0],
    }
    assert model.weights.grad is not None
    assert model.weights.grad.tolist() == [50.0, 0.0, 7000.0]


def test_a_later_hook_of_a_result_does_not_change_the_recorded_gradient() -> None:
    """The loss is five times the result; the hook triples what the layer itself gets."""
    model = layer(2.0)
    with watching(model, "output_grads") as process:
        result = model(torch.ones(1, 1))
        result.register_hook(lambda gradient: 3 * gradient)
        (5 * result).sum().backward()
    assert Step(process).values() == {"Linear output gradient": [5.0]}
    assert model.weight.grad is not None
    assert model.weight.grad.item() == 15
