"""Overlays in a browser: colors, ranges, the legend, and columns of the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor, nn

from tests.browsing import least_contrast, opened
from tests.report.test_page import EVIL, box
from torchscan import Scan, html_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., Any]


class Net(nn.Module):
    """A stem, three equal blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)), nn.ReLU()
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.stem(x)))
        return found


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Visit:
    @contextmanager
    def visited(overlay: Any, **options: Any) -> Iterator[Page]:
        file = tmp_path / "model.html"
        html_report(Scan(Net(), (4,)), overlay=overlay).save(file)
        with opened(browser, file, **options) as page:
            yield page

    return visited


def legend(page: Page) -> list[str]:
    return page.locator(".panel.graph > .key > span").all_inner_texts()


def text_of(page: Page, name: str) -> str:
    return str(box(page, name).locator("> .figure").text_content())


def tones(page: Page, name: str, marks: str = "> .chip") -> list[tuple[float, ...]]:
    """Red, green and blue of the marks of a box, from 0 to 1."""
    drawn: list[tuple[float, ...]] = (
        box(page, name)
        .locator(marks)
        .evaluate_all(
            """all => all.map(each => {
            const canvas = document.createElement("canvas").getContext("2d");
            canvas.fillStyle = getComputedStyle(each).fill;
            canvas.fillRect(0, 0, 1, 1);
            return Array.from(canvas.getImageData(0, 0, 1, 1).data).slice(0, 3);
        })"""
        )
    )
    return [tuple(part / 255 for part in color) for color in drawn]


def headings(page: Page) -> list[str]:
    return page.locator("thead th").all_inner_texts()


def column(page: Page, heading: str) -> dict[str, str]:
    """The texts of a column by the names of rows, in their order."""
    at = headings(page).index(heading)
    pairs: list[list[str]] = page.locator("tbody tr").evaluate_all(
        "(rows, at) => rows.map(row => [row.cells[0].children[1].textContent,"
        " row.cells[at].firstChild.textContent])",
        at,
    )
    return {name.strip(): text for name, text in pairs}


# -- colors --------------------------------------------------------------------------------------


def test_an_overlay_colors_the_graph_and_is_a_column(visit: Visit) -> None:
    with visit({"sensitivity": {"stem": 0.1, "head": 0.4}}) as page:
        assert page.get_by_label("color by").input_value() == "overlay0", "what is given is first"
        assert (text_of(page, "stem"), text_of(page, "head")) == ("0.100", "0.400")
        assert text_of(page, "blocks") == "–"
        (faint,), (strong,) = tones(page, "stem"), tones(page, "head")
        assert sum(strong) < sum(faint), "in a light theme, the largest is the darkest"
        assert box(page, "blocks").locator("> .chip.absent").count() == 1
        assert legend(page) == ["sensitivity 0.100  0.400", "–: no value given"]
        assert headings(page)[-1] == "sensitivity", "as the user wrote it"
        assert column(page, "sensitivity")["head"] == "0.400"
        page.get_by_label("color by").select_option("params")
        assert "sensitivity" in headings(page), "it stays beside other values"


def test_an_overlay_is_told_apart_from_a_column_of_the_same_name(visit: Visit) -> None:
    with visit({"MACs": {"stem": 1}, "params": {"head": 2}, "bits": {"stem": 8}}) as page:
        assert legend(page)[0].startswith("MACs (overlay)")
        assert headings(page)[-1] == "MACs (overlay)"
        assert column(page, "MACs (overlay)")["stem"] == "1"
        assert {"params (overlay)", "bits"} < set(headings(page))
        options = page.get_by_label("color by").locator("option").all_inner_texts()
        assert len(options) == len(set(options))
        assert {"MACs", "MACs (overlay)"} < set(options)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_values_of_both_signs_have_two_colors(visit: Visit, theme: str) -> None:
    with visit({"effect": {"stem": -2, "head": 2, "blocks": 0}}, color_scheme=theme) as page:
        (low,), (middle,), (high,) = (tones(page, name) for name in ("stem", "blocks", "head"))
        assert low[2] - low[0] > 0.2, "blue"
        assert high[0] - high[2] > 0.2, "orange"
        assert max(middle) - min(middle) < 0.05, "gray"
        assert legend(page) == ["effect −2  2, two colors from 0"]
        assert text_of(page, "stem") == "−2"


