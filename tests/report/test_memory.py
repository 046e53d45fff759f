"""A memory estimate as a person sees it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn

from tests.report.test_text import ESCAPES
from tests.versions import before
from torchscan import InputError, crawl_module, estimate_memory, format_info
from torchscan.report.chart import stacked, ticks
from torchscan.types import MemoryEstimate

mpl.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def a_step(**options: Any) -> MemoryEstimate:
    model = nn.Sequential(
        nn.Linear(100, 200, bias=False), nn.ReLU(), nn.Linear(200, 10, bias=False)
    )
    return estimate_memory(
        model,
        (100,),
        batch_size=64,
        training=True,
        loss=torch.sum,
        optimizer="SGD",
        holds_output=True,
        **options,
    )


EXPECTED = """\
Peak memory 271.26 KiB at aten.threshold_backward in 1,
backward, batch size 64

█ parameters    85.94 KiB  32 %
▞ inputs        25.00 KiB   9 %
▒ gradients      7.81 KiB   3 %
░ activations   52.50 KiB  19 %
· temporary    100.00 KiB  37 %

                             ▼ peak, 1
                             ·
                             · ··
                         ····· ··
    200 KiB   ··         ····· ▒▒▒▒▒▒
              ··      ░░░░░░░░·▒▒▒▒▒▒
             ·░░░░░░░░░░░░░░░░·▒▒▒▒▒▒
             ·░░░░░░░░░░░░░░░░·▒▒▒▒▒▒
    100 KiB ▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞▞
            █████████████████████████
            █████████████████████████
            █████████████████████████
            █████████████████████████
            └──────┴backward───────┴─

