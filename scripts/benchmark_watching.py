"""What watching training costs: watched and plain steps in turn, what module calls cost in other steps, and cost over time."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from tests.torchvision_cpu import torchvision
from torchscan.watching.watch import watch

_ROUNDS, _BLOCK = 20, 10
EVERY: tuple[int | Literal["auto"], ...] = (1, 100, "auto")
#: seconds that a worker takes to start
STARTS = 4.0
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (lambda: torchvision.models.resnet18(), (8, 3, 64, 64)),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 4),
        (8, 64, 128),
    ),
}


def measure_watching(only: str) -> None:
    """Print how much longer steps take in wall time and in CPU time of the training process."""
    print(f"{'model':14}{'every':>7}{'plain':>11}{'wall':>8}{'CPU':>8}{'dropped':>9}")
    for name, (build, shape) in MODELS.items():
        if only.lower() not in name.lower():
            continue
        for every in EVERY:
            plain, wall, cpu, dropped = _compared(build().train(), torch.randn(shape), every)
            print(
                f"{name:14}{every!s:>7}{1000 * plain:8.1f} ms{wall:8.3f}{cpu:8.3f}{dropped:9}",
                flush=True,
            )
    print(f"\na module call in a step that nobody looks at: {1e6 * _module_call():.2f} µs")


def _compared(
    model: nn.Module, x: Tensor, every: int | Literal["auto"]
) -> tuple[float, float, float, int]:
    """Blocks of plain and of watched steps take turns: of 10, 100 or 200 steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    block = 200 if every == "auto" else max(_BLOCK, every)
    rounds = _ROUNDS if every == 1 else 3
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "watched": []}
    dropped = 0
    with _folder() as folder:
        for _ in range(3):
            seconds_of_step(model, x, optimizer)
        for number in range(rounds):
            time.sleep(STARTS)  # as below: a machine that has rested is slower at first
            times["plain"].append(_block(model, x, optimizer, block))
            watcher = watch(model, folder / "run", every=every, step=number * block)
            time.sleep(STARTS)
            times["watched"].append(_block(model, x, optimizer, block))
            dropped += watcher.dropped
            watcher.close()
    ratios = [
        statistics.median(each[kind] for each in times["watched"])
        / statistics.median(each[kind] for each in times["plain"])
        for kind in (0, 1)
    ]
    return statistics.median(each[0] for each in times["plain"]), *ratios, dropped


def _block(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, steps: int
) -> tuple[float, float]:
    """The mean of the steps: in wall time the median of ten parts, and in CPU time."""
    for _ in range(5):
        seconds_of_step(model, x, optimizer)
    cpu = time.process_time()
    wall = [seconds_of_step(model, x, optimizer) for _ in range(steps)]
    mean = statistics.median(wall) if steps <= _BLOCK else sum(wall) / steps
    return mean, (time.process_time() - cpu) / steps


def seconds_of_step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Of one training step."""
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - start


def _module_call(calls: int = 100_000) -> float:
    """What the hook adds to the call of a module that does nothing, in seconds."""
    model, idle = nn.Linear(2, 2), nn.Identity()
    x = torch.zeros(2)

    def took() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            idle(x)
        return (time.perf_counter() - start) / calls

    took()
    plain = took()
    with _folder() as folder, watch(model, folder / "run", every=1000):
        return took() - plain


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
