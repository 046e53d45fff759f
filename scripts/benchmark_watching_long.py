"""Watching for long: the cost of a step after many, in time, memory and disk."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from benchmark_watching import STARTS, seconds_of_step
from torch import Tensor, nn

from torchscan.watching.watch import watch
from torchscan.watching.watcher import Watcher

_STEPS, _EARLY, _AROUND = 10_000, 100, 100
#: the worker is given this long after each step, so that it keeps up and nothing is dropped
_PAUSE = 0.004


# -- over time -----------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """Of both processes and of the store, in MB."""

    trainer: float
    worker: float
    store: float


def measure_over_time() -> None:
    """Print what both processes and the store have grown to, and how much longer steps take at the end."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.randn(32, 64)
    with tempfile.TemporaryDirectory() as folder:
        plain = [_median_of_steps(model, x)]
        with watch(model, Path(folder) / "run", every=1) as watcher:
            time.sleep(STARTS)
            took, sizes = _watched(model, x, watcher, Path(folder))
        plain.append(_median_of_steps(model, x))
    print(
        f"\nplain steps before and after, in CPU time: {_format_duration(plain[0])} and {_format_duration(plain[1])}"
    )
    for what, place in (("median", 5), ("fastest tenth", 1)):
        early, late = (
            _tenth(place, took[step - _AROUND : step + _AROUND]) for step in (_EARLY, _STEPS)
        )
        ratio = f"{_format_duration(early)} and {_format_duration(late)}: {late / early:.3f} times"
        print(f"watched steps around step {_EARLY:,} and {_STEPS:,}, {what}: {ratio}")
    slopes = [
        _slope([(step, getattr(each, name)) for step, each in sizes.items() if step >= 2000])
        for name in Sizes._fields
    ]
    said = ", ".join(
        f"{name} {slope:+.3f} MB" for name, slope in zip(Sizes._fields, slopes, strict=True)
    )
    print(f"per 1,000 steps after 2,000: {said}; {watcher.dropped} steps dropped")


def _watched(
    model: nn.Module, x: Tensor, watcher: Watcher, folder: Path
) -> tuple[list[float], dict[int, Sizes]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    took, sizes = [], {}
    print(f"{'steps':>7}{'trainer':>12}{'worker':>12}{'store':>12}{'step':>12}")
    for step in range(1, _STEPS + _AROUND + 1):
        took.append(_step(model, x, optimizer))
        if step % 1000 == 0:
            sizes[step] = _sizes(watcher._process.number, folder)
            figures = "".join(f"{each:9.2f} MB" for each in sizes[step])
            print(
                f"{step:7,}{figures}{_format_duration(statistics.median(took[-2 * _AROUND :])):>12}",
                flush=True,
            )
    return took, sizes


def _sizes(worker: int, folder: Path) -> Sizes:
    store = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Sizes(_resident(os.getpid()), _resident(worker), store / 1e6)


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _median_of_steps(model: nn.Module, x: Tensor) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return statistics.median(_step(model, x, optimizer) for _ in range(2 * _AROUND))


def _step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """In CPU time of this process: that of the clock depends on what else the machine does."""
    start = time.process_time()
    seconds_of_step(model, x, optimizer)
    took = time.process_time() - start
    time.sleep(_PAUSE)
    return took


def _tenth(number: int, took: Sequence[float]) -> float:
    """The first of ten tells least of what else the machine does."""
    return statistics.quantiles(took, n=10)[number - 1]


def _slope(sizes: Sequence[tuple[int, float]]) -> float:
    steps, values = zip(*sizes, strict=True)
    return 1000 * statistics.linear_regression(steps, values).slope


def _format_duration(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs"
