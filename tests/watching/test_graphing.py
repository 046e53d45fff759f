"""The graph that a run has of its model, which a fork works out while training goes on."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan.watching.about import fingerprint_of
from torchscan.watching.graphing import _write
from torchscan.watching.run_reader import Reader
from torchscan.watching.store import Store

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch


def graph_in(run: Path) -> dict[str, Any] | None:
    with closing(Reader(run / "rank0.sqlite")) as reader:
        return reader.graph()


def train(model: nn.Module, run: Path, **options: Any) -> list[Tensor]:
    with watch(model, run, every=1, **options):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def test_a_run_has_the_graph_of_its_model(tmp_path: Path) -> None:
    train(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), tmp_path / "run")
    graph = graph_in(tmp_path / "run")
    assert graph is not None
    assert [row["key"] for row in graph["rows"]] == ["", "0", "1", "2"]
    assert (
        graph["rows"][1]["macs"] == 2 * 3 * 4 + 2 * 3 * 4
    )  # forward, and the gradient of the weight


def test_it_can_be_left_out(tmp_path: Path) -> None:
    train(nn.Linear(3, 4), tmp_path / "run", graph=False)
    assert graph_in(tmp_path / "run") is None


class Seen(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("graph", [False, True])
def test_neither_hooks_nor_modes_nor_the_model_see_anything_of_it(
    tmp_path: Path, graph: bool
) -> None:
    model, calls = nn.Linear(3, 4), []
    model.register_forward_hook(lambda *_: calls.append(torch.rand(1)))
    with Seen() as seen:
        gradients = train(model, tmp_path / "run", graph=graph)
    assert len(calls) == 2
    assert seen.calls.count("linear") == 2
    assert torch.equal(gradients[0], torch.full((4, 3), 4.0))
    assert (graph_in(tmp_path / "run") is not None) == graph


def test_where_no_process_can_be_made_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", fork)
    train(nn.Linear(3, 4), tmp_path / "run")
    assert graph_in(tmp_path / "run") is None
    assert len(watched_run(tmp_path / "run").steps()) == 2


def test_the_users_signal_handlers_run_in_no_fork(tmp_path: Path) -> None:
    """As a scheduler does that tells a whole group to save a checkpoint."""
    marks = tmp_path / "marks"
    before = signal.signal(signal.SIGUSR1, lambda *_: marks.open("a").write(f"{os.getpid()}\n"))

    class Told(nn.Linear):
        home = os.getpid()

        def forward(self, x: Tensor) -> Tensor:
            if os.getpid() != self.home:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().forward(x)

    try:
        train(Told(3, 4), tmp_path / "run")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert graph_in(tmp_path / "run") is not None
    assert not marks.exists()


def test_a_model_that_fails_there_has_a_note_instead(tmp_path: Path) -> None:
    class AtHome(nn.Linear):
        home = os.getpid()

        def forward(self, x: Tensor) -> Tensor:
            if os.getpid() != self.home:
                raise RuntimeError("not here")
            return super().forward(x)

    train(AtHome(3, 4), tmp_path / "run")
    assert graph_in(tmp_path / "run") is None
    (note,) = [each.note for each in watched_run(tmp_path / "run").events]
    assert (note.code, "not here" in note.values["error"]) == ("graph-not-drawn", True)


def test_it_keeps_none_of_the_trainers_files_open(tmp_path: Path) -> None:
    """Who reads a pipe that the trainer has closed is not kept waiting until the graph is there."""
    reading, writing = os.pipe()
    with watch(Slow(), tmp_path / "run", every=1) as watcher:
        watcher._model(torch.ones(2, 3)).sum().backward()
        os.close(writing)
        assert os.read(reading, 1) == b""
    os.close(reading)
    assert graph_in(tmp_path / "run") is not None


class Slow(nn.Linear):
    """In every process but this one."""

    def __init__(self) -> None:
        super().__init__(3, 4)
        self.home = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            time.sleep(3)
        return super().forward(x)


def test_it_is_not_put_into_the_run_of_another_model(tmp_path: Path) -> None:
    """The folder was removed and used again before the graph was there."""
    path = tmp_path / "run" / "rank0.sqlite"
    with closing(Store(path, {"fingerprint": fingerprint_of(nn.Linear(7, 7))})):
        _write(nn.Linear(3, 4), ((torch.ones(2, 3),), {}), path)
        assert graph_in(tmp_path / "run") is None


def test_many_open_files_are_no_obstacle(tmp_path: Path) -> None:
    """``select`` refuses files whose number is 1,024 or more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("so many files may not be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        train(nn.Linear(3, 4), tmp_path / "run")
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(watched_run(tmp_path / "run").steps()) == 2
    assert graph_in(tmp_path / "run") is not None
