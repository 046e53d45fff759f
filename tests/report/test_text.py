"""The table as a person sees it."""

from __future__ import annotations

import io
import re
import sys
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.recording.test_record import Calls
from tests.report.samples import INFOS
from torchscan import (
    InputError,
    RecordError,
    analyze_roofline,
    crawl_module,
    estimate_memory,
    format_info,
    from_json,
    record,
    summary,
)
from torchscan.analyses.totals import by_module
from torchscan.report.table import Table


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.ReLU()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        self.head[2].bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.act(self.norm(self.conv(x)))))


EXPECTED = """\
──────────────────────────────────────────────────────────────────────────
Layer      Type               Output    Params  MACs (k)  of MACs
──────────────────────────────────────────────────────────────────────────
Block      Block              10           634     442.5    100 % ████████
├─conv     Conv2d             16×32×32     432     442.4    100 % ████████
├─norm     BatchNorm2d        16×32×32      32         –        –
├─act      ReLU               16×32×32       –         –        –
├─act (2)  ReLU               16×32×32       –         –        –
└─head     Sequential         10           170       0.2     <1 % ▏
  ├─0      AdaptiveAvgPool2d  16×1×1         –         –        –
  ├─1      Flatten            16             –         –        –
  └─2      Linear             10           170       0.2     <1 % ▏
──────────────────────────────────────────────────────────────────────────
Trainable parameters               624
Non-trainable parameters           10
Total parameters                   634
Model size (parameters + buffers)  2.61 KiB
Floating-point operations          999.78 kFLOPs
Multiply-accumulations             442.53 kMACs
Direct memory accesses             574.15 kDMAs
──────────────────────────────────────────────────────────────────────────
One pass in evaluation mode, on shapes alone, of float32 (1, 3, 32, 32)."""


def lines(model: nn.Module, *args: Any, **options: Any) -> list[str]:
    layout = {
        key: options.pop(key) for key in ("columns", "width", "fold_repeats") if key in options
    }
    wrap = options.pop("wrap_mode", "mid")
    return format_info(crawl_module(model, *args, **options), wrap, **layout).splitlines()


def test_the_whole_table() -> None:
    found = lines(Block(), (3, 32, 32))
    if torch.cuda.is_available():
        found = [each for each in found if "CUDA overhead" not in each]
    assert "\n".join(found) == EXPECTED


def test_summary_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    model = Block()
    summary(model, (3, 32, 32))
    assert capsys.readouterr().out == format_info(crawl_module(model, (3, 32, 32))) + "\n"


def test_summary_folds_to_a_depth_and_shows_less_deep_models_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary(Block(), (3, 32, 32), max_depth=1)
    assert "Flatten" not in capsys.readouterr().out
    summary(Block(), (3, 32, 32), max_depth=9)
    assert "Flatten" in capsys.readouterr().out


def test_summary_shows_the_receptive_field_in_words_where_it_is_everything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), (1, 2)), nn.Upsample(scale_factor=3), nn.AdaptiveAvgPool2d(1)
    )
    summary(model, (3, 32, 33), receptive_field=True, effective_rf_stats=True)
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[-5:] == ["RF", "Stride", "Pad", "of", "MACs"]
    assert table[4].split()[4:8] == ["81,000", "3×5", "1×2", "0"]
    assert table[5].split()[-4:-1] == ["3×5", "1/3×2/3", "2/3×4/3"]
    assert table[6].split()[-4:-1] == ["global", "–", "–"]
    assert "global: the entire input is seen, by aten.adaptive_avg_pool2d; stride and" in table
    summary(model, (3, 32, 32))
    assert "RF" not in capsys.readouterr().out


def test_the_table_says_where_receptive_fields_are_not_the_whole_truth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.GroupNorm(2, 4)
    )
    summary(model, (3, 32, 32), receptive_field=True)
    text = capsys.readouterr().out
    assert "(norm-stats)" in text
    assert "(wraps)" in text
    assert "(hull)" not in text
    assert "(padded)" not in text
    reflecting = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
    summary(reflecting, (3, 32, 32), receptive_field=True)
    assert "reflected or repeated (padded)" in capsys.readouterr().out.replace("\n", " ")
    summary(model, (3, 32, 32))
    assert "norm-stats" not in capsys.readouterr().out


