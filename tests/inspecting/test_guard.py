"""After the timed steps, the loss, gradients and parameters of every step are checked to the end."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torchs

from torchscan import NonFiniteError, inspect, torch_versions
from torchscan.inspecting import finiteness, loss_graph, training_checks
from torchscan.inspecting.root_call import ModuleSteps
from torchscan.inspection import guard_of, inspect_within
from torchscan.observing.compiling import CompileWatch
from torchscan.torch_versions import RUNS_BACKWARD

TWO_THREADS = """
import sys, threading, torch

torch.set_num_threads(1)
sys.setswitchinterval(1e-5)

def train():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.rand(4, 8)).square().sum().backward()
        optimizer.step()

threads = [threading.Thread(target=train) for _ in range(2)]
[each.start() for each in threads]
[each.join() for each in threads]
print("all steps are taken")
"""


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
    )


def take(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor | None = None) -> Tensor:
    loss = F.cross_entropy(model(torch.randn(16, 8) if x is None else x), torch.randint(4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def places() -> list[object]:
    """What is replaced or added while steps are checked."""
    scaler = vars(torch.amp.GradScaler)
    hooks = [len(torchs._global_forward_hooks), len(torchs._global_forward_pre_hooks)]
    return [
        *hooks,
        getattr(*RUNS_BACKWARD),
        scaler["scale"],
        scaler["step"],
        torch.is_anomaly_enabled(),
    ]


def test_it_is_raised_in_the_step_that_makes_it_and_everything_is_put_back() -> None:
    model, before = net(), places()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = inspect(model, steps=2, on_nonfinite="raise").start()
    for _ in range(12):
        take(model, optimizer)
    with pytest.raises(NonFiniteError, match="step 12: first NaN in the input of the model"):
        take(model, optimizer, torch.full((16, 8), math.nan))
    run.finish()
    assert places() == before
    assert (run.facts.steps, run.facts.checked_steps) == (2, 13)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_numbers_of_timed_and_checked_steps_are_printed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with inspect(model, steps=3) as run:
        for _ in range(9):
            take(model, optimizer)
    text = " ".join(str(run).split())
    assert "Medians of 3 steps after 1 warm-up step" in text
    assert "9 training steps checked for NaN and Inf" in text


@pytest.mark.slow
def test_training_is_the_same_bit_by_bit() -> None:
    def trained(*, is_checked: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        if not is_checked:
            return [
                *(take(model, optimizer) for _ in range(12)),
                *model.state_dict().values(),
                torch.rand(1),
            ]
        with inspect(model, steps=1):
            return [
                *(take(model, optimizer) for _ in range(12)),
                *model.state_dict().values(),
                torch.rand(1),
            ]

    for one, other in zip(trained(is_checked=False), trained(is_checked=True), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_a_second_look_changes_nothing() -> None:
    """Random state, running statistics and gradients are as without it."""

    def trained(*, is_checked: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        inputs = [torch.randn(16, 8) for _ in range(6)]
        inputs[4][0] = math.nan

        def run() -> list[Tensor]:
            for x in inputs:
                take(model, optimizer, x)
            gradients = [
                parameter.grad for parameter in model.parameters() if parameter.grad is not None
            ]
            return [*model.state_dict().values(), *gradients, torch.rand(1)]

        if not is_checked:
            return run()
        with inspect(model, steps=1) as inspected:
            made = run()
        assert [found.step for found in inspected.facts.nonfinite] == [4]
        return made

    for one, other in zip(trained(is_checked=False), trained(is_checked=True), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_a_model_is_let_go_while_steps_of_others_are_checked() -> None:
    kept, other = net(), net()
    gone = weakref.ref(other)
    optimizer = torch.optim.SGD(kept.parameters(), 0.1)
    with inspect(kept, steps=1):
        take(other, torch.optim.SGD(other.parameters(), 0.1))
        del other
        take(kept, optimizer)
        gc.collect()
        assert gone() is None


def test_a_gradient_that_overflows_with_its_scale_is_a_skipped_step() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=1e-30)
    with inspect(model, steps=1, on_nonfinite="raise") as run:
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 8), 100.0)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (run.facts.skipped_steps, run.facts.first_skipped, run.facts.nonfinite) == (1, 0, ())
    assert "GradScaler skipped 1 step" in str(run)


def test_the_optimizer_of_another_model_is_none_of_this_inspection() -> None:
    model, other = net(), nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    foreign = torch.optim.SGD(other.parameters(), lr=math.inf)
    with inspect(model, steps=1) as run:
        for _ in range(4):
            take(model, optimizer)
            foreign.zero_grad()
            other(torch.randn(2, 8)).sum().backward()
            foreign.step()
    assert run.facts.nonfinite == ()


@pytest.mark.parametrize("is_called_last", [False, True])
def test_steps_are_those_of_the_inspected_model(*, is_called_last: bool) -> None:
    """Another model trains twice as often; the loss of both is NaN in the fourth step."""
    model, other = nn.Linear(8, 4), nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.01)
    order = (other, model) if is_called_last else (model, other)
    with inspect(model, steps=1) as run:
        for step in range(4):
            optimizer.zero_grad()
            other(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            first, last = (each(torch.randn(2, 8)) for each in order)
            loss = (first + last).sum()
            if step == 3:
                loss = loss * math.nan
            loss.backward()
            optimizer.step()
    assert [found.step for found in run.facts.nonfinite] == [3]


def test_only_the_first_thread_that_trains_is_checked() -> None:
    first, second = nn.Linear(8, 4), nn.Linear(8, 4)
    guard = guard_of("record")

    def train_second() -> None:
        optimizer = torch.optim.SGD(second.parameters(), 0.1)
        for _ in range(3):
            take(second, optimizer, torch.full((16, 8), math.nan))

    guard.start()
    optimizer = torch.optim.SGD(first.parameters(), 0.1)
    for _ in range(3):
        take(first, optimizer)
        other = threading.Thread(target=train_second, name="second")
        other.start()
        other.join()
    guard.finish()
    facts = guard.facts()
    assert (facts.checked_steps, facts.findings, facts.unchecked_threads) == (3, (), ("second",))


@pytest.mark.slow
@pytest.mark.sweep
def test_threads_that_each_train_a_model_do_not_crash(tmp_path: Path) -> None:
    """Gradients that another thread frees meanwhile must not be read."""
    (tmp_path / "program.py").write_text(TWO_THREADS)
    command = [sys.executable, "-m", "torchscan", "inspect", "--", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0
    assert "all steps are taken" in done.stdout
    assert "Only the first thread that trains is checked" in " ".join(done.stderr.split())


def test_anomaly_mode_of_the_users_stays_on() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.autograd.set_detect_anomaly(True, check_nan=False), inspect(model, steps=1):
        for _ in range(4):
            take(model, optimizer)
            assert torch.is_anomaly_enabled()


def test_anomaly_mode_around_the_backward_pass_raises_as_ever() -> None:
    model = nn.Linear(2, 2)
    with inspect(model, steps=1):
        for _ in range(3):
            loss = (model(torch.zeros(3, 2)) * 0).sqrt().sum()
            with (
                torch.autograd.set_detect_anomaly(True),
                pytest.raises(RuntimeError, match="returned nan values"),
            ):
                loss.backward()


def test_anomaly_mode_set_between_model_and_loss_stays_on_to_the_end() -> None:
    model, before = nn.Linear(2, 2), places()
    with inspect(model, steps=1) as run:
        model(torch.zeros(1, 2))
        assert not torch.is_anomaly_enabled()
        with torch.autograd.set_detect_anomaly(True):
            loss = (model(torch.zeros(3, 2)) * 0).sqrt().sum()
            assert torch.is_anomaly_enabled()
            with pytest.raises(RuntimeError, match="returned nan values"):
                loss.backward()
            run.finish()
            assert torch.is_anomaly_enabled()
    assert places() == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_inherit_notes_of_lines() -> None:
    model = nn.Linear(2, 2)
    with inspect(model, steps=1):
        loss = model(torch.zeros(3, 2)).sum()
        assert torch._C.is_anomaly_enabled()
        child = os.fork()
        if child == 0:
            os._exit(int(torch._C.is_anomaly_enabled()))
        assert os.waitpid(child, 0)[1] == 0
        loss.backward()
        assert not torch._C.is_anomaly_enabled()


def test_inspections_that_overlap_put_everything_back() -> None:
    first, second, before = nn.Linear(2, 2), nn.Linear(2, 2), places()
    runs = [inspect(first, steps=1).start(), inspect(second, steps=1).start()]
    for run in runs:
        for model in (first, second):
            model(torch.ones(1, 2)).sum().backward()
        run.finish()
    assert places() == before
    assert [run.facts.checked_steps for run in runs] == [1, 2]


@pytest.mark.slow
def test_inputs_of_an_evaluation_and_interrupted_optimizers_are_let_go() -> None:
    model = nn.Linear(2, 2)
    guard = guard_of("record")
    guard.start()
    model(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        batch = torch.rand(3, 2)
        model(batch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def interrupt() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupt)
    gone = weakref.ref(batch), weakref.ref(optimizer)
    del batch, optimizer
    model(torch.rand(3, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    guard.finish()


def test_a_parameter_outside_of_modules_is_reported_once() -> None:
    model, shift = nn.Linear(2, 2), torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), shift], 0.1)
    with inspect(model, steps=1) as run:
        for step in range(9):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)).sum() + shift).square().sum().backward()
            if step == 3:
                shift.grad.fill_(math.nan)  # type: ignore[union-attr] # it is there
                model.zero_grad()
            optimizer.step()
    assert [found.step for found in run.facts.nonfinite] == [3]


def test_threads_that_train_one_after_another_are_checked() -> None:
    """So is one that trains beside a thread that only evaluates."""
    guard, model = guard_of("record"), nn.Linear(8, 4)

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            take(model, optimizer)

    guard.start()
    with torch.no_grad():
        net()(torch.rand(16, 8))
    for _ in range(2):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    guard.finish()
    facts = guard.facts()
    assert (facts.checked_steps, facts.unchecked_threads) == (4, ())


def test_a_graph_that_is_kept_gathers_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of a Jacobian after the other goes through the same nodes."""
    model, x = nn.Linear(4, 8), torch.rand(4, requires_grad=True)
    ran: list[int] = []
    note = loss_graph._NodeHook.__call__

    def counted(self: loss_graph._NodeHook, made: object, given: object) -> None:
        ran.append(1)
        note(self, made, given)  # type: ignore[arg-type]

    monkeypatch.setattr(loss_graph._NodeHook, "__call__", counted)
    guard = guard_of("record")
    guard.start()
    for row in model(x).tanh():
        torch.autograd.grad(row, x, retain_graph=True)
    guard.finish()
    assert 0 < len(ran) <= 3 * 8  # tanh in each row, and the nodes that take a row


