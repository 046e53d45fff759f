"""The page of a comparison: which layers stand in one row, and what a browser shows of both sides."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.browsing import expect, least_contrast, opened
from tests.report.test_page import data_of
from tests.torchvision_cpu import torchvision
from torchscan import InputError, Scan, compare, crawl_module, inspect
from torchscan.inspecting.run import RunFacts
from torchscan.report.paging.row_values import parse_settings
from torchscan.types import Comparison

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHAPE = (4,)


def scans(before: nn.Module, after: nn.Module, shape: Any = SHAPE, **options: Any) -> Comparison:
    return compare(Scan(before, shape, **options), Scan(after, shape, **options))


def page_data(comparison: Any, **options: Any) -> dict[str, Any]:
    return data_of(comparison.to_html(**options))


def marks(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the mark and the name of each row below the model."""
    return [(row["kind"], row["name"]) for row in data["rows"][1:]]


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


# -- which rows stand beside each other ----------------------------------------------------------


def test_a_layer_that_is_inserted_shifts_the_others() -> None:
    before = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    after = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    data = page_data(scans(before, after))
    assert marks(data) == [
        ("same", "0"),
        ("same", "1"),
        ("added", "2"),
        ("added", "3"),
        ("same", "4"),
    ]
    assert [row.get("was") for row in data["rows"][1:]] == [None, None, None, None, "2"]
    assert data["rows"][0]["kind"] == "inside"
    back = page_data(scans(after, before))
    assert marks(back)[2:] == [("removed", "2"), ("removed", "3"), ("same", "2")]


def test_the_number_of_equal_blocks_differs_at_the_end() -> None:
    """Three blocks of 40 parameters and five: two are added, in one row with 80."""
    three, five = (nn.Sequential(*(Block() for _ in range(count))) for count in (3, 5))
    data = page_data(scans(three, five))
    rows = [row for row in data["rows"] if row["depth"] == 1]
    assert [(row["kind"], row["name"], row["repeats"]) for row in rows] == [
        ("same", "0 … 2", 3),
        ("added", "3 … 4", 2),
    ]
    _, number = rows[1]["sides"]
    assert data["sides"][1]["rows"][number]["params"] == 2 * (20 + 20)
    assert [row["kind"] for row in data["rows"] if row["in"] == data["rows"].index(rows[1])] == [
        "added",
        "added",
    ]


def test_a_block_that_differs_parts_the_equal_ones() -> None:
    before = nn.Sequential(*(Block() for _ in range(5)))
    after = nn.Sequential(*(Block(8 if number == 2 else 4) for number in range(5)))
    data = page_data(scans(before, after))
    names = [(row["kind"], row["name"]) for row in data["rows"] if row["depth"] == 1]
    assert names == [("same", "0 … 1"), ("inside", "2"), ("same", "3 … 4")]
    changed = [row["what"] for row in data["rows"] if row["kind"] == "changed"]
    assert changed == [
        ["out_features 4 → 8", "output 4 → 8"],
        ["in_features 4 → 8", "input 4 → 8"],
    ]


@pytest.mark.parametrize("is_wrapped_after", [True, False])
def test_a_model_that_is_wrapped_is_the_same_model(is_wrapped_after: bool) -> None:
    sides = [Block(), Wrapper(Block())]
    data = page_data(scans(*(sides if is_wrapped_after else reversed(sides))))
    assert data["rows"][0]["kind"] == ("added" if is_wrapped_after else "removed")
    assert [kind for kind, _ in marks(data)] == ["same"] * 3