@pytest.mark.parametrize("wrap_mode", ["head", "mid", "tail"])
def test_names_of_200_characters_fit_80_columns(wrap_mode: Any) -> None:
    name = "first_" + "x" * 188 + "_last"
    model = nn.Sequential(
        OrderedDict([(name, nn.Sequential(OrderedDict([(name, nn.Linear(4, 4))])))])
    )
    table = lines(model, (4,), wrap_mode=wrap_mode)
    assert max(map(len, table)) <= 80
    cut = next(line for line in table if line.startswith("  └─"))[4:].split()[0]
    assert cut.startswith("first_") == (wrap_mode != "head")
    assert cut.endswith("_last") == (wrap_mode != "tail")
    assert "…" in cut


def test_a_depth_of_12_is_drawn_as_a_staircase() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(12):
        model = nn.Sequential(OrderedDict(inside=model))
    table = lines(model, (4,))
    assert max(map(len, table)) <= 80
    assert table[15].startswith("  " * 11 + "└─inside")


@pytest.mark.slow
def test_600_rows_stay_in_line() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(600)))
    table = lines(model, (4,), columns=["type", "params"], fold_repeats=False)[3:604]
    assert len({len(line) for line in table}) == 1
    assert table[1].startswith("├─0 ")
    assert table[-1].startswith("└─599 ")


def test_one_layer_no_parameters_no_tensors() -> None:
    assert "Total parameters                   0" in "\n".join(lines(nn.ReLU(), (4,)))
    assert "–" in lines(Calls(lambda _, x: None), (4,))[3]


def test_branches_are_drawn_where_siblings_follow() -> None:
    model = nn.Sequential(
        OrderedDict(a=nn.Sequential(OrderedDict(b=nn.ReLU(), c=nn.ReLU())), d=nn.ReLU())
    )
    names = [line.split()[0] if line[0] != "│" else line[:5] for line in lines(model, (4,))[3:8]]
    assert names == ["Sequential", "├─a", "│ ├─b", "│ └─c", "└─d"]


def test_a_module_called_again_says_so() -> None:
    model = Calls(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4))
    first, second = lines(model, (4,))[4:6]
    assert first.split()[:2] == ["├─a", "Linear"]
    assert second.split()[:3] == ["└─a", "(2)", "Linear"]
    assert "shared" in second


def test_several_outputs_show_the_first_and_how_many_more() -> None:
    assert "4 +2" in lines(Calls(lambda _, x: (x, [x, x])), (4,))[3]


def test_columns_can_be_chosen_and_wrong_ones_are_refused_with_a_list() -> None:
    table = lines(
        Block(),
        (3, 32, 32),
        columns=["path", "grad_params", "nograd_params", "flops", "dmas", "bytes_read"],
    )
    units = ["FLOPs", "(k)", "DMAs", "(k)", "Read", "(KiB)"]
    assert table[1].split() == ["Layer", "Path", "Trainable", "Frozen", *units]
    with pytest.raises(InputError, match="choose from type, path"):
        lines(Block(), (3, 32, 32), columns=["colour"])
    with pytest.raises(InputError, match="'head', 'mid', 'tail'"):
        lines(Block(), (3, 32, 32), wrap_mode="middle")
    with pytest.raises(InputError, match=r"did you mean 'flops'\? Choose from type, path"):
        lines(Block(), (3, 32, 32), columns=["flop"])
    with pytest.raises(InputError, match=r"give a list of names, columns=\['params'\]"):
        lines(Block(), (3, 32, 32), columns="params")
    for width in (0, True, 50.0):
        with pytest.raises(InputError, match="number of characters"):
            lines(Block(), (3, 32, 32), width=width)


