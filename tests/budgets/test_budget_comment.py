"""The comment for a pull request: what it shows of each budget, and what is folded."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchscan.budgets import BudgetReport
from torchscan.budgets.budget_comment import format_comment
from torchscan.cli.main import main

NETS = """
from torch import nn

def Net(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
"""
#: 7 · width + 2 parameters and 6 · width MACs; 288 bytes are 4 · (58 + 4 + 8 + 2)
TWO = """
[budgets.small]
target = "nets_of_comments.py:Net"
input = "4"
max_params = 58

[budgets.large]
target = "nets_of_comments.py:Net(width=9)"
input = "4"
batch_size = 2
per_sample = true
max_macs = 53
max_peak_memory = "1 KiB"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets_of_comments.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def comment(content: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    Path("torchscan.toml").write_text(content)
    status = main(["check", "--format", "github"])
    return status, capsys.readouterr().out.splitlines()


def test_memory_and_limits_are_beside_parameters_and_macs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, lines = comment(TWO, capsys)
    # of two samples with a width of 9: 4 · (65 + 2 · (4 + 9 + 2)) bytes
    assert (status, lines[:6]) == (
        1,
        [
            "### ✗ 1 of 2 models exceeds the budget",
            "",
            "|  | Budget | Parameters | MACs | Peak memory |",
            "| :-- | :-- | --: | --: | --: |",
            "| ✓ | small | 58 (≤ 58) | 48 | 288 B |",
            "| ✗ | large | 65 | **54 per sample** (≤ 53) | 380 B (≤ 1.00 KiB) |",
        ],
    )


@pytest.mark.parametrize(
    ("names", "headline"),
    [
        (["small"], "### ✓ 1 of 1 model is within budget"),
        (["small", "large"], "### ✓ 2 of 2 models are within budget"),
    ],
)
def test_the_headline_counts_models_that_are_all_within_budget(
    names: list[str], headline: str
) -> None:
    reports = [BudgetReport(name=each, sign="✓", lines=[f"{each}: MACs 48"]) for each in names]
    assert format_comment(reports).splitlines()[0] == headline


def test_details_are_folded_unless_there_is_something_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "\n".join(comment(TWO, capsys)[1])
    small, large = text.split("<details")[1:]
    assert small.startswith("><summary>✓ small: Parameters 58</summary>\n\n| Metric |")
    assert large.startswith(" open><summary>✗ large exceeds its budget</summary>\n\n| Metric |")
    assert "```text\n  MACs: 54 per sample, at most 53 (+1.89 %)\n    0 (Linear): 36\n" in large
    assert text.count("</details>") == 2


def test_a_latency_is_shown_for_the_device_of_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, lines = comment(TWO.replace("max_params = 58", "max_params = 58\ndevice = 'H100'"), capsys)
    assert lines[2] == "|  | Budget | Parameters | MACs | Peak memory | Latency |"
    assert " ± " in lines[4].split("|")[-2]
    assert lines[5].endswith("| – |")


def test_what_cannot_be_checked_is_in_the_comment(capsys: pytest.CaptureFixture[str]) -> None:
    content = TWO.replace('py:Net"', 'py:Nat"') + "[budgets.of-a-test]\nmax_params = 1\n"
    status, lines = comment(content, capsys)
    assert status == 2
    assert lines[0] == ("### ✗ 1 of 3 models exceeds the budget; ? 1 of 3 models cannot be checked")
    assert lines[4] == "| ? | small | – | – | – |"
    assert "<details open><summary>? small: cannot be checked</summary>" in lines
    assert any(line.endswith("has no 'Nat': did you mean Net?") for line in lines)
    assert lines[6] == "| - | of-a-test | – | – | – |"


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = comment(TWO.replace("budgets.small", 'budgets."<b>|@me"'), capsys)
    assert "<b>" not in "".join(lines)
    assert "| ✓ | &lt;b>\\|<span>@</span>me | 58" in lines[4]
