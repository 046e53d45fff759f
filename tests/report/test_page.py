"""The page of a model, as people use it, in a browser without a network."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.browsing import expect, least_contrast, opened
from tests.opening import watched_run
from tests.recording.test_record import Calls
from tests.report.test_graphs import a_graph, lay_out_graph
from tests.torchvision_cpu import torchvision
from tests.watching.watching import watch
from torchscan import InputError, Scan, TorchscanError, estimate_memory, html_report, inspect
from torchscan.analyses.memory_blocks import KINDS
from torchscan.measured import Measured
from torchscan.report.paging.charts import memory_series
from torchscan.report.paging.model_page import scripts_of
from torchscan.report.paging.page_data import by_key
from torchscan.types import Moment, RunFacts
from torchscan.types import Page as ModelPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

STEP: dict[str, Any] = {
    "batch_size": 32,
    "training": True,
    "optimizer": "AdamW",
    "precision": "bf16-mixed",
    "device": "RTX 4090",
}
Visit = Callable[..., Any]


def data_of(page: str) -> dict[str, Any]:
    """What a page was given to show."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def resnet() -> ModelPage:
    return html_report(
        Scan(torchvision.models.resnet50(weights=None), (3, 224, 224), **STEP), "ResNet-50"
    )


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Visit:
    @contextmanager
    def visited(page: str, **options: Any) -> Iterator[Page]:
        file = tmp_path / "model.html"
        file.write_text(page, encoding="utf-8")
        with opened(browser, file, **options) as seen:
            yield seen

    return visited


def box(page: Page, name: str) -> Locator:
    return page.locator(f'.node[data-name="{name}"]').first


def boxes(page: Page) -> list[str]:
    names: list[str] = page.locator(".node").evaluate_all(
        "nodes => nodes.map(node => node.dataset.name)"
    )
    return names


def rows(page: Page) -> list[str]:
    names: list[str] = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[0].children[1].textContent)"
    )
    return names


def where(page: Page) -> str:
    return page.locator(".crumbs").inner_text()


def focused(page: Page, name: str) -> bool:
    """Whether it has the focus soon."""
    page.locator(f'.node[data-name="{name}"]:focus').wait_for()
    return True


# -- what it is given ----------------------------------------------------------------------------------------------------


def test_rows_are_sums_of_what_is_in_them(resnet: str) -> None:
    """Of each row with others in it, parameters, MACs and time are at least those of all of them together."""
    found = data_of(resnet)["rows"]
    assert found[0]["params"] == 25_557_032
    for at, row in enumerate(found):
        inner = [each for each in found if each["in"] == at]
        for key in ("params", "macs", "time"):
            assert sum(each[key] for each in inner) <= row[key] * 1.001
    blocks = {
        row["name"]: row
        for row in found
        if row["type"] == "Bottleneck" and row["path"].startswith("layer3")
    }
    assert list(blocks) == ["0", "1 … 5"]
    assert blocks["1 … 5"]["repeats"] == 5
    assert blocks["1 … 5"]["params"] == 5 * 1_117_184


@pytest.mark.slow
def test_the_receptive_field_is_that_before_all_is_seen(resnet: str) -> None:
    verdict = next(
        each for each in data_of(resnet)["verdicts"] if each["label"] == "Receptive field"
    )
    assert (verdict["value"], verdict["said"]) == ("427", "in layer4.2.relu; then global")
    plain = data_of(html_report(Scan(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (3, 4, 4))))
    assert [each["value"] for each in plain["verdicts"] if each["label"] == "Receptive field"] == [
        "global"
    ]


def test_what_is_the_same_is_there_once(resnet: str) -> None:
    assert len(json.dumps(data_of(resnet))) < 200_000
    assert len(data_of(resnet)["rows"]) < 110, "of 151 calls and four runs of equal blocks"


def test_an_optimizer_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TorchscanError, match="'Adamm'"):
        html_report(Scan(nn.Linear(4, 4), (4,), training=True, optimizer="Adamm"))


def test_what_has_no_answer_says_why() -> None:
    data = data_of(html_report(Scan(nn.Linear(4, 4), (4,), precision="fp8", device="H200")))
    assert data["memory"] is None
    assert data["remarks"][0].startswith("Memory: memory is not estimated for fp8")


