"""The table in a browser: what people see and click."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import torchscan
from tests.browsing import least_contrast, opened, visible_rows
from tests.report.samples import HOSTILE, INFOS, UNPRINTABLE, Chain, block, named, printed
from torchscan import analyze_roofline, crawl_module, estimate_memory, receptive_field, record
from torchscan.report.html import page as page_of
from torchscan.report.info import Info

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

Open = Callable[..., "Page"]


def linear() -> nn.Module:
    """Of 20 parameters and 16 MACs."""
    return nn.Linear(4, 4)


def nested() -> Info:
    """Of 4 such layers: ``a.b.c``, ``a.b.d``, ``a.e`` and ``f``."""
    inner = Chain({"b": Chain({"c": linear(), "d": linear()}), "e": linear()})
    return crawl_module(Chain({"a": inner, "f": linear()}), (4,))


OPEN = [
    ["Chain", "80", "64"],
    ["a", "60", "48"],
    ["b", "40", "32"],
    ["c", "20", "16"],
    ["d", "20", "16"],
    ["e", "20", "16"],
    ["f", "20", "16"],
]
CLOSED_B = [*OPEN[:3], *OPEN[5:]]
CLOSED_A = [*OPEN[:2], OPEN[6]]
COLUMNS = ["params", "macs"]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page; in the end nothing has gone wrong on it."""
    with ExitStack() as stack:

        def show(html: str, **options: Any) -> Page:
            file = tmp_path / "page.html"
            file.write_text(html, encoding="utf-8")
            page: AbstractContextManager[Page] = opened(browser, file, **options)
            return stack.enter_context(page)

        yield show


def fold(page: Page, name: str, number: int = 0) -> Locator:
    rows = page.locator("table.layers").nth(number).locator("tbody tr")
    return rows.filter(has=page.locator(f'.name[data-name="{name}"]')).locator(".fold")


def sort(page: Page, heading: str, number: int = 0) -> None:
    page.locator("table.layers").nth(number).get_by_role("button", name=heading).click()


# -- opening and closing -------------------------------------------------------------------------------------------------