def test_the_layout_is_checked_before_the_pass() -> None:
    with pytest.raises(InputError, match=r"wrap_mode is torch\.int64"):
        summary(nn.Embedding(4, 2), (5,), torch.long)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (71, ["Layer", "Type", "Output", "Params", "MACs (k)", "of MACs"]),
        (60, ["Layer", "Type", "Output", "Params", "MACs (k)", "of MACs"]),
        (55, ["Layer", "Output", "Params", "MACs (k)", "of MACs"]),
        (44, ["Layer", "Params", "MACs (k)", "of MACs"]),
        (34, ["Layer", "Params", "MACs (k)"]),
        (27, ["Layer", "Params", "MACs (k)"]),
    ],
)
def test_where_there_is_no_room_columns_are_left_out(width: int, shown: list[str]) -> None:
    """First the bars, then types are cut, then columns go; no line is too long, and no number is ever cut."""
    narrow = lines(Block(), (3, 32, 32), width=width)
    assert [heading for heading in re.split("  +", narrow[1]) if heading] == shown
    assert "442.4" in narrow[4]
    assert max(map(len, narrow)) <= width
    assert ("Hidden columns" in "\n".join(narrow)) == (len(shown) < 6)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (63, ["MACs", "Own MACs", "FLOPs", "Own FLOPs", "Params", "Own params"]),
        (62, ["MACs", "Own MACs", "FLOPs", "Own FLOPs", "Params"]),
        (50, ["MACs", "Own MACs", "FLOPs", "Params"]),
        (39, ["MACs", "FLOPs", "Params"]),
    ],
)
def test_columns_of_own_values_are_hidden_first(width: int, shown: list[str]) -> None:
    """Six columns are 63 wide: 8 of names, then 8, 10, 8, 11, 8 and 12 with two spaces each."""
    columns = ["macs", "own_macs", "flops", "own_flops", "params", "own_params"]
    table = format_info(INFOS["block"](), columns=columns, width=width)
    headings = table.splitlines()[1]
    assert re.split("  +", headings.strip()) == ["Layer", *shown]


def test_the_mode_of_the_pass_is_said() -> None:
    for mode, words in (
        ("eval", "in evaluation mode"),
        ("train", "in training mode"),
        ("same", "as the modules are set"),
    ):
        assert f"One pass {words}" in " ".join(lines(nn.ReLU(), (4,), mode=mode))


def test_what_a_pass_assumed_or_left_out_is_said() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.used(x)
            return x.gather(1, x.topk(2).indices)

    text = " ".join(lines(Partial(), (4,)))
    assert "Balanced routing is assumed" in text
    assert "Parameters that this pass did not use: unused (20)." in text


def test_a_real_pass_says_why() -> None:
    text = " ".join(lines(Calls(lambda _, x: x[x > 0]), (4,)))
    assert "on data (the pass on shapes alone failed: " in text


# -- sums, repeats, weights ----------------------------------------------------------------------------------------------


def blocks(count: int, *others: nn.Module) -> nn.Module:
    """Equal ones, of 40 parameters and 32 MACs each."""
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)) for _ in range(count)),
        *others,
    )


def test_equal_blocks_are_one_row_where_that_saves_half_of_them() -> None:
    table = lines(blocks(12), (4,), columns=["params", "macs"])[3:7]
    assert [line.split() for line in table] == [
        ["Sequential", "480", "384"],
        *(["└─0", "…", "11", "×12", "480", "384"], ["├─0", "240", "192"], ["└─2", "240", "192"]),
    ]
    text = " ".join(lines(blocks(12), (4,)))
    assert "× marks identical layers in one row; values are their sums." in text
    assert "Hidden layers without operators: Dropout ×12." in text


def test_repeats_are_folded_or_shown_as_asked() -> None:
    few = blocks(2, nn.Linear(4, 2), nn.ReLU())
    assert "×" not in "".join(lines(few, (4,))), "six rows of eleven"
    assert [line.split()[:4] for line in lines(few, (4,), fold_repeats=True)[4:8]] == [
        *(
            ["├─0", "…", "1", "×2"],
            ["│", "├─0", "Linear", "4"],
            ["│", "└─2", "Linear", "4"],
            ["├─2", "Linear", "2", "10"],
        ),
    ]
    assert len(lines(blocks(12), (4,), fold_repeats=False)) > 48


def test_blocks_that_differ_anywhere_are_apart() -> None:
    widths = [4, 4, 4, 8, 8, 8, 8]
    model = nn.Sequential(*(nn.Linear(one, other) for one, other in pairwise(widths)))
    names = [line.partition("  ")[0] for line in lines(model, (4,), fold_repeats=True)[3:7]]
    assert names == ["Sequential", "├─0 … 1 ×2", "├─2", "└─3 … 5 ×3"]
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    assert "×" not in "".join(lines(frozen, (4,), fold_repeats=True))


def test_names_that_are_no_numbers_stay_apart() -> None:
    same = {name: nn.Linear(4, 4) for name in ("query", "key", "value", "layer1", "layer2")}
    model = Calls(lambda self, x: [each(x) for each in self.children()], **same)
    names = [line.partition("  ")[0] for line in lines(model, (4,), fold_repeats=True)[4:8]]
    assert names == ["├─query", "├─key", "├─value", "└─layer1 … 2 ×2"]


