"""An interrupt leaves nothing behind, whenever it comes; neither do threads that train and processes that fork."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.observables import observables
from tests.recording.test_nothing_left_behind import Messy
from tests.sweeps import some_of
from torchscan import InputError, TorchscanError, estimate_memory, record

PACKAGE = str(Path(torchscan.__file__).parent)
HOW_OFTEN = int(os.environ.get("TORCHSCAN_INTERRUPTS", "30"))


class Trained(nn.Module):
    """Differentiable, with statistics and a buffer that counts."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 2))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.body(x)
        return self.last


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "shapes": (Messy, {"execute": "abstract", "mode": "train"}),
    "real": (Messy, {"execute": "real", "mode": "train"}),
    "backward": (Trained, {"training": True}),
    "autocast": (Trained, {"training": True}),
}


def scan(case: str, model: nn.Module) -> object:
    options = CASES[case][1]
    if case == "autocast":
        return estimate_memory(
            model, (4,), batch_size=2, optimizer="AdamW", precision="bf16-mixed", **options
        )
    return record(model, (4,), batch_size=2, **options)


class Interrupt(BaseException):
    """Raised wherever the program happens to be."""


# -- signals -------------------------------------------------------------------------------------------------------------


def is_interrupted(seconds: float, run: Callable[[], object]) -> bool:
    """Run it, with an alarm that is answered as Ctrl-C is."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        run()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def seconds_of(case: str, model: nn.Module) -> float:
    start = time.perf_counter()
    scan(case, model)
    return time.perf_counter() - start


# where it hits a callback of the garbage collector (hypothesis has one), Python can only report it
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_signal_at_any_instant_changes_nothing(case: str) -> None:
    model = CASES[case][0]()
    whole = min(seconds_of(case, model) for _ in range(5))
    instants = random.Random(0)  # noqa: S311
    before = observables(model)
    interrupted = 0
    for _ in range(HOW_OFTEN):
        interrupted += is_interrupted(
            max(instants.uniform(0, 1.2 * whole), 1e-5), lambda: scan(case, model)
        )
        assert observables(model) == before
    assert interrupted


def test_a_signal_while_the_model_runs_ends_it_at_once() -> None:
    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(1000):
                time.sleep(0.01)
            return x

    start = time.perf_counter()
    assert is_interrupted(0.05, lambda: record(Slow(), (4,)))
    assert time.perf_counter() - start < 5


def test_a_handler_that_goes_on_is_called_and_the_pass_goes_on() -> None:
    calls: list[int] = []

    class Signals(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                signal.raise_signal(signal.SIGUSR1)
                time.sleep(0.001)
            return x + 1

    before = signal.signal(signal.SIGUSR1, lambda number, _frame: calls.append(number))
    try:
        assert len(record(Signals(), (4,)).ops) == 1
        assert calls == [signal.SIGUSR1] * 3
    finally:
        signal.signal(signal.SIGUSR1, before)


SIGNALS = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGQUIT",
    "SIGALRM",
    "SIGVTALRM",
    "SIGPROF",
    "SIGUSR1",
    "SIGUSR2",
)


@pytest.mark.parametrize("name", [each for each in SIGNALS if hasattr(signal, each)])
def test_no_signal_breaks_off_what_puts_things_back(name: str) -> None:
    """It comes as this begins, and is answered when everything is as before."""
    number = getattr(signal, name)
    model = Messy()
    answered: list[bool] = []

    def answer(_number: int, _frame: object) -> None:
        answered.append(observables(model) == before)
        raise Interrupt

    def come(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_name == "now" and frame.f_code.co_filename.endswith("undo.py"):
            sys.settrace(None)
            signal.raise_signal(number)

    usual = signal.signal(number, answer)
    before = observables(model)
    sys.settrace(come)
    try:
        with pytest.raises(Interrupt):
            scan("real", model)
        assert answered == [True]
        assert observables(model) == before
    finally:
        sys.settrace(None)
        signal.signal(number, usual)


# -- lines ---------------------------------------------------------------------------------------------------------------


class Lines:
    """Notes the lines of torchscan that run."""

    def __init__(self) -> None:
        self.met: dict[tuple[str, int], None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.met.setdefault((frame.f_code.co_filename, frame.f_lineno))
        return self


class RaisesAt:
    """Raises the first time that a line runs, and sees no lines of other functions."""

    def __init__(self, file: str, line: int) -> None:
        self._file, self._line = file, line

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if event == "call":
            is_there = code.co_filename == self._file and self._line in _lines_of(code)
            return self if is_there else None
        if event == "line" and frame.f_lineno == self._line:
            raise Interrupt  # which ends the tracing
        return self


@cache
def _lines_of(code: CodeType) -> frozenset[int | None]:
    return frozenset(line for _, _, line in code.co_lines())


def restoring_lines(case: str) -> list[tuple[str, int]]:
    """Those that run after the last line of the model."""
    model = CASES[case][0]()
    scan(case, model)
    lines = Lines()
    forget = model.register_forward_hook(lambda *_: lines.met.clear())
    sys.settrace(lines)
    try:
        scan(case, model)
    finally:
        sys.settrace(None)
        forget.remove()
    return list(lines.met)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("case", some_of(CASES, set(CASES) - {"shapes"}))
def test_an_exception_at_any_line_that_puts_things_back_changes_nothing(
    case: str, part: int
) -> None:
    """Each part has every fourth line."""
    changed = []
    places = restoring_lines(case)
    assert {Path(file).name for file, _ in places} >= {
        "state.py",
        "undo.py",
        "call_tree.py",
        "running.py",
    }
    model = CASES[case][0]()
    before = observables(model)
    for place in places[part::4]:
        sys.settrace(RaisesAt(*place))
        try:
            with contextlib.suppress(Interrupt, TorchscanError):
                scan(case, model)
        finally:
            sys.settrace(None)
        if observables(model) != before:
            changed.append(place)
            model = CASES[case][0]()
            before = observables(model)
    assert changed == []


# -- threads -------------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, steps: int, started: threading.Event | None = None) -> list[float]:
    """The losses of a training loop that holds graphs, versions and gradients all the time."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.linspace(-1, 1, 64).view(16, 4), torch.linspace(0, 1, 32).view(16, 2)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if started is not None:
            started.set()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"execute": "real"}, {"training": True}],
    ids=["shapes", "real", "backward"],
)
def test_a_training_in_another_thread_goes_on_as_if_alone(options: Any) -> None:
    """The model has no state of its own to be put back; a scan that meets it in its forward pass says so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
    twin = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
    twin.load_state_dict(model.state_dict())
    losses: list[float] = []
    started = threading.Event()
    thread = threading.Thread(target=lambda: losses.extend(trained(model, 150, started)))
    thread.start()
    started.wait()
    scans = 0
    while thread.is_alive():
        with contextlib.suppress(InputError):
            record(model, (4,), batch_size=3, mode="same", **options)
            scans += 1
    assert scans
    assert losses == trained(twin, 150)


def test_a_model_that_runs_elsewhere_is_refused_in_one_line() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            entered.set()
            leave.wait(10)
            return x + 1

    model = nn.Sequential(Waits())
    thread = threading.Thread(target=lambda: model(torch.ones(2)))
    thread.start()
    entered.wait(10)
    try:
        with pytest.raises(
            InputError,
            match=r"another thread is running this model \(Sequential\)[^\n]*deepcopy",
        ):
            record(model, (4,))
        assert len(record(nn.Linear(4, 4), (4,)).ops) == 1  # another model may be looked at
    finally:
        leave.set()
        thread.join()


# -- processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_that_is_forked_while_another_thread_records_can_record() -> None:
    code = """
