"""The training of a run on its page: findings, curves with a range, and layers over the steps."""

from __future__ import annotations

import json
import math
import re
import warnings
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.browsing import expect, least_contrast, least_contrast_of_marks, opened
from tests.watching.test_distributions import of
from tests.watching.watching import watch
from torchscan.notes import Note
from torchscan.report.paging.layer_findings import LayerValues
from torchscan.report.paging.row_values import key_of
from torchscan.report.paging.training_data import training_data
from torchscan.report.paging.training_findings import CurveValues, find_problems
from torchscan.report.paging.training_packing import pack_training, thin_out
from torchscan.report.paging.training_record import (
    CurveData,
    LayerData,
    RowData,
    TrainingRecord,
)
from torchscan.watching.explore.followed_run import Followed
from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.explore.training import training_of
from torchscan.watching.history import WatchedRun
from torchscan.watching.schema import CurvePoint, SampledStep, Series
from torchscan.watching.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., AbstractContextManager["Page"]]
LAYERS = "section[aria-label='Layers over the steps']"
LOSS = "section[aria-label='Loss']"


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(x))


class Net(nn.Module):
    """Blocks that a list holds, so that the list has no row."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return self.head(x)


class Overflow(nn.Module):
    """A module that returns an infinity in one step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.calls = step, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (math.inf if self.calls == self.step + 1 else 1.0)


def record(
    folder: Path,
    model: nn.Module,
    num_steps: int = 30,
    *,
    rate: float = 0.05,
    notes: dict[int, str] | None = None,
    evaluations: Mapping[int, tuple[float, ...]] | None = None,
) -> Path:
    """Train a model to tell the sign of a sum, and record it with its curves."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    points = []
    with watch(model, folder, every=1):
        for step in range(num_steps):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
            loss.backward()
            gradients = [each.grad.norm() for each in model.parameters() if each.grad is not None]
            norm = torch.stack(gradients).norm().item()
            points.append(CurvePoint(step, step, 100.0 + 2 * step, loss.item(), rate, norm))
            optimizer.step()
            optimizer.zero_grad()
    store = Store(folder / "rank0.sqlite", {"optimizer": "SGD", "batch": [16, 8]})
    passes = [(step, loss) for step, each in (evaluations or {}).items() for loss in each]
    evals = [
        CurvePoint(step, number, 100.0 + 2 * step, loss, None, None)
        for number, (step, loss) in enumerate(passes)
    ]
    store.write_curves({"train": points, "eval": evals})
    for step, text in (notes or {}).items():
        store.note(Note.of("user-note", step=step, text=text))
    store.close()
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def healthy(runs: Path) -> Path:
    torch.manual_seed(0)
    notes = {0: "epoch 1", 10: "epoch 2", 20: "epoch 3"}
    evaluations = {10: (0.7, 0.5), 20: (0.4, 0.4)}
    return record(runs / "healthy", Net(4), notes=notes, evaluations=evaluations)


@pytest.fixture(scope="module")
def vanishing(runs: Path) -> Path:
    torch.manual_seed(0)
    layers = [each for _ in range(12) for each in (nn.Linear(8, 8), nn.Sigmoid())]
    return record(runs / "vanishing", nn.Sequential(*layers, nn.Linear(8, 2)))


@pytest.fixture(scope="module")
def dead(runs: Path) -> Path:
    torch.manual_seed(0)
    model = Net(3)
    nn.init.constant_(model.h[1].linear.bias, -50.0)  # type: ignore[union-attr, arg-type]
    return record(runs / "dead", model)


@pytest.fixture(scope="module")
def broken(runs: Path) -> Path:
    torch.manual_seed(0)
    model = Net(3)
    model.h[1].act = Overflow(20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = record(runs / "broken", model, 26)
    assert any("NaN" in str(each.message) for each in caught)
    return run


@pytest.fixture(scope="module")
def late(runs: Path) -> Path:
    """Return a run whose loss is infinite in step 20, between the recorded steps 16 and 24."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with watch(model, runs / "late", every=8):
            for step in range(28):
                optimizer.zero_grad()
                loss = model(torch.randn(16, 8)).square().mean()
                if step == 20:
                    loss = loss * math.inf
                loss.backward()
                optimizer.step()
    told = [str(each.message) for each in caught if "NaN" in str(each.message)]
    (text,) = told
    assert text.startswith(
        "the loss is infinite from step 20 on, and step 24 has NaN in '0 output'"
    )
    return runs / "late"


