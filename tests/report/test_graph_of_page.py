"""The graph of a page in a browser: folded ranges, strips, letters, names and NaN."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from tests.browsing import expect, opened
from tests.report.test_page import box, boxes
from tests.watching.watching import watch
from torchscan import Scan, html_report
from torchscan.measured import Measured
from torchscan.watching.explore.run_page import page_of_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., Any]

#: the boxes of the graph that reach out of its panel
_OUTSIDE = """graph => Array.from(graph.querySelectorAll(".node > .frame")).filter(each => {
    const box = each.getBoundingClientRect(), around = graph.getBoundingClientRect();
    return box.x < around.x || box.right > around.right
        || box.y < around.y || box.bottom > around.bottom;
}).length"""

#: pixels on the screen of one pixel of the graph
_ZOOM = "graph => graph.querySelector(':scope > g').getCTM().a"


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Visit:
    @contextmanager
    def visited(page: str, **options: Any) -> Iterator[Page]:
        file = tmp_path / "model.html"
        file.write_text(page, encoding="utf-8")
        with opened(browser, file, **options) as seen:
            seen.set_viewport_size({"width": 1280, "height": 900})
            seen.reload()
            yield seen

    return visited


class Run:
    """A run of a model that has measured these figures."""

    def __init__(
        self,
        model: nn.Module,
        figures: Mapping[Any, Any],
        producers: Mapping[Any, str] | None = None,
    ) -> None:
        self.model, self.figures, self.producers = model, figures, producers or {}

    def measured(self) -> Measured:
        types = {path: type(module).__name__ for path, module in self.model.named_modules()}
        return Measured(source="a run", figures=self.figures, types=types, producers=self.producers)


def blocks(number: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(number)))


def alternating(number: int) -> nn.Sequential:
    """Return a chain in which each module is of another kind than the next."""
    return nn.Sequential(*(nn.ReLU() if at % 2 else nn.Tanh() for at in range(number)))


@functools.cache
def page_of_chain() -> str:
    return html_report(Scan(alternating(2400), (4,)))


class Experts(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.gate = nn.Linear(4, number)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        found = [each(x) * weights[..., at, None] for at, each in enumerate(self.experts)]
        return torch.stack(found).sum(0)


class Attention(nn.Module):
    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weights = hidden_states @ hidden_states.transpose(-1, -2) + attention_mask
        return {"context": weights @ hidden_states, "weights": weights}


class Named(nn.Module):
    """Passes keyword arguments on and takes a result by its key."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.attention(hidden_states=self.fc(x), attention_mask=mask)
        return torch.relu(found["context"])


# -- ranges --------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_ranges_of_thousands_open_step_by_step(visit: Visit) -> None:
    """2,400 modules are 12 ranges of 200, one of them is 10 of 20, and those are modules."""
    with visit(page_of_chain()) as page:
        assert boxes(page)[:3] == ["input", "0 … 199", "200 … 399"]
        assert len(boxes(page)) == 14
        box(page, "200 … 399").click()
        assert boxes(page)[2:5] == ["200 … 399", "200 … 219", "220 … 239"]
        box(page, "220 … 239").click()
        assert {"220", "239"} <= set(boxes(page))
        assert len(boxes(page)) == 14 + 10 + 20
        page.locator("[data-opens$='201-400']").click()
        assert len(boxes(page)) == 14, "the sign of an open range folds it again"


@pytest.mark.sweep
def test_a_range_opens_where_a_module_in_it_is_chosen(visit: Visit) -> None:
    with visit(page_of_chain()) as page:
        page.evaluate("location.hash = '#1234'")
        page.wait_for_selector('.node.selected[data-name="1234"]')
        assert {"1200 … 1399", "1220 … 1239"} <= set(boxes(page))
        assert len(boxes(page)) == 14 + 10 + 20, "the others stay folded"