def test_changes_are_described() -> None:
    def net(kernel: int, activation: nn.Module) -> nn.Module:
        conv = nn.Conv2d(1, 2, kernel, padding=kernel // 2)
        return nn.Sequential(OrderedDict(conv=conv, act=activation))

    data = page_data(scans(net(3, nn.ReLU()), net(5, nn.GELU()), (1, 8, 8)))
    conv, act = data["rows"][1:]
    assert conv["what"] == ["kernel_size (3, 3) → (5, 5)", "padding (1, 1) → (2, 2)"]
    assert act["what"] == ["ReLU → GELU"]


def test_layers_with_names_that_change_their_order_stay_together() -> None:
    one = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.ReLU(), c=nn.Tanh()))
    other = nn.Sequential(OrderedDict(b=nn.ReLU(), a=nn.Linear(4, 4), c=nn.Tanh()))
    assert marks(page_data(scans(one, other))) == [("same", "b"), ("same", "a"), ("same", "c")]


def test_many_different_layers_are_aligned_by_name() -> None:
    """501 layers against 502 are too many to be weighed against each other, and all are other ones."""
    before = nn.Sequential(*(nn.Linear(4, 4) for _ in range(501)))
    after = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(502)))
    infos = (crawl_module(each, SHAPE, receptive_field=False) for each in (before, after))
    kinds = [kind for kind, _ in marks(page_data(compare(*infos)))]
    assert kinds == ["changed"] * 501 + ["added"]


# -- what else is said ---------------------------------------------------------------------------


