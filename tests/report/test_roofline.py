"""A roofline as a person sees it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.text import Annotation
from torch import nn

from torchscan import InputError, analyze_roofline, register_device
from torchscan.hardware import device_catalog
from torchscan.report.roofline_table import roofline_table
from torchscan.types import Roofline

mpl.use("Agg")


@pytest.fixture(autouse=True)
def round_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_catalog, "_registered", {})
    register_device(
        "a round card", memory_gb=64, bandwidth_gbs=100, dense_tflops={"fp32": 10, "fp16": 100}
    )
    yield
    plt.close("all")


def a_roofline(**options: Any) -> Roofline:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()),
        nn.Sequential(nn.Linear(1000, 100), nn.Linear(100, 10)),
        nn.Softmax(-1),
    )
    return analyze_roofline(
        model, (1000,), batch_size=4096, device="a round card", precision="fp32", **options
    )


@pytest.mark.parametrize(
    ("options", "heading"),
    [
        ({}, "Expected time on a round card (batch 1, the model's own precision)"),
        ({"precision": "fp16"}, "Expected time on a round card (batch 1, fp16)"),
        ({"batch_size": 64, "compiled": True, "precision": "fp32"},
         "Expected time on a round card (batch 64, fp32, compiled)"),
        ({"args": (torch.zeros(2, 4),), "precision": "fp32"},
         "Expected time on a round card (fp32)"),
    ],
)  # fmt: skip
def test_batch_and_precision_are_in_the_heading(options: dict[str, Any], heading: str) -> None:
    shape = None if "args" in options else (4,)
    roofline = analyze_roofline(nn.Linear(4, 2), shape, device="a round card", **options)
    table = roofline_table(roofline)
    assert list(table.summary) == [heading]
    assert table.title == f"{heading} by layer"


#: layer 0: 8.192 GFLOP of its product at 10 TFLOP/s, and 32.8 MB of ReLU at 100 GB/s
EXPECTED = """\
Expected time on a round card (batch 4,096, fp32)

Expected time    1.54 ms ± 50 %  2.7 M samples per second
Limited by         compute 60 %  memory 40 %, launch 1 % of the time
At least                1.35 ms  at data-sheet rates, call by call
Matrix products          58.6 %  of 10.0 TFLOP/s fp32
Memory                   58.6 %  of 100.0 GB/s

──────────────────────────────────────────────────────────────────────────────
Layer  FLOPs (M)  FLOP/B  Limit    Bound (µs)  Estimate (µs)  of time
──────────────────────────────────────────────────────────────────────────────
0        8,196.1   117.9  compute     1,146.9        1,284.9     84 % ██████▋
1          827.4    40.9  memory        202.3          244.4     16 % █▎
2            0.2     0.6  launch          3.3            8.6      1 % ▏
──────────────────────────────────────────────────────────────────────────────

± 50 %, not validated: no measured time on a device of this kind to compare
with.

Hidden columns: Moved (MiB)."""


def test_layers_the_heaviest_first() -> None:
    assert a_roofline().to_text(max_depth=1) == EXPECTED


class _Residual(nn.Module):
    """A model that calls an operator itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x


@pytest.mark.parametrize("width", [60, 80])
def test_the_name_of_the_model_itself_is_not_truncated(width: int) -> None:
    table = roofline_table(
        analyze_roofline(_Residual(), (1024,), batch_size=8192, device="a round card")
    )
    lines = table.write("text", width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("the model itself ") for line in lines)
    assert {row.cells[0].value for row in table.rows} == {"inner", "(the model itself)"}


def test_layers_of_equal_times_stay_in_order() -> None:
    """Their times, from the clock of the whole pass, differ in the last digits."""
    block = [
        nn.Sequential(nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()) for _ in range(9)
    ]
    roofline = analyze_roofline(
        nn.Sequential(*block), (5, 30, 30), batch_size=7, device="a round card"
    )
    assert [row.name for row in roofline_table(roofline, by="layer", max_depth=1).rows] == list(
        "012345678"
    )


def test_text_has_equal_layers_in_one_row_and_data_has_not() -> None:
    """The first is expected to take longer, the last one is another, and what breaks the list is not jumped over."""
    wide, narrow = (lambda: nn.Linear(64, 64)), (lambda: nn.Linear(64, 8))
    model = nn.Sequential(wide(), wide(), nn.ReLU(), wide(), wide(), narrow())
    roofline = analyze_roofline(
        model, (64,), batch_size=2**14, device="a round card", precision="fp32"
    )
    text = roofline.to_text(max_depth=1)
    names = {line.partition("  ")[0] for line in text.splitlines()}
    assert {"0", "1", "2", "3 … 4 ×2", "5"} <= names
    assert "× marks identical layers in one row; values are their sums." in text
    assert sorted(row.name for row in roofline_table(roofline, max_depth=1).rows) == list("012345")