def test_calls_of_the_same_module_are_one_row() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(9):
            x = self.cell(x)
        return x

    table = lines(Calls(forward, cell=nn.Linear(4, 4)), (4,), columns=["params", "macs"])
    assert [line.split() for line in table[4:6]] == [
        ["├─cell", "20", "16"],
        ["└─cell", "(2)", "…", "(9)", "×8", "shared", "128"],
    ]


def test_repeats_within_repeats_are_multiplied() -> None:
    model = nn.Sequential(*(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))) for _ in range(6)))
    table = lines(model, (4,), columns=["params"])
    assert [line.split() for line in table[4:6]] == [
        ["└─0", "…", "5", "×6", "600"],
        ["└─0", "…", "4", "×5", "600"],
    ]


def test_own_figures_have_columns_of_their_own() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.scale

    table = lines(
        Scaled(),
        (4,),
        columns=["params", "own_params", "flops", "own_flops", "params_share", "trainable"],
    )
    assert table[3].split()[:8] == ["Scaled", "24", "4", "36", "4", "100", "%", "████████"]
    assert table[4].split()[:7] == ["└─inner", "20", "20", "32", "32", "83", "%"]


def test_which_layers_train() -> None:
    model = Block()
    model.conv.requires_grad_(False)
    table = lines(model, (3, 32, 32), columns=["trainable"])
    assert [line.split()[-1] for line in table[3:12]] == [
        "partly",
        "no",
        "yes",
        "–",
        "–",
        "partly",
        "–",
        "–",
        "partly",
    ]


@pytest.mark.slow
def test_figures_of_a_column_share_their_unit() -> None:
    """A count of less than half of the last digit is not zero."""
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1))
    table = lines(model, (1000,), columns=["macs", "bytes_read"])
    assert table[1].split() == ["Layer", "MACs", "(k)", "Read", "(KiB)"]
    assert [line.split()[1:] for line in table[3:6]] == [
        ["1,001.0", "3,921.9"],
        ["1,000.0", "3,914.1"],
        ["1.0", "7.8"],
    ]
    model = nn.Sequential(nn.Linear(4000, 4000), nn.Linear(4000, 2))
    assert lines(model, (4000,), columns=["macs"])[5].split() == ["└─1", "8.0"]
    tiny = nn.Sequential(nn.Linear(10_000, 20_000), nn.Linear(20_000, 1), nn.Linear(1, 1))
    assert lines(tiny, (10_000,), columns=["macs"])[6].split() == ["└─2", "<0.1"]


ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def test_only_terminals_have_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    summary(Block(), (3, 32, 32))
    plain = capsys.readouterr().out
    assert not ESCAPES.search(plain)
    monkeypatch.setenv("FORCE_COLOR", "1")
    summary(Block(), (3, 32, 32))
    assert capsys.readouterr().out == plain, "pytest's stream is not the program's own"
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
    summary(Block(), (3, 32, 32))
    coloured = capsys.readouterr().out
    assert ESCAPES.sub("", coloured) == plain
    bold = [
        text
        for text in re.findall(r"\x1b\[1m(.*?)\x1b\[0m", coloured)
        if text.strip() not in ("", "–")
    ]
    assert [text.strip() for text in bold] == ["634", "442.5", "100 %", "170", "0.2", "<1 %"], (
        "of the model and of its head"
    )
    assert "\x1b[38;5;167m████████\x1b[0m" in coloured
    monkeypatch.setenv("COLORTERM", "truecolor")
    summary(Block(), (3, 32, 32))
    assert "\x1b[38;2;209;96;61m████████\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    summary(Block(), (3, 32, 32))
    assert capsys.readouterr().out == plain


# -- a pass that fails ---------------------------------------------------------------------------------------------------

WHAT_RAN = """\
──────────────────────────────────────────────────
Layer           Type        Input   Output  Params
──────────────────────────────────────────────────
Sequential      Sequential  –       –          908
├─0             Sequential  3×8×8   16×8×8     448
└─1             Sequential  –       –          460
  ├─0           ReLU        16×8×8  16×8×8       –
  └─1 (failed)  Conv2d      16×8×8  –          460
──────────────────────────────────────────────────
The pass failed in the marked layer; the error has the reason:
"""


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_pass_that_fails_shows_the_layers_up_to_there(
    execute: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second convolution wants 5 channels and has 10·5·3·3 + 10 parameters; what has run whole is one row."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
    model = nn.Sequential(
        stem, nn.Sequential(nn.ReLU(), nn.Conv2d(5, 10, 3, bias=True), nn.ReLU()), nn.ReLU()
    )
    with pytest.raises(RecordError, match=r"1\.1 \(Conv2d\) failed in aten\.conv"):
        summary(model, (3, 8, 8), execute=execute)
    assert capsys.readouterr().out == WHAT_RAN


def test_a_pass_that_fails_in_the_model_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError):
        summary(Calls(lambda self, x: self.a(x) @ x, a=nn.Linear(4, 2)), (4,))
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:5]] == [
        ["Calls", "(failed)"],
        ["└─a", "Linear"],
    ]