def test_totals_have_signs_and_percent() -> None:
    data = page_data(scans(nn.Linear(4, 10), nn.Linear(4, 30), device="RTX 4090"))
    found = {each["label"]: each["value"].replace("\xa0", " ") for each in data["verdicts"]}
    said = {each["label"]: each["said"] for each in data["verdicts"]}
    assert found["Parameters"] == "50 → 150"
    assert said["Parameters"] == "+100, +200.00 %"
    assert found["MACs"] == "40 → 120"
    assert said["Peak memory"].endswith("fits")
    assert "One pass" in found
    same = page_data(scans(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert {each["said"] for each in same["verdicts"]} == {"no difference"}
    assert {row["kind"] for row in same["rows"]} == {"same"}


def test_sides_that_were_asked_other_questions_say_so() -> None:
    model = nn.Linear(4, 4)
    data = page_data(compare(Scan(model, SHAPE), Scan(model, SHAPE, batch_size=2)))
    assert data["question"] == []
    assert [side["question"][1] for side in data["sides"]] == ["batch 1 of 4", "batch 2 of 4"]
    assert "The sides differ in batch size: 1 before, 2 now." in data["remarks"]


def test_lower_bounds_have_no_difference() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    data = page_data(scans(nn.ReLU(), nn.Sequential(nn.ReLU(), Unknown())))
    flops = next(each for each in data["verdicts"] if each["label"] == "FLOPs")
    if "≥" not in flops["value"]:
        pytest.skip("the operator has a formula")
    assert flops["said"] == "the difference is unknown"


def test_reports_have_a_table_without_graphs() -> None:
    before, after = nn.Sequential(Block()), nn.Sequential(Block(), Block())
    data = page_data(compare(crawl_module(before, SHAPE), Scan(after, SHAPE)))
    assert [bool(side["levels"]) for side in data["sides"]] == [False, True]
    assert data["remarks"] == ["A report has no graph: give two models to see their graphs."]
    assert data["question"] == ["inference", "batch 1 of 4"]
    names = [(row["kind"], row["name"]) for row in data["rows"] if row["depth"] == 1]
    assert names == [("same", "0"), ("added", "1")]
    assert data["sides"][0]["rows"][0]["params"] == 40


def test_names_are_those_of_the_sides() -> None:
    comparison = scans(nn.ReLU(), nn.GELU())
    assert page_data(comparison)["title"] == "ReLU → GELU"
    assert page_data(comparison, names=("a", "b"))["title"] == "a → b"
    with pytest.raises(InputError, match="give two strings"):
        comparison.to_html(names="ab")
    with pytest.raises(InputError, match=r"before is a model without inputs: give Scan\(model"):
        compare(nn.ReLU(), nn.GELU())  # type: ignore[call-overload]


def test_a_copy_without_the_models_has_no_graph(tmp_path: Path) -> None:
    comparison = scans(nn.ReLU(), nn.GELU())
    copy = pickle.loads(pickle.dumps(comparison))  # noqa: S301 - our own
    assert page_data(copy)["sides"][0]["levels"] == []
    copy.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_scans_are_compared_as_their_infos_are() -> None:
    before, after = Block(), Block(8)
    infos = [crawl_module(each, SHAPE, receptive_field=False) for each in (before, after)]
    assert scans(before, after).to_dict() == compare(*infos).to_dict()
    with_times = scans(before, after, device="RTX 4090")
    assert "Peak memory" in with_times.to_text()
    assert set(with_times.to_dict()["estimates"]) == {"peak_bytes", "time_estimate"}


def test_two_runs_are_rows_of_one_tree() -> None:
    def run(model: nn.Module) -> Any:
        with inspect(model) as inspection:
            for _ in range(2):
                model(torch.zeros(2, 4)).sum().backward()
        return inspection

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    data = page_data(
        compare(run(nn.Sequential(inner)), run(nn.Sequential(inner, nn.Tanh()))), names=("a", "b")
    )
    rows = [(row["depth"], row["name"], row["kind"] == "added") for row in data["rows"]]
    assert rows == [
        (0, "Sequential", False),
        (1, "0", False),
        (2, "0", False),
        (2, "1", False),
        (1, "1", True),
    ]
    assert data["verdicts"][0]["label"] == "Forward"
    assert data["sides"][0]["rows"][0]["forward"] > 0


def run_of(model: nn.Module) -> RunFacts:
    with inspect(model) as inspection:
        for _ in range(2):
            model(torch.zeros(2, 4)).sum().backward()
    return inspection.facts


def test_calls_of_runs_that_moved_share_a_row() -> None:
    before = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    after = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    data = page_data(compare(run_of(before), run_of(after)))
    found = [(row["name"], row["kind"] == "added", row.get("was")) for row in data["rows"]]
    assert found == [
        ("Sequential", False, None),
        ("0", False, None),
        ("1", True, None),
        ("2", False, "1"),
    ]
    assert data["rows"][3]["sides"] == [2, 3]
    assert "Layers that moved: 1 → 2." in data["remarks"]


def test_a_run_may_lack_the_first_call_of_a_module() -> None:
    """As in a run that was saved by another program."""
    run = run_of(nn.Sequential(nn.Sequential(nn.Linear(4, 2))))
    later = [replace(call, invocation=call.path != "") for call in run.calls]
    data = page_data(compare(run, replace(run, calls=tuple(later))))
    assert [(row["depth"], row["path"]) for row in data["rows"]] == [(0, ""), (1, "0"), (2, "0.0")]
    assert data["rows"][2]["sides"] == [2, 2]


def test_a_model_that_a_run_calls_twice_has_two_rows() -> None:
    def run() -> Any:
        model = nn.Sequential(nn.Linear(4, 4))
        with inspect(model) as inspection:
            for _ in range(2):
                (model(torch.zeros(2, 4)) + model(torch.ones(2, 4))).sum().backward()
        return inspection

    data = page_data(compare(run(), run()))
    roots = [row["name"] for row in data["rows"] if row["in"] is None]
    assert roots == ["Sequential", "Sequential (2)"]
    assert [row["sides"] for row in data["rows"]] == [[at, at] for at in range(4)]


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnets() -> str:
    models = (torchvision.models.resnet50(weights=None), torchvision.models.resnet101(weights=None))
    options: dict[str, Any] = {"batch_size": 32, "device": "RTX 4090"}
    comparison = scans(*models, (3, 224, 224), **options)
    return comparison.to_html(names=("ResNet-50", "ResNet-101"))


@pytest.fixture(scope="module")
def llamas() -> str:
    """A Llama, and the same with sliding windows, which transformers calls Mistral."""
    from transformers import AutoModelForCausalLM, MistralConfig

    def scan(window: int | None) -> Scan:
        config = MistralConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=256,
            sliding_window=window,
        )
        with torch.device("meta"):
            return Scan(AutoModelForCausalLM.from_config(config), (64,), dtype=torch.long)

    return compare(scan(None), scan(16)).to_html(names=("full", "window 16"))


Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Visit:
    def visited(page: str, **options: Any) -> Any:
        file = tmp_path / "pair.html"
        file.write_text(page, encoding="utf-8")
        return opened(browser, file, **options)

    return visited


def tops(page: Page, side: int) -> dict[str, float]:
    """Return the height at which each box of a side begins, by the names on the box."""
    found: list[tuple[str, float]] = (
        page.locator(".side")
        .nth(side)
        .locator(".node > .frame")
        .evaluate_all(
            "all => all.map(each => [each.parentNode.dataset.name, each.getBoundingClientRect().y])"
        )
    )
    return dict(found)


def names_of(page: Page, side: int, state: str) -> list[str]:
    names: list[str] = (
        page.locator(".side")
        .nth(side)
        .locator(f".node.{state}")
        .evaluate_all("all => all.map(each => each.dataset.name)")
    )
    return names


def seen_rows(page: Page) -> list[str]:
    names: list[str] = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[0].children[2].textContent)"
    )
    return names


