"""The table as a person sees it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls


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
────────────────────────────────────────────────────────────────
Layer      Type               Output shape      Params      MACs
────────────────────────────────────────────────────────────────
Block      Block              (-1, 10)               –         –
├─conv     Conv2d             (-1, 16, 32, 32)     432  442.37 k
├─norm     BatchNorm2d        (-1, 16, 32, 32)      32         –
├─act      ReLU               (-1, 16, 32, 32)       –         –
├─act (2)  ReLU               (-1, 16, 32, 32)       –         –
└─head     Sequential         (-1, 10)               –         –
  ├─0      AdaptiveAvgPool2d  (-1, 16, 1, 1)         –         –
  ├─1      Flatten            (-1, 16)               –         –
  └─2      Linear             (-1, 10)             170       160
────────────────────────────────────────────────────────────────
Trainable parameters               624
Non-trainable parameters           10
Total parameters                   634
Model size (parameters + buffers)  2.61 KiB
Framework & CUDA overhead          not measured
Floating-point operations          999.78 kFLOPs
Multiply-accumulations             442.53 kMACs
Direct memory accesses             574.15 kDMAs
────────────────────────────────────────────────────────────────
One pass in evaluation mode, on shapes alone, of float32 (1, 3, 32, 32)."""


def lines(model: nn.Module, *args: Any, **options: Any) -> list[str]:
    layout = {key: options.pop(key) for key in ("columns", "width") if key in options}
    wrap = options.pop("wrap_mode", "mid")
    return torchscan.format_info(torchscan.crawl_module(model, *args, **options), wrap, **layout).splitlines()


def test_the_whole_table() -> None:
    text = "\n".join(lines(Block(), (3, 32, 32)))
    assert text == EXPECTED


def test_summary_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    model = Block()
    torchscan.summary(model, (3, 32, 32))
    assert capsys.readouterr().out == torchscan.format_info(torchscan.crawl_module(model, (3, 32, 32))) + "\n"


def test_summary_folds_to_a_depth_and_shows_less_deep_models_whole(capsys: pytest.CaptureFixture[str]) -> None:
    torchscan.summary(Block(), (3, 32, 32), max_depth=1)
    assert "Flatten" not in capsys.readouterr().out
    torchscan.summary(Block(), (3, 32, 32), max_depth=9)
    assert "Flatten" in capsys.readouterr().out


def test_summary_shows_the_receptive_field_in_words_where_it_is_everything(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (3, 5), (1, 2)), nn.Upsample(scale_factor=3), nn.AdaptiveAvgPool2d(1))
    torchscan.summary(model, (3, 32, 33), receptive_field=True, effective_rf_stats=True)
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[-3:] == ["RF", "Stride", "Pad"]
    assert table[4].split()[-3:] == ["3×5", "1×2", "0"]
    assert table[5].split()[-3:] == ["3×5", "1/3×2/3", "2/3×4/3"]
    assert table[6].split()[-3:] == ["global", "–", "–"]
    assert "global: all of the input is seen, by aten.adaptive_avg_pool2d; stride and" in table
    torchscan.summary(model, (3, 32, 32))
    assert "RF" not in capsys.readouterr().out


def test_the_table_says_where_receptive_fields_are_not_the_whole_truth(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.GroupNorm(2, 4))
    torchscan.summary(model, (3, 32, 32), receptive_field=True)
    text = capsys.readouterr().out
    assert "(norm-stats)" in text
    assert "(wraps)" in text
    assert "(hull)" not in text
    assert "(padded)" not in text
    reflecting = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
    torchscan.summary(reflecting, (3, 32, 32), receptive_field=True)
    assert "reflected or repeated (padded)" in capsys.readouterr().out.replace("\n", " ")
    torchscan.summary(model, (3, 32, 32))
    assert "norm-stats" not in capsys.readouterr().out


