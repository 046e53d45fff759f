"""Pages of runs that have little in them, or odd step numbers."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.browsing import expect, opened
from tests.watching.test_distributions import of
from torchscan.watching.explore.followed_run import Followed
from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.explore.training import training_of
from torchscan.watching.history import WatchedRun
from torchscan.watching.schema import CurvePoint, Phase, SampledStep, Series
from torchscan.watching.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SERIES = Series(path="0", type_name="Linear", kind="output", name="0")
Steps = Iterable[tuple[Phase, int, int]]


def write(run: Path, steps: Steps) -> Path:
    """Write a run with one series that is 1.0 in each pass: its phase, step and number."""
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    series = store.number_of(SERIES)
    for phase, step, number in steps:
        found = {series: of(torch.ones(4))}
        store.write(
            SampledStep(
                step=step, phase=phase, number=number, time=1.0 + number % 1000, distributions=found
            )
        )
    store.close()
    return run


def shown(*runs: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The data of a page, and the pictures in it."""
    page = page_of_run(*runs)._repr_html_()
    document = html.unescape(page)
    text = re.search(r'id="data">(.*?)</script>', document, re.DOTALL)
    assert text is not None
    data = json.loads(text[1])
    pictures = []
    for group in data["measured"].get("histories", ()):
        found = json.loads(zlib.decompress(base64.b64decode(group["data"])))
        assert group["calls"] == list(dict.fromkeys(each["call"] for each in found))
        pictures += found
    return data, pictures


EVALUATIONS: Steps = [("eval", 0, 0), ("eval", 0, 1), ("eval", 0, 2)]


