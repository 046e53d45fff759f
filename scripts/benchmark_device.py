"""On the device at hand: estimated against measured times, of ten models and of the kinds of operators in them; its context."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.catalogue import IMAGE, TIMED, Case
from tests.torchvision_cpu import torchvision
from torchscan import InputError, analyze_roofline
from torchscan.hardware.device_specs import device_named
from torchscan.hardware.process_memory import cuda_overhead
from torchscan.types import Roofline

MODELS = {
    **{
        name: case for name, case in TIMED.items() if name != "Llama-7B"
    },  # which does not fit everywhere
    "ResNet-18": Case(lambda: torchvision.models.resnet18(), IMAGE),
    "MobileNetV3-L": Case(lambda: torchvision.models.mobilenet_v3_large(), IMAGE),
}


class OperatorTimes(TorchDispatchMode):
    """Times each operator by itself, from a device that is idle until it is."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish = finish
        self.seconds: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it between two readings of the clock."""
        self._finish()
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._finish()
        self.seconds[str(func.overloadpacket)] += time.perf_counter() - start
        return result


def compare_with_device(only: str) -> None:
    """Print a line for each model, and what its heaviest kinds of operators are estimated and measured to take."""
    _print_context()
    try:
        card = device_named(None)
    except InputError as error:
        print(error)
        return
    print(f"{card.name}, torch {torch.__version__}")
    ratios = [_compare(name, case) for name, case in MODELS.items() if only.lower() in name.lower()]
    if ratios:
        errors = [abs(each - 1) for each in ratios]
        print(
            f"absolute error of {len(ratios)} models: median {100 * statistics.median(errors):.1f} %"
        )


def _print_context() -> None:
    """What this process holds on the card besides tensors, after each thing that makes it hold more."""
    if not torch.cuda.is_available():
        return
    stages: dict[str, Callable[[], object]] = {
        "import": lambda: None,
        "first kernel": lambda: torch.ones(64, 64, device="cuda"),
        "first product": lambda: (
            torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        ),
        "first convolution": lambda: F.conv2d(
            torch.ones(8, 8, 16, 16, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda")
        ),
    }
    for stage, run in stages.items():
        run()
        held = cuda_overhead().cuda
        print(f"context after {stage:20}{'unknown' if held is None else f'{held:.0f} MiB':>10}")


def _compare(name: str, case: Case) -> float:
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = case.build().to(place).eval()
    batch = 32 if place.type == "cuda" else 1
    source = torch.ones(
        batch,
        *case.inputs["input_shape"],
        dtype=case.inputs.get("dtype", torch.float32),
        device=place,
    )
    estimate = analyze_roofline(model, args=(source,), device=None)
    finish = torch.cuda.synchronize if place.type == "cuda" else lambda: None
    with torch.no_grad(), _all_threads():
        whole = _best(lambda: model(source), finish)
        with OperatorTimes(finish) as by_operator:
            model(source)
    ratio = estimate.time_estimate / whole
    print(
        f"{name:20}{1000 * whole:10.2f} ms measured{1000 * estimate.time_estimate:10.2f} ms estimated  × {ratio:.2f}"
    )
    _print_kinds(estimate, by_operator.seconds)
    return ratio


@contextmanager
def _all_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(torch.multiprocessing.cpu_count())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best(run: Callable[[], Any], finish: Callable[[], None], times: int = 10) -> float:
    best = float("inf")
    for _ in range(times):
        finish()
        start = time.perf_counter()
        run()
        finish()
        best = min(best, time.perf_counter() - start)
    return best


def _print_kinds(estimate: Roofline, measured: dict[str, float]) -> None:
    for name, load in list(estimate.by_kind.items())[:5]:
        seconds = (
            f"{1000 * measured[name]:10.2f} ms measured"
            if name in measured
            else f"{'':13} another kernel"
        )
        print(
            f"    {name:36}{seconds}{1000 * load.time_estimate:10.2f} ms estimated, {load.limiter}"
        )
