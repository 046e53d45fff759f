"""A table of models, one in a row."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torchscan
from torchscan import InputError, RecordError, model_table


def models() -> dict[str, nn.Module]:
    return {
        "one": nn.Sequential(nn.Conv1d(3, 4, 3)),
        "two": nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv1d(4, 2, 5, stride=2)),
        "all": nn.Sequential(nn.Conv1d(3, 4, 3), nn.AdaptiveAvgPool1d(1)),
    }


def rows(**options: object) -> list[dict[str, object]]:
    table = model_table(models(), (3, 20), **options)  # type: ignore[arg-type]
    return json.loads(table.write("json"))["rows"]


def test_figures_by_hand() -> None:
    """18 units of 4 channels by 3·3 weights; of these 7 units of 2 channels by 4·5."""
    one, two, pooled = rows()
    assert (one["model"], one["params"], one["macs"]) == ("one", 4 * 9 + 4, 18 * 4 * 9)
    assert (two["params"], two["macs"]) == (40 + 2 * 20 + 2, 648 + 7 * 2 * 20)
    assert one["activation_memory"] == 4 * 18 * 4
    assert two["activation_memory"] == 4 * (18 * 4 + 7 * 2)
    assert (one["receptive_field"], two["receptive_field"]) == ("3", "7")  # 3 + (5 − 1) · 1
    assert pooled["receptive_field"] == "3 (global)"


def test_a_latency_is_there_with_a_device() -> None:
    assert "latency" not in rows()[0]
    assert all(row["latency"] for row in rows(device="NVIDIA H200", precision="bf16"))
    text = str(model_table(models(), (3, 20), device="NVIDIA H200", precision="bf16"))
    assert "Latency: of inference, bf16, estimated from the data sheet of NVIDIA H200." in " ".join(
        text.split()
    )


def test_batch_and_step() -> None:
    assert rows(batch_size=3)[0]["macs"] == 3 * 648
    options = {"training": True, "optimizer": "SGD", "metrics": ["peak_memory", "macs"]}
    table = model_table({"one": nn.Linear(3, 4)}, (3,), **options)  # type: ignore[arg-type]
    (row,) = json.loads(table.write("json"))["rows"]
    # weights, gradients, input, output and its gradient
    assert row["peak_memory"] == 4 * (16 + 16 + 3 + 4 + 4)
    text = str(model_table(models(), (3, 20), training=True))
    assert "train mode." in text
    assert "Memory: the peak in a training step." in text


def test_what_is_said_below() -> None:
    text = str(model_table(models(), (3, 20), title="Three"))
    assert "Inputs: float32 (1, 3, 20), eval mode." in text
    words = " ".join(text.split()).lower()
    assert f"counted by torchscan {torchscan.__version__} with torch {torch.__version__}" in words
    assert max(map(len, text.splitlines())) <= 80
    assert r"\caption{Three.}" in model_table(models(), (3, 20), title="Three").write("latex")


def test_wrong_use() -> None:
    with pytest.raises(InputError, match="models is a Linear: give models by name"):
        model_table(nn.Linear(3, 3), (3,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there are no models"):
        model_table({}, (3, 20))
    with pytest.raises(InputError, match="'price' is not a metric: choose from params, "):
        model_table(models(), (3, 20), metrics=["price"])
    with pytest.raises(InputError, match="'word' is not a format of tables: choose from text, "):
        model_table(models(), (3, 20)).write("word")


def test_the_model_that_fails_is_named() -> None:
    with pytest.raises(RecordError, match=r"^wrong: 0 \(Conv1d\) failed in ") as caught:
        model_table({"right": models()["one"], "wrong": nn.Sequential(nn.Conv1d(5, 4, 3))}, (3, 20))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not isinstance(caught.value.__cause__, RecordError)


def test_a_column_that_was_added_is_left_out_last_and_notes_go_with_their_columns() -> None:
    models = {"small": nn.Linear(8, 8), "large": nn.Linear(8, 64)}
    table = model_table(models, (8,), device="H100").with_column(
        "Top-1 accuracy (%)", {"small": 70.1, "large": 80.9}
    )
    wide, narrow = table.write("text", width=200), table.write("text", width=50)
    assert "Latency: of inference" in " ".join(wide.split())
    assert "Top-1 accuracy (%)" in narrow.splitlines()[1]
    assert "80.9" in narrow
    assert all(len(line) <= 50 for line in narrow.splitlines())
    shown, notes = narrow.splitlines()[1], " ".join(narrow.split())
    for heading, note in (
        ("Latency", "Latency: of"),
        ("RF", "RF: the largest"),
        ("Peak memory", "Memory: the peak"),
    ):
        assert (note in notes) == (heading in shown), heading
    assert "Hidden columns: " in notes
