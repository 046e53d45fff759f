"""Watching for long: what a step costs after many, in time, memory and disk; and what is left when trainers are killed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from benchmark_watching import STARTS, seconds_of_step
from torch import Tensor, nn

from torchscan.live.history import ranks_in
from torchscan.live.store import KEPT, Reader
from torchscan.live.watcher import Watcher, watch

_STEPS, _EARLY, _AROUND = 10_000, 100, 100
#: the worker is given this long after each step, so that it keeps up and nothing is dropped
_PAUSE = 0.004
#: seconds of life at most, in turn: while the worker starts, and while it works
_KILLS, _LIVES, _SEED = 20, (1.5, 6.0), 0
_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked at
_SCRIPT = """
    import sys, time, torch, torchscan
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    watcher = torchscan.watch(model, sys.argv[1], every=1)
    print(watcher._process.number, flush=True)
    last = int(sys.argv[2])
    while last < 0 or watcher.state_dict()["step"] <= last:
        model(torch.rand(8, 4)).square().mean().backward()
        time.sleep(0.01)
    watcher.close()
"""


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
    print(f"\nplain steps before and after, in CPU time: {_said(plain[0])} and {_said(plain[1])}")
    for what, place in (("median", 5), ("fastest tenth", 1)):
        early, late = (_tenth(place, took[step - _AROUND : step + _AROUND]) for step in (_EARLY, _STEPS))
        ratio = f"{_said(early)} and {_said(late)}: {late / early:.3f} times"
        print(f"watched steps around step {_EARLY:,} and {_STEPS:,}, {what}: {ratio}")
    slopes = [_slope([(step, getattr(each, name)) for step, each in sizes.items() if step >= 2000]) for name in Sizes._fields]
    said = ", ".join(f"{name} {slope:+.3f} MB" for name, slope in zip(Sizes._fields, slopes, strict=True))
    print(f"per 1,000 steps after 2,000: {said}; {watcher.dropped} steps dropped")


def _watched(model: nn.Module, x: Tensor, watcher: Watcher, folder: Path) -> tuple[list[float], dict[int, Sizes]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    took, sizes = [], {}
    print(f"{'steps':>7}{'trainer':>12}{'worker':>12}{'store':>12}{'step':>12}")
    for step in range(1, _STEPS + _AROUND + 1):
        took.append(_step(model, x, optimizer))
        if step % 1000 == 0:
            sizes[step] = _sizes(watcher._process.number, folder)
            figures = "".join(f"{each:9.2f} MB" for each in sizes[step])
            print(f"{step:7,}{figures}{_said(statistics.median(took[-2 * _AROUND :])):>12}", flush=True)
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


def _said(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs"


# -- trainers that are killed --------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What a trainer that was killed has left."""

    after: float
    worker_stayed: float
    steps: tuple[int, ...]
    files: int = 0

    @property
    def doubles(self) -> int:
        """How many steps are there more than once."""
        return len(self.steps) - len(set(self.steps))

    @property
    def gaps(self) -> int:
        """How many are not followed by the next one, among those of which none is thinned out."""
        recent = self.steps[-KEPT:]
        return sum(two != one + 1 for one, two in itertools.pairwise(recent))


def kill_trainers() -> None:
    """Twenty trainers of one run, each going on where the one before was killed; then one that may end."""
    moments = random.Random(_SEED)  # noqa: S311 - nothing is secret
    found: list[Left] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text("\n".join(line.removeprefix("    ") for line in _SCRIPT.splitlines()))
        print(f"{'killed after':>13}{'worker stayed':>15}{'steps in all':>14}{'doubles':>9}{'gaps':>6}{'files left':>12}")
        for number in range(_KILLS):
            left = _killed(script, Path(folder) / "run", moments.uniform(0, _LIVES[number % len(_LIVES)]))
            found.append(left)
            last = left.steps[-1] + 1 if left.steps else 0
            counts = f"{last:14}{left.doubles:9}{left.gaps:6}{left.files:12}"
            print(f"{left.after:11.2f} s{left.worker_stayed:13.2f} s{counts}", flush=True)
        end = last + 50
        subprocess.run([sys.executable, script, Path(folder) / "run", str(end)], check=True, stdout=subprocess.DEVNULL)
        whole = Left(0.0, 0.0, _steps_of(Path(folder) / "run"))
    print(f"\na worker stayed {max(each.worker_stayed for each in found):.2f} s at most")
    print(f"then one that may end: {whole.steps[-1] + 1} steps for {end + 1}, {whole.doubles} doubles, {whole.gaps} gaps")


def _killed(script: Path, run: Path, after: float) -> Left:
    before = _forgotten()
    with subprocess.Popen([sys.executable, script, run, "-1"], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None  # noqa: S101 - it is piped
        worker = int(trainer.stdout.readline())
        time.sleep(after)
        trainer.send_signal(signal.SIGKILL)
        start = time.perf_counter()
    while _is_alive(worker):
        time.sleep(0.01)
    return Left(after, time.perf_counter() - start, _steps_of(run), len(_forgotten() - before))


def _forgotten() -> set[str]:
    """Files in memory that no process has."""
    names = {file.name for file in _MEMORY.glob("torchscan-*")}
    maps = [_maps_of(each) for each in Path("/proc").glob("[0-9]*")] if names else []
    return {name for name in names if not any(name in each for each in maps)}


def _maps_of(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except OSError:
        return ""


def _steps_of(run: Path) -> tuple[int, ...]:
    """As they stand in the file, in the order in which they were written."""
    files = ranks_in(run)
    if not files:
        return ()
    reader = Reader(files[0])
    steps = tuple(step for step, _ in reader.times("train"))
    reader.close()
    return steps


def _is_alive(process: int) -> bool:
    """Whether it is at work: one that has ended, and whose parent did not ask how, is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