def test_a_level_has_a_box_for_each_input_module_and_output() -> None:
    """Two layers between the input and the output: three lines, and rows 1 and 2 of the table."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    level, *_ = data_of(html_report(Scan(model, (3,))))["levels"]
    boxes = [(each["kind"], each.get("row")) for each in level["nodes"]]
    assert sorted(boxes, key=str) == [
        ("input", None),
        ("module", 1),
        ("module", 2),
        ("output", None),
    ]
    assert len(level["edges"]) == 3


def test_a_column_of_the_memory_chart_shows_the_largest_of_its_operators() -> None:
    """The n-th of 720 operators leaves n bytes, so 360 columns of two show the odd numbers."""
    nothing = (0,) * (len(KINDS) - 1)
    moments = [Moment("aten.relu", "", "forward", (number, *nothing)) for number in range(720)]
    estimate = replace(estimate_memory(nn.Linear(2, 2), (2,)), timeline=tuple(moments))
    series = memory_series(estimate)
    assert series["kinds"] == [KINDS[0]]
    assert series["sizes"] == [tuple(range(1, 720, 2))]
    assert series["phases"] == [("forward", 360)]


def test_histories_are_packed_in_groups_of_a_mebibyte_at_least() -> None:
    """The first has fewer characters, so that the second is packed with it, and the last alone."""
    text = "0" * 600_000
    histories = [{"call": [name, 0], "name": "output", "text": text} for name in ("a", "b", "c")]
    data = by_key(Measured(source="a run", figures={}, histories=histories))
    assert [group["calls"] for group in data["histories"]] == [["a", "b"], ["c"]]


# -- walking -------------------------------------------------------------------------------------------------------------


def test_walking_in_and_out(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        assert boxes(page)[:3] == ["x", "conv1", "bn1"]
        box(page, "layer3").dblclick()
        box(page, "1 … 5").wait_for()
        assert boxes(page) == ["input", "0", "1 … 5", "output"]
        assert where(page).startswith("ResNet › layer3")
        box(page, "0").focus()
        page.keyboard.press("Enter")
        box(page, "downsample").wait_for()
        assert {"downsample", "add", "relu (3)"} <= set(boxes(page))
        assert page.evaluate("location.hash") == "#layer3.0/"
        page.go_back()
        box(page, "1 … 5").wait_for()
        assert boxes(page) == ["input", "0", "1 … 5", "output"]
        page.locator(".crumbs a").first.click()
        box(page, "layer3").wait_for()


def test_the_address_says_where(visit: Visit, resnet: str) -> None:
    """Also in a block that is folded with others."""
    with visit(resnet) as page:
        page.evaluate("location.hash = '#layer3.0.conv2'")
        page.wait_for_selector('.node.selected[data-name="conv2"]')
        assert where(page).startswith("ResNet › layer3 › 0")
        assert page.locator("tr.selected").inner_text().startswith("conv2")
        page.evaluate("location.hash = '#layer3.4.bn1'")
        page.wait_for_selector('.node.selected[data-name="bn1"]')
        assert "1 … 5 ×5" in where(page)


def test_a_module_opens_in_place(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        number = len(boxes(page))
        page.locator("[data-opens]", has=page.locator("title")).nth(4).click()
        assert len(boxes(page)) > number
        inner, outer = (
            page.locator(f'.node[data-name="{name}"] > .frame').first.bounding_box()
            for name in ("1 … 2", "layer1")
        )
        assert inner is not None
        assert outer is not None
        assert outer["x"] < inner["x"]
        assert outer["y"] + outer["height"] > inner["y"] + inner["height"]
        box(page, "layer1").focus()
        page.keyboard.press("Space")
        assert len(boxes(page)) == number


def test_the_keyboard_alone(visit: Visit, resnet: str) -> None:
    """Down along the edges, in, out; and in the table as in any tree."""
    with visit(resnet) as page:
        box(page, "x").focus()
        for _ in range(5):
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.name") == "layer1"
        page.keyboard.press("Enter")
        box(page, "input").focus()
        page.keyboard.press("Escape")
        box(page, "layer1").wait_for()
        page.locator("tbody tr").first.focus()
        for key in ("ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        assert page.locator("tr.selected").inner_text().startswith("bn1")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.type") == "search"


def test_the_focus_goes_along_and_selections_are_no_places_to_go_back_to(
    visit: Visit, resnet: ModelPage
) -> None:
    with visit(resnet) as page:
        box(page, "layer1").focus()
        page.keyboard.press("Enter")
        box(page, "input").wait_for()
        assert focused(page, "input")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Escape")
        box(page, "layer1").wait_for()
        assert focused(page, "layer1")
        before = page.evaluate("history.length")
        for name in ("conv1", "bn1", "layer4"):
            box(page, name).click()
        assert page.evaluate("history.length") == before
        assert page.evaluate("location.hash") == "#layer4"


def test_a_box_inside_an_open_one_is_selected_where_it_is(visit: Visit, resnet: ModelPage) -> None:
    with visit(resnet) as page:
        box(page, "layer1").focus()
        page.keyboard.press("Space")
        box(page, "1 … 2").click(position={"x": 20, "y": 10})
        assert page.locator("tr.selected").inner_text().startswith("▸1 … 2")
        assert "›" not in where(page)


def test_addresses_that_lead_nowhere_show_the_model(visit: Visit, resnet: ModelPage) -> None:
    with visit(resnet) as page:
        for address, said in (("#%", ""), ("#body", "there is no layer body")):
            page.evaluate("address => { location.hash = address; }", address)
            page.locator(".crumbs", has_text=said).wait_for()
            assert "layer1" in boxes(page)
        page.locator("input[type=search]").fill("zzz")
        assert page.locator("tbody").inner_text() == "no layer matches “zzz”"


def test_graph_and_table_are_in_step(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        box(page, "layer2").click()
        assert page.locator("tr.selected").inner_text().startswith("▾layer2")
        page.evaluate("location.hash = '#layer1.0/'")
        box(page, "relu (3)").click()
        page.wait_for_selector('.node.selected[data-name="relu (3)"]')
        assert page.locator("tr.selected").inner_text().startswith("relu (3)")
        page.locator("tbody tr", has_text="avgpool").click()
        page.wait_for_selector('.node.selected[data-name="avgpool"]')
        seen, whole = (
            page.locator(each).bounding_box() for each in (".node.selected > .frame", ".canvas")
        )
        assert seen is not None
        assert whole is not None
        assert whole["y"] <= seen["y"] <= whole["y"] + whole["height"] - seen["height"], (
            "it is brought into view"
        )


def test_the_table_opens_sorts_and_searches(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        number = len(rows(page))
        page.locator("tbody tr", has_text="Bottleneck").first.locator("button.fold").click()
        assert len(rows(page)) == number + 10
        page.get_by_role("button", name="Params").click()
        assert rows(page)[:2] == ["ResNet", "layer4"]
        page.get_by_role("button", name="Params").click()
        page.get_by_role("button", name="Params").click()
        page.locator("input[type=search]").fill("linear")
        assert rows(page) == ["fc"]


def test_colour_by_another_figure(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        assert page.locator("select").input_value() == "time"
        assert "8.19 ms" in str(box(page, "layer1").text_content())
        page.locator("select").select_option("params")
        assert "15.0 M" in str(box(page, "layer4").text_content())
        assert page.locator("thead th").last.inner_text() == "Parameters"
        for option in ("macs", "flops", "bytes", "intensity", "activations", "peak", "rf"):
            page.locator("select").select_option(option)


def test_what_one_points_at_is_told(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        box(page, "conv1").hover()
        line = page.locator(".panel.graph > .read")
        said = str(line.text_content())
        assert all(text in said for text in ("kernel_size (7, 7)", "64×112×112", "9.41 k"))
        assert "limited by" in said
        place = "canvas => [canvas.offsetTop, canvas.offsetHeight]"
        before = page.locator(".canvas").evaluate(place)
        page.locator("tbody tr", has_text="fc").last.hover()
        assert str(line.text_content()).startswith("fc · Linear")
        assert "pointed" in str(box(page, "fc").get_attribute("class"))
        assert page.locator(".canvas").evaluate(place) == before, "nothing moves"
        page.mouse.move(2, 2)
        assert str(line.text_content()).startswith("ResNet"), "the chosen layer stands there"


def test_one_chooses_a_unit_and_sees_what_it_sees(visit: Visit, resnet: str) -> None:
    """The third stage's units are 16 places apart and see 267: 133 on either side of their own."""
    with visit(resnet) as page:
        panel = page.locator(".panel.sight")
        assert panel.locator(".said").inner_text() == "Every unit of ResNet sees the whole input."
        box(page, "layer3").click()
        assert (
            panel.locator(".said").inner_text()
            == "layer3: unit (7, 7) of 14×14 sees 267×267 of 224×224, and padding"
        )
        box(page, "layer1").click()
        drawn = panel.locator("svg")
        drawn.scroll_into_view_if_needed()
        output = drawn.locator(".groove").first.bounding_box()
        assert output is not None
        page.mouse.click(output["x"] + 0.5, output["y"] + 0.5)
        assert (
            panel.locator(".said").inner_text()
            == "layer1: unit (0, 0) of 56×56 sees 35×35 of 224×224, and padding"
        )
        page.keyboard.press("ArrowDown")
        assert (
            drawn.get_attribute("aria-label")
            == "unit (1, 0) of 56×56 sees 35×35 of 224×224, and padding"
        )
        scale = 120 / (
            224 + 17
        )  # it reaches 17 places over the left edge, and 13 over the upper one
        seen = drawn.locator(".seen").last
        assert float(str(seen.get_attribute("width"))) == pytest.approx(35 * scale, abs=0.06)
        assert float(str(seen.get_attribute("x"))) == 0
        assert float(str(drawn.locator(".groove").last.get_attribute("x"))) == pytest.approx(
            17 * scale, abs=0.06
        )