def test_gradients_on_a_device_are_not_kept_in_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU stands in for the device: the values that are kept are those of a device."""
    monkeypatch.setattr(loss_graph, "is_on_device", lambda _: True)
    start = torch.rand(1000, requires_grad=True)
    hidden = start * 2
    loss = hidden.tanh().sum()
    graph = loss_graph.LossGraph([loss], lambda _: False)
    graph.follow()
    loss.backward()
    kept = [
        each for noted in graph._gradients.values() if isinstance(noted, list) for each in noted
    ]
    assert kept
    assert all(each.numel() == 1 for each in kept)
    assert graph.find_gradient_source() is None
    assert finiteness.max_magnitudes_of([torch.tensor([1.0, math.nan]), torch.empty(0)])[0].isnan()


class Breaking(nn.Module):
    """A layer whose sixth call returns NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        y = self.layer(x)
        return (y * 0 - 1).log() if self.num_calls == 6 else y


@pytest.mark.parametrize(
    ("is_in_gradient", "said"),
    [(False, "the loss was NaN at"), (True, "the gradient of layer.weight")],
)
def test_a_check_that_is_read_in_the_next_step_names_its_own(
    is_in_gradient: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU stands in for the device. No place is claimed: parameters have changed since."""
    monkeypatch.setattr(training_checks, "is_on_device", lambda _: True)
    model = nn.Sequential() if is_in_gradient else Breaking()
    if is_in_gradient:
        model.layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with inspect(model, steps=1) as run:
        for step in range(9):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum()
            if is_in_gradient and step == 5:
                loss.register_hook(lambda gradient: gradient * math.nan)
            loss.backward()
            optimizer.step()
    (found,) = run.facts.nonfinite
    assert found.step == 5
    assert found.description.startswith(said)
    assert "in the output of" not in found.description


def test_after_a_finding_on_a_device_one_step_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The NaN of step 5 is read when step 6 begins, which then waits for its values, and is fine."""
    deferred: set[int] = set()
    now: list[int] = []

    def is_on_device(_: Tensor) -> bool:
        deferred.add(now[-1])
        return True

    monkeypatch.setattr(training_checks, "is_on_device", is_on_device)
    model = Breaking()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with inspect(model, steps=1):
        for step in range(12):
            now.append(step)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert set(now) - deferred == {6}


def train_on_two_losses(y: Tensor, model: nn.Module, value: float) -> None:
    y.sum().backward(retain_graph=True)
    (y * 0 + value).sqrt().sum().backward()


def assign_gradients(y: Tensor, model: nn.Module, value: float) -> None:
    parameters = list(model.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(y.sum(), parameters), strict=True
    ):
        parameter.grad = gradient * math.sqrt(value) if value > 0 else gradient * math.nan


def give_a_gradient(y: Tensor, model: nn.Module, value: float) -> None:
    y.backward(torch.full_like(y, value if value > 0 else math.nan))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (train_on_two_losses, "source: aten.sqrt"),
        (
            assign_gradients,
            "the gradient of weight (4 NaN of 4 values) and 1 more was not finite before SGD.step()",
        ),
        (give_a_gradient, "first NaN in the gradient that was passed to backward()"),
    ],
)
def test_a_gradient_that_is_nan_is_not_charged_to_the_optimizer(
    train: Callable[[Tensor, nn.Module, float], None], said: str
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with inspect(model, steps=1) as run:
        for step in range(5):
            optimizer.zero_grad()
            train(model(torch.ones(3, 2)), model, -1.0 if step == 3 else 1.0)
            optimizer.step()
    found = run.facts.nonfinite[0]
    assert found.step == 3
    assert said in found.description
    assert found.phase != "optimizer"


class Masked(nn.Module):
    """Attention with a mask that is a parameter, or a buffer."""

    def __init__(self, *, is_parameter: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
        if is_parameter:
            self.mask = nn.Parameter(mask, requires_grad=False)
        else:
            self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) @ x.T + self.mask).softmax(-1) @ x


