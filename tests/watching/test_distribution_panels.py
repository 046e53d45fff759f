"""Charts of distributions over the steps, in a browser: their scales, their range and what is marked in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.browsing import least_contrast, opened, settle
from tests.watching.test_distributions import of
from tests.watching.watching import watch
from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.schema import Kind, SampledStep, Series
from torchscan.watching.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow
#: steps and what is recorded in each, by the name of the series
Recorded = Mapping[Series, Callable[[int], Tensor]]
#: a value at the 99 % quantile of a normal distribution: 2.33 standard deviations
NORMAL = torch.special.ndtri((torch.arange(4096) + 0.5) / 4096).float()
#: pixels left and right of a chart
LEFT, RIGHT = 42, 4
#: pixels of the dock outside the page
WIDE = 280


def series(kind: Kind, name: str = "0", path: str = "fc", type_name: str = "Linear") -> Series:
    return Series(path=path, type_name=type_name, kind=kind, name=name)


OUTPUT, GRADIENT, WEIGHT = series("output"), series("output_grad"), series("param", "weight")


def write(
    run: Path,
    recorded: Recorded,
    num_steps: int = 20,
    *,
    dead: float | None = None,
    updates: Sequence[float] | None = None,
) -> Path:
    """Write a run whose series have the values that functions of the step return."""
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    numbers = {each: store.number_of(each) for each in recorded}
    for step in range(num_steps):
        found = {numbers[each]: of(values(step)) for each, values in recorded.items()}
        if dead is not None:
            found = {number: replace(each, dead=dead) for number, each in found.items()}
        if updates is not None:
            weight = numbers[WEIGHT]
            found[weight] = replace(found[weight], update=updates[step])
        store.write(
            SampledStep(step=step, phase="train", number=step, time=1.0, distributions=found)
        )
    store.close()
    return run


@contextmanager
def page_of(
    browser: Browser, *runs: Path, layer: str = "fc", width: int = 1280, **options: Any
) -> Iterator[Page]:
    file = runs[0].with_suffix(".html")
    page_of_run(*runs).save(file)
    with opened(browser, f"{file.as_uri()}#{layer}", **options) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.locator(".distribution .over-steps .soft").first.wait_for()
        settle(page)
        yield page


def chart(page: Page, name: str, card: str = ".card") -> Locator:
    title = page.locator("b", has_text=name)
    return page.locator(f"{card} .distribution", has=title).filter(visible=True).first


def name_of_scale(page: Page, name: str) -> str:
    return chart(page, name).locator(".heading .type").last.inner_text()


def ticks_of(page: Page, name: str, card: str = ".card") -> list[tuple[str, float]]:
    """The labels beside a chart, with their heights."""
    labels = chart(page, name, card).locator(".over-steps > text[text-anchor=end][x='36']")
    found = labels.evaluate_all(
        "all => all.map(each => [each.textContent, Number(each.getAttribute('y'))])"
    )
    return [(text, height) for text, height in found]


def point_at(page: Page, name: str, step: int, num_steps: int) -> None:
    drawn = chart(page, name).locator(".over-steps")
    drawn.scroll_into_view_if_needed()
    box = drawn.bounding_box()
    assert box is not None
    part = (step + 0.5) / num_steps
    page.mouse.move(box["x"] + LEFT + part * (box["width"] - LEFT - RIGHT), box["y"] + 60)


def heading(page: Page) -> str:
    return page.locator(".distributions h2 [role=status]").inner_text()


# -- scales --------------------------------------------------------------------------------------


def test_each_series_has_the_scale_of_its_values(browser: Browser, tmp_path: Path) -> None:
    """98 of 100 values are below 2.33 standard deviations; a twelfth of it, down to a power of ten."""
    recorded = {
        OUTPUT: lambda step: NORMAL,  # 0.194
        GRADIENT: lambda step: 1e-6 * NORMAL,  # 1.94e-7
        WEIGHT: lambda step: 1 + 0.02 * NORMAL,
    }
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        names = [name_of_scale(page, name) for name in ("output", "output gradient", "weight")]
        assert names == ["log, zero band ±0.1", "log, zero band ±1e−7", "linear, away from zero"]
        assert [text for text, _ in ticks_of(page, "output")] == ["0", "1", "−1"]
        assert [text for text, _ in ticks_of(page, "weight")] == ["0.95", "1", "1.05"]


def test_the_scale_of_vanishing_values_has_room_for_the_last_ones(
    browser: Browser, tmp_path: Path
) -> None:
    """They fall from 1 to 1e-6 within 24 steps: the zero band is below nine in ten of them."""
    recorded = {GRADIENT: lambda step: 10 ** (-step / 4) * NORMAL}
    with page_of(browser, write(tmp_path / "run", recorded, 25)) as page:
        assert name_of_scale(page, "output gradient") == "log, zero band ±1e−7"


def test_values_of_both_signs_or_over_decades_have_a_zero_band(
    browser: Browser, tmp_path: Path
) -> None:
    recorded = {
        OUTPUT: lambda step: torch.linspace(0.01, 1, 1000),
        GRADIENT: lambda step: torch.tensor([-1.0, 1.0]),
        WEIGHT: lambda step: -torch.linspace(1, 9, 1000),
    }
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        assert name_of_scale(page, "output").startswith("log, zero band")
        assert name_of_scale(page, "output gradient").startswith("log, zero band")
        assert name_of_scale(page, "weight") == "linear, away from zero"
        assert all(not text.startswith("−") for text, _ in ticks_of(page, "output"))


def test_a_series_of_zeros_is_said_to_be_zero(browser: Browser, tmp_path: Path) -> None:
    recorded = {OUTPUT: lambda step: torch.zeros(64)}
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        assert name_of_scale(page, "output") == "all values are 0"
        text = chart(page, "output").locator("figcaption").inner_text()
        assert text == "0 … 0 · 100 % in the zero band"


def test_two_runs_have_one_scale(browser: Browser, tmp_path: Path) -> None:
    small = write(tmp_path / "small", {OUTPUT: lambda step: NORMAL})
    large = write(tmp_path / "large", {OUTPUT: lambda step: 1000 * NORMAL})
    with page_of(browser, small, large) as page:
        charts = page.locator(".beside .distribution")
        assert charts.locator(".run").all_inner_texts() == ["small", "large"]
        scales = charts.locator(".heading .type:last-child").all_inner_texts()
        assert scales == ["log, zero band ±0.1"] * 2
        labels = [
            charts.nth(at).locator(".over-steps > text[x='36']").all_text_contents()
            for at in (0, 1)
        ]
        assert labels[0] == labels[1]


class Net(nn.Module):
    """Between its two linear layers, an operator changes the values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.last = nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(100 * self.act(self.fc(x)))
        return last


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which the graph is known."""
    run = tmp_path_factory.mktemp("runs") / "run"
    net = Net()
    with watch(net, run, every=1):
        for _ in range(4):
            net(torch.randn(8, 3)).sum().backward()
    return run


def keep(page: Page, *layers: str) -> None:
    for layer in layers:
        page.evaluate("layer => { location.hash = layer }", layer)
        name = page.locator(".card .which b", has_text=layer).first
        name.wait_for()
        page.locator(".which .keep").first.click()
    page.evaluate("location.hash = '#'")
    page.locator(".card").first.locator(".distribution").first.wait_for()


def test_an_output_and_the_layer_that_reads_it_share_their_scale(
    browser: Browser, trained: Path
) -> None:
    with page_of(browser, trained, layer="last") as page:
        keep(page, "fc", "act", "last")
        assert page.locator(".pinned .tag").all_inner_texts() == ["A", "B", "C"]
        texts = page.locator(".pinned .compared").all_inner_texts()
        assert texts == ["", "reads the output of A: both outputs on one scale", ""]
        first, second, third = page.locator(".pinned").all()
        labels = [
            card.locator(".distribution").first.locator(".over-steps > text[x='36']")
            for card in (first, second, third)
        ]
        assert labels[0].all_text_contents() == labels[1].all_text_contents()
        assert labels[0].all_text_contents() != labels[2].all_text_contents()
        first.get_by_label("close").click()
        page.locator(".pinned .compared", has_text="scale").wait_for(state="detached")


def test_a_layer_that_is_kept_is_not_shown_twice(browser: Browser, trained: Path) -> None:
    with page_of(browser, trained) as page:
        assert page.locator(".card").filter(visible=True).count() == 1
        page.locator(".which .keep").click()
        assert page.locator(".card").filter(visible=True).count() == 1
        assert page.locator(".card.pinned").is_visible()
        page.locator(".card.pinned").press("Delete")
        assert page.locator(".which .keep").is_visible()


# -- what is drawn -------------------------------------------------------------------------------


def test_a_median_is_drawn_outside_the_zero_band_only(browser: Browser, tmp_path: Path) -> None:
    """It moves away from zero in step 10; around zero it would jump."""
    recorded = {
        OUTPUT: lambda step: NORMAL + (2 if step >= 10 else 0.05 * (-1) ** step),
        GRADIENT: lambda step: NORMAL + 0.3 * (-1) ** step,
    }
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        median = chart(page, "output").locator(".median")
        assert median.count() == 1
        box, around = (
            median.bounding_box(),
            chart(page, "output").locator(".over-steps").bounding_box(),
        )
        assert box is not None
        assert around is not None
        wide = around["width"] - LEFT - RIGHT
        assert box["x"] - around["x"] - LEFT == pytest.approx(wide / 2, abs=2)
        assert chart(page, "output gradient").locator(".median").count() == 0, "it changes its sign"


def test_the_tint_of_the_zero_band_is_the_share_of_values_in_it(
    browser: Browser, tmp_path: Path
) -> None:
    """In the first half of the steps, all but one of 100 values are zeros; then none."""
    dense = torch.linspace(1, 2, 100) * torch.tensor([-1, 1]).repeat(50)
    sparse = torch.cat([torch.zeros(96), torch.tensor([-2.0, -1.0, 1.0, 2.0])])
    recorded = {OUTPUT: lambda step: sparse if step < 10 else dense}
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        zero = chart(page, "output").locator(".zero")
        opacities = zero.evaluate_all(
            "all => all.map(each => Number(each.getAttribute('opacity')))"
        )
        assert opacities == [pytest.approx(0.15 + 0.85 * 0.96, abs=0.01), 0]
        heights = zero.evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")
        assert heights == [10, 10]
        point_at(page, "output", 3, 20)
        text = chart(page, "output").locator("figcaption").inner_text()
        assert text == "−2.0 … 2.0 · 96 % in the zero band"


def test_the_first_nan_is_marked_and_named(browser: Browser, tmp_path: Path) -> None:
    broken = torch.cat([NORMAL, torch.tensor([torch.nan, torch.inf])])
    recorded = {
        OUTPUT: lambda step: broken if step >= 37 else NORMAL,
        GRADIENT: lambda step: NORMAL,
    }
    with page_of(browser, write(tmp_path / "run", recorded, 40)) as page:
        marked = chart(page, "output")
        assert marked.locator("text.bad").all_text_contents() == ["first NaN, step 37"]
        assert marked.locator("rect.bad").count() == 3
        color = marked.locator("rect.bad").first.evaluate("each => getComputedStyle(each).fill")
        assert color == "rgb(179, 38, 30)"
        assert marked.locator("figcaption").inner_text().startswith("1 NaN, 1 Inf · −")
        assert chart(page, "output gradient").locator(".bad").count() == 0


def test_dead_units_take_the_third_place_without_weights(browser: Browser, tmp_path: Path) -> None:
    recorded = {
        series("output", path="act", type_name="ReLU"): lambda step: NORMAL.relu(),
        series("output_grad", path="act", type_name="ReLU"): lambda step: NORMAL,
        series("input", path="act", type_name="ReLU"): lambda step: NORMAL,
    }
    run = write(tmp_path / "run", recorded, dead=0.125)
    with page_of(browser, run, layer="act") as page:
        names = page.locator(".card .distribution b")
        assert names.all_inner_texts() == ["output", "output gradient", "dead units"]
        text = chart(page, "dead units").locator("figcaption").inner_text()
        assert text == "12.5 % of the units are 0 in the whole batch"
        more = page.locator(".more")
        assert more.inner_text() == "1 more: input"
        more.click()
        assert names.all_inner_texts()[-1] == "input"
        assert page.locator(".more").inner_text() == "fewer"


def test_changes_of_weights_take_the_third_place(browser: Browser, tmp_path: Path) -> None:
    """The distribution of a weight comes after them; that of its changes is not recorded."""
    recorded = {
        OUTPUT: lambda step: NORMAL,
        GRADIENT: lambda step: NORMAL,
        WEIGHT: lambda step: NORMAL,
    }
    updates = [math.nan, *(10.0 ** -(1 + step % 3) for step in range(1, 19)), 0.0]
    run = write(tmp_path / "run", recorded, updates=updates)
    with page_of(browser, run) as page:
        names = page.locator(".card .distribution b")
        assert names.all_inner_texts() == ["output", "output gradient", "update ÷ weight"]
        assert page.locator(".more").inner_text() == "1 more: weight"
        text = chart(page, "update").locator("figcaption")
        assert text.inner_text() == "a step changes it by 0 of its size"
        point_at(page, "update", 2, 20)
        assert text.inner_text() == "a step changes it by 1.0e−3 of its size"
        point_at(page, "update", 0, 20)
        assert text.inner_text() == "no change was recorded"


class Masked(nn.Module):
    """A module with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        masked: Tensor = self.fc(values) * mask
        return masked