# -- a run ---------------------------------------------------------------------------------------------------------------


class Root(nn.Module):
    """Of what is negative, NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)


def _odd() -> tuple[nn.Module, RunFacts]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Identity(), Root()), nn.Linear(4, 2))
    with inspect(model, warm_up=0) as run:
        model(torch.randn(8, 4)).sum().backward()
    return model, run.facts


def test_a_run_colours_the_page(visit: Visit) -> None:
    model, run = _odd()
    page_of = html_report(Scan(model, (4,), batch_size=8, training=True), run=run)
    rows = data_of(page_of)["measured"]["figures"]
    calls = {call.path: call for call in run.calls}
    assert rows[""]["latency"] == pytest.approx(
        calls[""].forward.median + calls[""].backward.median, rel=1e-3
    )
    spoiled = calls["1.1"]
    counts = spoiled.forward_nan, spoiled.grad_in_nan, spoiled.grad_out_nan
    assert rows["1.1"]["nonfinite"] == sum(each or 0 for each in counts)
    assert "nonfinite" not in rows["0"] or rows["0"]["nonfinite"] == calls["0"].grad_out_nan
    with visit(page_of) as page:
        assert page.locator("select").input_value() == "nonfinite", "what is wrong is seen first"
        verdict = page.locator(".verdict", has_text="First NaN")
        assert "aten.sqrt" in verdict.inner_text()
        assert "holds" in str(box(page, "1").get_attribute("class"))
        verdict.locator("a").click()
        assert "producer" in str(page.locator(".node.selected").get_attribute("class"))
        assert page.locator("tr.selected").inner_text().startswith("1")
        page.locator(".node.selected").hover()
        assert "first NaN or Inf" in page.locator(".panel.graph > .read").inner_text()
        page.locator("select").select_option("latency")
        assert page.locator("thead th").last.inner_text() == "Measured time"


@pytest.mark.slow
def test_a_watched_run_has_norms_of_gradients(tmp_path: Path) -> None:
    last = nn.Linear(5, 2)
    model = nn.Sequential(nn.Linear(3, 5), last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, tmp_path / "run", every=1):
        before = last.weight.detach().clone()
        loss: Tensor = model(torch.rand(4, 3)).sum()
        loss.backward()
        optimizer.step()
    page = html_report(Scan(model, (3,), batch_size=4), run=watched_run(tmp_path / "run"))
    rows = data_of(page)["measured"]["figures"]
    assert rows["1"]["gradient"] == pytest.approx(8**0.5, rel=1e-3), (
        "of a sum, the gradient is 1 for each of 4×2 results"
    )
    change = (last.weight.detach() - before).norm() / before.norm()
    assert rows["1"]["update"] >= float(change) * 0.99
    assert "latency" not in rows["1"]


def test_figures_of_folded_blocks_are_joined(visit: Visit) -> None:
    """Times add up, of norms the greatest is shown."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    figures = {(f"{at}", 0): {"latency": 1.0 + at, "gradient": 5.0 - at} for at in range(3)}

    class Run:
        def measured(self) -> Measured:
            types = {"": "Sequential", **{f"{at}": "Sequential" for at in range(3)}}
            return Measured(source="a run", figures=figures, types=types)  # type: ignore[arg-type]

    with visit(html_report(Scan(model, (4,)), run=Run())) as page:
        assert boxes(page) == ["input", "0 … 2", "output"]
        assert "6.00 s" in str(box(page, "0 … 2").text_content())
        page.locator("select").select_option("gradient")
        assert "5.00" in str(box(page, "0 … 2").text_content())


