"""``torchscan memory --snapshot``, in a shell."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from tests.versions import before
from torchscan.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SNAPSHOT = str(EXAMPLES / "oom.pickle")


def test_formats_hold_the_same_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--snapshot", SNAPSHOT, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert main(["memory", "--snapshot", SNAPSHOT, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["size"]) for row in rows] == [held["size"] for held in content["held"]]
    assert sum(held["size"] for held in content["held"]) == content["requested_bytes"]
    assert content["failed_bytes"] == 68 * 256 * 50_257 * 4  # the logits in 32 bits


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("style", ["text", "markdown", "html"])
def test_people_read_what_would_help(
    width: int, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["memory", "--snapshot", SNAPSHOT, "--format", style, "--width", str(width)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "Would help" in text
    if style == "text":
        assert max(map(len, text.splitlines())) <= width


@before("2.9", "what a checkpoint saves is not told")
def test_a_target_names_the_layers(capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{EXAMPLES / 'gpt.py'}:GPT()"
    assert main(["memory", target, "--snapshot", SNAPSHOT, "--format", "json"]) == 0
    held = json.loads(capsys.readouterr().out)["held"]
    sizes = {each["path"]: each["size"] for each in held}
    # the inputs of the GELUs: 17,408 tokens of 3,072 numbers, in twelve blocks
    assert sizes["blocks.*.mlp.up"] == 12 * 68 * 256 * 4 * 768 * 4


def test_a_snapshot_of_another_model_has_no_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other model has layers of torch, through whose code its stacks go, too."""
    file = tmp_path / "other.py"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x)\n"
    )
    assert main(["memory", f"{file}:Net()", "--snapshot", SNAPSHOT, "--width", "200"]) == 0
    text = capsys.readouterr().out
    note = (
        "No stack has a frame in the code of Net, so no block is assigned to a layer: give the "
        "model that ran during the recording."
    )
    assert note in text
    assert "Layer" not in text
    assert main(["memory", "--snapshot", SNAPSHOT, "--width", "200"]) == 0
    assert "No stack has" not in capsys.readouterr().out


def test_more_memory_than_the_device_has_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    """95 % of 8 GiB would not hold the 22.55 GiB that the GPU with 24 GB has reserved."""
    assert main(["memory", "--snapshot", SNAPSHOT, "-d", "8 GiB", "--width", "200"]) == 0
    text = capsys.readouterr().out
    assert (
        "Torch reserved 22.55 GiB, more than the 7.80 GiB usable on 8 GiB: give the device" in text
    )
    assert "Not torch's" not in text
    assert main(["memory", "--snapshot", SNAPSHOT, "-d", "24 GiB", "--width", "200"]) == 0
    assert "Torch reserved" not in (text := capsys.readouterr().out)
    assert "Not torch's" in text


def test_the_peak_is_another_moment(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["memory", "--snapshot", SNAPSHOT, "--moment", "peak", "--format", "json"]
    assert main(command) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["moment"] == "peak"
    assert content["requested_bytes"] == content["bytes_by_moment"]["peak"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TARGET is missing: give a model, or --snapshot and a memory snapshot of a run"),
        (["--snapshot", "missing"], "cannot be read: No such file"),
        (["--snapshot", SNAPSHOT, "--training"], "--training is for an estimate"),
        (["--snapshot", SNAPSHOT, "--lora", "4"], "--lora is for an estimate"),
        (["--snapshot", SNAPSHOT, "-d", "cuda:5"], "of which the snapshot has nothing"),
        (["torchvision:resnet18", "--moment", "peak"], "--moment chooses a moment of a snapshot"),
    ],
)
def test_mistakes_are_explained_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_pipe_that_never_ends_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["memory", "--snapshot", str(tmp_path / "pipe")]) == 2
    assert "is not a file" in capsys.readouterr().err