@pytest.fixture(scope="module")
def visit(runs: Path, browser: Browser) -> Visit:
    def visited(run: Path, **options: Any) -> AbstractContextManager[Page]:
        file = runs / f"{run.name}.html"
        if not file.exists():
            page_of_run(run).save(file)
        return opened(browser, file, **options)

    return visited


def findings(run: Path) -> list[str]:
    """Return the codes of what was found."""
    training = training_of(WatchedRun(run))
    assert training is not None
    return [each["code"] for each in training["findings"]]


# -- what is packed --------------------------------------------------------------------------------


def test_a_page_has_differences_of_steps_and_codes_of_values() -> None:
    """Columns are the steps 0, 1 to 2 and 3 to 9. Codes have all low bytes before the high ones."""
    curve = CurveData(
        steps=[4, 6],
        times=[10.0, 12.5],
        losses=[0.5, math.inf],
        learning_rates=[None, None],
        gradient_norms=[math.nan, 2.0],
    )
    row = RowData(path="a", name="a", type_name="A", parent=None, depth=0, num_folded=0)
    layers = LayerData(
        rows=[row],
        first=[0, 1, 3],
        last=[0, 2, 9],
        until=[1, 3, 10],
        num_sampled=3,
        values={"gradient": [[0.01, math.nan, 1.0]], "dead": [[math.nan] * 3]},
        not_finite=[[0, 4, 0]],
    )
    data = zlib.decompress(b64decode(pack_training(curve, layers)))
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    assert (header["first"], header["last"], header["until"]) == ([0, 1, 2], [0, 2, 7], [1, 2, 7])
    assert (header["curve"]["steps"], header["curve"]["times"]) == ([4, 2], [0.0, 2.5])
    assert (header["curve"]["losses"], header["curve"]["rates"]) == ([0.5, "Inf"], [None, None])
    assert header["curve"]["norms"] == ["NaN", 2.0]
    assert header["rows"] == [["a", key_of("a", 0), "A", None, 0]]
    # of the dead units nothing is known, and gradients lie between 10⁻² and 1
    assert header["quantities"] == [
        {"name": "gradient", "rows": [0], "low": -2.0, "high": 0.0},
        {"name": "dead", "rows": [], "low": 0.0, "high": 1.0},
    ]
    assert header["wrong"] == [0]
    codes = data[4 + size :]
    assert codes == bytes([2, 0, 255]) + bytes([0, 0, 255]) + bytes([0, 4, 0])


# -- what is found ---------------------------------------------------------------------------------


def test_a_healthy_run_has_no_findings(healthy: Path) -> None:
    assert findings(healthy) == []


def test_gradients_that_vanish_over_the_depth_are_found(vanishing: Path) -> None:
    assert findings(vanishing) == ["gradients-vanish"]


def test_a_dead_layer_is_found(dead: Path) -> None:
    training = training_of(WatchedRun(dead))
    assert training is not None
    (finding,) = training["findings"]
    assert finding["code"] == "layer-dead"
    assert finding["text"].startswith("Dead layer: all units of h.1.act")
    assert finding["key"] == "h.1.act"


def test_the_module_that_produced_the_first_infinity_is_found(broken: Path) -> None:
    training = training_of(WatchedRun(broken))
    assert training is not None
    first, *others = training["findings"]
    assert first["text"].startswith("Step 20 has the first NaN or Inf, in 'h.1.act output'")
    assert first["key"] == "h.1.act"
    assert "loss-not-finite" in {each["code"] for each in others}
    nan = training["nan"]
    assert (nan["key"], nan["step"], nan["isInputFinite"]) == ("h.1.act", 20, True)
    assert (nan["isProducer"], nan["isSource"], nan["lossStep"]) == (True, True, None)


def test_a_loss_that_broke_between_recorded_steps_comes_before_the_first_nan(late: Path) -> None:
    training = training_of(WatchedRun(late))
    assert training is not None
    assert [each["text"] for each in training["findings"]] == [
        "The loss is infinite from step 20 on; it was last finite in step 19.",
        "After step 20, step 24 is the first recorded step with NaN or Inf; the weights were not "
        "finite by then: run torchscan.inspect(model) to find the operator.",
    ]
    nan = training["nan"]
    assert (nan["step"], nan["isInputFinite"], nan["wereWeightsFinite"]) == (24, True, None)
    assert (nan["isProducer"], nan["isSource"], nan["lossStep"]) == (False, False, 20)


