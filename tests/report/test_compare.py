"""What changed between two reports."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.report.test_page import data_of
from torchscan import InputError, Scan, compare, crawl_module
from torchscan.user_warnings import TorchscanWarning


def net(width: int = 8, *extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2), *extra)


def info(model: nn.Module, **options: Any) -> dict[str, Any]:
    return crawl_module(model, (4,), receptive_field=False, **options)


def test_nothing_changed() -> None:
    same = compare(info(net()), info(net()))
    assert same.is_same
    assert same.layers == ()
    assert "No layer changed." in same.to_text()


def test_layers_are_added_removed_and_changed_by_their_paths() -> None:
    changes = compare(info(net(8, nn.Tanh())), info(net(10)))
    assert not changes.is_same
    assert [(each.path, each.kind) for each in changes.layers] == [
        ("0", "changed"),
        ("1", "changed"),  # its shape
        ("2", "changed"),
        ("3", "removed"),
    ]
    first, _, second, _ = changes.layers
    assert first.difference("grad_params") == 10 * 5 - 8 * 5
    assert second.difference("macs") == 20 - 16
    assert changes.totals["macs"] == (4 * 8 + 8 * 2, 4 * 10 + 10 * 2)
    assert [each.path for each in changes.grown("grad_params")] == ["0", "2"]
    back = compare(info(net(10)), info(net(8, nn.Tanh())))
    assert [each.kind for each in back.layers] == ["changed", "changed", "changed", "added"]
    assert back.grown("macs") == []


def test_a_change_that_a_column_shows_is_not_described_again() -> None:
    """A bias adds 8 parameters, and no MACs; without parameters and MACs, FLOPs are described."""

    def with_bias(has_bias: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8, bias=has_bias))

    def described(before: nn.Module, after: nn.Module) -> list[Any]:
        return [row.cells[-1].text for row in compare(info(before), info(after)).table().rows]

    assert described(with_bias(False), with_bias(True)) == [""]
    assert "32 → 40" in compare(info(with_bias(False)), info(with_bias(True))).to_text()
    # an addition of 4 numbers more
    assert described(Shifts(1), Shifts(2)) == ["flops 4 → 8"]


def test_what_is_gone_stands_where_it_was() -> None:
    before, after = nn.Sequential(), nn.Sequential()
    for name in ("a", "b", "c"):
        before.add_module(name, nn.ReLU())
    for name in ("a", "c", "d"):
        after.add_module(name, nn.ReLU())
    changes = compare(info(before), info(after))
    assert [(each.path, each.kind) for each in changes.layers] == [("b", "removed"), ("d", "added")]
    assert changes.to_text().index("−  b") < changes.to_text().index("+  d")


def test_what_takes_a_place_stands_below_what_was_there() -> None:
    def with_a(name: str) -> nn.Sequential:
        return nn.Sequential(OrderedDict({"a": nn.Linear(4, 4), name: nn.Tanh(), "z": nn.ReLU()}))

    changes = compare(info(with_a("old")), info(with_a("new")))
    assert [(each.path, each.kind) for each in changes.layers] == [
        ("old", "removed"),
        ("new", "added"),
    ]


# -- layers whose path has changed ---------------------------------------------------------------


def linear(*extra: nn.Module) -> nn.Sequential:
    """Return Linear(4, 8), ReLU, then ``extra``, then Linear(8, 2)."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *extra, nn.Linear(8, 2))


def test_an_inserted_layer_does_not_blame_those_behind_it() -> None:
    """Linear(8, 8) has 72 parameters and 64 MACs."""
    changes = compare(info(linear()), info(linear(nn.Linear(8, 8), nn.ReLU())))
    assert [(each.path, each.kind) for each in changes.layers] == [("2", "added"), ("3", "added")]
    assert [each.difference("grad_params") for each in changes.layers] == [72, 0]
    assert [each.path for each in changes.grown("macs")] == ["2"]
    assert changes.moved == {"2": "4"}
    assert "Layers that moved: 2 → 4." in changes.to_text()
    assert changes.to_dict()["moved"] == {"2": "4"}
    back = compare(info(linear(nn.Linear(8, 8), nn.ReLU())), info(linear()))
    assert [(each.path, each.kind) for each in back.layers] == [("2", "removed"), ("3", "removed")]