@pytest.mark.parametrize("is_parameter", [True, False])
def test_infinities_of_a_mask_hide_no_nan(is_parameter: bool) -> None:
    model = Masked(is_parameter=is_parameter)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with inspect(model, steps=1) as run:
        for step in range(7):
            optimizer.zero_grad()
            loss = model(torch.rand(4, 4)).mean()
            (loss * 0 + (-1 if step == 4 else 1)).log().backward()
            if step == 4:
                optimizer.zero_grad()
            elif step == 6:
                with torch.no_grad():
                    model.mask.fill_(math.nan)
            optimizer.step()
    first, second = run.facts.nonfinite
    assert (first.step, first.operator) == (4, "aten.log")
    assert (second.step, second.phase, second.weights[0].name) == (6, "update", "mask")


class Locked(Breaking):
    """A model that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class OfList(nn.Module):
    """A model that is given a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Breaking()

    def forward(self, xs: list[Tensor]) -> Tensor:
        result: Tensor = self.inner(xs[0])
        return result


class OfKeyword(nn.Module):
    """A model of the logarithm of a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, *, x: Tensor) -> Tensor:
        return self.layer(x.log())


def call_with_list(model: nn.Module, step: int) -> Tensor:
    return model([torch.ones(1, 2, requires_grad=True) * 1])


def call_with_buffer(model: nn.Module, step: int) -> Tensor:
    buffer = torch.full((1, 2), -1.0 if step == 5 else 1.0)
    loss = model(x=buffer).sum()
    buffer.fill_(1.0)
    return loss


def call_plainly(model: nn.Module, step: int) -> Tensor:
    return model(torch.ones(1, 2))


@pytest.mark.parametrize(
    ("make", "call", "reason"),
    [
        (Locked, call_plainly, "repeating the call raised "),
        (OfList, call_with_list, "its inputs are results of other calls, in a container"),
        (OfKeyword, call_with_buffer, "its inputs have been written to since"),
    ],
)
def test_a_call_that_cannot_be_repeated_is_named_with_the_reason(
    make: Callable[[], nn.Module], call: Callable[[nn.Module, int], Tensor], reason: str
) -> None:
    model = make()
    with inspect(model, steps=1) as run:
        for step in range(6):
            call(model, step).sum().backward()
    (found,) = run.facts.nonfinite
    assert found.step == 5
    assert found.phase == "forward"
    assert reason in str(found.unknown)
    assert "was garbage-collected" in str(found.unsure)


def test_nodes_of_calls_that_are_no_longer_kept_are_the_models() -> None:
    """Of 60 calls in a step, the NaN is made in the fifth."""
    model = Breaking()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with inspect(model, steps=1) as run:
        for step in range(3):
            optimizer.zero_grad()
            model.num_calls = 0 if step == 2 else 10
            h = torch.zeros(1, 2)
            for _ in range(60):
                h = model(h)
            h.sum().backward()
            optimizer.step()
    (found,) = run.facts.nonfinite
    assert (found.step, found.phase) == (2, "forward")
    assert found.operator is None


def test_of_a_sparse_gradient_the_updated_rows_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer writes to no others: a table of a million rows is not read for four of them."""
    table = nn.Embedding(1000, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 1e38)
    sizes: list[int] = []
    join_values = torch_versions.join_values

    def measured(tensors: list[Tensor]) -> Tensor:
        sizes.extend(each.numel() for each in tensors)
        return join_values(tensors)

    monkeypatch.setattr(training_checks, "join_values", measured)
    with inspect(table, steps=1) as run:
        for step in range(4):
            optimizer.zero_grad()
            (table(torch.tensor([1, 5, 7])) * (100 if step == 3 else 1e-38)).sum().backward()
            optimizer.step()
    (found,) = run.facts.nonfinite
    assert (found.step, found.phase) == (3, "optimizer")
    assert 0 < max(sizes) <= 3 * 4