def test_a_run_with_evaluations_only_shows_them_by_their_number(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", EVALUATIONS))
    assert data["question"][0] == "run: evaluation pass 2"
    (picture,) = pictures
    assert (picture["phase"], picture["first"]) == ("eval", [0, 1, 2])


def test_evaluations_before_the_first_training_step_are_not_shown_with_it(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", [*EVALUATIONS, ("train", 0, 0)]))
    assert data["question"][0] == "run: step 0"
    (picture,) = pictures
    assert (picture["phase"], picture["first"]) == ("train", [0])


def test_a_run_whose_page_shows_evaluations_has_no_training_part(tmp_path: Path) -> None:
    """A training step was taken, and not recorded."""
    run = write(tmp_path / "run", [("eval", 0, 0)])
    store = Store(run / "rank0.sqlite", {})
    store.write_curves({"train": [CurvePoint(0, 0, 100.0, 0.5, None, None)]})
    store.close()
    assert WatchedRun(run).curves().steps == (0,)
    assert training_of(WatchedRun(run)) is None


def test_a_run_without_any_step_has_a_page(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", []))
    assert (data["question"][0], pictures) == ("run: no step", [])


def test_the_server_reads_new_steps_of_a_call_and_those_of_a_checkpoint_again(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "run", [("train", 0, 0), ("train", 1, 1)])
    followed = Followed(run)

    def steps() -> list[Any]:
        histories = followed.heat("0")["histories"]
        assert {each["run"] for each in histories} == {"run"}
        return [each["last"] for each in histories]

    assert steps() == [[0, 1]]
    write(run, [("train", 2, 2)])
    assert steps() == [[0, 1, 2]]
    store = Store(run / "rank0.sqlite", {})
    store.forget_from(1)
    store.close()
    assert steps() == [[0]]
    assert followed.heat("1")["histories"] == []
    (named,) = Followed(run, "first").heat("0")["histories"]
    assert named["run"] == "first"


@pytest.mark.parametrize(
    ("steps", "first", "until"),
    [
        ([7], [7], [8]),
        ([0, 1, 500], [0, 500], [500, 1000]),
        ([5, 6, 5, 7], [5, 6, 7], [6, 7, 8]),
        ([0, 2**40], [0, 2**40], [2**40, 2**41]),
    ],
    ids=["one", "gap", "back", "far"],
)
def test_odd_step_numbers_have_columns(
    tmp_path: Path, steps: list[int], first: list[int], until: list[int]
) -> None:
    _, (picture,) = shown(write(tmp_path / "run", [("train", each, each) for each in steps]))
    assert (picture["first"], picture["until"]) == (first, until)


def test_of_two_runs_one_may_be_empty(tmp_path: Path) -> None:
    full, empty = (
        write(tmp_path / "full", [("train", 0, 0)]),
        write(tmp_path / "empty", []),
    )
    for runs in ((full, empty), (empty, full)):
        _, pictures = shown(*runs)
        assert [each["run"] for each in pictures] == ["full"]


# -- in a browser --------------------------------------------------------------------------------------------------------

#: how many boxes of the graph are seen, large enough to be told from each other
_SEEN = """graph => Array.from(graph.querySelectorAll(".node > .frame")).filter(each => {
    const box = each.getBoundingClientRect(), around = graph.getBoundingClientRect();
    const isInside = box.x >= around.x && box.right <= around.right && box.y >= around.y && box.bottom <= around.bottom;
    return isInside && box.width > 20 && box.height > 8;
}).length"""


def write_layers(run: Path, num_layers: int) -> Path:
    """Write a run of many layers, in which every third gradient is zero."""
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    found = {}
    for number in range(num_layers):
        series = Series(path=f"layer{number}", type_name="Linear", kind="output_grad", name="0")
        found[store.number_of(series)] = of(torch.zeros(4) if number % 3 == 0 else torch.ones(4))
    store.write(SampledStep(step=0, phase="train", number=0, time=1.0, distributions=found))
    store.close()
    return run


@pytest.fixture(scope="module")
def many_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the page of a run of 2401 layers."""
    folder = tmp_path_factory.mktemp("many")
    page_of_run(write_layers(folder / "run", 2401)).save(folder / "run.html")
    return folder / "run.html"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.sweep
def test_the_boxes_of_thousands_of_modules_are_seen(
    browser: Browser, many_layers: Path, scheme: str
) -> None:
    with opened(browser, many_layers, color_scheme=scheme) as page:
        number = page.locator("svg.graph .node").count()
        assert 5 <= number <= 40, "ranges of modules are folded"
        assert page.locator("svg.graph").evaluate(_SEEN) == number


def gradients_of(page: Any) -> list[str]:
    """The last column of the table of layers."""
    texts: list[str] = page.locator("tbody tr td:last-child").all_inner_texts()
    return [each.strip() for each in texts]


@pytest.mark.slow
def test_a_gradient_of_zero_is_shown_as_zero(browser: Browser, tmp_path: Path) -> None:
    page_of_run(write_layers(tmp_path / "run", 3)).save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        page.get_by_label("color by").select_option("gradient")
        assert gradients_of(page) == ["–", "0", "2.00", "2.00"]
        boxes = page.locator("svg.graph .figure").all_text_contents()
        assert [each for each in boxes if each] == ["0", "2.00", "2.00"]


@pytest.mark.slow
def test_a_run_whose_gradients_are_all_zero_shows_them(browser: Browser, tmp_path: Path) -> None:
    page_of_run(write_layers(tmp_path / "run", 1)).save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        assert gradients_of(page) == ["–", "0"]


@pytest.mark.slow
def test_evaluation_passes_are_named_in_the_pictures(browser: Browser, tmp_path: Path) -> None:
    """Nothing else was measured in them: there are no gradients."""
    page_of_run(write(tmp_path / "run", EVALUATIONS)).save(tmp_path / "run.html")
    with opened(browser, f"{(tmp_path / 'run.html').as_uri()}#0") as page:
        page.locator(".card .over-steps").first.wait_for()
        heading = page.locator(".distributions h2")
        expect(heading).to_contain_text("evaluation passes 0 … 2 · values of evaluation pass 2")


@pytest.mark.slow
def test_a_long_table_draws_the_rows_in_view(browser: Browser, many_layers: Path) -> None:
    with opened(browser, many_layers) as page:
        rows = page.locator("tr[data-at]")
        table = page.locator(".panel.layers .scroll")
        assert 20 < rows.count() < 120
        assert page.get_by_role("treegrid").get_attribute("aria-rowcount") == "2403"
        height = table.evaluate("each => each.scrollHeight")
        assert height == pytest.approx(
            2402 * rows.first.evaluate("each => each.offsetHeight"), rel=0.01
        )

        table.evaluate("each => { each.scrollTop = each.scrollHeight / 2 }")
        middle = page.locator("tr[data-at='1201']")
        middle.wait_for()
        assert rows.count() < 160
        middle.click()
        assert page.evaluate("decodeURIComponent(location.hash)") == "#layer1200"
        focused = "document.activeElement.dataset.at"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(focused) == "1202"
        page.keyboard.press("End")
        assert page.evaluate(focused) == "2401"
        assert page.locator("tr.selected").inner_text().startswith("layer2400")
        page.keyboard.press("PageUp")
        assert 2370 < int(page.evaluate(focused)) < 2401
        page.keyboard.press("Home")
        assert page.evaluate(focused) == "0"
        assert table.evaluate("each => each.scrollTop") == 0

        page.get_by_label("search layers").fill("layer2399")
        assert rows.all_inner_texts()[0].startswith("layer2399")
        assert rows.count() == 1
        page.get_by_label("search layers").press("Enter")
        assert page.locator("tr.selected").inner_text().startswith("layer2399")
        page.get_by_label("search layers").fill("")
        page.locator("tr.selected").wait_for()
        assert rows.count() < 160