@pytest.mark.sweep
def test_a_range_has_the_sum_of_its_modules(visit: Visit) -> None:
    """Each Linear has 20 parameters."""
    model = nn.Sequential(*(nn.Linear(4, 4) if at % 2 else nn.Tanh() for at in range(2400)))
    with visit(html_report(Scan(model, (4,)))) as page:
        page.get_by_label("color by").select_option("params")
        assert "2.00 k" in str(box(page, "0 … 199").text_content())
        assert "the sum of its modules" in page.locator(".panel.graph > .key").inner_text()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: alternating(2400), (4,)),
        (lambda: Experts(256), (3, 4)),
        (lambda: nn.Sequential(nn.ModuleDict({"a": blocks(30)})["a"], *alternating(25)), (4,)),
    ],
    ids=["chain", "experts", "mixed"],
)
def test_a_graph_fits_its_panel_and_can_be_read(
    visit: Visit, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    with visit(html_report(Scan(make(), shape))) as page:
        graph = page.locator("svg.graph")
        assert graph.evaluate(_OUTSIDE) == 0
        assert graph.evaluate(_ZOOM) >= 0.7
        assert 4 <= len(boxes(page)) <= 40
        place = graph.bounding_box()
        assert place is not None
        assert place["y"] + place["height"] <= 900


def test_experts_are_ranges_between_router_and_sum(visit: Visit) -> None:
    with visit(html_report(Scan(Experts(256), (3, 4)))) as page:
        experts = [name for name in boxes(page) if name.startswith("experts")]
        assert experts[0].startswith("experts.0 … ")
        assert experts[-1].endswith(" … 255")
        assert "gate" in boxes(page)


# -- strips --------------------------------------------------------------------------------------


def test_equal_blocks_have_a_cell_each(visit: Visit) -> None:
    """A folded box shows the largest norm; its cells keep those of the blocks."""
    figures = {(f"{at}", 0): {"gradient": 10.0 ** (at - 2)} for at in range(3)}
    model = blocks(3)
    with visit(html_report(Scan(model, (4,)), run=Run(model, figures))) as page:
        cells = page.locator('.node[data-name="0 … 2"] > .strip > .cell')
        tones = cells.evaluate_all("all => all.map(each => getComputedStyle(each).fill)")
        assert len(set(tones)) == 3
        assert "the largest of its modules" in page.locator(".panel.graph > .key").inner_text()
        assert page.locator("tbody tr", has_text="0 … 2").locator(".cell").count() == 3
        cells.nth(1).hover()
        line = str(page.locator(".panel.graph > .read").text_content())
        assert "1" in line.split(" · ", 1)[0]
        assert "output gradient 0.100" in line
        cells.nth(1).click()
        assert page.evaluate("location.hash") == "#1"


def test_what_a_folded_figure_is_stands_in_the_line(visit: Visit) -> None:
    figures = {(f"{at}", 0): {"gradient": 1.0, "latency": 1.0} for at in range(3)}
    model = blocks(3)
    with visit(html_report(Scan(model, (4,)), run=Run(model, figures))) as page:
        box(page, "0 … 2").hover(position={"x": 40, "y": 8})
        line = page.locator(".panel.graph > .read")
        assert "measured time (sum of 3) 3.00 s" in str(line.text_content())
        page.get_by_label("color by").select_option("gradient")
        box(page, "0 … 2").hover(position={"x": 44, "y": 8})
        assert "output gradient (largest of 3) 1.00" in str(line.text_content())


@pytest.mark.parametrize("width", [1280, 380])
def test_long_description_of_the_selected_layer_scrolls_to_its_end(
    visit: Visit, width: int
) -> None:
    """It begins at its start again when another layer is chosen."""
    name = "a_layer_with_a_very_long_name_" * 8
    model = nn.Sequential(OrderedDict([(f"{name}1", nn.Linear(4, 4)), (f"{name}2", nn.ReLU())]))
    with visit(html_report(Scan(model, (4,)))) as page:
        page.set_viewport_size({"width": width, "height": 900})
        line = page.locator(".panel.graph > .read")
        hidden = "line => line.scrollHeight - line.clientHeight - line.scrollTop"
        page.evaluate("hash => { location.hash = hash; }", f"#{name}1")
        line.filter(has_text=f"{name}1").wait_for()
        assert line.evaluate(hidden) > 10
        below = "line => getComputedStyle(line, '::after').content"
        assert "scroll" in line.evaluate(below)
        line.hover()
        page.mouse.wheel(0, 2000)
        page.wait_for_function("() => document.querySelector('.graph > .read').scrollTop > 10")
        assert line.evaluate(hidden) <= 1
        expect(line).not_to_have_class(re.compile("goes-on"))
        assert line.evaluate(below) == "none"
        page.evaluate("hash => { location.hash = hash; }", f"#{name}2")
        line.filter(has_text=f"{name}2").wait_for()
        assert line.evaluate("line => line.scrollTop") == 0


# -- what was measured ---------------------------------------------------------------------------


def test_a_measured_zero_is_not_absent(visit: Visit) -> None:
    figures = {("0", 0): {"dead": 0.0, "nonfinite": 0}, ("1", 0): {"dead": 0.25}}
    model = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    with visit(html_report(Scan(model, (4,)), run=Run(model, figures))) as page:
        assert page.get_by_label("color by").input_value() != "nonfinite", "there are none"
        page.get_by_label("color by").select_option("dead")
        texts = page.locator("svg.graph .figure").all_text_contents()
        assert texts == ["0", "25.0 %", "–"]
        absent = page.locator(".chip.absent").evaluate_all(
            "all => all.map(each => each.closest('.node').dataset.name)"
        )
        assert absent == ["2"]
        page.get_by_label("color by").select_option("nonfinite")
        assert page.locator("svg.graph .figure").all_text_contents() == ["0", "–", "–"]


def test_a_watched_run_can_be_colored_by_all_that_was_measured(
    browser: Browser, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, tmp_path / "run", every=1):
        model(torch.rand(4, 3)).sum().backward()
        optimizer.step()
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        offered = page.get_by_label("color by").locator("option").all_inner_texts()
        measured = {"output gradient", "update ÷ weight", "std of outputs", "NaN and Inf"}
        assert measured <= set(offered)


def test_the_source_of_a_nan_stands_out_from_those_that_received_it(visit: Visit) -> None:
    figures = {("0.0", 0): {"nonfinite": 0}, ("1.0", 0): {"nonfinite": 8}}
    received = {(f"{at}", 0): {"nonfinite": 4} for at in (2, 3)}
    producers = {("1.0", 0): "output, step 37"}
    model = nn.Sequential(*blocks(2), nn.Sigmoid(), nn.Softplus())
    run = Run(model, {**figures, **received}, producers)
    with visit(html_report(Scan(model, (4,)), run=run)) as page:
        assert "received" in str(box(page, "2").get_attribute("class"))
        assert page.locator(".node.received .badge").count() == 0
        folded = box(page, "0 … 1")
        assert "first NaN or Inf: 1.0" in str(folded.text_content())
        folded.dblclick(position={"x": 40, "y": 8})
        page.wait_for_selector('.node.producer[data-name="0"]')
        assert page.locator(".node.producer > .on-wrong").count() >= 1
        assert "first NaN or Inf" in page.locator("tr.producer td.name").inner_text()
        assert page.locator("tr.received").count() == 2
        states = page.locator("tr.producer .cell").evaluate_all(
            "all => all.map(each => each.classList.contains('source'))"
        )
        assert states.count(True) == 1, "the second of two blocks"


# -- names and letters ---------------------------------------------------------------------------


def test_keyword_arguments_and_keys_keep_their_names(visit: Visit) -> None:
    given = (torch.rand(2, 3, 4), torch.zeros(3, 3))
    with visit(html_report(Scan(Named(), args=given))) as page:
        ports = page.locator("svg.graph .port").all_text_contents()
        assert sorted(ports) == ["attention_mask", "context", "hidden_states"]
        box(page, "attention").hover()
        line = str(page.locator(".panel.graph > .read").text_content())
        assert "hidden_states 2×3×4, attention_mask 3×3" in line
        assert "context 2×3×4, weights 2×3×3" in line


def test_the_free_letter_that_comes_first_is_given(visit: Visit) -> None:
    with visit(html_report(Scan(nn.Linear(4, 4), (4,)))) as page:
        letters = page.evaluate(
            """() => {
                const kept = new $keep.Kept();
                const found = ["x", "y", "x", "z"].map(key => kept.keep(key).letter);
                kept.release("y");
                for (let at = 0; at < 30; at += 1) found.push(kept.keep(`n${at}`).letter);
                return [...found, kept.markOf("y")];
            }"""
        )
        assert letters[:7] == ["A", "B", "A", "C", "B", "D", "E"]
        assert letters[-3:] == ["AE", "AF", None]


def test_a_kept_layer_has_its_letter_in_graph_table_and_panel(
    browser: Browser, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with watch(model, tmp_path / "run", every=1):
        model(torch.rand(4, 3)).sum().backward()
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        for name in ("0", "2"):
            page.locator(f".node[data-name='{name}']").focus()
            page.keyboard.press("Enter")
        expect(page.locator(".card .tag")).to_have_text(["A", "B"])
        tags = {
            name: page.locator(f"{where} .tag").all_text_contents()
            for name, where in (("graph", "svg.graph"), ("table", "tbody"))
        }
        assert tags == {name: ["A", "B"] for name in ("graph", "table")}
        colors = page.evaluate(
            """() => ["svg.graph .tag rect", "tbody .tag", ".card .tag"].map(each => {
                const style = getComputedStyle(document.querySelector(each));
                return each.endsWith("rect") ? style.fill : style.backgroundColor;
            })"""
        )
        assert len(set(colors)) == 1
        page.locator(".card.pinned").first.get_by_label("close").click()
        assert page.locator("svg.graph .tag").all_text_contents() == ["B"]
        assert page.locator("tbody .tag").all_text_contents() == ["B"]