class _Interrupted(nn.Module):
    """A model that is interrupted once, as by Ctrl-C: torch reports no end of its call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.is_interrupted = True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        result: Tensor = self.layer(x)
        return result


@pytest.mark.parametrize("is_same", [False, True], ids=["another model", "the same model"])
def test_models_are_checked_after_a_call_that_was_interrupted(is_same: bool) -> None:
    interrupted = _Interrupted()
    model = interrupted if is_same else nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = guard_of("record")
    guard.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(torch.rand(2, 8))
        take(model, optimizer)
        take(model, optimizer, torch.full((16, 8), math.nan))
    finally:
        guard.finish()
    facts = guard.facts()
    assert facts.checked_steps == 2
    assert [(each.step, each.phase) for each in facts.findings] == [(1, "input")]


def test_gradients_of_inputs_end_no_checked_step() -> None:
    """FGSM: in each step the gradient of the input comes first."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = guard_of("record")
    guard.start()
    try:
        for _ in range(3):
            x = torch.randn(16, 8, requires_grad=True)
            (gradient,) = torch.autograd.grad(model(x).sum(), x)
            take(model, optimizer, (x + gradient.sign()).detach())
    finally:
        guard.finish()
    assert guard.facts().checked_steps == 3


class _Hides(nn.Linear):
    """A module whose names hide methods of torch."""

    modules = None  # type: ignore[assignment]

    def parameters(self, decay: float) -> list[Tensor]:  # type: ignore[override]
        return [self.weight, self.bias]