def test_the_same_layers_stand_at_the_same_height(visit: Visit, resnets: str) -> None:
    with visit(resnets) as page:
        assert tops(page, 0) == pytest.approx(tops(page, 1), abs=1)
        page.evaluate("location.hash = '#layer3/'")
        page.locator('.node[data-name="6 … 22"]').wait_for()
        before, after = tops(page, 0), tops(page, 1)
        assert list(before) == ["input", "0", "1 … 5", "output"]
        assert {name: after[name] for name in before} == pytest.approx(before, abs=1)
        assert after["6 … 22"] > after["1 … 5"]
        added = page.locator('.node[data-name="6 … 22"]')
        assert "keep-added" in str(added.get_attribute("class"))
        assert str(added.get_attribute("aria-label")).endswith(", added")
        assert "+added" in page.locator(".side .key").nth(1).inner_text()


def test_colors_of_times_have_a_legend_on_both_sides(visit: Visit, resnets: str) -> None:
    """Boxes have the color of what limits them: of 32 images, arithmetic and memory."""
    with visit(resnets) as page:
        page.get_by_label("color by").select_option("time")
        keys = page.locator(".side .key")
        for side in (0, 1):
            expect(keys.nth(side)).to_contain_text("limited by compute")
            expect(keys.nth(side)).to_contain_text("limited by memory")
            expect(keys.nth(side).locator("i.on-compute, i.on-memory")).to_have_count(2)
        page.get_by_label("color by").select_option("macs")
        expect(keys.first).not_to_contain_text("limited by")


def test_both_graphs_and_the_table_are_in_step(visit: Visit, resnets: str) -> None:
    with visit(resnets) as page:
        one, other = (page.locator(".side").nth(side) for side in (0, 1))
        one.locator('.node[data-name="layer1"]').hover()
        assert [names_of(page, side, "pointed") for side in (0, 1)] == [["layer1"], ["layer1"]]
        assert all(each.locator(".read").inner_text().startswith("layer1") for each in (one, other))
        other.locator('.node[data-name="layer2"]').click()
        assert [names_of(page, side, "selected") for side in (0, 1)] == [["layer2"], ["layer2"]]
        assert page.locator("tr.selected").inner_text().startswith("▾layer2")
        other.locator('.node[data-name="layer3"] .opener').click()
        assert "1 … 5" in tops(page, 0)
        heights = [tops(page, side)["layer4"] for side in (0, 1)]
        assert heights[0] == pytest.approx(heights[1], abs=1)
        other.locator('.node[data-name="layer3"] .opener').first.click()
        assert "1 … 5" not in tops(page, 0)
        page.locator("tbody tr", has_text="layer4").click()
        assert [names_of(page, side, "selected") for side in (0, 1)] == [["layer4"], ["layer4"]]