class Outer(nn.Module):
    """A model with a module of two inputs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x, x > 0)
        return found


def test_inputs_have_the_names_that_the_graph_has(browser: Browser, tmp_path: Path) -> None:
    model = Outer()
    with watch(model, tmp_path / "run", every=1):
        for _ in range(2):
            model(torch.randn(8, 3)).sum().backward()
    with page_of(browser, tmp_path / "run", layer="inner") as page:
        page.locator(".more").click()
        names = page.locator(".card .distribution b").all_inner_texts()
        assert [each for each in names if each.startswith("input")] == [
            "input values",
            "input mask",
        ]


# -- range and step ------------------------------------------------------------------------------

#: a dock with one series of 20 steps, outside the page
_DOCK = """async () => {
    const host = document.createElement("div");
    host.id = "dock";
    host.style.width = "280px";
    document.body.prepend(host);
    const steps = Array.from({length: 20}, (_, step) => step);
    const row = (value) => steps.map((step) => value * (1 + step));
    const history = {
        call: "", kind: "output", name: "output", first: steps, last: steps, until: steps.map((step) => step + 1),
        min: row(-3), max: row(3), quantiles: [-2.3, -1.6, -0.7, 0, 0.7, 1.6, 2.3].map(row),
        near: {power: -8, percent: Array.from({length: 10}, () => row(1))}, nan: row(0), inf: row(0),
    };
    const source = async () => ({histories: [history], isWhole: true});
    const dock = new $dock.Dock(host, source, () => ({name: "fc", type: "Linear", sources: []}));
    host.prepend(dock.heading);
    window.steps = [];
    dock.onStep = (step) => window.steps.push(step);
    dock.show(["fc"], "fc");
    window.dock = dock;
}"""
_FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture
def dock(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    run = write(tmp_path / "run", {OUTPUT: lambda step: NORMAL}, 1)
    with page_of(browser, run) as page:
        page.evaluate(_DOCK)
        page.locator("#dock .over-steps .soft").first.wait_for()
        page.evaluate(_FRAME)
        yield page


def told(page: Page) -> str:
    return page.locator("#dock > [role=status]").inner_text()


def test_a_range_and_a_step_can_be_set(dock: Page) -> None:
    assert told(dock) == "steps 0 … 19 · values of step 19"
    dock.evaluate("() => dock.setRange(5, 9)")
    dock.evaluate(_FRAME)
    assert told(dock) == "steps 5 … 9 · values of step 9"
    labels = dock.locator("#dock .over-steps > text[y='147']").all_text_contents()
    assert labels == ["6", "8"]
    dock.evaluate("() => dock.setStep(6)")
    assert told(dock) == "steps 5 … 9 · values of step 6"
    text = dock.locator("#dock figcaption").inner_text()
    assert text.startswith("−21 … 21 · ")
    crosshair = dock.locator("#dock .crosshair")
    assert crosshair.get_attribute("visibility") == "visible"
    middle = LEFT + 1.5 / 5 * (WIDE - LEFT - RIGHT)
    assert float(str(crosshair.get_attribute("x1"))) == pytest.approx(middle)
    dock.evaluate("() => dock.setStep(12)")
    assert crosshair.get_attribute("visibility") == "hidden", "outside the range"
    dock.evaluate("() => { dock.setRange(null, null); dock.setStep(null); }")
    dock.evaluate(_FRAME)
    assert told(dock) == "steps 0 … 19 · values of step 19"
    assert dock.evaluate("window.steps") == [], "it is not told of what it was given"


def test_notes_are_marked_within_the_range(dock: Page) -> None:
    dock.evaluate("() => { dock.setNotes([2, 7, 30]); dock.setRange(5, 9); }")
    dock.evaluate(_FRAME)
    notes = dock.locator("#dock .note")
    assert notes.count() == 1
    place = LEFT + 2 / 5 * (WIDE - LEFT - RIGHT)
    assert float(str(notes.get_attribute("x1"))) == pytest.approx(place)


def test_keys_move_the_crosshair_and_tell_the_page(dock: Page) -> None:
    dock.locator("#dock .over-steps").focus()
    for key in ("ArrowLeft", "ArrowLeft", "Home", "ArrowRight", "End", "Escape"):
        dock.keyboard.press(key)
    assert dock.evaluate("window.steps") == [18, 17, 0, 1, 19, None]
    slider = dock.locator("#dock .over-steps")
    assert slider.get_attribute("aria-valuenow") == "19"
    assert str(slider.get_attribute("aria-valuetext")).startswith("step 19: −60 … 60")


def test_the_pointer_moves_the_crosshair_of_all_charts(browser: Browser, tmp_path: Path) -> None:
    recorded = {OUTPUT: lambda step: (1 + step) * NORMAL, GRADIENT: lambda step: NORMAL}
    with page_of(browser, write(tmp_path / "run", recorded)) as page:
        point_at(page, "output", 4, 20)
        assert heading(page) == "steps 0 … 19 · values of step 4"
        places = page.locator(".card .crosshair").evaluate_all(
            "all => all.map(each => [each.getAttribute('x1'), each.getAttribute('visibility')])"
        )
        assert len(places) == 2
        assert places[0] == places[1]
        page.mouse.move(5, 5)
        assert heading(page) == "steps 0 … 19 · values of step 4", "it stays"
        assert page.locator("[role=tooltip]").count() == 0


# -- live pages, screens and themes --------------------------------------------------------------


@pytest.mark.sweep
def test_new_steps_are_drawn_into_the_same_charts(browser: Browser, tmp_path: Path) -> None:
    """Nothing flickers: the elements stay, with the focus on one of them."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def train(num_steps: int) -> None:
        with watch(net, tmp_path / "run", every=1):
            for _ in range(num_steps):
                net(torch.randn(8, 3)).sum().backward()

    train(3)
    with torchscan.serve(tmp_path / "run", port=0) as server, opened(browser, server.url) as page:
        page.evaluate("location.hash = '#0'")
        page.locator(".card .which b", has_text="0").wait_for()
        charts = page.locator(".card .over-steps")
        charts.nth(2).wait_for()
        charts.evaluate_all("all => all.forEach(each => { each.dataset.old = '1'; })")
        charts.first.focus()
        train(3)
        page.locator(".distributions h2", has_text="0 … 5").wait_for()
        assert page.locator(".card .over-steps[data-old]").count() == charts.count() == 3
        assert page.evaluate("document.activeElement.matches('.over-steps')")


@pytest.mark.parametrize("width", [1280, 380])
def test_charts_fit_the_screen(browser: Browser, trained: Path, width: int) -> None:
    with page_of(browser, trained, width=width) as page:
        keep(page, "fc", "act")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        boxes = (
            page.locator(".over-steps")
            .filter(visible=True)
            .evaluate_all(
                "all => all.map(each => each.getBoundingClientRect()).map(({x, right}) => [x, right])"
            )
        )
        assert all(0 <= left < right <= width for left, right in boxes)
        columns = len({round(left) for left, _ in boxes})
        assert columns == (3 if width == 1280 else 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, trained: Path, scheme: str) -> None:
    with page_of(browser, trained, color_scheme=scheme, bypass_csp=True) as page:
        keep(page, "fc", "act")
        page.locator(".over-steps").evaluate_all("all => all.forEach(each => each.remove())")
        page.locator(".distributions").scroll_into_view_if_needed()
        contrast, text = least_contrast(page, ".which, .tensors")
        assert contrast >= 4.5, text