def test_another_model_that_hides_methods_of_torch_trains() -> None:
    model, other = net(), _Hides(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    beside = torch.optim.SGD(other.parameters(0.1), 0.1)
    with inspect(model, steps=1) as run:
        for _ in range(3):
            take(model, optimizer)
            beside.zero_grad()
            other(torch.randn(2, 8)).sum().backward()
            beside.step()
    assert run.facts.checked_steps == 3


def test_an_internal_error_ends_no_training_where_warnings_are_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monkeypatch.setattr(training_checks.TrainingChecks, "check_loss", fail)
    with warnings.catch_warnings(), inspect(model, steps=1):
        warnings.simplefilter("error")
        take(model, optimizer)
    assert "stopped checking for NaN" in capsys.readouterr().err


@pytest.mark.slow
def test_modules_that_live_for_a_step_do_not_gather() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    alive: list[nn.Module] = []
    with inspect(model, steps=1):
        for number in range(400):
            head = nn.Linear(4, 2)
            head(model(torch.randn(2, 8))).sum().backward()
            alive = [*alive, head] if number % 7 else []  # the next has another address
            if number % 100 == 0:
                take(model, optimizer)
        gc.collect()
        num_known = sum(type(each) is ModuleSteps for each in gc.get_objects())
    assert num_known < 300


@pytest.mark.parametrize("size", [8, 80])
def test_gradient_that_a_hook_spoils_uncounted_is_found_after_the_pass(size: int) -> None:
    """Large gradients that the inspection has checked are read again if hooks may write to them."""
    layer = nn.Conv1d(size, size, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)

    def spoil(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.data.fill_(torch.inf)

    with inspect(layer) as run:
        for step in range(3):
            if step == 2:
                layer.weight.register_post_accumulate_grad_hook(spoil)
            optimizer.zero_grad()
            layer(torch.ones(2, size, 4)).mean().backward()
            optimizer.step()
    found = run.facts.nonfinite[0]
    assert (found.step, found.phase) == (2, "backward")


def test_filters_for_warnings_are_set_once() -> None:
    """A filter that changes makes Python forget which warnings it has shown."""
    watch = CompileWatch(lambda: None, lambda: None)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(3):
            watch.ignore_hooks()
            warnings.warn("the model is old", UserWarning, stacklevel=1)
        watch.close()
    assert [str(each.message) for each in shown] == ["the model is old"]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_stays_as_the_program_has_it(is_enabled: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    states = []

    def take_step(scale: float) -> None:
        optimizer.zero_grad()
        loss = model(torch.rand(2, 4)).sum() * scale
        states.append(gc.isenabled())
        loss.backward()
        optimizer.step()
        states.append(gc.isenabled())

    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        run = inspect(model, on_nonfinite="raise").start()
        take_step(1.0)
        with pytest.raises(NonFiniteError):
            take_step(math.nan)
        run.finish()
        states.append(gc.isenabled())
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert states == [is_enabled] * 4


def test_calls_of_other_modules_are_noted_with_their_start_and_end() -> None:
    """Those without parameters take no part in training."""
    model, other, plain = nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()
    guard, before = guard_of("record"), time.time_ns()
    guard.start()
    with inspect_within(guard, model, steps=2, on_nonfinite="record"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            other(plain(torch.ones(1, 2)))
    guard.finish()
    first, second = guard.other_calls
    assert before <= first[0] < first[1] <= second[0] < second[1] <= time.time_ns()
