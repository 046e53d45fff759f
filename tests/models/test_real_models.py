"""Real models, random weights: recorded on shapes alone, parameters exact, nothing left behind, the same as a real pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.models.catalogue import SMALL, TIMED, Case
from tests.models.zoo import Row, rows
from tests.observables import observables
from tests.recording.test_record import output_shapes
from torchscan import RecordError, crawl_module, record
from torchscan.analyses.totals import total_cost

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore", "error:.*torchscan"),  # these libraries warn of each other
]

#: what may differ where the CPU goes its own way: XCiT's convolutions choose their output's layout by kernel there, and
#: transformers counts the tokens of an expert in floating point
TRAFFIC = {"dmas", "bytes_read", "bytes_written", "flops"}

SMALL_CASES = pytest.mark.parametrize("case", SMALL.values(), ids=SMALL.keys())


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def counted(info: dict[str, Any]) -> int:
    return int(info["overall"]["grad_params"] + info["overall"]["nograd_params"])


@pytest.mark.few(6)
@SMALL_CASES
def test_a_small_model_gives_the_same_on_shapes_alone_and_for_real(case: Case) -> None:
    model = case.build()
    before = observables(model)
    abstract, real = (
        crawl_module(model, **case.inputs, execute=how) for how in ("abstract", "real")
    )
    assert observables(model) == before
    assert counted(abstract) == parameters_of(model)
    assert abstract["provenance"]["execution"] == "abstract"
    ignored = TRAFFIC if case in (SMALL["timm xcit"], SMALL["Mixtral"]) else set()
    for one, other in zip(abstract["layers"], real["layers"], strict=True):
        assert {key: one[key] for key in one if key not in ignored} == {
            key: other[key] for key in other if key not in ignored
        }


@pytest.mark.few(3)
@SMALL_CASES
def test_a_training_step_costs_the_same_on_shapes_alone_and_for_real(case: Case) -> None:
    """Every operator of it has a price. wav2vec 2 decides by random numbers which layers it runs, so it runs for real."""
    model = case.build()
    inputs = dict(case.inputs) | (
        {"batch_size": 2} if "input_shape" in case.inputs else {}
    )  # batch norm wants two samples
    before = observables(model)
    auto, real = (
        record(model, **inputs, mode="train", training=True, execute=how)
        for how in ("auto", "real")
    )
    assert observables(model) == before
    assert auto.provenance.execution == ("real" if case is SMALL["wav2vec 2"] else "abstract")
    ignores_flops = case in (SMALL["Mixtral"], SMALL["wav2vec 2"])
    for phase in ("forward", "backward"):
        one, other = (total_cost(trace, phase=phase, strict=True) for trace in (auto, real))
        assert case is SMALL["wav2vec 2"] or one.macs == other.macs > 0
        assert ignores_flops or one.flops == other.flops


@pytest.mark.few(2)
@SMALL_CASES
def test_a_model_that_fails_at_its_end_is_as_before(case: Case) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("at the end")

    model = case.build()
    model.register_forward_hook(fail)
    before = observables(model)
    for execute in ("abstract", "real"):
        with pytest.raises(RecordError, match="at the end"):
            crawl_module(model, **case.inputs, execute=execute)
    assert observables(model) == before


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        ("ResNet-50", 25_557_032, 4.089e9),
        ("ViT-B/16", 86_567_656, 17.564e9),
        ("Swin-T", 28_288_354, 4.491e9),
        ("EfficientNet-B4", 19_341_616, 4.394e9),
        ("ConvNeXt-T", 28_589_128, 4.456e9),
        ("DenseNet-121", 7_978_856, 2.834e9),
        # their operations are counted in test_transformers.py, too
        pytest.param("BERT-base", 109_482_240, None, marks=pytest.mark.sweep),
        pytest.param("GPT-2", 124_439_808, None, marks=pytest.mark.sweep),
        pytest.param("Llama-7B", 6_738_415_616, None, marks=pytest.mark.sweep),
    ],
)
def test_large_models_without_their_memory(name: str, parameters: int, macs: float | None) -> None:
    """Parameters as published; MACs as torchvision publishes them with its weights, to three decimals of a billion."""
    case = TIMED[name]
    info = crawl_module(case.on_meta(), **case.inputs)
    assert counted(info) == parameters
    assert info["provenance"]["execution"] == "abstract"
    assert macs is None or abs(info["overall"]["macs"] - macs) <= 0.5e6


def _families(path: Path) -> list[Row]:
    """The smallest member of each family of the zoo: models whose names begin with the same word."""
    smallest: dict[tuple[str, ...], Row] = {}
    for row in rows(path):
        family = (row.source, row.kind, re.split(r"[_\d]", row.model)[0])
        if family not in smallest or row.parameters < smallest[family].parameters:
            smallest[family] = row
    return [row for row in smallest.values() if row.kind != "ObjectDetection"]


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(16))
def test_every_family_of_the_zoo_is_recorded_and_left_as_it_was(
    part: int, truth: Callable[[str], Path]
) -> None:
    families = _families(truth("zoo.csv"))
    assert len(families) > 80
    for row in families[part::16]:
        model = row.build()
        before = observables(model)
        trace = record(model, **row.inputs, execute="abstract")
        assert observables(model) == before, row.model
        assert output_shapes(trace), row.model
        with pytest.raises(RecordError):
            record(model, **row.inputs, kwargs={"no_such_argument": 1}, execute="abstract")
        last = [each for each in model.modules() if not list(each.children())][-1]
        handle = last.register_forward_hook(lambda *_: 1 / 0)
        before = observables(model)
        with pytest.raises(RecordError, match="ZeroDivisionError"):
            record(model, **row.inputs, execute="abstract")
        assert observables(model) == before, row.model
        handle.remove()
