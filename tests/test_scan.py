"""One question, one record: how often a model runs for an answer, and that verbs and scans say the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan import (
    InputError,
    MissingFormulaError,
    Scan,
    analyze_roofline,
    assert_budget,
    crawl_module,
    estimate_memory,
    receptive_field,
    record,
    summary,
)
from torchscan.budgets.budget_assertion import Limits
from torchscan.cli.main import main
from torchscan.metrics import METRICS
from torchscan.recording.request import Mode

#: one entry for each time that the model below runs
RUNS: list[tuple[int, ...]] = []


class Net(nn.Module):
    """Notes that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        RUNS.append(tuple(x.shape))
        out: Tensor = self.layers(x)
        return out


STEP: dict[str, Any] = {"training": True, "optimizer": "AdamW", "device": "H200"}
SHAPE = (3, 8, 8)


@pytest.fixture(autouse=True)
def runs() -> list[tuple[int, ...]]:
    RUNS.clear()
    return RUNS


def every_limit() -> dict[str, Any]:
    return {
        f"max_{name}": 9 if name == "latency" else 10**12
        for name, metric in METRICS.items()
        if metric.parse is not None
    }


@pytest.mark.parametrize(
    ("ask", "passes"),
    [
        (lambda model: record(model, SHAPE), 1),
        (lambda model: crawl_module(model, SHAPE), 1),
        (lambda model: crawl_module(model, SHAPE, training=True), 1),
        (lambda model: summary(model, SHAPE, receptive_field=True), 1),
        (lambda model: receptive_field(model, SHAPE), 1),
        (lambda model: estimate_memory(model, SHAPE), 1),
        (lambda model: estimate_memory(model, SHAPE, **STEP), 1),
        (lambda model: analyze_roofline(model, SHAPE, **STEP), 1),
        (lambda model: assert_budget(model, SHAPE, max_params="1M"), 1),
        (
            lambda model: assert_budget(
                model, SHAPE, max_peak_memory="1 GiB", max_latency="1 s", **STEP
            ),
            1,
        ),
        (lambda model: assert_budget(model, SHAPE, **every_limit(), **STEP), 2),
        (lambda model: assert_budget(model, SHAPE, **every_limit(), device="H200"), 2),
        (lambda model: torchscan.model_table({"net": model}, SHAPE, metrics=["params", "macs"]), 1),
        (
            lambda model: torchscan.model_table(
                {"net": model}, SHAPE, metrics=["latency"], device="H200"
            ),
            1,
        ),
        (
            lambda model: torchscan.model_table(
                {"net": model}, SHAPE, metrics=list(METRICS), **STEP
            ),
            2,
        ),
        (
            lambda model: torchscan.model_table(
                {"net": model}, SHAPE, metrics=list(METRICS), device="H200"
            ),
            2,
        ),
    ],
)
def test_passes_for_an_answer(
    ask: Callable[[nn.Module], Any], passes: int, runs: list[Any]
) -> None:
    ask(Net())
    assert len(runs) == passes


def test_a_scan_records_nothing_until_it_is_asked_and_then_once() -> None:
    scan = Scan(Net(), SHAPE, **STEP)
    assert RUNS == []
    for _ in range(2):
        assert scan.memory.verdict is not None
        assert scan.roofline.time_estimate > 0
        assert len(RUNS) == 1  # memory and time read the same record
    for _ in range(2):
        assert scan.forward.trace.provenance.mode == "train"
        assert (
            scan.forward.info["overall"]["macs"]
            == scan.forward.counts["overall"]["macs"]
            == 4 * 27 * 36 + 720
        )
        assert scan.forward.receptive_field["layers.0"].rf == 3
        assert len(RUNS) == 2


def test_an_inference_has_one_forward_pass_whole_and_one_in_pieces() -> None:
    scan = Scan(Net(), SHAPE, device="H200")
    assert scan.forward is scan
    answers = (
        scan.info,
        scan.counts,
        scan.receptive_field,
        scan.trace,
        scan.steps,
        scan.memory,
        scan.roofline,
    )
    assert all(answer is not None for answer in answers)
    assert len(RUNS) == 2


def test_the_search_for_the_largest_batch_takes_some_passes_more() -> None:
    """Two for how memory grows, the rest around the bound that follows: the docs speak of 3 to 25 for real models."""
    scan = Scan(Net(), SHAPE, **STEP)
    largest = scan.largest_batch()
    assert 3 <= len(RUNS) - 1 <= 30
    assert Scan(Net(), SHAPE, batch_size=largest, **STEP).memory.verdict.fits  # type: ignore[union-attr]


def test_verbs_are_a_line_over_a_scan() -> None:
    model = Net()
    scan = Scan(model, SHAPE, **STEP)
    assert scan.memory == estimate_memory(model, SHAPE, **STEP)
    assert scan.roofline == analyze_roofline(model, SHAPE, **STEP)
    plain = Scan(model, SHAPE)
    assert plain.info == crawl_module(model, SHAPE)
    assert plain.trace == record(model, SHAPE)
    assert plain.receptive_field == receptive_field(model, SHAPE)