def test_text_and_page_align_the_same_layers() -> None:
    changes = compare(Scan(linear(), (4,)), Scan(linear(nn.Linear(8, 8), nn.ReLU()), (4,)))
    rows = data_of(changes.to_html())["rows"]
    added = [row["path"] for row in rows if row["kind"] == "added"]
    assert added == [each.path for each in changes.layers]


def test_a_layer_that_moved_and_changed_says_what_it_was() -> None:
    before = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    after = nn.Sequential(nn.Tanh(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    changes = compare(info(before), info(after))
    assert [(each.path, each.kind, each.moved_from) for each in changes.layers] == [
        ("0", "added", None),
        ("2.1", "changed", ("1.1", 0)),
    ]
    for text in (changes.to_text(), changes.to_csv(), changes.to_markdown()):
        assert "ReLU → Tanh, was 1.1" in text
    assert r"ReLU $\rightarrow$ Tanh, was 1.1" in changes.to_latex()
    changed = changes.to_dict()["layers"][1]
    assert changed["moved_from"] == {"path": "1.1", "call": 0}
    assert "moved_from" not in changes.to_dict()["layers"][0]


def test_layers_that_moved_are_listed_without_those_in_them() -> None:
    def blocks(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, w), nn.Linear(w, 4)) for w in widths))

    changes = compare(info(blocks(4, 5, 6, 7)), info(blocks(4, 9, 5, 6, 7)))
    assert changes.moved == {"1": "2", "2": "3", "3": "4"}
    assert "Layers that moved: 1 … 3 → 2 … 4." in changes.to_text()
    scattered = compare(info(blocks(4, 6, 7)), info(blocks(9, 4, 9, 6, 9, 7)))
    assert "Layers that moved: 0 → 1, 1 → 3, 2 → 5." in scattered.to_text()


def test_another_name_is_a_change_without_changed_layers() -> None:
    def named(name: str) -> nn.Sequential:
        return nn.Sequential(OrderedDict({name: nn.Linear(4, 4), "act": nn.ReLU()}))

    changes = compare(info(named("fc")), info(named("dense")))
    assert changes.layers == ()
    assert changes.moved == {"fc": "dense"}
    assert not changes.is_same
    other = compare(info(named("fc")), info(nn.Sequential(OrderedDict(dense=nn.Linear(4, 5)))))
    assert {each.path: each.kind for each in other.layers if each.path} == {
        "fc": "removed",
        "act": "removed",
        "dense": "added",
    }


def test_a_wrapped_model_has_moved() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = linear()

        def forward(self, x: Any) -> Any:
            return self.module(x)

    changes = compare(info(linear()), info(Wrapper()))
    assert [(each.path, each.kind) for each in changes.layers] == [("", "added")]
    assert "Layers that moved: the model → module." in changes.to_text()


@pytest.mark.parametrize("first", [(), (nn.LayerNorm(4),)], ids=["alone", "behind a layer"])
def test_a_model_in_a_container_of_its_class_has_moved(first: tuple[nn.Module, ...]) -> None:
    """The container is new, and so is what it has before the model."""
    wrapped = nn.Sequential(*first, linear())
    path = str(len(first))
    new = ["", *map(str, range(len(first)))]
    changes = compare(info(linear()), info(wrapped))
    assert [(each.path, each.kind) for each in changes.layers] == [(each, "added") for each in new]
    assert changes.moved == {"": path}
    back = compare(info(wrapped), info(linear()))
    assert [(each.path, each.kind) for each in back.layers] == [(each, "removed") for each in new]
    assert back.moved == {path: ""}


def test_a_copy_of_a_model_behind_its_layers_is_added() -> None:
    def with_copy(*first: nn.Module) -> nn.Sequential:
        copy = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        return nn.Sequential(*first, nn.Linear(4, 4), nn.ReLU(), copy)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    changes = compare(info(model), info(with_copy()))
    assert {each.path: each.kind for each in changes.layers if each.kind != "changed"} == {
        "2": "added",
        "2.0": "added",
        "2.1": "added",
    }
    assert changes.moved == {}
    assert compare(info(model), info(with_copy(nn.Tanh()))).moved == {"0": "1", "1": "2"}