def test_a_layer_whose_weights_were_not_finite_is_not_a_producer(tmp_path: Path) -> None:
    """The weights are overwritten after step 3, between two forward passes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch(model, tmp_path / "run", every=1):
            for step in range(6):
                model.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                if step == 3:
                    with torch.no_grad():
                        model[1].weight.fill_(math.nan)  # type: ignore[operator]
    training = training_of(WatchedRun(tmp_path / "run"))
    assert training is not None
    assert training["nan"]["isProducer"] is False


@pytest.mark.parametrize("place", [5000, 5001, 5002, 5003, 5004])
def test_a_thinned_curve_keeps_extremes_beside_a_nan(place: int) -> None:
    losses = [1.0] * 20_000
    losses[place], losses[5005], losses[5006] = math.nan, 50.0, -7.0
    nothing = [None] * len(losses)
    curve = CurveData(
        steps=range(len(losses)),
        times=[0.0] * len(losses),
        losses=losses,
        learning_rates=nothing,
        gradient_norms=nothing,
    )
    thinned = thin_out(curve)
    assert len(thinned.steps) <= 4096
    kept = dict(zip(thinned.steps, thinned.losses, strict=True))
    assert (kept[5005], kept[5006]) == (50.0, -7.0)
    assert math.isnan(kept[place] or 0.0)


def marks_of(*notes: Note, rates: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Return what the axis of a training marks, which has these learning rates and notes."""
    train = CurveData(
        steps=range(10, 10 + len(rates)),
        times=[0.0] * len(rates),
        losses=[None] * len(rates),
        learning_rates=rates,
        gradient_norms=[None] * len(rates),
    )
    layers = LayerData(
        rows=(), first=(), last=(), until=(), num_sampled=0, values={}, not_finite=()
    )
    training = TrainingRecord(run="run", state="finished", train=train, layers=layers, notes=notes)
    marks: list[dict[str, Any]] = training_data(training)["marks"]
    return marks


def test_the_axis_marks_both_ends_of_a_pause() -> None:
    assert marks_of(Note.of("paused", step=3), Note.of("resumed", step=7)) == [
        {"step": 3, "text": "paused", "kind": "pause"},
        {"step": 7, "text": "resumed", "kind": "pause"},
    ]


@pytest.mark.parametrize(
    ("rates", "marks"),
    [
        pytest.param([0.4, 0.4, 0.1, 0.1], [(12, "lr drop")], id="a quarter"),
        pytest.param([0.1, 0.1, 0.1, 0.4], [(13, "lr rise")], id="constant before alone"),
        pytest.param([0.1, 0.4, 0.4, 0.4], [(11, "lr rise")], id="constant after alone"),
        pytest.param([0.4, 0.4, 0.3, 0.3], [], id="less than half of it"),
        pytest.param([0.1, 0.4, 1.6, 6.4], [], id="a schedule of each step"),
    ],
)
def test_the_axis_marks_jumps_of_the_learning_rate(
    rates: list[float], marks: list[tuple[int, str]]
) -> None:
    """The first step is 10."""
    found = marks_of(rates=rates)
    assert [(each["step"], each["text"]) for each in found] == marks
    assert {each["kind"] for each in found} <= {"rate"}


def test_text_names_the_findings_of_the_page(dead: Path, broken: Path) -> None:
    for path in (dead, broken):
        run = WatchedRun(path)
        assert [each.code for each in run.findings] == findings(path)
        text = " ".join(str(run).split())
        training = training_of(run)
        assert training is not None
        for each in training["findings"]:
            assert each["text"] in text
    (finding,) = WatchedRun(dead).findings
    assert (finding.values["path"], finding.values["share"]) == ("h.1.act", 1.0)


def test_text_of_80_columns_shows_updates(dead: Path) -> None:
    lines = str(WatchedRun(dead)).splitlines()
    assert next(line for line in lines if line.startswith("Series")).split()[:5] == [
        "Series",
        "Step",
        "Mean",
        "Std",
        "Update",
    ]
    assert max(map(len, lines)) <= 80


def test_an_evaluation_is_the_mean_of_its_passes(healthy: Path) -> None:
    training = training_of(WatchedRun(healthy))
    assert training is not None
    assert training["evaluations"] == [
        {"step": 10, "loss": 0.6, "passes": 2},
        {"step": 20, "loss": 0.4, "passes": 2},
    ]
    assert training["facts"]["speed"] == 0.5
    assert training["facts"]["batch"] == "16 × 8"


# -- what is shown ---------------------------------------------------------------------------------