def test_distributions_over_the_steps(visit: Visit, tmp_path: Path) -> None:
    """Of what is chosen: each tensor of the call, with the same step in all pictures."""
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with watch(model, tmp_path / "run", every=1) as watcher:
        for step in range(6):
            loss: Tensor = model(torch.rand(4, 3) * (math.nan if step == 4 else 1)).sum()
            loss.backward()
            watcher.step()
            time.sleep(0.05)  # nobody waits for the process that writes
    run = watched_run(tmp_path / "run")
    assert run.steps() == [*range(6)]
    with visit(html_report(Scan(model, (3,), batch_size=4), run=run)) as page:
        panel = page.locator(".panel.distributions")
        panel.locator("figure").first.wait_for()
        box(page, "2").click()
        names = panel.locator(".card figure b")
        assert names.all_inner_texts() == ["output", "output gradient", "update ÷ weight"]
        panel.locator(".more").click()
        assert set(names.all_inner_texts()) == {
            "input",
            "output",
            "output gradient",
            "update ÷ weight",
            "weight",
            "bias",
            "weight gradient",
            "bias gradient",
        }
        gradient = panel.locator("figure", has_text="output gradient")
        values = gradient.locator("figcaption")
        expect(values).to_have_text("1.000 … 1.000 · median 1.000")  # of a sum
        assert "values of step 5" in panel.locator("h2").inner_text()
        chart = gradient.locator(".over-steps")
        chart.scroll_into_view_if_needed()
        place = chart.bounding_box()
        assert place is not None
        left, wide = place["x"] + 42, place["width"] - 46  # without its margins
        page.mouse.move(left + 4.5 / 6 * wide, place["y"] + 50)
        outputs = panel.locator("figure", has=page.locator("b", has_text=re.compile("^output$")))
        expect(panel.locator("h2")).to_contain_text("values of step 4")
        assert outputs.locator("figcaption").inner_text() == "8 NaN · no finite values"