import os, sys, threading, time, warnings
import torch, torchscan
from torch import nn
from tests.observables import process_state
warnings.simplefilter("ignore")
entered, leave = threading.Event(), threading.Event()

class Waits(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        self.kept = x
        torch.set_default_dtype(torch.float64)
        entered.set()
        leave.wait(20)
        return self.linear(x)

torch.set_num_threads(1)
model = Waits().train()
before = process_state()
thread = threading.Thread(target=lambda: torchscan.record(model, (4,), execute="real"))
thread.start()
entered.wait(20)
child = os.fork()
if child == 0:
    assert process_state() == before, (process_state(), before)
    assert model.training and not hasattr(model, "kept")
    assert len(torchscan.record(nn.Linear(4, 4), (4,)).ops) == 1
    os._exit(0)
deadline = time.monotonic() + 20
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
    time.sleep(0.01)
leave.set()
thread.join()
if ended[0] == 0:
    os.kill(child, 9)
sys.exit(ended != (child, 0))
"""
    there = {**os.environ, "PYTHONPATH": "."}
    command = [sys.executable, "-c", code]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=100, env=there
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_that_comes_while_torchscan_works_is_answered_in_the_next_line_of_the_model() -> (
    None
):
    steps: list[int] = []

    class Steps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for step in range(10):
                steps.append(step)
                x = x + 1
            return x

    def signal_within_ours(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call" and frame.f_code.co_name == "write_down" and len(steps) == 3:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.setprofile(signal_within_ours)
    try:
        with pytest.raises(KeyboardInterrupt):
            record(Steps(), (4,))
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, before)
    assert steps == [0, 1, 2]


def test_a_signal_that_comes_while_the_model_enters_a_mode_of_torch_waits() -> None:
    """An exception there would leave torch's stack of modes too long.

    Python calls a handler with the frame in which the signal came.
    """
    came_in: list[str] = []
    answered_in: list[str] = []

    def signal_within_torch(frame: FrameType, event: str, _argument: object) -> Any:
        is_entered = frame.f_code.co_name == "__enter__"
        if event == "call" and is_entered and frame.f_globals["__name__"] == "torch.overrides":
            sys.setprofile(None)
            came_in.append("torch.overrides")
            handler: Any = signal.getsignal(signal.SIGUSR1)
            handler(signal.SIGUSR1, frame)

    class Enters(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sys.setprofile(signal_within_torch)
            with torch.overrides.BaseTorchFunctionMode():
                return x + 1

    def answer(_number: int, frame: FrameType | None) -> None:
        answered_in.append("" if frame is None else frame.f_globals["__name__"])

    before = signal.signal(signal.SIGUSR1, answer)
    try:
        record(Enters(), (4,))
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    assert came_in == ["torch.overrides"]
    assert [each.partition(".")[0] for each in answered_in] == ["torchscan"]


def innermost_of_ours(frame: FrameType | None) -> str:
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("torchscan."):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


@pytest.mark.slow
def test_a_signal_that_comes_while_torch_works_for_torchscan_waits_too() -> None:
    """As it does in the shape functions that torch has in Python: torchscan is in the middle of a call."""
    answered_in: list[str] = []
    raised_in: list[str] = []

    def signal_within_torch(frame: FrameType, event: str, _argument: object) -> Any:
        if (
            event == "call"
            and frame.f_globals.get("__name__", "").startswith("torch.")
            and not raised_in
        ):
            inside = innermost_of_ours(frame)
            if inside not in ("", "interruptible"):
                raised_in.append(inside)
                signal.raise_signal(signal.SIGUSR1)

    class Upsamples(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sys.setprofile(signal_within_torch)
            return nn.functional.interpolate(x, scale_factor=2, mode="bicubic")

    before = signal.signal(
        signal.SIGUSR1, lambda _, frame: answered_in.append(innermost_of_ours(frame))
    )
    try:
        record(Upsamples(), (1, 4, 4))
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    assert len(raised_in) == len(answered_in) == 1
    assert answered_in[0] in ("interruptible", "deliver")