def test_the_keyboard_opens_enters_and_leaves_on_both_sides(visit: Visit, resnets: str) -> None:
    with visit(resnets) as page:
        box = page.locator(".side").first.locator('.node[data-name="layer3"]')
        box.focus()
        page.keyboard.press("Space")
        assert all("1 … 5" in tops(page, side) for side in (0, 1))
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
        page.locator('.node[data-name="6 … 22"]').wait_for()
        assert "conv1" not in tops(page, 0)
        page.locator(".node:focus").first.wait_for()
        page.keyboard.press("Escape")
        page.locator('.side:first-child .node[data-name="layer3"]').wait_for()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.type") == "search"


def test_the_table_filters_and_sorts_by_difference(visit: Visit, resnets: str) -> None:
    with visit(resnets) as page:
        page.get_by_label("only differences").check()
        assert seen_rows(page) == ["ResNet", "layer3", "6 … 22"]
        assert page.locator("tr.is-added td.what").inner_text() == "added"
        page.locator("th button", has_text="difference").last.click()
        assert seen_rows(page)[:3] == ["ResNet", "layer3", "layer3.6"]
        page.get_by_label("only differences").uncheck()
        last = page.locator("tbody tr").last
        assert last.get_attribute("class") == "is-same"


def test_a_level_that_one_side_lacks_leaves_the_other_where_it_is(
    visit: Visit, resnets: str
) -> None:
    with visit(resnets) as page:
        page.evaluate("location.hash = '#layer3.6/'")
        page.locator('.side:nth-child(1) .node[data-name="1 … 5"]').wait_for()
        page.locator('.side:nth-child(2) .node[data-name="conv1"]').wait_for()
        assert list(tops(page, 0)) == ["input", "0", "1 … 5", "output"]
        before, after = page.locator(".crumbs").all_inner_texts()
        assert before.startswith("ResNet › layer3")
        assert before.endswith("Sequential without 6 … 22")
        assert after.startswith("ResNet › layer3 › 6 … 22 ×17")


def test_each_side_has_the_names_of_its_own_layers(visit: Visit) -> None:
    class A(Wrapper):
        pass

    class B(Wrapper):
        pass

    before = A(nn.Sequential(nn.Linear(4, 4), Block()))
    after = B(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Block()))
    with visit(scans(before, after).to_html()) as page:
        assert page.locator(".crumbs").all_inner_texts() == ["A", "B"]
        page.evaluate("location.hash = '#module.2/'")
        page.locator(".crumbs", has_text="Block").first.wait_for()
        texts = page.locator(".crumbs").all_inner_texts()
        assert [" ".join(text.split()) for text in texts] == [
            "A › module › 1Block",
            "B › module › 2Block",
        ]
        page.locator(".crumbs a").first.click()
        expect(page.locator(".crumbs")).to_have_text(["A", "B"])


@pytest.mark.parametrize("width", [1280, 380])
def test_what_is_chosen_can_be_read_to_its_end(visit: Visit, resnets: str, width: int) -> None:
    with visit(resnets) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("location.hash = '#layer4.0.conv2'")
        lines = page.locator(".side .read")
        lines.filter(has_text="layer4.0.conv2").first.wait_for()
        assert all("limited by" in text for text in lines.all_inner_texts())
        for line in lines.all():
            line.evaluate("line => { line.scrollTop = line.scrollHeight; }")
            bottom = line.evaluate(
                "line => line.lastElementChild.getBoundingClientRect().bottom"
                " - line.getBoundingClientRect().bottom"
            )
            assert bottom <= 1