def test_two_colors_are_as_strong_as_the_values_are_far_from_zero(visit: Visit) -> None:
    with visit({"effect": {"stem": -1, "head": 4, "blocks": 0}}) as page:
        (low,), (high,) = tones(page, "stem"), tones(page, "head")
        assert sum(low) > sum(high) + 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"stem": -0.5, "head": -3}, "effect −3  −0.500"),
        ({"stem": 1e-6, "head": 0.1}, "effect 1.00e−6  0.100, logarithmic"),
        ({"stem": 0, "head": 1e6}, "effect 0  1.00e6"),
        ({"stem": 12345, "head": 12345}, "effect  12,345"),
    ],
    ids=["negative", "logarithmic", "zero", "equal"],
)
def test_the_legend_says_the_range(visit: Visit, values: Any, expected: str) -> None:
    with visit({"effect": values}) as page:
        assert legend(page)[0] == expected
        (one,), (other,) = tones(page, "stem"), tones(page, "head")
        assert (one == other) == (values["stem"] == values["head"])
        assert sum(other) <= sum(one), "what is farther from 0 is stronger"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_texts_can_be_read(visit: Visit, theme: str, width: int) -> None:
    values = {"stem": -2, "head": 2, "blocks.0": 1, "blocks.1": 0}
    overlay = {"effect": values, "a name of several words": {"blocks.0.0": 3}}
    with visit(overlay, color_scheme=theme, bypass_csp=True) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        contrast, where = least_contrast(page, ".node, .layers, .key, .read, h2")
        assert contrast >= 4.5, where


# -- folded and inside ---------------------------------------------------------------------------


def test_a_folded_box_has_the_range_and_a_cell_for_each(visit: Visit) -> None:
    values = {"blocks.0": 0.1, "blocks.1": 0.9, "blocks.2": 0.5, "stem": 0.1}
    with visit({"kept": values}) as page:
        box(page, "blocks").dblclick()
        page.wait_for_selector('.node[data-name="0 … 2"]')
        assert text_of(page, "0 … 2") == "0.100 … 0.900"
        assert len(set(tones(page, "0 … 2"))) == 2, "of the lowest and the highest"
        cells = box(page, "0 … 2").locator("> .strip > .cell")
        assert len(set(tones(page, "0 … 2", "> .strip > .cell"))) == cells.count() == 3
        cells.nth(1).hover()
        line = str(page.locator(".panel.graph > .read").text_content())
        assert line.startswith("blocks.1 · kept 0.900")
        assert "a … b: lowest and highest of a box's modules or parameters" in legend(page)[1]
        assert column(page, "kept")["0 … 2"] == "0.100 … 0.900"


def test_a_folded_box_says_how_many_have_a_value(visit: Visit) -> None:
    with visit({"kept": {"blocks.2": 0.5}}) as page:
        page.evaluate("location.hash = '#blocks/'")
        page.wait_for_selector('.node[data-name="0 … 2"]')
        assert text_of(page, "0 … 2") == "0.500 (1 of 3)"
        assert box(page, "0 … 2").locator("> .strip > .cell").count() == 1


def test_a_box_without_a_value_shows_those_inside_and_says_so(visit: Visit) -> None:
    values = {"blocks.0.0": 0.1, "blocks.1.0": 0.9, "blocks.3": 0.4}
    with visit({"kept": values}) as page:
        assert text_of(page, "blocks") == "0.100 … 0.900 inside"
        assert box(page, "blocks").locator("> .chip.absent").count() == 1
        assert box(page, "blocks").locator("> .strip > .cell").count() == 3
        assert any(each.startswith("inside: lowest and highest of") for each in legend(page))
        assert column(page, "kept")["blocks"] == "–", "rows inside it have their own"
        box(page, "blocks").locator("> .strip > .cell").nth(1).click()
        assert page.evaluate("decodeURIComponent(location.hash)") == "#blocks.1.0"


def test_a_module_has_the_range_of_its_parameters(visit: Visit) -> None:
    with visit({"kept": {"stem.weight": 0.2, "stem.bias": 0.6, "head.weight": 0.3}}) as page:
        assert text_of(page, "stem") == "0.200 … 0.600"
        assert text_of(page, "head") == "0.300"
        box(page, "stem").locator("> .strip > .cell").last.hover()
        assert "stem.bias · kept 0.600" in str(page.locator(".panel.graph > .read").text_content())


def test_a_saved_graph_keeps_its_colors(visit: Visit) -> None:
    """Without the style sheet of the page, and in programs that do not mix colors."""
    with visit({"effect": {"stem": -2, "head": 2}}) as page:
        shown = tones(page, "stem") + tones(page, "head")
        with page.expect_download() as download:
            page.locator(".panel.graph").get_by_text("SVG", exact=True).click()
        drawn = Path(download.value.path()).read_text(encoding="utf-8")
        assert "var(" not in drawn
        chips = re.findall(r'<rect class="chip"[^>]* fill="rgb\((\d+), (\d+), (\d+)\)"', drawn)
        found = [tuple(int(part) / 255 for part in color) for color in chips]
        assert sorted(found) == sorted(shown)