def test_a_layer_that_another_module_calls_is_the_same_layer() -> None:
    class Net(nn.Module):
        def __init__(self, calls_container: bool) -> None:
            super().__init__()
            self.features, self.calls_container = linear(), calls_container

        def forward(self, x: Any) -> Any:
            if self.calls_container:
                return self.features(x)
            for layer in self.features:
                x = layer(x)
            return x

    changes = compare(info(Net(False)), info(Net(True)))
    assert [(each.path, each.kind) for each in changes.layers] == [("features", "added")]
    assert changes.moved == {}
    rows = data_of(changes.to_html())["rows"]
    assert [(row["depth"], row["path"], row["kind"]) for row in rows] == [
        (0, "", "inside"),
        (1, "features", "added"),
        (2, "features.0", "same"),
        (2, "features.1", "same"),
        (2, "features.2", "same"),
    ]


# -- calls ---------------------------------------------------------------------------------------


def test_each_call_of_a_module_is_compared_by_itself() -> None:
    class Twice(nn.Module):
        def __init__(self, calls: int) -> None:
            super().__init__()
            self.fc, self.calls = nn.Linear(4, 4), calls

        def forward(self, x: Any) -> Any:
            for _ in range(self.calls):
                x = self.fc(x)
            return x

    changes = compare(info(Twice(1)), info(Twice(2)))
    assert [(each.path, each.call, each.kind) for each in changes.layers] == [("fc", 1, "added")]
    assert "fc (2)" in changes.to_text()


def test_text_says_before_and_after_in_80_columns() -> None:
    deep = nn.Sequential()
    deep.add_module(
        "a_layer_with_a_name_that_is_much_too_long_for_a_table_of_eighty_columns",
        nn.Linear(4, 4000),
    )
    wide = nn.Sequential()
    wide.add_module(
        "a_layer_with_a_name_that_is_much_too_long_for_a_table_of_eighty_columns",
        nn.Linear(4, 5000),
    )
    text = compare(info(deep), info(wide)).to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "20,000 → 25,000" in text
    assert "16.00 k → 20.00 k" in text
    assert "+25.00 %" in text


def test_what_changed_stands_below_a_layer_where_there_is_no_room_beside_it() -> None:
    before = nn.Sequential(OrderedDict(a_layer_with_a_long_name=nn.Linear(4, 4000)))
    after = nn.Sequential(OrderedDict(a_layer_with_a_long_name=nn.Linear(4, 5000)))
    changes = compare(info(before), info(after))
    lines = changes.to_text(width=60).splitlines()
    assert max(map(len, lines)) <= 60
    (index,) = (at for at, line in enumerate(lines) if "20,000 → 25,000" in line)
    assert lines[index + 1] == "    output now (-1, 5000)"
    assert "output now (-1, 5000)" in changes.to_text(width=100).splitlines()[index - 1]
    assert all(len(row.cells) == 5 for row in changes.table().rows)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(width, hidden), nn.Dropout(), nn.Linear(hidden, 4)

    def forward(self, x: Any) -> Any:
        return self.down(self.drop(self.up(x)))


def blocks(number: int, hidden: int = 3) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(body=nn.Sequential(*(Block(4, hidden) for _ in range(number))))
    )


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line[:1] in "~+−" and line.strip()]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_equal_blocks_that_were_added_or_removed_are_one_row_of_text(is_swapped: bool) -> None:
    """A block has 4·3 + 3 and 3·4 + 4 parameters, and as many MACs without the biases."""
    sides = [info(blocks(2)), info(blocks(12))]
    changes = compare(*(reversed(sides) if is_swapped else sides))
    sign = "−" if is_swapped else "+"
    assert rows_of(changes.to_text()) == [
        [sign, "body.2", "…", "11", "×10", "Block"],
        [sign, "body.2", "…", "11.up", "×10", "150", "120", "Linear"],
        [sign, "body.2", "…", "11.drop", "×10", "Dropout"],
        [sign, "body.2", "…", "11.down", "×10", "160", "120", "Linear"],
    ]
    assert "× marks identical layers in one row; values are their sums." in changes.to_text()
    assert len(changes.table().rows) == len(changes.layers) == 40


def test_equal_changes_of_equal_layers_are_one_row_of_text() -> None:
    """A bias adds 4 parameters to 16."""

    def layers(*has_bias: bool) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(4, 4, bias=each) for each in has_bias))

    changes = compare(info(layers(False, False, False)), info(layers(True, True, True)))
    assert rows_of(changes.to_text()) == [["~", "0", "…", "2", "×3", "48", "→", "60"]]
    changes = compare(info(layers(False, False, False)), info(layers(True, True, False)))
    assert rows_of(changes.to_text()) == [["~", "0", "…", "1", "×2", "32", "→", "40"]]