def test_layers_that_cost_the_same_and_do_not_do_the_same_have_rows_of_their_own() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Hardtanh(), nn.ReLU(), nn.ReLU())
    roofline = analyze_roofline(
        model, (64,), batch_size=2**14, device="a round card", precision="fp32"
    )
    names = {line.partition("  ")[0] for line in roofline.to_text(max_depth=1).splitlines()}
    assert {"0", "1", "2 … 3 ×2"} <= names


@pytest.mark.parametrize("by", ["layer", "kind", "operator"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_the_width_and_adds_up(by: Any, width: int) -> None:
    result = a_roofline(training=True, optimizer="AdamW")
    lines = result.to_text(by=by, top=3, width=width).splitlines()
    assert max(map(len, lines)) <= max(width, 80)
    _, begin, end = (number for number, line in enumerate(lines) if line.startswith("──"))
    rows = lines[begin + 1 : end]
    shares = re.findall(r"(<?)(\d+) %", "\n".join(rows))
    assert len(shares) == len(rows)
    assert sum(float(number) for is_less, number in shares if not is_less) == pytest.approx(
        100, abs=0.5 * len(rows)
    )


def test_phases_and_warnings_are_shown() -> None:
    text = a_roofline(training=True, optimizer="SGD").to_text()
    assert "forward" in text
    assert "optimizer" in text
    with pytest.warns(UserWarning, match="does not fit"):
        result = analyze_roofline(nn.ReLU(), (2**20,), batch_size=2**14, device="a round card")
    assert "Warning: the pass does not fit on a round card" in result.to_text()


@pytest.mark.parametrize("options", [{"by": "module"}, {"top": 0}, {"max_depth": -1}])
def test_bad_questions(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"choose from|give 1 or more rows"):
        a_roofline().to_text(**options)


def test_the_picture_has_both_roofs_and_a_point_for_each_operator() -> None:
    result = a_roofline()
    ax = result.plot()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    memory, arithmetic = ax.lines
    x, y = np.asarray(memory.get_xdata(), float), np.asarray(memory.get_ydata(), float)
    assert y / x == pytest.approx([100e9, 100e9])
    assert list(np.asarray(arithmetic.get_ydata(), float)) == [10e12, 10e12]
    points = points_of(ax)
    expected = {
        (each.intensity, each.flops / each.time_estimate) for each in result.operators if each.flops
    }
    assert {tuple(point) for point in points} == expected
    assert all(height <= min(100e9 * place, 10e12) for place, height in points)
    left, right = ax.get_xlim()
    assert all(left < place < right for place, _ in points)
    assert left < 10e12 / 100e9 < right  # where the roofs meet


def points_of(ax: Any) -> Any:
    """Where they stand; those of the legend are nowhere."""
    return np.concatenate(
        [np.asarray(each.get_offsets()).reshape(-1, 2) for each in ax.collections]
    )


def test_no_label_covers_a_point_a_roof_or_another_label() -> None:
    ax = a_roofline().plot()
    figure: Any = ax.figure
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 3
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    named = [
        box
        for text, box in zip(ax.texts, boxes, strict=True)
        if isinstance(text, Annotation) and not is_of_a_roof(text)
    ]
    for point in ax.transData.transform(points_of(ax)):
        assert not any(box.contains(*point) for box in named)


def is_of_a_roof(text: Any) -> bool:
    return text.get_text().endswith(("B/s", "fp32"))


def test_layers_that_take_most_are_named_and_the_ridge() -> None:
    result = a_roofline()
    said = [text.get_text() for text in result.plot().texts]
    assert "ridge: 100 FLOPs per byte" in said
    longest = max(result.operators, key=lambda each: each.time_estimate)
    assert any(text.startswith(longest.layer) for text in said)


def test_calls_that_differ_in_their_arithmetic_alone_have_a_point_each() -> None:
    """Two comparisons per element and four, each for 4 bytes read, and 4 and an index of 8 written. The third is the first."""
    pools = [nn.MaxPool1d(3, 1, 1), nn.MaxPool1d(5, 1, 2), nn.MaxPool1d(3, 1, 1)]
    ax = analyze_roofline(nn.Sequential(*pools), (4, 4096), device="a round card").plot()
    points = points_of(ax)
    assert sorted(place for place, _ in points) == [2 / 16, 4 / 16]


def test_there_must_be_something_to_draw() -> None:
    with pytest.raises(InputError, match="no operator does arithmetic"):
        analyze_roofline(nn.Flatten(), (4, 4), device="a round card").plot()
