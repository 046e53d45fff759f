"""Saved runs in a shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import torchscan
from tests.report.test_compare_runs import AFTER, BEFORE
from torchscan import crawl_module
from torchscan.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    BEFORE.save("before.json")
    AFTER.save("after.json")
    Path("report.json").write_text(crawl_module(nn.Linear(2, 2), (2,)).to_json())


def test_two_saved_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "before.json", "after.json"]) == 0
    assert capsys.readouterr().out == f"{torchscan.compare(BEFORE, AFTER)}\n"


@pytest.mark.parametrize("style", ["json", "csv", "github", "latex", "html"])
def test_in_every_format(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "before.json", "after.json", "--format", style]) == 0
    said = capsys.readouterr().out
    assert "forward" in said.lower()
    if style == "json":
        assert json.loads(said)["calls"][1]["path"] == "a"


@pytest.mark.parametrize(
    ("before", "after"), [("before.json", "report.json"), ("report.json", "after.json")]
)
def test_a_run_and_a_report_are_not_compared(
    before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", before, after]) == 2
    assert (
        capsys.readouterr().err
        == "torchscan: a run cannot be compared with a report: give two runs, or two reports\n"
    )


def test_a_broken_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("after.json").write_text('{"schema": "torchscan/run/1"}')
    assert main(["compare", "before.json", "after.json"]) == 2
    assert capsys.readouterr().err.startswith(
        "torchscan: after.json: it is a broken run: the run has no 'steps'"
    )