def test_layers_of_different_lists_stay_in_separate_rows() -> None:
    def lists(number: int) -> nn.Sequential:
        return nn.Sequential(
            OrderedDict((name, blocks(number + more)) for more, name in enumerate("ab"))
        )

    names = [row[1] for row in rows_of(compare(info(lists(1)), info(lists(2))).to_text())]
    assert names[:1] + names[4:5] == ["a.body.1", "b.body.2"]


def test_layers_in_rows_that_are_left_out_are_counted() -> None:
    """45 lists of two equal blocks, of which 10 rows of four are shown."""
    before = nn.Sequential(OrderedDict((f"list{number}x", nn.Identity()) for number in range(45)))
    after = nn.Sequential(OrderedDict((f"list{number}x", blocks(2)) for number in range(45)))
    changes = compare(info(before), info(after))
    shown = rows_of(changes.to_text())
    num_shown = sum(2 if "×2" in row else 1 for row in shown)
    assert len(shown) == 40
    assert f"… and {len(changes.layers) - num_shown} more layers" in changes.to_text()


def test_a_small_change_is_not_zero() -> None:
    before, after = info(nn.Linear(4, 30_000)), info(nn.Linear(4, 30_000))
    after["overall"]["flops"] += 1
    lines = compare(before, after).to_text().splitlines()
    (flops,) = (line for line in lines if line.startswith("FLOPs"))
    assert flops.endswith("+<0.01 %")
    (less,) = (line for line in compare(after, before).to_text().splitlines() if "FLOPs" in line)
    assert less.endswith("−<0.01 %")


def test_the_class_of_another_model_is_described_once() -> None:
    class Other(nn.Sequential):
        pass

    row = data_of(compare(info(net()), info(Other(*net()))).to_html())["rows"][0]
    assert row["what"] == ["Sequential → Other"]
    assert "was" not in row


def test_words_are_on_the_left_and_numbers_on_the_right() -> None:
    text = compare(info(net(8, nn.Tanh())), info(net(10))).to_text(width=200)
    heading, *_ = [line for line in text.splitlines() if line.lstrip().startswith("Layer")]
    rows = {
        line.split()[1]: line for line in text.splitlines() if line[:1] in "~-+" and line.strip()
    }
    assert all(
        line[0] != " " and line.index(name) == heading.index("Layer") for name, line in rows.items()
    )
    assert rows["0"].index("40 → 50") + len("40 → 50") == heading.index("Params") + len("Params")
    assert "→" not in rows["1"].partition("output")[0]  # nothing before, nothing now


def test_markdown_is_a_comment() -> None:
    text = compare(info(net(8)), info(net(10))).to_markdown(details=True)
    assert text.startswith(
        "|  | before | after |  |\n| :-- | --: | --: | --: |\n| Parameters | 58 | 72 | +24.14 % |\n"
    )
    assert "<details><summary>3 layers changed</summary>" in text


class Shifts(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Any) -> Any:
        for _ in range(self.number):
            x = x + 1
        return x


def test_another_question_is_said() -> None:
    changes = compare(info(net()), info(net(), batch_size=4))
    assert set(changes.passes) == {"inputs", "batch_size"}
    text = changes.to_text()
    assert (
        "The reports differ in inputs: args[0] float32 (1, 4) before, args[0] float32 (4, 4) now."
        in " ".join(text.split())
    )
    assert changes.totals["macs"][1] == 4 * changes.totals["macs"][0]


class Unpriced(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x.view(-1, 2, 2)).flatten(1)


def test_what_is_not_known_is_no_saving() -> None:
    changes = compare(info(nn.Sequential(nn.Linear(4, 4))), info(nn.Sequential(Unpriced())))
    assert changes.complete == (True, False)
    text = changes.to_text()
    macs = next(line.split() for line in text.splitlines() if line.startswith("MACs"))
    assert macs == ["MACs", "16", "≥", "0", "?"]
    assert "16 → ≥ 0" in text
    bound = "≥ marks a lower bound now, because these operators have no cost formula: aten.special_bessel_j0"
    assert bound in " ".join(text.split())
    assert "≥ 0" in changes.to_markdown(details=True)


