"""The line that says what takes long: it is there meanwhile, where somebody sees it, and gone afterwards."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import RecordError, crawl_module, estimate_memory, receptive_field, record
from torchscan.terminal import progress


class Terminal(io.StringIO):
    """Tells when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def write(self, text: str) -> int:
        self.is_written.set()
        return super().write(text)

    def isatty(self) -> bool:
        return True


class Slow(nn.Module):
    """Its forward pass lasts until the line is there; what it has asked for before is nothing that takes long."""

    def __init__(self, until: Callable[[], object]) -> None:
        super().__init__()
        self.until = until

    def forward(self, x: Tensor) -> Tensor:
        self.until()
        return x


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr("torchscan.terminal._PATIENCE", 0.0)
    found = Terminal()
    monkeypatch.setattr(
        "torchscan.terminal.sys", SimpleNamespace(stderr=found)
    )  # pytest puts its own into sys for each test
    return found


def screen(written: str) -> str:
    """What is left of a line, each sign in its place."""
    line: list[str] = []
    for part in written.split("\r"):
        line[: len(part)] = part
    return "".join(line).rstrip()


def test_a_call_that_takes_long_says_so_and_leaves_nothing(terminal: Terminal) -> None:
    crawl_module(Slow(lambda: terminal.is_written.wait(20)), (3,))
    assert "torchscan: Slow … 0 s" in terminal.getvalue()
    assert screen(terminal.getvalue()) == ""


@pytest.mark.parametrize("verb", [estimate_memory, record, receptive_field])
def test_every_verb_does_unless_it_is_told_not_to(verb: Any, terminal: Terminal) -> None:
    verb(Slow(lambda: terminal.is_written.wait(20)), (3,))
    assert terminal.getvalue().startswith("\rtorchscan: Slow")
    before = terminal.getvalue()
    verb(Slow(lambda: None), (3,), progress=False)
    assert terminal.getvalue() == before


def test_nothing_is_said_where_lines_stay(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    crawl_module(nn.Linear(3, 3), (3,))
    assert terminal.getvalue() == ""


def test_a_notebook_is_seen(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    monkeypatch.setattr(Terminal, "__module__", "ipykernel.iostream")
    crawl_module(Slow(lambda: terminal.is_written.wait(20)), (3,))
    assert "torchscan: Slow" in terminal.getvalue()


def test_what_is_done_for_another_says_nothing_of_its_own(terminal: Terminal) -> None:
    with progress("all"):
        terminal.is_written.wait(20)
        crawl_module(nn.Linear(3, 3), (3,))
    assert "Linear" not in terminal.getvalue()


def test_the_line_goes_away_after_an_error(terminal: Terminal) -> None:
    def fails() -> None:
        terminal.is_written.wait(20)
        raise ValueError("no")

    with pytest.raises(RecordError):
        crawl_module(Slow(fails), (3,))
    assert screen(terminal.getvalue()) == ""
    assert torch.is_grad_enabled()


def test_without_threads_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):  # the second time, too: nothing stays locked
        assert crawl_module(nn.Linear(3, 3), (3,))["overall"]["macs"] == 9
    assert terminal.getvalue() == ""