def test_a_training_step_is_in_the_mode_that_is_given() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    step = record(model, (4,), training=True, mode="eval", loss=torch.sum)
    assert (step.provenance.mode, step.provenance.backward) == ("eval", True)
    assert not any("dropout" in op.signature.operator for op in step.ops)
    assert record(model, (4,), training=True).provenance.mode == "train"


def test_the_counts_of_a_training_step_hold_its_backward_pass_and_metrics_the_forward_pass() -> (
    None
):
    scan = Scan(nn.Linear(4, 5, bias=False), (4,), training=True)
    assert (
        scan.counts["overall"]["macs"] == 3 * 20 - 20
    )  # forward, and of the weight; the input needs no gradient
    assert METRICS["macs"].value(scan) == 20


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"optimizer": "AdamW"}, "belongs to a training step: give training=True"),
        ({"loss": torch.sum}, "belongs to a training step: give training=True"),
        ({"training": True, "loss": 3}, "loss is a int: give a function"),
        ({"precision": "fp12"}, "precision is 'fp12'"),
        ({"training": "yes"}, "training is 'yes': give True or False"),
    ],
)
def test_what_contradicts_itself_is_refused_at_once(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Scan(Net(), SHAPE, **asked)
    assert RUNS == []


def test_limits_are_those_of_the_metrics() -> None:
    assert set(Limits.__annotations__) == set(every_limit())


def test_a_report_of_everything_builds_its_model_once_and_runs_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(
        "import tests.test_scan as here\n\ndef make():\n    here.RUNS.append('built')\n    return here.Net()\n"
    )
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    options = [
        "--input",
        "3,8,8",
        "--training",
        "--optimizer",
        "AdamW",
        "--device",
        "H200",
        "--output",
        str(page),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["report", "nets.py:make", *options]) == 0
    assert [each for each in RUNS if each == "built"] == ["built"]  # type: ignore[comparison-overlap]
    assert len(RUNS) == 3
    text = page.read_text()
    assert all(
        f'"label":"{label}"' in text
        for label in ("One step", "Limited by", "Arithmetic", "Parameters")
    )
    assert '"remarks":[]' in text


def test_its_repr_is_short() -> None:
    assert repr(Scan(Net(), SHAPE, **STEP)) == "<Scan of Net: training step on H200>"
    assert repr(Scan(Net(), SHAPE)) == "<Scan of Net: inference>"


def test_a_warning_points_at_the_line_that_asked() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10_000_000))
    with pytest.warns(
        UserWarning, match="the pass does not fit on NVIDIA GeForce GTX 1650 Ti"
    ) as told:
        analyze_roofline(model, SHAPE, device="GTX 1650 Ti")
    assert [each.filename for each in told] == [__file__]


class FalseLoss(nn.Module):
    """Callable, and false: it has a length, and that is 0."""

    def __len__(self) -> int:
        return 0

    def forward(self, output: Tensor) -> Tensor:
        return output.sum()


def test_a_loss_that_is_false_is_a_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    modes: tuple[Mode, ...] = ("train", "eval")
    for mode in modes:
        scan, same = (
            Scan(model, (4,), training=True, loss=loss, mode=mode)
            for loss in (FalseLoss(), torch.sum)
        )
        assert scan.trace.provenance.backward
        assert scan.memory.peak_by_phase["backward"] == same.memory.peak_by_phase["backward"] > 0
        assert "training step" in repr(scan)


def test_what_cannot_be_answered_is_refused_before_the_model_runs() -> None:
    with pytest.raises(InputError, match="a latency needs a device"):
        assert_budget(Net(), SHAPE, max_latency="1 ms", max_params=1)
    with pytest.raises(InputError, match="needs inputs made from shapes: give input_shape="):
        Scan(Net(), args=(torch.zeros(1, *SHAPE),), device="H200").largest_batch()
    with pytest.raises(InputError, match="there is no metric"):
        torchscan.model_table({"net": Net()}, SHAPE, metrics=[])
    assert RUNS == []


@pytest.mark.parametrize(
    "metrics",
    [["params", "peak_memory"], ["peak_memory", "params"], iter(["peak_memory", "params"])],
)
def test_the_inputs_of_a_table_are_those_that_were_given(metrics: Any) -> None:
    table = torchscan.model_table({"net": Net()}, SHAPE, metrics=metrics, precision="bf16")
    assert "Inputs: float32 (1, 3, 8, 8), eval mode." in table.remarks


class Distances(nn.Module):
    """The gradient of its operator has no price, the operator has one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pdist(self.layer(x))


def test_a_latency_is_a_bound_where_an_operator_of_the_step_has_no_price() -> None:
    asked: dict[str, Any] = {"batch_size": 3, "training": True, "device": "H200"}
    assert_budget(Distances(), (4,), max_macs="1M", **asked)
    with pytest.raises(
        MissingFormulaError, match=r"only a lower bound is known for Latency.*_pdist_backward"
    ):
        assert_budget(Distances(), (4,), max_latency="1 s", **asked)
    assert_budget(Distances(), (4,), max_latency="1 s", strict=False, **asked)