def test_parts_of_reports_are_not_compared() -> None:
    whole = info(nn.Sequential(net(), nn.Linear(2, 2)))
    with pytest.raises(InputError, match="a report has only selected layers"):
        compare(torchscan.select_layers(whole, top=1), whole)
    folded = torchscan.aggregate_info(whole, 1)
    with pytest.raises(InputError, match="folded to different depths, all and 1"):
        compare(whole, folded)
    assert compare(folded, folded).is_same


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(
        InputError,
        match="the report after is not an info dict of crawl_module: the report has no 'overheads'",
    ):
        compare(info(net()), {})
    with pytest.raises(InputError, match="the report before is not an info dict"):
        compare(None, info(net()))  # type: ignore[call-overload]


def test_as_plain_data(as_json: Any) -> None:
    data = as_json(compare(info(net(8)), info(net(10))).to_dict())
    assert data["totals"]["grad_params"] == {"before": 58, "after": 72}
    assert data["complete"] == {"before": True, "after": True}
    assert data["layers"][0]["change"] == "changed"
    assert data["layers"][0]["after"]["grad_params"] == 50


def test_a_layer_that_differs_in_no_column_says_in_what() -> None:
    """Tanh does 9 operations per element, and a ReLU one."""
    before, after = info(nn.Sequential(nn.ReLU())), info(nn.Sequential(nn.ReLU()))
    for report, flops in ((before, 4), (after, 36)):
        report["layers"][1]["flops"] = flops
    text = compare(before, after).to_text()
    assert "flops 4 → 36" in text
    assert "params" not in text.partition("flops 4")[0].splitlines()[-1]


def test_a_layer_whose_shape_changes_says_which() -> None:
    one, other = (
        nn.Sequential(nn.ReLU(), nn.Linear(4, 8)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 10)),
    )
    text = compare(info(one), info(other)).to_text(width=200)
    assert "output now (-1, 10)" in text
    assert "input now" not in text


def test_options_of_scans_are_differences_of_the_pass() -> None:
    step: dict[str, Any] = {"training": True, "optimizer": "SGD", "device": "H100"}
    other: dict[str, Any] = {"optimizer": "AdamW", "device": "RTX 4090", "precision": "bf16-mixed"}
    model = net()
    changes = compare(Scan(model, (4,), **step), Scan(model, (4,), **{**step, **other}))
    assert list(changes.passes) == ["device", "optimizer", "precision"]
    assert changes.passes["optimizer"] == ("SGD", "AdamW")
    assert changes.passes["precision"] == (None, "bf16-mixed")
    assert not changes.layers
    assert not changes.is_same
    text = " ".join(changes.to_text().split())
    assert "The reports differ in optimizer: SGD before, AdamW now." in text
    assert "The reports differ in precision: none before, bf16-mixed now." in text

    with_synonyms: dict[str, Any] = {
        "training": True,
        "optimizer": "sgd",
        "device": "NVIDIA H100 80GB HBM3",
    }
    same = compare(Scan(model, (4,), **step), Scan(model, (4,), **with_synonyms))
    assert same.passes == {}
    assert same.is_same

    with pytest.warns(TorchscanWarning, match="has no effect on .*, which has no while_loop"):
        looped = compare(Scan(model, (4,), loop_iterations=2), Scan(model, (4,), loop_iterations=3))
    assert looped.passes == {"loop_iterations": (2, 3)}
    assert not looped.is_same
    remarks = data_of(looped.to_html())["remarks"]
    assert remarks == ["The sides differ in loop iterations: 2 before, 3 now."]
    assert compare(info(model), Scan(model, (4,), device="H100")).passes == {}


def test_other_estimates_are_a_change() -> None:
    before, after = info(net()), info(net())
    before["overall"]["peak_bytes"], after["overall"]["peak_bytes"] = 100, 200
    assert not compare(before, after).is_same
    assert compare(before, after).passes == {}


