"""The graph that a run has of its model, which a fork works out while training goes on."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan.live.store import Reader

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch


def graph_in(run: Path) -> dict[str, Any] | None:
    with closing(Reader(run / "rank0.sqlite")) as reader:
        return reader.graph()


def train(model: nn.Module, run: Path, **options: Any) -> list[Tensor]:
    with torchscan.watch(model, run, every=1, **options):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def test_a_run_has_the_graph_of_its_model(tmp_path: Path) -> None:
    train(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), tmp_path / "run")
    graph = graph_in(tmp_path / "run")
    assert graph is not None
    assert [row["key"] for row in graph["rows"]] == ["", "0", "1", "2"]
    assert graph["rows"][1]["macs"] == 2 * 3 * 4 + 2 * 3 * 4  # forward, and the gradient of the weight


def test_it_can_be_left_out(tmp_path: Path) -> None:
    train(nn.Linear(3, 4), tmp_path / "run", graph=False)
    assert graph_in(tmp_path / "run") is None


class Seen(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("graph", [False, True])
def test_neither_hooks_nor_modes_nor_the_model_see_anything_of_it(tmp_path: Path, graph: bool) -> None:
    model, calls = nn.Linear(3, 4), []
    model.register_forward_hook(lambda *_: calls.append(torch.rand(1)))
    with Seen() as seen:
        gradients = train(model, tmp_path / "run", graph=graph)
    assert len(calls) == 2
    assert seen.calls.count("linear") == 2
    assert torch.equal(gradients[0], torch.full((4, 3), 4.0))
    assert (graph_in(tmp_path / "run") is not None) == graph


def test_where_no_process_can_be_made_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", fork)
    train(nn.Linear(3, 4), tmp_path / "run")
    assert graph_in(tmp_path / "run") is None
    assert len(torchscan.open_run(tmp_path / "run").steps()) == 2


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
    assert any(
        "no graph of the model" in what and "not here" in what for _, what in torchscan.open_run(tmp_path / "run").events
    )