# -- memory and times ----------------------------------------------------------------------------------------------------


def test_with_a_device_there_are_times_which_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    summary(Block(), (3, 32, 32), device="RTX 4090", batch_size=8)
    text = capsys.readouterr().out
    assert re.split("  +", text.splitlines()[1]) == [
        "Layer",
        "Type",
        "Output",
        "Params",
        "MACs (k)",
        "Time (µs)",
        "of time",
    ]
    assert "Times are estimated for NVIDIA GeForce RTX 4090: " in text
    info = crawl_module(Block(), (3, 32, 32), device="RTX 4090", batch_size=8)
    times = [layer["time_estimate"] for layer in info["layers"]]
    roofline = analyze_roofline(Block(), (3, 32, 32), device="RTX 4090", batch_size=8)
    assert (
        sum(times)
        == pytest.approx(info["overall"]["time_estimate"])
        == pytest.approx(roofline.time_estimate)
    )
    assert times[3] > 0 < times[4], "both calls of the activation"
    folded = torchscan.aggregate_info(info, 1)["layers"]
    assert sum(layer["time_estimate"] for layer in folded) == pytest.approx(roofline.time_estimate)
    assert from_json(info.to_json()) == info
    assert "latency" in info.to_csv().splitlines()[0].split(",")


def test_memory_is_that_of_the_estimate() -> None:
    """A ReLU keeps its result, 4·10 floats; the output is there when the forward pass ends."""
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    info = crawl_module(model, (10,), batch_size=4, training=True, memory=True)
    estimate = estimate_memory(model, (10,), batch_size=4, training=True)
    assert [(layer["activation_bytes"], layer["peak_bytes"]) for layer in info["layers"]] == [
        (each.activation_bytes, each.peak_bytes) for each in estimate.layers
    ]
    assert [layer["activation_bytes"] for layer in info["layers"]] == [320, 0, 160, 160]
    assert info["overall"]["peak_bytes"] == estimate.peak_bytes
    table = format_info(info, columns=["activations", "peak"]).splitlines()
    assert table[1].split() == ["Layer", "Activations", "(B)", "Peak", "(B)"]
    assert table[5].split()[:2] == ["├─1", "160"]


def test_equal_blocks_keep_the_sum_and_peak_at_the_most() -> None:
    """The first of nine has no gradient of its input to compute, and a row of its own."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(9)))
    asked: Any = {"batch_size": 16, "training": True, "memory": True, "device": "RTX 4090"}
    info = crawl_module(model, (64,), **asked)
    blocks = [layer for layer in info["layers"] if layer["depth"] == 1][1:]
    (folded,) = [
        line
        for line in lines(model, (64,), columns=["activations", "peak", "latency"], **asked)
        if "×8" in line
    ]
    kept, peak = (
        sum(layer["activation_bytes"] for layer in blocks),
        max(layer["peak_bytes"] for layer in blocks),
    )
    assert folded.split()[4:6] == [f"{kept / 1024:,.1f}", f"{peak / 1024:,.1f}"]


def test_what_was_not_asked_for_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"the column 'latency' needs a device: give device='RTX 4090', for example",
    ):
        summary(nn.Linear(2, 2), (2,), columns=["latency"])
    info = crawl_module(nn.Linear(2, 2), (2,))
    with pytest.raises(
        InputError, match=r"these layers have no 'peak': give crawl_module memory=True"
    ):
        format_info(info, columns=["peak"])
    with pytest.raises(
        InputError, match=r"no 'latency_share': give crawl_module device='RTX 4090'"
    ):
        info.to_csv(columns=["latency_share"])
    summary(nn.Linear(2, 2), (2,), columns=["peak", "activations"])


# -- what a strict reader found ------------------------------------------------------------------------------------------


def test_what_a_backward_pass_computes_again_is_summed_where_it_belongs() -> None:
    """Each of three blocks is computed twice; the head, which is called last, once."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    info = crawl_module(Checkpointed(), (4,), training=True)
    assert from_json(info.to_json()) == info
    costs = by_module(record(Checkpointed(), (4,), training=True))
    for layer in torchscan.aggregate_info(info, 1)["layers"]:
        if layer["path"] == "head":
            assert layer["macs"] == costs["head"].macs
    own: dict[str, int] = {}
    for layer in torchscan.aggregate_info(info, 1)["layers"]:
        own[layer["path"]] = own.get(layer["path"], 0) + layer["macs"]
    assert own["blocks.1"] == costs["blocks.1"].macs


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_streams_that_stand_in_for_others_need_not_know_terminals(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tee:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, name, Tee())
    summary(nn.Linear(4, 4), (4,))
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert crawl_module(nn.Linear(4, 4), (4,))["overall"]["macs"] == 16


