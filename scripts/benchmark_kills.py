"""Runs killed at random moments: steps that were trained against steps in the run and steps reported as lost."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import torchscan
from torchscan.watching.run_files import has_worker
from torchscan.watching.watch import watch

RUNS, _SEED, _AT_ONCE = 100, 0, 4
#: seconds of life at most, in turn: while the worker starts, and while it works
_LIVES = (1.0, 3.0)
_PAUSE, _LOOK = 0.008, 0.01
#: seconds that a stopped worker stays stopped after its trainer's end, and that any worker may take
_STOPPED, _PATIENCE = 0.5, 60.0


ENDS = ("SIGKILL", "SIGSEGV", "SIGTERM", "os._exit", "close")
WORKERS = ("left alone", "stopped", "niced", "killed", "killed, too", "stopped for ever")


class Case(NamedTuple):
    """How a run ends."""

    end: str
    worker: str
    life: float
    folder: Path


class Result(NamedTuple):
    """What is left of a run."""

    trained: int
    kept: int
    reported: int
    silent: int
    said: str


def measure_kills(runs: int = RUNS) -> None:
    """Print how many steps were lost, reported, and lost without a word, by what ended the run."""
    moments = random.Random(_SEED)  # noqa: S311 - nothing is secret
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[Result]] = collections.defaultdict(list)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = [_case(number, moments, Path(folder)) for number in range(runs)]
        for case, result in _all_results(cases):
            found[case.end, case.worker].append(result)
            if result.silent:
                print(f"{case}: {result}", flush=True)
    print(
        f"{'trainer':12}{'worker':18}{'runs':>6}{'trained':>9}{'in run':>8}{'told':>6}{'silent':>8}"
    )
    for (end, worker), results in sorted(found.items()):
        print(_line(end, worker, results))
    print(_line("all", "", [each for results in found.values() for each in results]))
    print(f"\n{time.monotonic() - start:.0f} s, torch {torch.__version__}, {os.cpu_count()} CPUs")


def _line(end: str, worker: str, results: list[Result]) -> str:
    sums = [sum(each[place] for each in results) for place in range(4)]
    return f"{end:12}{worker:18}{len(results):6}{sums[0]:9}{sums[1]:8}{sums[2]:6}{sums[3]:8}"


def _case(number: int, moments: random.Random, folder: Path) -> Case:
    life = moments.uniform(0, _LIVES[number % len(_LIVES)])
    return Case(moments.choice(ENDS), WORKERS[number % len(WORKERS)], life, folder / f"run{number}")


def _all_results(cases: list[Case]) -> Iterator[tuple[Case, Result]]:
    """Run several at once, each in a process that starts, ends and awaits it."""
    pipes = []
    for first in range(_AT_ONCE):
        reading, writing = os.pipe()
        if os.fork() == 0:
            with open(writing, "w") as out:
                for case in cases[first::_AT_ONCE]:
                    print(json.dumps(_run(case)), file=out, flush=True)
            os._exit(0)
        os.close(writing)
        pipes.append((cases[first::_AT_ONCE], open(reading)))  # noqa: SIM115 - closed below
    for own, lines in pipes:
        with lines:
            for case, line in zip(own, lines, strict=True):
                yield case, Result(*json.loads(line))


def _run(case: Case) -> Result:
    trainer, worker = _started(case)
    begun = time.monotonic()
    _treat(case, worker, begun)
    time.sleep(max(0.0, begun + case.life - time.monotonic()))
    _end(case, trainer, worker)
    if case.worker == "stopped" and case.end == "close":  # which waits for it
        time.sleep(_STOPPED)
        _signal(worker, signal.SIGCONT)
    os.waitpid(trainer, 0)
    if case.worker == "stopped":
        time.sleep(_STOPPED)
        _signal(worker, signal.SIGCONT)
    if case.worker == "stopped for ever":
        _signal(worker, signal.SIGKILL)
    return _result_of(case)


def _treat(case: Case, worker: int, begun: float) -> None:
    if case.worker.startswith("stopped"):
        time.sleep(max(0.0, begun + case.life / 2 - time.monotonic()))
        _signal(worker, signal.SIGSTOP)
    elif case.worker == "killed":
        time.sleep(max(0.0, begun + case.life / 2 - time.monotonic()))
        _signal(worker, signal.SIGKILL)
    elif case.worker == "niced":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, worker, 19)


def _end(case: Case, trainer: int, worker: int) -> None:
    if case.worker == "killed, too":
        _signal(worker, signal.SIGKILL)
    if case.end == "close":
        (case.folder.parent / f"{case.folder.name}.close").touch()
        if case.worker == "stopped for ever":  # close() would wait for it
            _signal(worker, signal.SIGKILL)
    elif case.end == "os._exit":
        _signal(trainer, signal.SIGUSR1)
    else:
        _signal(trainer, signal.Signals[case.end])


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _started(case: Case) -> tuple[int, int]:
    """Return the numbers of a trainer, which is forked as torch takes seconds to import, and of its worker."""
    reading, writing = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        try:
            os.close(reading)
            _train(case, writing)
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(writing)
    worker = int(os.read(reading, 20) or b"0")
    os.close(reading)
    return trainer, worker


def _train(case: Case, worker: int) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    stop = case.folder.parent / f"{case.folder.name}.close"
    steps = os.open(f"{case.folder}.trained", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watcher = watch(model, case.folder, every=1)
    os.write(worker, str(watcher._process.number).encode())
    step = 0
    while not stop.exists():
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        os.write(steps, f"{step}\n".encode())
        step += 1
        time.sleep(_PAUSE)
    watcher.close()


def _result_of(case: Case) -> Result:
    """Wait for the worker to end by itself; a run that reports steps as not written yet has counted them."""
    store = case.folder / "rank0.sqlite"
    until = time.monotonic() + _PATIENCE
    while has_worker(store) and time.monotonic() < until:
        time.sleep(_LOOK)
    trained = [int(line) for line in Path(f"{case.folder}.trained").read_text().split()]
    run = torchscan.open_run(case.folder)
    kept = set(run.steps())
    lost = [each for each in run.lost if each.phase == "train"]
    missing = [step for step in trained if step not in kept]
    silent = [step for step in missing if not any(each.first <= step <= each.last for each in lost)]
    count = sum(each.count for each in lost)
    pending = [note for note in run.missing if note.code == "steps-pending"]
    for note in pending:  # of a worker that gets no processor
        count, silent = count + note.values["count"], []
    num_silent = max(len(silent), len(missing) - count)
    return Result(len(trained), len(kept), count, num_silent, "; ".join(map(str, run.missing)))


if __name__ == "__main__":
    measure_kills(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