def test_a_row_shows_the_sum_of_all_that_it_calls_open_or_closed(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    assert page.title() == "torchscan: Layers of Chain"
    assert visible_rows(page) == OPEN
    fold(page, "b").click()
    assert visible_rows(page) == CLOSED_B
    fold(page, "a").click()
    assert visible_rows(page) == CLOSED_A
    fold(page, "a").click()
    assert visible_rows(page) == CLOSED_B  # what was closed stays so
    fold(page, "b").click()
    assert visible_rows(page) == OPEN
    fold(page, "Chain").click()
    assert visible_rows(page) == [["Chain", "80", "64"]]


def test_what_is_as_deep_elsewhere_stays_open(show: Open) -> None:
    twice = {name: Chain({"in": Chain({"most": linear()})}) for name in ("one", "other")}
    page = show(crawl_module(Chain(twice), (4,)).to_html(columns=COLUMNS, standalone=True))
    fold(page, "in").first.click()
    assert [row[0] for row in visible_rows(page)] == ["Chain", "one", "in", "other", "in", "most"]


def test_rows_without_anything_below_cannot_be_closed(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    assert [fold(page, name).count() for name in ("Chain", "a", "b", "c", "d", "e", "f")] == [
        1,
        1,
        1,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_keyboard_opens_and_closes_and_says_which(show: Open, key: str) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    button = fold(page, "a")
    assert button.get_attribute("aria-expanded") == "true"
    button.focus()
    page.keyboard.press(key)
    assert visible_rows(page) == CLOSED_A
    assert button.get_attribute("aria-expanded") == "false"
    page.keyboard.press(key)
    assert visible_rows(page) == OPEN


def test_everything_can_be_reached_with_the_tabulator_and_shows_where_it_is(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.innerText || document.activeElement.ariaLabel")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached == [
        "expand all",
        "collapse all",
        "Layer",
        "Params",
        "MACs",
        "expand or collapse Chain",
        "expand or collapse a",
        "expand or collapse a.b",
    ]


def test_all_can_be_opened_and_closed_at_once(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    page.get_by_role("button", name="collapse all").click()
    assert visible_rows(page) == CLOSED_A
    fold(page, "a").click()
    assert visible_rows(page) == CLOSED_B
    page.get_by_role("button", name="expand all").click()
    assert visible_rows(page) == OPEN


def test_bars_are_as_long_as_the_share_of_what_is_shown(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))

    def shares() -> list[str]:
        cells = page.locator("table.layers tbody tr:not([hidden]) td:nth-child(2)")
        found: list[str] = cells.evaluate_all(
            "cells => cells.map(cell => cell.style.getPropertyValue('--share'))"
        )
        return found

    assert shares() == ["1.333", "1.000", "0.667", *["0.333"] * 4]  # of the 60 of a
    fold(page, "a").click()
    assert shares() == ["1.333", "1.000", "0.333"]


# -- sorting -------------------------------------------------------------------------------------------------------------


def test_numbers_are_sorted_from_the_largest_then_from_the_smallest_then_as_called(
    show: Open,
) -> None:
    page = show(INFOS["block"]().to_html(columns=COLUMNS, standalone=True))
    as_called = visible_rows(page)
    sort(page, "Params")
    largest = visible_rows(page)
    assert [row[:2] for row in largest[:3]] == [["conv", "448"], ["head.2", "170"], ["Chain", "–"]]
    assert [row[0] for row in largest[2:]] == ["Chain", "act", "head", "head.0", "head.1"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Params")
    sort(page, "Params")
    assert [row[0] for row in visible_rows(page)] == [
        "Chain",
        "act",
        "head",
        "head.0",
        "head.1",
        "head.2",
        "conv",
    ]
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Params")
    sort(page, "Params")
    assert visible_rows(page) == as_called
    assert page.locator("th[aria-sort=none]").count() == 3


def test_texts_are_sorted_by_the_alphabet_and_the_numbers_in_them(show: Open) -> None:
    layers = {str(number): nn.ReLU() for number in (10, 9, 100)}
    page = show(
        crawl_module(Chain(layers), (4,)).to_html(columns=["type", "output_shape"], standalone=True)
    )
    sort(page, "Layer")
    assert [row[0] for row in visible_rows(page)] == ["9", "10", "100", "Chain"]
    sort(page, "Layer")
    assert [row[0] for row in visible_rows(page)] == ["Chain", "100", "10", "9"]
    sort(page, "Type")
    assert [row[0] for row in visible_rows(page)] == ["Chain", "10", "9", "100"]


def test_shapes_are_sorted_by_all_their_sizes(show: Open) -> None:
    layers = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 9), nn.Linear(9, 100))
    page = show(crawl_module(layers, (4,)).to_html(columns=["output_shape"], standalone=True))
    sort(page, "Output")
    assert [row[1] for row in visible_rows(page)] == ["9", "16", "100", "100"]


def test_where_everything_is_seen_is_the_most_and_what_there_is_not_comes_last(show: Open) -> None:
    page = show(INFOS["block"]().to_html(columns=["rf"], standalone=True))
    sort(page, "RF")
    assert [row[1] for row in visible_rows(page)] == [*["global"] * 5, "3", "3"]
    sort(page, "RF")
    assert [row[1] for row in visible_rows(page)] == ["3", "3", *["global"] * 5]
    none = show(INFOS["two inputs"]().to_html(columns=["rf"], standalone=True))
    for _ in range(2):
        sort(none, "RF")
        assert visible_rows(none)[-1] == ["b", "–"]


def test_what_is_closed_is_whole_while_it_is_sorted_and_closed_again_after(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True))
    fold(page, "a").click()
    sort(page, "Layer")
    names = [row[0] for row in visible_rows(page)]
    assert names == ["a", "a.b", "a.b.c", "a.b.d", "a.e", "Chain", "f"]
    assert visible_rows(page)[0] == ["a", "–", "–"]
    assert not fold(page, "a").is_visible()
    sort(page, "Layer")
    sort(page, "Layer")
    assert visible_rows(page) == CLOSED_A


def test_a_selection_is_a_list_from_the_beginning(show: Open) -> None:
    page = show(
        torchscan.select_layers(nested(), match="a.*", sort="params").to_html(
            columns=COLUMNS, standalone=True
        )
    )
    assert [row[0] for row in visible_rows(page)] == ["a.b.c", "a.b.d", "a.e", "a.b"]
    assert page.locator(".fold").count() == page.locator(".tools").count() == 0
    sort(page, "Layer")
    assert [row[0] for row in visible_rows(page)] == ["a.b", "a.b.c", "a.b.d", "a.e"]


# -- on a page -----------------------------------------------------------------------------------------------------------


def test_two_tables_on_a_page_mind_their_own_business(show: Open) -> None:
    both = nested().to_html(columns=COLUMNS) + nested().to_html(columns=COLUMNS)
    page = show(f"<!doctype html><html><body>{both}</body></html>")
    fold(page, "a").click()
    assert (visible_rows(page), visible_rows(page, 1)) == (CLOSED_A, OPEN)
    sort(page, "Params", 1)
    assert visible_rows(page) == CLOSED_A
    assert visible_rows(page, 1)[0][0] == "a.b.c"
    assert page.locator(".tools").count() == 2
    assert page.locator(".fold").count() == 6


def test_a_table_that_is_attached_after_its_script_ran_works_too(show: Open) -> None:
    page = show("<!doctype html><html><body></body></html>")
    page.evaluate(
        """html => {
            const part = document.createElement("template");
            part.innerHTML = html;
            const script = document.createElement("script");
            script.textContent = part.content.querySelector("script").textContent;
            document.head.append(script);
            setTimeout(() => document.body.append(part.content.querySelector(".torchscan")), 100);
        }""",
        nested().to_html(columns=COLUMNS),
    )
    page.locator(".fold").first.wait_for()
    fold(page, "a").click()
    assert visible_rows(page) == CLOSED_A


@pytest.mark.sweep
def test_3000_layers_are_usable(show: Open) -> None:
    model = nn.Sequential(
        *(nn.Sequential(*(nn.Linear(4, 4) for _ in range(60))) for _ in range(50))
    )
    html = crawl_module(model, (4,), receptive_field=False).to_html(standalone=True)
    assert len(html) < 6e6
    page = show(html)
    rows = visible_rows(page)
    assert len(rows) == 51  # what fits a window; the rest is a click away
    assert rows[1][:2] == ["0", "Sequential"]
    assert rows[1][3] == "1,200"  # 60 layers of 4 · 4 + 4
    fold(page, "7").first.click()
    assert len(visible_rows(page)) == 111
    sort(page, "Params")
    assert len(visible_rows(page)) == 3051
    page.get_by_role("button", name="expand all").click()
    sort(page, "Params")
    sort(page, "Params")
    assert [row[0] for row in visible_rows(page)[:3]] == ["Sequential", "0", "0"]


@pytest.mark.parametrize("script", [True, False])
def test_names_never_become_markup(show: Open, script: bool) -> None:
    names = [*HOSTILE, *UNPRINTABLE]
    info = named(names)
    info["layers"][0]["type"] = info["layers"][0]["name"] = (
        "</script><img src=x onerror=window.pwned=1>"
    )
    info["unused_parameters"] = dict.fromkeys(names, 4)
    html = info.to_html(columns=["type", "path", "params"], standalone=True)
    page = show(html, java_script_enabled=script)
    for kind in (".name", "> td:nth-child(3)"):
        texts = page.locator(f"table.layers tbody tr:not(:first-child) {kind}").all_text_contents()
        assert texts == [printed(name) for name in names]
    assert page.locator("img, a, script:not(.torchscan > script), iframe, svg").count() == 0
    assert page.locator("[onerror], [onmouseover]").count() == 0
    assert page.title() == "torchscan: Layers of </script><img src=x onerror=window.pwned=1>"
    if script:
        for heading in ("Layer", "Type", "Path"):
            sort(page, heading)
        assert {*page.locator(".name").all_text_contents()} >= {printed(name) for name in names}


def test_a_page_runs_no_script_but_ours_and_asks_for_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    smuggled = (
        "<script>window.pwned = 1</script><img src='https://example.org/a.png' onerror='window.pwned = 1'>"
        "<style>@import 'https://example.org/a.css'; p { background: url(https://example.org/b.png) }</style>"
        "<iframe src='https://example.org'></iframe><p>Here.</p>"
    )
    file.write_text(page_of("Ours", nested().to_html(columns=COLUMNS), smuggled), encoding="utf-8")
    page = browser.new_page()
    sent: list[str] = []

    def refuse(route: Any) -> None:
        sent.append(route.request.url)
        route.abort()

    page.route("https://**", refuse)
    page.goto(file.as_uri())
    assert page.get_by_text("Here.").is_visible()
    fold(page, "a").click()
    assert visible_rows(page) == CLOSED_A
    assert page.evaluate("window.pwned") is None
    assert sent == []
    page.close()


def test_without_javascript_all_rows_are_there(show: Open) -> None:
    page = show(nested().to_html(columns=COLUMNS, standalone=True), java_script_enabled=False)
    assert page.locator("table.layers tbody tr").count() == 7
    assert all(row.is_visible() for row in page.locator("table.layers tbody tr").all())
    assert page.locator("table.layers tbody").inner_text().split() == [
        cell for row in OPEN for cell in row
    ]
    assert page.locator("table.layers th").all_inner_texts() == ["Layer", "Params", "MACs"]
    assert page.get_by_text("Total parameters").is_visible()
    lefts = [
        page.locator(f'.name[data-name="{name}"]').bounding_box()
        for name in ("Chain", "a", "b", "c")
    ]
    steps = [box["x"] for box in lefts if box is not None]
    assert steps == sorted(set(steps))
    assert len(steps) == 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_the_light_and_in_the_dark(show: Open, scheme: Any) -> None:
    page = show(INFOS["without_formula"]().to_html(standalone=True), color_scheme=scheme)
    brightness = page.evaluate(
        "getComputedStyle(document.querySelector('.torchscan td')).color.match(/\\d+/g).map(Number)[0]"
    )
    assert (brightness > 127) == (scheme == "dark")
    contrast, where = least_contrast(page, ".torchscan")
    assert contrast >= 4.5, where
    page = show(nested().to_html(standalone=True), color_scheme=scheme)
    fold(page, "b").click()
    contrast, where = least_contrast(page, ".torchscan")
    assert contrast >= 4.5, where


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_part_that_is_opened_alone_has_a_title_and_is_dark_in_the_dark(
    show: Open, scheme: Any
) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    page = show(estimate_memory(model, (3,)).to_html(), color_scheme=scheme)
    title = "getComputedStyle(document.querySelector('.torchscan'), '::before').content"
    assert page.evaluate(title) == '"Memory: Sequential"'
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light dark"
    ink = "getComputedStyle(document.querySelector('.torchscan td')).color.match(/\\d+/g)[0]"
    assert (int(page.evaluate(ink)) > 127) == (scheme == "dark")


def test_a_part_in_a_page_leaves_it_as_it_is(show: Open) -> None:
    part = nested().to_html(columns=COLUMNS)
    page = show(f"<!doctype html><html><head><title>Ours</title></head><body>{part}</body></html>")
    title = "getComputedStyle(document.querySelector('.torchscan'), '::before').content"
    assert page.evaluate(title) == "none"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "normal"


@pytest.mark.few(6)
def test_every_info_shows_all_its_layers_and_totals(show: Open, info: Info) -> None:
    page = show(info.to_html(standalone=True))
    names = page.locator(".name").evaluate_all("names => names.map(name => name.dataset.full)")
    assert [name.partition(" (")[0] for name in names[1:]] == [
        printed(layer["path"] or layer["name"]).partition(" (")[0] for layer in info["layers"][1:]
    ]
    assert page.locator(".totals tr").count() == 7 + torch.cuda.is_available()
    assert page.locator("th", has_text="RF").count() == any(
        layer["rf"] is not None for layer in info["layers"]
    )


def test_it_needs_nothing_else() -> None:
    html = nested().to_html(standalone=True)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=", html)


# -- other tables --------------------------------------------------------------------------------------------------------


def test_the_sum_of_all_rows_stays_last_however_they_are_sorted(show: Open) -> None:
    page = show(record(block(), (3, 8, 8)).table().write("html"))
    foot = page.locator("table.layers tfoot tr")
    names = [row[0] for row in visible_rows(page)]
    assert "total" not in names
    sort(page, "Operator")
    assert [row[0] for row in visible_rows(page)] == sorted(names)
    assert foot.count() == 1
    assert foot.inner_text().startswith("total")


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_results_can_be_read_on_one_page(show: Open, scheme: Any) -> None:
    """Comparisons are frames, with a page of their own."""
    shape = (3, 8, 8)
    results = [
        estimate_memory(block(), shape, device="RTX 3090"),
        analyze_roofline(block(), shape, device="RTX 3090"),
        receptive_field(block(), shape),
        record(block(), shape),
    ]
    page = show(page_of("All", *(result._repr_html_() for result in results)), color_scheme=scheme)
    assert page.locator("table.layers").count() == len(results)
    assert page.locator("caption", has_text="NVIDIA GeForce RTX 3090: fits").is_visible()
    page.get_by_role("button", name="Estimate").click()
    contrast, where = least_contrast(page, ".torchscan")
    assert contrast >= 4.5, where