class Named(nn.Module):
    """Equal blocks in a list of this name, or in a wrapper of it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        body = nn.Module()
        blocks = [nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU()) for _ in range(5)]
        body.add_module(name, nn.Sequential(*blocks))
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (blocks,) = self.body.children()
        return blocks(x)


def test_changes_of_a_renamed_list_are_one_row() -> None:
    """Each block has one more position than before, and another name."""
    before, after = Scan(Named("blocks"), (4, 6)), Scan(Named("layers"), (4, 7))
    text = compare(before, after).to_text(width=120)
    rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith("~")]
    # 5 blocks of 4 · 4 products for each of 6 or 7 positions
    assert rows[-2] == (
        "~ body.layers.0 … 4.0 ×5 480 → 560 output now (-1, 4, 7), was body.blocks.0 … 4.0"
    )
    assert rows[-3].endswith("×5 output now (-1, 4, 7), was body.blocks.0 … 4")


def timed(device: str, seconds: float, margin: float) -> dict[str, Any]:
    """Return an info with a time that was estimated for a device."""
    values = {"device": device, "precision": None, "compiled": False, "seconds": seconds}
    content = info(net())
    content["overall"]["time_estimate"] = seconds
    content["estimates"] = [{"code": "time-estimate", "values": {**values, "margin": margin}}]
    return content


def test_times_have_their_devices_and_error_margins() -> None:
    old, new = timed("H100", 0.002, 0.4), timed("H100", 0.003, 0.4)
    same = compare(old, new)
    assert "Times are estimated for H100 ± 40 %." in same.to_text()
    data = same.to_dict()
    assert data["names"] == {"before": "Sequential", "after": "Sequential"}
    assert data["devices"] == {"before": "H100", "after": "H100"}
    assert data["time_margins"] == {"before": 0.4, "after": 0.4}
    text = " ".join(compare(old, timed("H200", 0.001, 0.25)).to_text().split())
    assert "Times are estimated for H100 ± 40 % before and H200 ± 25 % now." in text

    without = compare(info(net()), new)
    assert "Times" not in without.to_text()
    assert without.to_dict().keys().isdisjoint({"devices", "time_margins"})


def test_a_formula_that_fails_is_not_listed_as_missing() -> None:
    problem = {
        "code": "formula-failed",
        "values": {"operator": "rev.op.default", "error": "ValueError('x')"},
    }
    before, after = info(net()), info(net())
    after["without_formula"] = {"rev.op.default": 1, "rev.other.default": 1}
    after["formula_problems"] = [problem]
    changes = compare(before, after)
    text = " ".join(changes.to_text().split())
    assert "have no cost formula: rev.other.default." in text
    failed = (
        "values are lower bounds, because the cost formula of rev.op.default failed: "
        "ValueError('x')."
    )
    assert f"Now: {failed}" in text
    assert changes.to_dict()["formula_problems"] == {"before": [], "after": [problem]}

    remarks = data_of(changes.to_html())["remarks"]
    assert "MACs and FLOPs after are lower bounds: no formula for rev.other.default." in remarks
    assert f"After: {failed}" in remarks


def test_what_a_page_shows_outlives_the_model() -> None:
    model = net()
    has_gone = weakref.ref(model)
    comparison = compare(Scan(model, (4,)), Scan(net(), (4,)))
    del model
    gc.collect()
    assert has_gone() is None
    assert data_of(comparison.to_html())["remarks"] == []


def test_a_model_that_is_changed_in_place_is_compared_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    before = Scan(model, (3, 8, 8))
    before.memory, before.trace  # noqa: B018 - recorded before the change
    model[0] = nn.Conv2d(3, 8, 5)
    comparison = compare(before, Scan(model, (3, 8, 8)))
    model[0] = nn.Conv2d(3, 8, 7)
    data = data_of(comparison.to_html())
    assert "output 8×6×6 → 8×4×4" in data["rows"][1]["what"]
    assert "kernel_size" not in data["rows"][1]["what"]  # only the second is known
    peaks = [each["value"] for each in data["verdicts"] if each["label"] == "Peak memory"]
    assert len(peaks) == 1
    assert data["remarks"] == []


def test_estimates_of_a_model_that_was_changed_are_left_out() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    before, on_device = Scan(model, (3, 8, 8)), Scan(model, (3, 8, 8), device="H100")
    before.trace, on_device.trace  # noqa: B018 - recorded before the change
    model[0] = nn.Conv2d(3, 8, 5)
    data = data_of(compare(before, Scan(model, (3, 8, 8))).to_html())
    assert "output 8×6×6 → 8×4×4" in data["rows"][1]["what"]
    assert "Peak memory" not in [each["label"] for each in data["verdicts"]]
    reason = "Memory before: the model was changed after its pass was recorded: make another scan"
    assert data["remarks"][0].startswith(reason)

    with pytest.warns(UserWarning, match="a model was changed after its pass was recorded"):
        comparison = compare(on_device, Scan(model, (3, 8, 8), device="H100"))
    assert comparison.estimates == {}
