"""A pass that is started inside other machinery: a counter, a tracer, fake tensors, a transformation."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.recording.test_record import Calls
from tests.versions import needs
from torchscan import InputError, crawl_module, estimate_memory

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection")


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WAYS = pytest.mark.parametrize(
    "options", [{}, {"execute": "real"}, {"training": True}], ids=["shapes", "data", "training"]
)

AROUND: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "fake tensors": FakeTensorMode,
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "a mode of operators": Operators,
    "a mode of functions": Functions,
    "anomalies": torch.autograd.detect_anomaly,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    # torch 2.11 warns of a profiler that does not accumulate
    "a profiler": lambda: torch.profiler.profile(acc_events=True),
    "the meta device": lambda: torch.device("meta"),
    "an offload": torch.autograd.graph.save_on_cpu,
}


def answers(options: Any, model: nn.Module) -> Any:
    info = crawl_module(model, (3, 8, 8), **options)
    return info["overall"], info["layers"], info["provenance"]["execution"]


@WAYS
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_the_answers_are_the_same(around: Any, options: Any) -> None:
    if around is AROUND["an offload"]:
        _skip_where_hooks_cannot_be_read()
    model = convolutional()
    expected = answers(options, model)
    with around():
        assert answers(options, model) == expected


def _skip_where_hooks_cannot_be_read() -> None:
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        pytest.skip("this version of torch does not tell of hooks on what is kept for gradients")


@WAYS
@pytest.mark.parametrize(
    "transform",
    [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum()), make_fx],
    ids=["vmap", "grad", "make_fx"],
)
def test_and_inside_transformations(transform: Any, options: Any) -> None:
    model, found = convolutional(), []
    expected = answers(options, model)

    def scans(x: Tensor) -> Tensor:
        found.append(answers(options, model))
        return x + 1

    transform(scans)(torch.ones(2, 3))
    assert found == [expected]


@WAYS
def test_nobody_else_sees_the_pass(options: Any) -> None:
    model = convolutional()
    with FlopCounterMode(display=False) as counter, Operators() as operators:
        torch.ones(2, 3) @ torch.ones(3, 4)
        before = counter.get_total_flops(), operators.seen
        crawl_module(model, (3, 8, 8), **options)
        assert (counter.get_total_flops(), operators.seen) == before == (2 * 2 * 3 * 4, 3)
        torch.ones(1)
        assert operators.seen == 4

    def scans(x: Tensor) -> Tensor:
        crawl_module(model, (3, 8, 8), **options)
        return x + 1

    assert len(make_fx(scans)(torch.ones(2)).graph.nodes) == 3  # the input, the sum and the output


def test_a_model_is_copied_out_of_sight_too() -> None:
    """In another precision."""
    model = convolutional()
    expected = estimate_memory(model, (3, 8, 8), precision="bf16", training=True).peak_bytes
    for around in (FakeTensorMode, torch.inference_mode):
        with around():
            assert (
                estimate_memory(model, (3, 8, 8), precision="bf16", training=True).peak_bytes
                == expected
            )
    with Operators() as operators:
        estimate_memory(model, (3, 8, 8), precision="bf16")
    assert operators.seen == 0


def test_threads_leave_the_search_for_anomalies_as_it_was() -> None:
    """It is of the process: the second thread begins before the first has ended."""

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return x

    with torch.autograd.detect_anomaly():
        threads = [threading.Thread(target=crawl_module, args=(Slow(), (4,))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.is_anomaly_enabled()


@needs("_C._autograd._top_saved_tensors_default_hooks")
def test_hooks_of_whoever_calls_see_nothing_and_stay() -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        crawl_module(convolutional(), (3, 8, 8), training=True)
        assert packed == []
        torch.ones(2, requires_grad=True).square()
        assert len(packed) == 1


@pytest.mark.parametrize("options", [{}, {"training": True}], ids=["shapes", "training"])
def test_a_model_of_fake_tensors_is_one_of_meta_tensors(options: Any) -> None:
    with FakeTensorMode():
        fake = convolutional()
    assert answers(options, fake) == answers(options, convolutional().to("meta"))
    with pytest.raises(InputError, match=r"execute is 'real', and 0\.weight is on the meta device"):
        crawl_module(fake, (3, 8, 8), execute="real")


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_garbage_is_not_collected_during_a_pass_on_shapes(
    execute: Literal["abstract", "real"], *, is_enabled: bool
) -> None:
    """With data, memory could pile up. Afterwards, the collector is as it was."""
    states = []

    def forward(_: nn.Module, x: Tensor) -> Tensor:
        states.append(gc.isenabled())
        return x + 1

    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        crawl_module(Calls(forward), (4,), execute=execute)
        states.append(gc.isenabled())
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert states == [is_enabled and execute == "real", is_enabled]


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_garbage_is_collected_after_a_model_that_turned_it_off(
    execute: Literal["abstract", "real"],
) -> None:
    def forward(_: nn.Module, x: Tensor) -> Tensor:
        gc.disable()
        return x + 1

    was_enabled = gc.isenabled()
    gc.enable()
    try:
        crawl_module(Calls(forward), (4,), execute=execute)
        assert gc.isenabled()
    finally:
        (gc.enable if was_enabled else gc.disable)()


TRACED = """
import warnings; warnings.simplefilter("ignore")
import torch, torchscan
from torch import nn
layer = nn.Linear(4, 4)
class Scans(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
    def forward(self, x):
        torchscan.crawl_module(layer, (4,), **self.options)
        return x
for options in {}, {"execute": "real"}, {"training": True}:
    for trace in (torch.jit.trace, torch.fx.symbolic_trace):
        given = [torch.ones(2, 4)] if trace is torch.jit.trace else []
        try:
            trace(Scans(options), *given)
        except torchscan.InputError as error:
            print(error)
"""


@pytest.mark.slow
@pytest.mark.sweep
def test_a_tracer_is_refused_before_it_crashes() -> None:
    """In a process of its own: torch.jit.trace ended it."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=120, check=False
    )
    told = [
        f"{tracer} is tracing, and would trace the pass too: call torchscan before or after"
        for tracer in ("torch.jit.trace", "torch.fx")
    ]
    assert (done.returncode, done.stdout.splitlines()) == (0, 3 * told)
