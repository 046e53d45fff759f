"""The graph of a watched model where no process can be forked to draw it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchscan.watching.graphing import GraphDrawing


def sent_by_drawing(folder: Path) -> list[dict[str, Any]]:
    """Return what a worker is sent while the graph of a model is to be drawn."""
    sent: list[dict[str, Any]] = []
    drawing = GraphDrawing(folder / "rank0.sqlite", sent.append, is_wanted=True)
    drawing.begin(nn.Linear(3, 4), ((torch.ones(2, 3),), {}))
    drawing.await_end(0.0)
    assert not drawing.is_due
    return sent


def test_a_system_without_forks_has_no_graph_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")
    assert sent_by_drawing(tmp_path) == []


def test_macos_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own libraries do not survive that, although the function is there."""
    forks = []

    def fork() -> int:
        forks.append(sys.platform)
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sent_by_drawing(tmp_path) == []
    assert not forks