def test_a_run_of_another_model_is_refused() -> None:
    _, run = _odd()
    with pytest.raises(
        InputError, match="the model itself is a Sequential there, and a Conv1d in this model"
    ):
        html_report(Scan(nn.Conv1d(2, 2, 1), (2, 4)), run=run)
    alike = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Identity(), nn.ReLU()), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"1.1 is a Root there, and a ReLU in this model"):
        html_report(Scan(alike, (4,)), run=run)


def test_a_run_without_steps_is_refused() -> None:
    with inspect(nn.Linear(2, 2)) as run:
        pass
    with pytest.raises(InputError, match="no measured step"):
        html_report(Scan(nn.Linear(2, 2), (2,)), run=run)


def test_a_run_may_be_of_more_than_the_model() -> None:
    inner, _ = _odd()
    whole = nn.Sequential(nn.Linear(4, 4), inner)
    with inspect(whole, warm_up=0) as run:
        whole(torch.randn(8, 4)).sum().backward()
    figures = data_of(html_report(Scan(inner, (4,)), run=run))["measured"]["figures"]
    assert figures["1.1"]["latency"] == pytest.approx(
        run.measured().figures["1.1.1", 0]["latency"], rel=1e-3
    )


@pytest.mark.slow
def test_a_nan_among_gradients_is_no_norm(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with watch(model, tmp_path / "run", every=1):
        (model(torch.rand(4, 3)) * math.nan).sum().backward()
    figures = data_of(
        html_report(Scan(model, (3,), batch_size=4), run=watched_run(tmp_path / "run"))
    )["measured"]["figures"]
    assert figures["1"]["nonfinite"] >= 8
    assert "gradient" not in figures["1"]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Sequential(nn.Linear(4, 4), Root()), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, x, use_reentrant=True))