def test_the_page_opens_with_cards_loss_and_layers(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        line = page.locator("header .question").inner_text()
        assert line.startswith("run healthy · finished · step 29 · 0.500 steps/s · SGD · batch 16")
        cards = page.locator(".facts .label").all_inner_texts()
        assert cards == [
            "Loss",
            "Gradient norm",
            "Slowest to learn",
            "Dead units",
            "First NaN or Inf",
        ]
        assert page.locator(".findings").is_hidden()
        assert page.locator(f"{LOSS} .evaluations tbody tr").all_inner_texts() == [
            "10\t0.600\t–",
            "20\t0.400\t−0.200",
        ]
        rows = page.locator(f"{LAYERS} .heat-row b").all_inner_texts()
        assert rows[:3] == ["h.0", "linear", "act"]  # few modules are shown open


def test_the_losses_of_other_runs_are_drawn_and_named(runs: Path, browser: Browser) -> None:
    """The second run is longer, so the axis ends with it. The third one has no loss."""
    first = write_losses(runs / "short", [0.5, 0.4, 0.3])
    second = write_losses(runs / "longer", [0.9, None, 0.8, math.nan, 0.7])
    silent = write_losses(runs / "silent", [None, None])
    page_of_run(first, second, silent).save(runs / "losses.html")
    with opened(browser, runs / "losses.html") as page:
        expect(page.locator(f"{LOSS} svg.tracks .curve.other")).to_have_count(1)
        expect(page.locator(f"{LOSS} svg.tracks")).to_contain_text("longer 0.700")
        page.locator("svg.tracks").focus()
        page.keyboard.press("Home")
        readout = page.locator(f"{LOSS} .readout")
        expect(readout).to_contain_text("step 0 · loss 0.500")
        expect(readout).to_contain_text("loss of longer 0.900")
        page.keyboard.press("End")
        expect(readout).to_contain_text("loss of longer 0.700")
        handle = page.get_by_role("slider", name="last step shown")
        assert handle.get_attribute("aria-valuenow") == "4"
        page.get_by_role("button", name="log", exact=True).click()
        expect(page.locator(f"{LOSS} svg.tracks .curve.other")).to_have_count(1)


def test_a_server_sends_the_losses_of_other_runs(runs: Path) -> None:
    first = write_losses(runs / "one", [0.5, 0.4])
    second = write_losses(runs / "two", [0.9, None, math.inf])
    training = Followed(first).training(Followed(second, "the second"))
    assert training is not None
    assert training["others"] == [{"run": "the second", "steps": [0, 2], "losses": [0.9, "Inf"]}]


def test_findings_stand_above_the_loss(visit: Visit, vanishing: Path) -> None:
    with visit(vanishing) as page:
        text = page.locator(".findings li").inner_text()
        assert text.startswith("Vanishing gradients: the gradient norm falls from")
        page.locator(".findings a").click()
        assert page.evaluate("decodeURIComponent(location.hash)") == "#0"


def test_the_range_changes_the_steps_of_the_heat_map(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        ticks = f"{LAYERS} .heat-foot .soft"
        before = page.locator(ticks).all_text_contents()
        handle = page.get_by_role("slider", name="first step shown")
        handle.focus()
        for _ in range(2):
            handle.press("PageUp")
        assert handle.get_attribute("aria-valuenow") == "20"
        assert page.locator(ticks).all_text_contents() != before
        assert "steps 20 … 29" in page.locator(f"{LOSS} svg.tracks").text_content()  # type: ignore[operator]
        page.keyboard.press("Escape")
        assert handle.get_attribute("aria-valuenow") == "0"
        assert page.locator(ticks).all_text_contents() == before


def test_the_range_is_dragged_with_the_pointer(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        handle = page.get_by_role("slider", name="last step shown")
        box = handle.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 3, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] - 200, box["y"] + 5, steps=4)
        page.mouse.up()
        assert int(handle.get_attribute("aria-valuenow") or 0) < 29


def test_rows_open_by_click_and_select_their_module(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        row = page.locator(f"{LAYERS} .heat-row[data-key='h.1']")
        assert row.get_attribute("aria-expanded") == "true"
        number = page.locator(f"{LAYERS} .heat-row").count()
        row.click(position={"x": 30, "y": 8})
        assert row.get_attribute("aria-expanded") == "false"
        assert page.locator(f"{LAYERS} .heat-row").count() == number - 2
        assert page.evaluate("decodeURIComponent(location.hash)") == "#h.1"
        assert row.get_attribute("aria-selected") == "true"


def test_rows_are_reached_by_keyboard(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        page.locator(f"{LAYERS} .heat-row").first.focus()
        focused = "document.activeElement.dataset.key"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(focused) == "h.0.linear"
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(focused) == "h.0"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        assert page.evaluate(focused) == "h.1"
        page.keyboard.press("End")
        assert page.evaluate(focused) == "head"
        page.keyboard.press("Enter")
        assert page.evaluate("decodeURIComponent(location.hash)") == "#head"


def test_the_axis_shows_epochs_and_time(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        page.get_by_role("button", name="epoch", exact=True).click()
        page.locator("svg.tracks").focus()
        page.keyboard.press("Home")
        readout = page.locator(f"{LOSS} .readout")
        assert readout.inner_text().startswith("epoch 1.00 (step 0)")
        page.keyboard.press("End")
        assert readout.inner_text().startswith("epoch 3.90 (step 29)")
        page.get_by_role("button", name="time", exact=True).click()
        assert readout.inner_text().startswith("58.0 s (step 29)")


def test_another_quantity_is_shown_with_its_reason_where_it_has_no_value(
    visit: Visit, healthy: Path
) -> None:
    with visit(healthy) as page:
        page.get_by_role("button", name="dead units", exact=True).click()
        row = page.locator(f"{LAYERS} .heat-row[data-key='h.0.linear']")
        assert row.locator(".why").inner_text() == "no units that can die"
        assert page.locator(f"{LAYERS} .heat-key .about").inner_text().startswith("a column:")


def test_a_run_that_broke_shows_where_and_how_it_went_on(visit: Visit, broken: Path) -> None:
    with visit(broken) as page:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.reload()
        cards = page.locator(".broken-facts .fact")
        assert cards.nth(0).locator("b").inner_text() == "h.1.act"
        assert cards.nth(1).locator("b").inner_text() == "finite"
        assert cards.nth(2).locator("b").inner_text() == "NaN"
        side = page.locator(".broken .heat-side").text_content() or ""
        assert "produced it, step 20" in side
        assert "through the input" in side
        assert page.locator(".broken .heat-row.producer").get_attribute("data-key") == "h.1.act"
        assert page.locator(".facts .fact.bad").count() == 2


def test_no_module_is_marked_if_the_loss_was_not_finite_before(visit: Visit, late: Path) -> None:
    with visit(late) as page:
        cards = page.locator(".broken-facts .fact").all_inner_texts()
        assert cards[0].split("\n")[:2] == ["Loss", "Inf"]
        assert cards[0].split("\n")[2].startswith("since step 20; ")
        assert cards[1].startswith("First seen in\n0\nstep 24")
        loss = page.locator(".facts .fact").first.inner_text()
        assert loss == cards[0]
        assert page.locator(".broken h2 span").first.inner_text() == "First recorded NaN or Inf"
        assert page.locator("tr.producer, .heat-row.producer, .node.producer").count() == 0
        assert "produced" not in page.locator(".broken").inner_text()
        slow = page.locator(".facts .fact").nth(2).inner_text()
        assert "of the last step with finite values" in slow


def test_the_page_opens_at_the_last_recorded_step(visit: Visit, runs: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    with watch(model, runs / "sparse", every=8):
        for _ in range(22):
            model.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
    with visit(runs / "sparse") as page:
        assert "step 16" in page.locator(f"{LOSS} .readout").inner_text()
        page.locator(f"{LAYERS} .heat-row").first.click()
        panels = page.locator(".tensors")
        panels.first.wait_for()
        assert "nothing was recorded" not in panels.first.inner_text()


def test_layers_without_gradients_are_not_called_slow(visit: Visit, runs: Path) -> None:
    torch.manual_seed(0)
    model = Net(3)
    model.head.add_module("unused", nn.Linear(2, 2))
    model.h[1].linear.requires_grad_(False)
    run = record(runs / "frozen", model)
    assert findings(run) == []
    with visit(run) as page:
        card = page.locator(".facts .fact").nth(2).inner_text()
        assert card.split("\n")[:2] == ["Slowest to learn", "none"]
        assert "; 2 layers without gradients" in card


TRAIN = CurveValues(
    steps=range(400),
    losses=[math.exp(-step / 100) for step in range(400)],
    gradient_norms=[1.0] * 400,
)


def test_an_evaluation_loss_that_rises_while_the_training_loss_falls_is_overfitting() -> None:
    evaluations = [(49, 0.9), (99, 0.6), (149, 0.5), (199, 0.55), (249, 0.6), (299, 0.62)]
    assert find_problems(TRAIN, [], [], evaluations) == []  # three evaluations after the best
    (note,) = find_problems(TRAIN, [], [], [*evaluations, (349, 0.7)])
    assert note.sentence == (
        "Overfitting: the evaluation loss was lowest, 0.5, at step 149, 4 evaluations ago, and is "
        "0.7 now, while the training loss fell; keep the weights of that step, or try more data "
        "or regularization."
    )


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([0.9, 0.6, 0.5, 0.52, 0.51, 0.53, 0.52, 0.52], id="flat"),
        pytest.param([0.9, 0.6, 0.4, 0.9, 0.8, 0.6, 0.5, 0.45], id="comes down again"),
        pytest.param([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.45, 0.5], id="best lately"),
    ],
)
def test_other_evaluation_losses_are_not_overfitting(losses: list[float]) -> None:
    evaluations = [(49 + 50 * at, loss) for at, loss in enumerate(losses)]
    assert find_problems(TRAIN, [], [], evaluations) == []


def test_a_training_loss_that_rises_too_is_not_overfitting() -> None:
    rising = CurveValues(
        steps=range(400),
        losses=[0.5 + step / 1000 for step in range(400)],
        gradient_norms=[1.0] * 400,
    )
    evaluations = [(49 + 50 * at, 0.5 + 0.05 * at) for at in range(7)]
    assert find_problems(rising, [], [], evaluations) == []


def with_spikes(*spikes: tuple[int, list[float]]) -> CurveValues:
    """Return losses of 1 in every tenth step, with others from the given positions on."""
    losses = [1.0] * 100
    for start, values in spikes:
        losses[start : start + len(values)] = values
    return CurveValues(steps=range(0, 1000, 10), losses=losses, gradient_norms=[1.0] * 100)


def test_the_highest_spike_of_the_loss_is_reported() -> None:
    """Each lasts three losses, and the median before both is 1."""
    spikes = (40, [2.0, 2.0, 2.0]), (60, [4.0, 3.0, 3.0]), (80, [4.5, 1.0, 1.0])
    (note,) = find_problems(with_spikes(*spikes), [], [])
    assert note.sentence == "The loss spikes at step 600: 4, median before it 1."


@pytest.mark.parametrize(
    "spike",
    [
        pytest.param((40, [9.0, 9.0]), id="two losses, not three"),
        pytest.param((40, [1.29, 1.29, 1.29]), id="a rise of less than 30 %"),
        pytest.param((19, [9.0, 9.0, 9.0]), id="fewer than 20 losses before it"),
    ],
)
def test_other_high_losses_are_not_spikes(spike: tuple[int, list[float]]) -> None:
    assert find_problems(with_spikes(spike), [], []) == []


@pytest.mark.parametrize(
    ("losses", "step", "value", "before"),
    [
        ([1.0, None, math.nan, 1.0], 20, "NaN", 0),
        ([1.0, 0.9, math.inf, math.nan], 20, "infinite", 10),
        ([math.nan, 1.0, 1.0, 1.0], 0, "NaN", None),
    ],
)
def test_the_first_loss_that_is_not_finite_is_reported(
    losses: list[float | None], step: int, value: str, before: int | None
) -> None:
    """``before`` is the last step with a loss."""
    curves = CurveValues(steps=range(0, 40, 10), losses=losses, gradient_norms=[None] * 4)
    (note,) = find_problems(curves, [], [])
    assert note.code == "loss-not-finite"
    assert note.values == {"step": step, "value": value, "before": before}


def with_norms(norms: Sequence[float | None]) -> CurveValues:
    """Return gradient norms of consecutive steps, without losses."""
    return CurveValues(steps=range(len(norms)), losses=[None] * len(norms), gradient_norms=norms)


def test_gradients_that_grow_are_reported_with_medians_of_start_and_end() -> None:
    """The start are the first quarter of known norms, 2 … 4; the end the last three."""
    norms = [None, 2.0, 3.0, 4.0, *[5.0] * 6, math.inf, 0.0, 2999.0, 4000.0, 3001.0]
    (note,) = find_problems(with_norms(norms), [], [])
    assert note.code == "gradients-grow"
    assert note.values == {"start": 3.0, "end": 3001.0, "step": 14}


@pytest.mark.parametrize(
    "norms",
    [
        pytest.param(
            [2.0, 3.0, 4.0, *[5.0] * 6, 2999.0, 2999.0, 4000.0], id="less than 1000 times"
        ),
        pytest.param([2.0, 3.0, 4.0, *[5.0] * 5, 4000.0, 4000.0, 4000.0], id="eleven norms"),
        pytest.param([3.0] * 6 + [4000.0] + [3.0] * 6, id="a spike in the middle"),
    ],
)
def test_other_gradients_are_not_reported(norms: list[float]) -> None:
    assert find_problems(with_norms(norms), [], []) == []


NAN = math.nan


@pytest.mark.parametrize(
    ("dead", "step"),
    [
        pytest.param([1.0] * 10, 0, id="from the beginning"),
        pytest.param([NAN, NAN, *[1.0] * 8], 0, id="since the first known share"),
        pytest.param([0.1, NAN, *[0.95] * 8], 20, id="after an unknown one"),
        pytest.param([1.0, 0.2, 0.9, NAN, 1.0, NAN, 0.96, NAN, 1.0, 1.0], 40, id="again"),
        pytest.param([*[0.0] * 8, 1.0, 1.0], None, id="not in all of the last three"),
        pytest.param([*[1.0] * 9, 0.94], None, id="no longer"),
    ],
)
def test_a_dead_layer_is_found_with_its_first_step(dead: list[float], step: int | None) -> None:
    """Columns have ten steps, and their units are dead if 95 % are."""
    healthy = LayerValues(path="a", name="a", gradient=[], update=[], dead=[0.5] * 10)
    layers = [healthy, replace(healthy, path="b", name="b", dead=dead)]
    curves = CurveValues(steps=(), losses=(), gradient_norms=())
    found = find_problems(curves, layers, range(0, 100, 10))
    if step is None:
        assert found == []
        return
    note = Note.of("layer-dead", layer="b", path="b", share=dead[-1], step=step, others=0)
    assert found == [note]
    more = find_problems(curves, [*layers, replace(layers[1], path="c")], range(0, 100, 10))
    assert (more[0].values["path"], more[0].values["others"]) == ("b", 1)


def test_a_layer_that_does_not_learn_keeps_its_name() -> None:
    layers = [
        LayerValues(path=name, name=name, gradient=[0.1] * 9, update=[update] * 9, dead=[])
        for name, update in (("stuck", 1e-9), ("stem", 1e-3), ("body", 1e-3), ("head", 1e-3))
    ]
    curves = CurveValues(steps=(), losses=(), gradient_norms=())
    (note,) = find_problems(curves, layers, range(9))
    assert note.sentence == (
        "Slow layer: stuck does not learn; update ÷ weight is 1e−9 in stuck, "
        "0.001 in the median layer."
    )


def test_the_graph_names_the_module_that_produced_the_first_infinity(
    visit: Visit, broken: Path
) -> None:
    """The first NaN is seen later, where the infinity is used."""
    with visit(broken) as page:
        graph = page.locator("svg.graph")
        assert "first NaN or Inf: h.1.act" in (graph.text_content() or "")
        assert page.locator("tr.producer").count() <= 1


def test_a_value_that_is_not_finite_is_no_number(visit: Visit, broken: Path) -> None:
    with visit(broken) as page:
        values = page.locator(f"{LAYERS} .heat-row .value").all_inner_texts()
        assert set(values) <= {"NaN", "–"}
        assert "NaN" in values


def test_kept_layers_have_their_letter_in_the_heat_map(visit: Visit, healthy: Path) -> None:
    with visit(healthy) as page:
        page.locator(f"{LAYERS} .heat-row[data-key='h.1.act']").click(position={"x": 30, "y": 8})
        page.locator(".which[data-text^='h.1.act'] .keep").click()
        row = page.locator(f"{LAYERS} .heat-row[data-key='h.1.act']")
        assert row.locator(".tag").inner_text() == "A"
        assert "kept as A" in (row.get_attribute("aria-label") or "")
        page.locator(".card.pinned .close").click()
        assert page.locator(f"{LAYERS} .heat-row .tag").count() == 0


def test_dead_units_say_in_which_step_they_were_counted(visit: Visit, dead: Path) -> None:
    """Complete batches are read in every sixteenth step, each row in another one."""
    with visit(dead) as page:
        assert page.get_by_role("button", name="dead units").get_attribute("aria-pressed") == "true"
        about = page.locator(f"{LAYERS} .heat-key .about").inner_text()
        assert "counted in every 16th step, held until the next" in about
        page.locator(f"{LAYERS} .heat-row[data-key='h.1.act']").click(position={"x": 30, "y": 8})
        page.locator("svg.tracks").focus()
        page.keyboard.press("End")
        found = re.search(
            r"dead units 100 % \(counted in step (\d+)\)",
            page.locator(f"{LAYERS} .readout").inner_text(),
        )
        assert found is not None
        assert 29 - 16 < int(found[1]) < 29


def write_steps(run: Path, num_layers: int, num_steps: int) -> Path:
    """Write a run in which the weights of each layer have a gradient."""
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    gradient = of(torch.ones(4))
    numbers = [
        store.number_of(
            Series(path=f"fc{layer}", type_name="Linear", kind="param_grad", name="weight")
        )
        for layer in range(num_layers)
    ]
    found = dict.fromkeys(numbers, gradient)
    for step in range(num_steps):
        sampled = SampledStep(step=step, phase="train", number=step, time=1.0, distributions=found)
        store.write(sampled)
    store.close()
    return run


def write_losses(run: Path, losses: Sequence[float | None]) -> Path:
    """Write a run with losses and the gradients of one layer."""
    write_steps(run, 1, len(losses))
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    points = [
        CurvePoint(step, step, 100.0 + step, loss, None, None) for step, loss in enumerate(losses)
    ]
    store.write_curves({"train": points})
    store.close()
    return run


def columns_after_zoom(visit: Visit, run: Path) -> tuple[str, str]:
    """Return what a column holds: of all steps, and of the last tenth."""
    with visit(run) as page:
        about = page.locator(f"{LAYERS} .heat-key .about")
        before = about.inner_text()
        page.get_by_role("slider", name="first step shown").focus()
        for _ in range(9):
            page.keyboard.press("PageUp")
        return before, about.inner_text()


def test_fewer_steps_are_shown_in_finer_columns(visit: Visit, runs: Path) -> None:
    before, after = columns_after_zoom(visit, write_steps(runs / "fine", 1, 300))
    assert before == "a column: 2 steps, their largest"
    assert after == "a column: one step"


@pytest.mark.sweep
def test_a_page_without_finer_columns_says_so(visit: Visit, runs: Path) -> None:
    """With many layers, a page has half as many columns as steps."""
    before, after = columns_after_zoom(visit, write_steps(runs / "coarse", 200, 300))
    assert "no finer ones" in after
    assert before.startswith("a column: 2 steps, their largest")


def test_a_page_without_training_is_as_before(runs: Path, browser: Browser) -> None:
    model = Net(1).eval()
    with watch(model, runs / "evaluated", every=1), torch.no_grad():
        model(torch.randn(2, 8))
    page_of_run(runs / "evaluated").save(runs / "evaluated.html")
    with opened(browser, runs / "evaluated.html") as page:
        assert page.locator(".training").count() == 0
        assert page.locator("tbody tr").first.is_visible()


def test_a_live_page_follows_the_training(browser: Browser, tmp_path: Path) -> None:
    model = Net(2)
    record(tmp_path / "run", model, 10)
    with torchscan.serve(tmp_path / "run", port=0) as server, opened(browser, server.url) as page:
        page.locator(f"{LAYERS} .heat-row").first.wait_for()
        assert "step 9" in page.locator("header .question").inner_text()
        page.evaluate("document.querySelector('svg.tracks').kept = true")
        page.get_by_role("slider", name="first step shown").focus()
        with watch(model, tmp_path / "run", every=1, step=10):
            for _ in range(5):
                model(torch.randn(4, 8)).sum().backward()
        page.locator("header .question", has_text="step 14").wait_for()
        assert page.evaluate("document.querySelector('svg.tracks').kept")
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused == "first step shown"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["healthy", "broken", "dead"])
def test_no_page_is_wider_than_a_phone(
    visit: Visit, request: pytest.FixtureRequest, name: str
) -> None:
    with visit(request.getfixturevalue(name)) as page:
        page.set_viewport_size({"width": 380, "height": 800})
        page.reload()
        page.locator(f"{LAYERS} .heat-row").first.wait_for()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 380


@pytest.mark.sweep
def test_thousands_of_modules_make_few_elements(runs: Path, visit: Visit) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(1200)))
    run = runs / "many"
    with watch(model, run, every=1, log=["param_grads"]):
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
    with visit(run) as page:
        rows = page.locator(f"{LAYERS} .heat-row")
        assert rows.first.locator("b").inner_text() == "0 … 49"
        page.get_by_role("button", name="all modules").click()
        assert rows.count() < 60
        page.locator(f"{LAYERS} .heat-row").first.focus()
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.dataset.key") == "1199"
        assert rows.count() < 60


# -- looks -----------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["healthy", "broken", "dead"])
def test_text_can_be_read(
    visit: Visit, request: pytest.FixtureRequest, name: str, scheme: str
) -> None:
    with visit(request.getfixturevalue(name), color_scheme=scheme, bypass_csp=True) as page:
        page.set_viewport_size({"width": 1280, "height": 2600})
        page.locator(f"{LAYERS} .heat-row").first.wait_for()
        contrast, text = least_contrast(page, ".facts, .findings, .sections, .distributions")
        assert contrast >= 4.5, text


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_points_are_seen(visit: Visit, healthy: Path, scheme: str) -> None:
    with visit(healthy, color_scheme=scheme) as page:
        page.locator(f"{LAYERS} .heat-row").first.wait_for()
        for mark in (".tracks .curve:not([opacity])", ".evaluation", ".mark", ".crosshair"):
            contrast = least_contrast_of_marks(page, f".sections {mark}")
            assert contrast >= 3, mark