# -- the table -----------------------------------------------------------------------------------


def test_a_column_sorts_and_what_has_no_value_comes_last(visit: Visit) -> None:
    values = {"stem": -2, "head": 3, "blocks.0": 1, "blocks.2": 5, "blocks.3": 0}
    with visit({"effect": values}) as page:
        heading = page.locator("thead button", has_text="effect")
        heading.click()
        falling = list(column(page, "effect").values())
        assert falling[:4] == ["1 … 5 (2 of 3)", "3", "0", "−2"], "by the highest"
        assert set(falling[4:]) == {"–"}
        heading.click()
        rising = list(column(page, "effect").values())
        assert rising[:4] == ["−2", "0", "1 … 5 (2 of 3)", "3"], "by the lowest"
        assert set(rising[4:]) == {"–"}


def test_a_phone_shows_a_range_and_its_cells(visit: Visit) -> None:
    with visit({"kept": {"blocks.0": 0.05, "blocks.1": 0.1, "blocks.2": 0.15}}) as page:
        page.set_viewport_size({"width": 380, "height": 900})
        page.reload()
        cells = page.locator("tbody tr", has_text="0 … 2").locator(".cells")
        table = page.locator(".layers .scroll")
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") == 0
        assert cells.locator(".cell").count() == 3


def test_the_reader_chooses_among_several(visit: Visit) -> None:
    overlay = {name: {"stem": at} for at, name in enumerate(("a", "b", "c", "time"))}
    with visit(overlay) as page:
        offered = page.get_by_label("color by").locator("option").all_inner_texts()
        assert offered[:4] == ["a", "b", "c", "time"]
        assert headings(page) == ["Layer", "Output", "Params", "b", "c", "a"]
        page.get_by_label("color by").select_option("overlay3")
        assert headings(page) == ["Layer", "Output", "Params", "a", "b", "time"]
        assert text_of(page, "stem") == "3"


_LONG = "a very long overlay name of sensitivity to int4"

#: by how much a table is wider than its place, and how far its last column reaches out of it
_OUTSIDE = """each => {
    const edge = each.getBoundingClientRect().left + each.clientWidth;
    const last = [...each.querySelectorAll("tr > :last-child")];
    const right = Math.max(...last.map(cell => cell.getBoundingClientRect().right));
    return [each.scrollWidth - each.clientWidth, right - edge];
}"""


@pytest.mark.parametrize("width", [1280, 950, 380])
def test_the_chosen_column_is_seen_whatever_stands_beside_it(visit: Visit, width: int) -> None:
    values = {"stem.weight": 0.0252, "stem.bias": 0.0255, "blocks.0.0": 123456, "head": -0.0255}
    names = (_LONG, "weight std", "bits", "a_name_of_one_long_word_and_no_other")
    with visit(dict.fromkeys(names, values)) as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.reload()
        for chosen in ("overlay0", "overlay1", "overlay3", "params"):
            page.get_by_label("color by").select_option(chosen)
            outside = page.locator(".layers .scroll").evaluate(_OUTSIDE)
            assert max(outside) <= 1, chosen
            shown = page.locator("thead th:visible")
            assert shown.first.inner_text() == "Layer"
            if width > 900:
                assert shown.count() >= 3, "only what has no room is left out"
            if chosen == "overlay0":
                assert shown.last.locator("button").get_attribute("title") == _LONG
        page.locator("thead th:visible button").last.click()
        assert max(page.locator(".layers .scroll").evaluate(_OUTSIDE)) <= 1


def test_columns_come_back_when_there_is_room(visit: Visit) -> None:
    values = {"stem.weight": 0.0252, "stem.bias": 0.0255}
    with visit(dict.fromkeys((_LONG, "weight std", "bits", "kept"), values)) as page:
        page.set_viewport_size({"width": 1600, "height": 800})
        page.reload()
        every = page.locator("thead th:visible").all_inner_texts()
        assert every[1] == "Output"
        page.set_viewport_size({"width": 950, "height": 800})
        page.locator("thead th.out").first.wait_for(state="attached")
        assert page.locator("tbody tr").first.locator("td:visible").count() < len(every)
        page.set_viewport_size({"width": 1600, "height": 800})
        page.locator("thead th.out").first.wait_for(state="detached")
        assert page.locator("thead th:visible").all_inner_texts() == every


def test_names_are_text(visit: Visit) -> None:
    with visit({EVIL: {"stem": 1}, "</script><b>": {"head": 2}}) as page:
        assert page.locator("script, img, option b, th b").count() == 0
        assert headings(page)[-1].startswith("</script><script")
        assert len(headings(page)[-1]) <= 40
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 1000