def test_what_a_checkpoint_runs_again_belongs_to_the_first_call() -> None:
    model = Checkpointed()
    with inspect(model, warm_up=0) as run:
        model(torch.randn(8, 4, requires_grad=True)).sum().backward()
    figures = run.measured().figures
    own = [call for call in run.facts.calls if call.path == "inner"]
    assert len(own) == 2
    assert figures["inner", 0]["latency"] == pytest.approx(sum(call.time for call in own))
    assert ("inner", 1) not in figures


def test_the_legend_of_the_memory_chart_names_every_color(visit: Visit) -> None:
    """The peak is in the forward pass, before there are gradients of 2048 × (4 + 1) parameters."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2048)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).exp().sum(-1, keepdim=True)

    page_of_model = html_report(Scan(Wide(), (4,), training=True, batch_size=64))
    kinds = data_of(page_of_model)["memory"]["kinds"]
    with visit(page_of_model) as page:
        legend = page.locator(".panel.memory .key > span").all_inner_texts()
    assert sorted(text.split()[0] for text in legend) == sorted(kinds)
    assert "gradients up to 40.0 KiB, none at the peak" in legend


def test_charts_answer_a_click(visit: Visit, resnet: str) -> None:
    with visit(resnet) as page:
        chart = page.locator(".panel.memory svg")
        chart.scroll_into_view_if_needed()
        place = chart.bounding_box()
        assert place is not None
        page.mouse.move(place["x"] + 0.4 * place["width"], place["y"] + 0.5 * place["height"])
        said = str(page.locator(".panel.memory > .read").text_content())
        assert all(text in said for text in ("layer ", "operator ", "activations "))
        page.mouse.down()
        page.mouse.up()
        page.wait_for_selector("tr.selected")
        point = page.locator(".panel.roofline .point").first
        point.focus()
        assert "of the time" in page.locator(".panel.roofline > .read").inner_text()
        page.keyboard.press("Enter")
        page.wait_for_selector(".node.selected")


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_panels_are_saved(visit: Visit, resnet: str, kind: str, tmp_path: Path) -> None:
    with visit(resnet) as page:
        box(page, "layer3").click()
        for panel in (".graph", ".memory", ".roofline", ".sight"):
            with page.expect_download() as saving:
                page.locator(f".panel{panel} .tools button", has_text=kind.upper()).click()
            file = tmp_path / f"saved.{kind}"
            saving.value.save_as(file)
            head = file.read_bytes()[:200]
            assert head.startswith(b"<svg") if kind == "svg" else head.startswith(b"\x89PNG")
            assert saving.value.suggested_filename.startswith("ResNet-50-")


def test_a_notebook_shows_it_in_a_frame_of_its_own(
    browser: Browser, tmp_path: Path, resnet: ModelPage
) -> None:
    """Which cannot reach what is around it."""
    file = tmp_path / "cell.html"
    file.write_text(f"<!doctype html><p id=around>{resnet._repr_html_()}", encoding="utf-8")
    with opened(browser, file) as page:
        inside = page.frame_locator("iframe")
        inside.locator('.node[data-name="layer3"]').focus()
        page.keyboard.press("Enter")
        inside.locator('.node[data-name="1 … 5"]').wait_for()
        inside.locator('.node[data-name="0"]').click()
        inside.locator("tr.selected", has_text="Bottleneck").wait_for()
        inside.locator(".crumbs a").first.click()
        inside.locator('.node[data-name="layer4"]').wait_for()
        inside.locator('.node[data-name="layer3"]').click()
        inside.locator("tr.selected", has_text="layer3").wait_for()
        assert inside.locator("tr.selected").inner_text().startswith("▾layer3")


def test_it_is_saved_as_a_file(tmp_path: Path, resnet: ModelPage) -> None:
    resnet.save(tmp_path / "model.html")
    assert (tmp_path / "model.html").read_text(encoding="utf-8") == resnet


# -- looks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(visit: Visit, resnet: str, scheme: str) -> None:
    with visit(resnet, color_scheme=scheme, bypass_csp=True) as page:
        contrast, text = least_contrast(page, ".verdicts, header, .layers, h2")
        assert contrast >= 4.5, text


@pytest.mark.parametrize("width", [1280, 380])
def test_no_page_is_wider_than_the_screen(visit: Visit, resnet: str, width: int) -> None:
    with visit(resnet) as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.reload()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.locator("tbody tr").first.is_visible()
        assert page.locator(".share").first.is_visible(), (
            "on a phone the name, a figure and its share stay"
        )


# -- scripts -------------------------------------------------------------------------------------------------------------

FOLDER = Path(torchscan.__file__).parent / "report" / "page" / "model"


@pytest.mark.skipif(
    shutil.which("tsc") is None,
    reason="there is no TypeScript here, which checks the types of the scripts",
)
def test_scripts_are_typed() -> None:
    strict = [
        "--noEmit",
        "--allowJs",
        "--checkJs",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
    ]
    files = sorted(map(str, FOLDER.glob("*.js")))
    done = subprocess.run(  # noqa: S603
        ["tsc", *strict, "--moduleResolution", "bundler", "--module", "es2022", *files],  # noqa: S607
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout.decode()


def test_each_script_comes_after_those_that_it_imports() -> None:
    pages = [scripts_of("run"), scripts_of("pair")]
    assert {*pages[0], *pages[1]} == {file.stem for file in FOLDER.glob("*.js")}
    for scripts in pages:
        for at, name in enumerate(scripts):
            text = (FOLDER / f"{name}.js").read_text()
            imported = re.findall(r'^import .* from "\./(\w+)\.js";', text, re.MULTILINE)
            assert set(imported) <= set(scripts[:at]), name


def test_a_model_without_a_run_has_no_scripts_and_styles_of_runs(resnet: str) -> None:
    for part in ("Layers over the steps", "EventSource", "DecompressionStream", ".heat-row"):
        assert part not in resnet


def test_a_page_lays_graphs_out_as_pictures_do(visit: Visit) -> None:
    with visit(html_report(Scan(nn.Linear(4, 4), (4,)))) as page:
        for seed in range(12):
            edges = a_graph(seed, 3 + 4 * seed)
            layout, sizes = lay_out_graph(3 + 4 * seed, edges)
            given = [[size._asdict() for size in sizes], edges]
            found = page.evaluate("([sizes, edges]) => $layout.laidOut(sizes, edges)", given)
            assert [tuple(each) for each in found["places"]] == [
                pytest.approx(each) for each in layout.places
            ]
            assert found["size"] == pytest.approx(layout.size._asdict())
            assert [[tuple(point) for point in way] for way in found["ways"]] == [
                [pytest.approx(point) for point in way] for way in layout.ways
            ]


# -- all sorts of models -------------------------------------------------------------------------------------------------


def _unet() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one = self.down(x)
        up: Tensor = self.up(self.middle(self.pool(one)))
        return torch.cat([up, one], 1)

    return Calls(
        forward,
        down=nn.Conv2d(3, 4, 3, padding=1),
        pool=nn.MaxPool2d(2),
        middle=nn.Conv2d(4, 4, 1),
        up=nn.Upsample(scale_factor=2),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4), 6),
        (10, 64),
        {"layers.0 … 5"},
    ),
    "unet": (_unet, (3, 16, 16), {"down", "cat"}),
    "inception": (
        lambda: torchvision.models.inception_v3(weights=None, init_weights=False),
        (3, 299, 299),
        {"Conv2d_1a_3x3", "Mixed_7c"},
    ),
    "lstm": (lambda: nn.Sequential(nn.LSTM(8, 8)), (5, 8), {"0"}),
    "recursive": (
        lambda: Calls(lambda self, x, n=3: self(self.fc(x), n - 1) if n else x, fc=nn.Linear(4, 4)),
        (4,),
        {"fc", "Calls (2)"},
    ),
}


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_sorts(visit: Visit, name: str) -> None:
    make, shape, expected = MODELS[name]
    with visit(html_report(Scan(make(), shape))) as page:
        assert expected <= set(boxes(page))
        for at in range(page.locator("tbody tr").count()):
            page.locator("tbody tr").nth(at).click()
        page.locator("[data-opens]").first.dispatch_event("click")


def test_a_pass_that_fails(visit: Visit) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.Flatten(), nn.Linear(100, 10)))
    with visit(html_report(Scan(model, (3, 8, 8)))) as page:
        assert (
            "the layer takes 100 features and is given 288" in page.locator(".error").inner_text()
        )
        assert page.locator(".node.failed").get_attribute("data-name") == "1"
        box(page, "1").dblclick()
        assert page.locator(".node.failed").get_attribute("data-name") == "1"
        assert "failed" in page.locator("tr.failed").last.inner_text()


def test_a_model_that_calls_nothing(visit: Visit) -> None:
    with visit(html_report(Scan(Calls(lambda self, x: x), (4,)))) as page:
        assert boxes(page) == ["args[0]", "output"]


@pytest.mark.sweep
def test_a_level_of_many_thousand_lines(visit: Visit) -> None:
    """As arguments of one call they would be too many."""
    with visit(html_report(Scan(nn.Linear(4, 4), (4,)))) as page:
        edges = [[at, 700] for at in range(700)] + [[at, 701] for at in range(701)]
        chain = [[at, at + 1] for at in range(700)]
        sizes = [{"wide": 80, "tall": 40}] * 702
        assert (
            page.evaluate(
                "([sizes, edges]) => $layout.laidOut(sizes, edges).size.tall",
                [sizes, edges + chain],
            )
            > 0
        )


def test_equal_calls_are_found_by_each_of_their_addresses(visit: Visit) -> None:
    model = Calls(
        lambda self, x: self.cell(self.cell(self.cell(self.fc(x)))),
        fc=nn.Linear(4, 4),
        cell=nn.Linear(4, 4),
    )
    with visit(html_report(Scan(model, (4,)))) as page:
        for address in ("cell", "cell@2", "cell@3"):
            page.evaluate("address => { location.hash = address; }", f"#{address}")
            page.locator("tr.selected", has_text="cell").wait_for()
            assert "there is no" not in where(page)


class Evil(nn.Linear):
    def extra_repr(self) -> str:
        return EVIL


EVIL = (
    '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned=1">\u202e\u0007=,'
    + "y" * 10_000
)


def test_hostile_data_is_text(visit: Visit) -> None:
    model = Calls(lambda self, x: self._modules[EVIL](x))
    model._modules[EVIL] = Evil(4, 4)
    with visit(html_report(Scan(model, (4,)), EVIL)) as page:
        name = boxes(page)[1]
        assert name.startswith("</script>")
        assert "\u202e" not in page.content()
        page.locator(".node").nth(1).hover()
        assert str(page.locator(".panel.graph > .read").text_content()).count("<img") >= 1
        page.locator(".node").nth(1).dblclick()
        assert page.locator("script, img").count() == 0
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 1000


@pytest.mark.sweep
def test_a_level_of_two_thousand_modules_can_be_moved(visit: Visit) -> None:
    """Each is of another kind than the next, so that none are equal."""
    layers = [nn.ReLU() if at % 2 else nn.Tanh() for at in range(2000)]
    with visit(html_report(Scan(nn.Sequential(*layers), (4,)))) as page:
        assert page.locator(".node").count() < 40, "ranges of modules are folded"
        page.mouse.move(200, 500)
        page.mouse.down()
        for step in range(20):
            page.mouse.move(200, 500 - 10 * step)
        page.mouse.up()
        assert "translate" in str(page.locator("svg.graph > g").get_attribute("transform"))


def test_modules_nested_deeply(visit: Visit) -> None:
    model: nn.Module = nn.ReLU()
    for _ in range(80):
        model = nn.Sequential(model)
    with visit(html_report(Scan(model, (4,)))) as page:
        assert page.evaluate("location.hash = '#' + Array(80).fill(0).join('.')")
        page.wait_for_selector(".node.selected")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 1000