────────────────────────────────────────────
Layer  Type    Activations (KiB)  Peak (KiB)
────────────────────────────────────────────
1      ReLU                 50.0       271.3
2      Linear                2.5       221.3
────────────────────────────────────────────"""


@before("2.13", "autograd detaches more often, which are further moments")
def test_the_layout() -> None:
    assert a_step().to_text(width=60) == EXPECTED


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_asked_for(width: int) -> None:
    model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(100)))
    text = estimate_memory(model, (100,), training=True, optimizer="AdamW").to_text(width=width)
    assert max(map(len, text.splitlines())) <= width


def chart_of(estimate: MemoryEstimate, **options: Any) -> list[str]:
    """Its twelve rows, without what is beside them."""
    lines = estimate.to_text(width=60, **options).splitlines()
    first = next(number for number, line in enumerate(lines) if "▼" in line) + 1
    return [line[12:] for line in lines[first : first + 12]]


def test_a_column_is_filled_as_high_as_the_memory_at_its_largest_moment() -> None:
    """The bottom row shows parameters everywhere; the top row is reached where the peak is."""
    estimate = a_step()
    rows = chart_of(estimate)
    peak = max(range(len(estimate.timeline)), key=lambda index: estimate.timeline[index].total)
    assert rows[0].index("·") == peak
    assert rows[-1] == "█" * len(estimate.timeline)
    mark = next(line for line in estimate.to_text(width=60).splitlines() if "▼" in line)
    assert mark.index("▼") == 12 + peak


def test_in_colours_a_cell_shows_eighths() -> None:
    """Of three kinds in a cell (parameters, activations, nothing) the two that are most of it."""
    drawn = stacked(
        [[3, 0], [2.5, 2.5], [8, 0]], ["parameters", "activations"], 1, has_colours=True
    )
    signs = re.findall(r"\x1b\[([\d;]*)m(.)\x1b\[0m", drawn[0])
    assert [sign for _, sign in signs][::2] == ["▃", "█"]
    assert signs[0][0] == signs[2][0] == "38;5;67"
    assert signs[1] == ("38;5;71", "▅")
    three = stacked([[1, 2], [2, 1]], ["parameters", "activations"], 3, has_colours=True)
    assert [ESCAPES.sub("", row) for row in three] == ["██"] * 3
    assert "38;5;67m" in three[-1]
    assert "38;5;67m" not in three[0]


def test_the_chart_has_the_colours_of_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    text = a_step().to_text(width=60, colours=True)
    assert "\x1b[38;2;76;120;168m█\x1b[0m parameters" in text
    assert max(len(ESCAPES.sub("", line)) for line in text.splitlines()) <= 60
    assert not ESCAPES.search(a_step().to_text(width=60))


@pytest.mark.parametrize(
    ("most", "found"),
    [(1.67, [0.5, 1, 1.5]), (9.9, [5]), (10, [5, 10]), (271, [100, 200]), (1, [0.5, 1]), (0, [])],
)
def test_ticks_are_round_numbers(most: float, found: list[float]) -> None:
    assert ticks(most, 4) == pytest.approx(found)


def test_the_verdict_is_said() -> None:
    text = a_step(device="H200", largest_batch=True).to_text()
    assert "NVIDIA H200: fits" in text
    assert "Largest batch size         16,777,216 or more" in text


def test_the_context_is_said_with_its_range_if_it_is_not_known() -> None:
    text = a_step(device="H200").to_text()
    assert "Context and kernels        512.00 MiB (274 MiB … 1.6 GiB)\n" in text
    assert "close" not in text
    assert (
        "Context and kernels        900.00 MiB\n"
        in a_step(device="H200", cuda_context=900 * 2**20).to_text()
    )


def test_where_the_context_decides_the_text_says_so() -> None:
    """22 MiB are reserved: a segment of 20 for two workspaces of cuBLAS, and one of 2 for what is small."""
    assert "1 GiB: fits, but it is close\n" in a_step(device="1 GiB").to_text()
    assert "With a context of 1.64 GiB it would not fit." in a_step(device="1 GiB").to_text()
    assert "0.4 GiB: does not fit, but it is close\n" in a_step(device="0.4 GiB").to_text()
    assert "With a context of 274.00 MiB it would fit." in a_step(device="0.4 GiB").to_text()


def test_what_is_missing_is_said() -> None:
    with torch.device("meta"):
        model = nn.Linear(100_000, 100_000)
    text = estimate_memory(model, (100_000,), device="RTX 3090", largest_batch=True).to_text()
    assert "NVIDIA GeForce RTX 3090: does not fit" in text
    assert "Short by at least          14." in text
    assert "Largest batch size         0" in text


def test_the_picture_is_stacked_up_to_the_peak_which_is_named() -> None:
    estimate = a_step()
    ax = estimate.plot()
    legend = ax.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["parameters", "inputs", "gradients", "activations", "temporary"]
    top = max(
        np.asarray(path.vertices)[:, 1].max()
        for each in ax.collections
        for path in each.get_paths()
    )
    assert top == pytest.approx(estimate.peak_bytes / 2**10)
    assert ax.get_ylabel() == "KiB"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [
        "forward",
        "backward",
        "optimizer",
    ]
    assert [text.get_text() for text in ax.texts] == ["peak 271.26 KiB, 1"]


def test_the_capacity_is_a_line_or_said_where_it_is_far_above() -> None:
    small = a_step(device="0.0006 GiB", cuda_context=0)
    ax = small.plot()
    assert small.verdict is not None
    height = np.asarray(ax.lines[-1].get_ydata(), float)[0]
    assert height == pytest.approx(small.verdict.capacity_bytes / 2**10)
    assert ax.texts[-1].get_text() == "613.42 KiB for tensors on 0.0006 GiB"
    large = a_step(device="H200").plot()
    assert large.get_title("right").endswith(" GiB on NVIDIA H200, beyond the axis")


@pytest.mark.parametrize("size", ["screen", "column", "page"])
def test_sizes_are_those_of_paper(size: Any) -> None:
    figure: Any = a_step().plot(size=size).figure
    assert figure.get_size_inches()[0] == {"screen": 8.0, "column": 3.15, "page": 7.0}[size]
    with pytest.raises(InputError, match="choose from 'screen', 'column', 'page'"):
        a_step().plot(size="poster")  # type: ignore[arg-type]


def test_the_peak_of_one_operator_among_thousands_is_seen() -> None:
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(200)))
    estimate = estimate_memory(model, (20,), training=True, optimizer="AdamW")
    ax = estimate.plot()
    top = max(
        np.asarray(path.vertices)[:, 1].max()
        for each in ax.collections
        for path in each.get_paths()
    )
    assert (top, ax.get_ylabel()) == (pytest.approx(estimate.peak_bytes / 2**20), "MiB")
    assert (
        max(len(np.asarray(path.vertices)) for each in ax.collections for path in each.get_paths())
        < 2000
    )


def test_the_last_moment_has_a_width_of_its_own() -> None:
    """A peak in the last operator is drawn from there to the end of the axis."""
    estimate = estimate_memory(nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 2000)), (20,))
    moments = len(estimate.timeline)
    assert estimate.timeline[-1].total == estimate.peak_bytes
    ax = estimate.plot()
    tops = [
        vertex
        for each in ax.collections
        for path in each.get_paths()
        for vertex in np.asarray(path.vertices)
    ]
    highest = {float(x) for x, y in tops if y == pytest.approx(estimate.peak_bytes / 2**10)}
    assert {moments - 1.0, float(moments)} <= highest


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        estimate_memory(nn.Identity(), (4,)).plot()


def test_long_names_are_cut_to_the_width() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for name in (
        "a_rather_long_name",
        "another_rather_long_name",
        "the_longest_of_all_these_names",
    ):
        model = nn.Sequential(OrderedDict({name: model}))
    lines = estimate_memory(model, (4,), device="H200").to_text(width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("…" in line for line in lines)


def test_the_picture_goes_where_it_is_told() -> None:
    ax = plt.figure().add_subplot()
    assert a_step().plot(ax=ax) is ax


def test_overheads_that_were_measured_are_added_up() -> None:
    """Linear(4, 2): 40 bytes, which show as nothing beside MiB."""
    info = crawl_module(nn.Linear(4, 2), (4,))
    info["overheads"] = {"cuda": {"pre": 0.0, "fwd": 500.0}, "framework": {"pre": 0.0, "fwd": 20.0}}
    lines = format_info(info).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines if "overhead" in line] == [
        "500.00 MiB",
        "20.00 MiB",
        "520.00 MiB",
    ]


def test_an_overhead_that_nobody_knows_is_not_zero() -> None:
    info = crawl_module(nn.Linear(4, 2), (4,))
    info["overheads"] = {"cuda": {"pre": None, "fwd": None}, "framework": {"pre": 0.0, "fwd": 20.0}}
    lines = format_info(info).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines if "overhead" in line] == [
        "not known",
        "20.00 MiB",
        "≥ 20.00 MiB",
    ]


def test_a_model_is_not_listed_beside_its_own_layers() -> None:
    """Also where a list of layers, which is never called, stands between them."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    text = estimate_memory(model, (4, 16), training=True).to_text()
    rows = [line for line in text[text.index("Layer  ") :].splitlines()[2:] if line[:1].isalpha()]
    assert rows
    assert all(row.startswith("layers.") for row in rows)