@pytest.mark.parametrize("wrap_mode", ["head", "mid", "tail"])
def test_names_of_200_characters_fit_80_columns(wrap_mode: Any) -> None:
    name = "first_" + "x" * 188 + "_last"
    model = nn.Sequential(OrderedDict([(name, nn.Sequential(OrderedDict([(name, nn.Linear(4, 4))])))]))
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


def test_2000_rows_stay_in_line() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2000)))
    table = lines(model, (4,))[3:2004]
    assert len({len(line) for line in table}) == 1
    assert table[1].startswith("├─0 ")
    assert table[-1].startswith("└─1999 ")


def test_one_layer_no_parameters_no_tensors() -> None:
    assert "Total parameters                   0" in "\n".join(lines(nn.ReLU(), (4,)))
    assert "–" in lines(Calls(lambda _, x: None), (4,))[3]


def test_branches_are_drawn_where_siblings_follow() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Sequential(OrderedDict(b=nn.ReLU(), c=nn.ReLU())), d=nn.ReLU()))
    names = [line.split()[0] if line[0] != "│" else line[:5] for line in lines(model, (4,))[3:8]]
    assert names == ["Sequential", "├─a", "│ ├─b", "│ └─c", "└─d"]


def test_a_module_called_again_says_so() -> None:
    model = Calls(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4))
    first, second = lines(model, (4,))[4:6]
    assert first.split()[:2] == ["├─a", "Linear"]
    assert second.split()[:3] == ["└─a", "(2)", "Linear"]
    assert "shared" in second


def test_several_outputs_show_the_first_and_how_many_more() -> None:
    assert "(-1, 4) +2" in lines(Calls(lambda _, x: (x, [x, x])), (4,))[3]


def test_columns_can_be_chosen_and_wrong_ones_are_refused_with_a_list() -> None:
    table = lines(Block(), (3, 32, 32), columns=["path", "grad_params", "nograd_params", "flops", "dmas", "bytes_read"])
    assert table[1].split() == ["Layer", "Path", "Trainable", "Frozen", "FLOPs", "DMAs", "Read"]
    with pytest.raises(torchscan.InputError, match="choose from type, path"):
        lines(Block(), (3, 32, 32), columns=["colour"])
    with pytest.raises(torchscan.InputError, match="head, mid, tail"):
        lines(Block(), (3, 32, 32), wrap_mode="middle")
    with pytest.raises(torchscan.InputError, match=r"did you mean 'flops'\? There are type, path"):
        lines(Block(), (3, 32, 32), columns=["flop"])
    with pytest.raises(torchscan.InputError, match=r"give a list of names, columns=\['params'\]"):
        lines(Block(), (3, 32, 32), columns="params")
    for width in (0, True, 50.0):
        with pytest.raises(torchscan.InputError, match="number of characters"):
            lines(Block(), (3, 32, 32), width=width)


def test_the_layout_is_checked_before_the_pass() -> None:
    with pytest.raises(torchscan.InputError, match=r"wrap_mode is torch\.int64"):
        torchscan.summary(nn.Embedding(4, 2), (5,), torch.long)  # type: ignore[arg-type]


def test_where_there_is_no_room_shapes_and_numbers_stay_whole() -> None:
    narrow = lines(Block(), (3, 32, 32), width=10)
    assert "(-1, 16, 32, 32)" in narrow[4]
    assert "442.37 k" in narrow[4]
    assert " Batc…m2d  " in narrow[5]  # of 8 characters, the least that a type has


def test_the_mode_of_the_pass_is_said() -> None:
    for mode, words in (("eval", "in evaluation mode"), ("train", "in training mode"), ("same", "as the modules are set")):
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
    assert "Assumed balanced routing" in text
    assert "Parameters that this pass did not use: unused (20)." in text


def test_a_real_pass_says_why() -> None:
    text = " ".join(lines(Calls(lambda _, x: x[x > 0]), (4,)))
    assert "run for real (the shape-only pass could not go on: " in text