def test_bars_of_all_rows_stand_at_the_height_of_their_names(visit: Visit) -> None:
    """Added rows, and rows without a difference, have a bar without a percentage."""
    before = nn.Sequential(OrderedDict(a=nn.Linear(4, 8), b=nn.Linear(8, 8), c=nn.ReLU()))
    after = nn.Sequential(
        OrderedDict(a=nn.Linear(4, 16), b=nn.Linear(16, 8), c=nn.ReLU(), d=nn.Linear(8, 8))
    )
    with visit(scans(before, after).to_html()) as page:
        rows = page.locator("tbody tr")
        rows.nth(4).wait_for()
        kinds = rows.evaluate_all("all => all.map(each => each.className.split(' ')[0])")
        assert {"is-added", "is-changed", "is-same"} <= set(kinds)
        offsets = rows.evaluate_all(
            """all => all.map(each => {
                const bar = each.querySelector(".share").getBoundingClientRect();
                const row = each.getBoundingClientRect();
                return (bar.top + bar.bottom - row.top - row.bottom) / 2;
            })"""
        )
        assert max(map(abs, offsets)) < 1, list(zip(kinds, offsets, strict=True))


def test_sliding_windows_change_what_attention_reads(visit: Visit, llamas: str) -> None:
    """Nothing is added: each layer reads a mask of its own, which adds no MACs."""
    data = data_of(llamas)
    assert {row["kind"] for row in data["rows"]} == {"same", "inside", "changed"}
    layers = next(row for row in data["rows"] if row["type"] == "MistralDecoderLayer")
    assert (layers["repeats"], layers["what"]) == (4, ["input attention_mask none → 1×1×64×64"])
    with visit(llamas) as page:
        assert page.get_by_label("color by").input_value() == "flops"
        page.evaluate("location.hash = '#model/'")
        page.locator('.side .node[data-name="layers.0 … 3"]').first.wait_for()
        for name in ("embed_tokens", "layers.0 … 3", "norm"):
            assert tops(page, 0)[name] == pytest.approx(tops(page, 1)[name], abs=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_both_sides_can_be_read(visit: Visit, resnets: str, scheme: str) -> None:
    with visit(resnets, color_scheme=scheme, bypass_csp=True) as page:
        page.evaluate("location.hash = '#layer3.6/'")
        page.locator('.side:nth-child(2) .node[data-name="conv1"]').wait_for()
        contrast, text = least_contrast(page, ".verdicts, header, .layers, h2, .read, .key")
        assert contrast >= 4.5, text


@pytest.mark.parametrize("width", [1280, 380])
def test_nothing_but_the_table_scrolls_sideways(visit: Visit, resnets: str, width: int) -> None:
    with visit(resnets) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        page.locator(".node").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        sides = [page.locator(".side").nth(side).bounding_box() for side in (0, 1)]
        assert sides[0] is not None
        assert sides[1] is not None
        is_below = sides[1]["y"] >= sides[0]["y"] + sides[0]["height"]
        assert is_below == (width == 380)
        if width == 380:
            assert page.locator("thead th:visible").all_inner_texts()[0] == "Layer"
            assert "difference" in page.locator("thead th:visible").all_inner_texts()


#: of each graph how far its canvas reaches below the drawing, and the height of the canvas
_BELOW = """all => all.map(each => {
    const drawn = each.querySelector("svg > g").getBoundingClientRect();
    const canvas = each.getBoundingClientRect();
    return [canvas.bottom - drawn.bottom, canvas.height];
})"""


@pytest.mark.parametrize("width", [1280, 900, 380])
def test_both_graphs_are_seen_to_their_ends(visit: Visit, resnets: str, width: int) -> None:
    """Also where one stands below the other, and where one is longer."""
    with visit(resnets) as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.reload()
        page.locator(".node").first.wait_for()
        for level in ("", "layer3/"):
            page.evaluate("level => { location.hash = level; }", level)
            page.locator(
                f'.side .node[data-name="{"6 … 22" if level else "layer3"}"]'
            ).last.wait_for()
            (before, tall), (after, other) = page.locator(".canvas").evaluate_all(_BELOW)
            assert min(before, after) >= 0
            if not level:
                assert tall == other, "drawings of one height"
            else:
                assert tall <= other


@pytest.mark.parametrize("side", [0, 1])
def test_each_graph_has_buttons_that_move_both(visit: Visit, resnets: str, side: int) -> None:
    def views() -> list[str]:
        found: list[str] = page.locator(".canvas > svg > g").evaluate_all(
            "all => all.map(each => each.getAttribute('transform'))"
        )
        return found

    with visit(resnets) as page:
        page.set_viewport_size({"width": 380, "height": 800})
        page.reload()
        page.locator(".node").first.wait_for()
        fitting, tools = views(), page.locator(".side").nth(side).locator(".tools")
        tools.get_by_label("zoom in").click()
        one, other = views()
        assert one == other != fitting[0]
        tools.get_by_label("fit to view").click()
        assert views() == fitting


def test_a_wrapper_adds_nothing_that_was_there_before(visit: Visit) -> None:
    with visit(scans(Block(), Wrapper(Block())).to_html()) as page:
        wrapper, model = (page.locator("tbody tr").nth(row) for row in (0, 1))
        assert wrapper.locator("td.what").inner_text() == "added"
        assert model.locator("td.what").inner_text() == "was Block"
        assert (
            wrapper.locator("td").last.inner_text() == model.locator("td").last.inner_text() == ""
        )


def test_names_of_models_are_text(visit: Visit) -> None:
    hostile = "<img src=x onerror=pwned=1></script><script>pwned=1</script>"
    model = nn.Sequential(OrderedDict({hostile: nn.ReLU()}))
    comparison = scans(model, nn.Sequential(OrderedDict({f"{hostile}2": nn.GELU()})))
    with visit(comparison.to_html(names=(hostile, hostile))) as page:
        assert "onerror" in page.locator("tbody").inner_text()


def test_a_notebook_shows_both_sides(visit: Visit, llamas: str) -> None:
    shown = scans(nn.ReLU(), nn.GELU())._repr_html_()
    assert "<iframe" in shown
    with visit(f"<!doctype html><body>{shown}</body>") as page:
        frame = page.frame_locator("iframe")
        frame.locator(".side .node").first.wait_for()
        assert frame.locator("h1").inner_text() == "ReLU → GELU"
    assert torchscan.types.Page(llamas)._repr_html_().startswith("<iframe")


def test_runs_have_a_table_alone(visit: Visit) -> None:
    def run() -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        with inspect(model) as inspection:
            for _ in range(2):
                model(torch.zeros(2, 4)).sum().backward()
        return inspection

    with visit(compare(run(), run()).to_html()) as page:
        assert page.locator(".side").count() == 0
        assert page.locator("tbody tr").count() == 3
        assert "Forward pass before" in page.locator("thead").inner_text()


@pytest.mark.parametrize(
    ("settings", "parsed"),
    [
        ("", []),
        ("3, 64", [("", "3, 64")]),
        ("3, 64, bias=False", [("", "3, 64"), ("bias", "False")]),
        ("kernel_size=(7, 7), 3", [("", "3"), ("kernel_size", "(7, 7)")]),
        ("(5,), f=max([1, {2, 3}], x=4)", [("", "(5,)"), ("f", "max([1, {2, 3}], x=4)")]),
        ("a), b=1", [("", "a)"), ("b", "1")]),
    ],
)
def test_settings_are_compared_by_their_names(settings: str, parsed: list[tuple[str, str]]) -> None:
    """Commas in brackets do not separate them, and those without a name are one, the first."""
    assert parse_settings(settings) == parsed