def test_a_list_has_the_unit_of_what_it_shows() -> None:
    """Own figures, not sums that nobody sees."""
    model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(300)))
    info = torchscan.select_layers(crawl_module(model, (200,)), match="Linear", top=2)
    table = format_info(info, columns=["macs"]).splitlines()
    assert table[1].split() == ["Layer", "MACs"]
    assert table[3].split() == ["0", "40,000"]
    assert "each with its own values" in " ".join(table)
    for name, advice in (("latency", "device="), ("peak", "memory=True")):
        with pytest.raises(InputError, match=advice):
            torchscan.select_layers(crawl_module(model, (200,)), sort=name)


def test_a_share_that_is_not_nothing_is_not_0() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(200)))
    table = lines(model, (4,), columns=["macs_share"], fold_repeats=False)
    assert {line.split(maxsplit=1)[1].strip("▏ ") for line in table[4:203]} == {"<1 %"}


def test_very_deep_trees_keep_to_the_width() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(150):
        model = nn.Sequential(model)
    assert max(map(len, lines(model, (4,)))) <= 80
    assert max(map(len, lines(model, (4,), width=60))) <= 60


def test_letters_that_take_the_room_of_two_stay_in_line() -> None:
    """``wcwidth`` knows how wide a terminal shows them."""
    wcwidth = pytest.importorskip("wcwidth")
    names = {
        "エンコーダ層": nn.Linear(4, 4),
        "plain": nn.Linear(4, 4),
        "🚀🚀": nn.ReLU(),
        "非常に長い名前" * 8: nn.Linear(4, 4),
    }
    for width in (80, 44):
        table = lines(
            nn.Sequential(OrderedDict(names)), (4,), width=width, columns=["type", "params"]
        )[:9]
        assert {wcwidth.wcswidth(line) for line in table if line[-1] in "0–─"} == {
            wcwidth.wcswidth(table[0])
        }
        assert wcwidth.wcswidth(table[0]) <= width


# -- notes ---------------------------------------------------------------------------------------------------------------

#: 60 words of 9 characters: 600 characters with the spaces, 8 lines of 8 words in 80 columns
LONG = " ".join(f"word{number:05}" for number in range(60))


def noted(*remarks: str, **options: Any) -> list[str]:
    table = Table(title="", columns=[], rows=[], remarks=remarks)
    return table.write("text", **options).splitlines()


@pytest.mark.parametrize("width", [40, 80])
def test_a_note_wraps_and_is_complete(width: int) -> None:
    lines = noted(LONG, width=width)
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines) == LONG


def test_a_summary_wraps_and_is_complete() -> None:
    table = Table(title="", columns=[], rows=[], summary=[LONG])
    lines = table.write("text", width=40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(lines) == LONG


def test_the_old_option_of_complete_notes_warns() -> None:
    with pytest.warns(DeprecationWarning, match="details= is no longer needed"):
        lines = noted(LONG, details=True)
    assert " ".join(lines) == LONG


def test_other_formats_have_complete_notes() -> None:
    table = Table(title="", columns=[], rows=[], remarks=[LONG])
    assert LONG in table.write("markdown")
    assert LONG in table.write("html")


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GeForce RTX 4090", "Apple M2 Max"])
@pytest.mark.parametrize("size", [8, 1024])
def test_the_notes_of_a_roofline_fit_two_lines(device: str, size: int) -> None:
    """A small model waits for launches, a large one for its kernels."""
    roofline = torchscan.analyze_roofline(
        nn.Sequential(nn.Linear(size, size), nn.ReLU()), (size,), batch_size=size, device=device
    )
    for note in roofline.table().remarks:
        assert len(noted(note)) <= 2, note