def test_equal_layers_of_equal_blocks_are_one_row() -> None:
    """Each ReLU of 20 × 100 floats keeps 8,000 bytes for its backward pass, and each linear layer its input."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(100, 100), nn.ReLU()) for _ in range(12)))
    table = estimate_memory(blocks, (100,), batch_size=20, training=True).table()
    rows = {row.name: row for row in table.rows}
    relus = rows["*.1 ×12"]
    assert relus.cells[2].value == 12 * 8000
    assert len(rows) <= 3


def test_the_table_has_the_layer_that_peaks_and_says_what_is_left_out() -> None:
    widths = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]
    layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
    narrow = nn.Sequential(*layers, nn.Linear(110, 1), nn.Linear(1, 4000))
    estimate = estimate_memory(narrow, (10,), batch_size=2, training=True)
    table = estimate.table()
    assert estimate.peak_layer in [row.cells[0].value for row in table.rows]
    kept = {layer.path: layer.activation_bytes for layer in estimate.layers if layer.path}
    missing = kept.keys() - {row.cells[0].value for row in table.rows}
    left_out = sum(kept[path] for path in missing)
    number = sum(kept[path] > 0 for path in missing)
    assert table.remarks[0] == (
        f"{number} more layers keep {left_out} B; the JSON output lists all."
    )


def test_the_heading_of_a_page_names_the_model() -> None:
    page = estimate_memory(nn.Linear(3, 2), (3,)).to_html(standalone=True)
    assert "<h1>Memory: Linear</h1>" in page


def test_the_largest_batch_within_the_error_margin_comes_first() -> None:
    """The context is somewhere between 274 MiB and 1.6 GiB; what torch reserves may be 2 % more."""
    model = nn.Linear(1000, 1000)
    verdict = estimate_memory(
        model, (1000,), device="1 GiB", cuda_context=2**28, largest_batch=True
    ).verdict
    assert verdict is not None
    safe, largest = verdict.safe_batch_size, verdict.largest_batch_size
    assert safe is not None
    assert largest is not None
    assert 0.97 * largest < safe < largest
    for size, share in ((safe, 1.02), (largest, 1.0)):
        again = estimate_memory(
            model, (1000,), batch_size=size, device="1 GiB", cuda_context=2**28
        ).verdict
        assert again is not None
        assert again.fits
        assert again.cuda_context_bytes + share * again.reserved_bytes <= again.capacity_bytes
    text = estimate_memory(
        model, (1000,), device="1 GiB", cuda_context=2**28, largest_batch=True
    ).to_text()
    assert f"Largest batch size         {safe:,}, or {largest:,} if the estimate is exact" in text


def test_code_to_type_is_not_cut() -> None:
    model = nn.Linear(512, 512)
    suggestions = estimate_memory(
        model, (512,), training=True, optimizer="AdamW", device="H100"
    ).suggestions()
    text = suggestions.table().write("text", width=80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


class LongNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation_before_the_projection = nn.Sigmoid()
        self.projection_of_the_attention_weights_of_heads = nn.Linear(8, 8)
        self.activation_after_the_projection = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation_before_the_projection(x)
        y = self.projection_of_the_attention_weights_of_heads(y)
        return x + self.activation_after_the_projection(y)


@pytest.mark.parametrize("width", [50, 64])
def test_long_names_of_equal_layers_stay_in_their_column(width: int) -> None:
    model = nn.Sequential(*(LongNames() for _ in range(3)))
    estimate = estimate_memory(model, (8,), batch_size=4, training=True)
    lines = estimate.table().to_text(width=width).splitlines()
    rows = [line for line in lines if "×3" in line]
    assert len(rows) > 1
    assert {line.index(" ×3") for line in rows} == {rows[0].index(" ×3")}
    assert max(map(len, rows)) <= width


class Stages(nn.Module):
    """Stages with equal blocks, whose names differ in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        for stage in (1, 2, 3):
            blocks = [nn.ModuleDict({"act1": nn.Sigmoid(), "act2": nn.Tanh()}) for _ in range(2)]
            self.add_module(f"layer{stage}", nn.ModuleList(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        for blocks in self.children():
            for block in blocks.children():
                for act in block.children():
                    x = act(x)
        return x


@pytest.mark.parametrize("width", [40, 50, 80])
def test_truncated_names_of_layers_stay_different(width: int) -> None:
    estimate = estimate_memory(Stages(), (2**16,), training=True)
    text = estimate.to_text(width=width)
    rows = [line for line in text.splitlines() if "×2" in line]
    names = {row.partition(" ×2")[0] for row in rows}
    assert len(names) == len(rows) == 6
    assert max(map(len, text.splitlines())) <= width
