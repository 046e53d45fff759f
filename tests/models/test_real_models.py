"""Real models, random weights: recorded on shapes alone, parameters exact, nothing left behind, the same as a real pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import torchscan
from tests.models.catalogue import LLAMA_3_1_405B, MIXTRAL_8X7B, SMALL, TIMED, Case
from tests.models.zoo import Row, rows
from tests.observables import observables
from tests.trace.test_record import output_shapes

pytestmark = pytest.mark.filterwarnings("ignore", "error:.*torchscan")  # these libraries warn of each other

#: what may differ where the CPU goes its own way: XCiT's convolutions choose their output's layout by kernel there, and
#: transformers counts the tokens of an expert in floating point
TRAFFIC = {"dmas", "bytes_read", "bytes_written", "flops"}

SMALL_CASES = pytest.mark.parametrize("case", SMALL.values(), ids=SMALL.keys())


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def counted(info: dict[str, Any]) -> int:
    return int(info["overall"]["grad_params"] + info["overall"]["nograd_params"])


@SMALL_CASES
def test_a_small_model_gives_the_same_on_shapes_alone_and_for_real(case: Case) -> None:
    model = case.build()
    before = observables(model)
    abstract, real = (torchscan.crawl_module(model, **case.inputs, execute=how) for how in ("abstract", "real"))
    assert observables(model) == before
    assert counted(abstract) == parameters_of(model)
    assert abstract["provenance"]["execution"] == "abstract"
    ignored = TRAFFIC if case in (SMALL["timm xcit"], SMALL["Mixtral"]) else set()
    for one, other in zip(abstract["layers"], real["layers"], strict=True):
        assert {key: one[key] for key in one if key not in ignored} == {key: other[key] for key in other if key not in ignored}


@SMALL_CASES
def test_a_model_that_fails_at_its_end_is_as_before(case: Case) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("at the end")

    model = case.build()
    model.register_forward_hook(fail)
    before = observables(model)
    for execute in ("abstract", "real"):
        with pytest.raises(torchscan.RecordError, match="at the end"):
            torchscan.crawl_module(model, **case.inputs, execute=execute)
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
        ("BERT-base", 109_482_240, None),
        ("GPT-2", 124_439_808, None),
        ("Llama-7B", 6_738_415_616, None),
    ],
)
def test_large_models_without_their_memory(name: str, parameters: int, macs: float | None) -> None:
    """Parameters as published; MACs as torchvision publishes them with its weights, to three decimals of a billion."""
    case = TIMED[name]
    info = torchscan.crawl_module(case.on_meta(), **case.inputs)
    assert counted(info) == parameters
    assert info["provenance"]["execution"] == "abstract"
    assert macs is None or abs(info["overall"]["macs"] - macs) <= 0.5e6


def test_llama_3_1_405b() -> None:
    """405.85 B parameters. MACs at 2,048 tokens: tokens · (parameters − embedding table − 16,384 per norm) + attention.

    Norms: two a layer and the last. Attention, dense: layers · heads · tokens² · 2 · 128.
    """
    tokens, hidden, layers = 2048, 16384, 126
    info = torchscan.crawl_module(LLAMA_3_1_405B.on_meta(), **LLAMA_3_1_405B.inputs)
    assert counted(info) == 405_853_388_800
    matrices = 405_853_388_800 - 128256 * hidden - (2 * layers + 1) * hidden
    assert info["overall"]["macs"] == tokens * matrices + layers * 128 * tokens**2 * 2 * 128
    assert info["overall"]["complete"]


def test_mixtral_8x7b_with_balanced_routing() -> None:
    """46.70 B parameters, of which each token meets 2 of 8 experts (3 matrices of 4,096 × 14,336 in each of 32 layers)."""
    tokens, expert = 512, 3 * 4096 * 14336
    info = torchscan.crawl_module(MIXTRAL_8X7B.on_meta(), **MIXTRAL_8X7B.inputs)
    assert counted(info) == 46_702_792_704
    assert any("balanced routing" in text for text in info["provenance"]["assumptions"])
    idle = 32 * 6 * expert + 32000 * 4096 + 65 * 4096
    attention = 32 * 32 * tokens**2 * 2 * 128
    assert info["overall"]["macs"] == tokens * (46_702_792_704 - idle) + attention


def _families(path: Path) -> list[Row]:
    """The smallest member of each family of the zoo: models whose names begin with the same word."""
    smallest: dict[tuple[str, ...], Row] = {}
    for row in rows(path):
        family = (row.source, row.kind, re.split(r"[_\d]", row.model)[0])
        if family not in smallest or row.parameters < smallest[family].parameters:
            smallest[family] = row
    return [row for row in smallest.values() if row.kind != "ObjectDetection"]


def test_every_family_of_the_zoo_is_recorded_and_left_as_it_was(truth: Callable[[str], Path]) -> None:
    families = _families(truth("zoo.csv"))
    assert len(families) > 80
    for row in families:
        model = row.build()
        before = observables(model)
        trace = torchscan.record(model, **row.inputs, execute="abstract")
        assert observables(model) == before, row.model
        assert output_shapes(trace), row.model
        with pytest.raises(torchscan.RecordError):
            torchscan.record(model, **row.inputs, kwargs={"no_such_argument": 1}, execute="abstract")
        last = [each for each in model.modules() if not list(each.children())][-1]
        handle = last.register_forward_hook(lambda *_: 1 / 0)
        before = observables(model)
        with pytest.raises(torchscan.RecordError, match="ZeroDivisionError"):
            torchscan.record(model, **row.inputs, execute="abstract")
        assert observables(model) == before, row.model
        handle.remove()
