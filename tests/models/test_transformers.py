"""Published language models: parameters and MACs to the last one as by hand, every operator known, on shapes alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.language_models import LANGUAGE_MODELS, LanguageModel
from torchscan import crawl_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore", "error:.*torchscan"
    ),  # transformers warns of what it will change
]


#: one of each family, and of Llama one with as many key heads as heads and one with fewer
FAMILIES: tuple[str, ...] = (
    "GPT-2",
    "BERT-base, 1",
    "T5-base, 1",
    "CLIP ViT-B/32, 1",
    "Mamba",
    "Whisper",
    "Mixtral",
)
FAMILIES += ("Llama-2-7B", "Llama-3.1-8B")


def _cases() -> list[Any]:
    return [
        pytest.param(
            each, id=each.name, marks=[] if each.name.startswith(FAMILIES) else pytest.mark.sweep
        )
        for each in LANGUAGE_MODELS
    ]


@pytest.mark.parametrize("model", _cases())
def test_a_published_model_costs_what_its_configuration_says(model: LanguageModel) -> None:
    assert model.parameters == model.published
    module = model.case.on_meta()
    assert sum(parameter.numel() for parameter in module.parameters()) == model.published
    info = crawl_module(module, **model.case.inputs, execute="abstract")
    overall = info["overall"]
    assert overall["grad_params"] + overall["nograd_params"] == model.published
    assert overall["macs"] == model.macs
    assert overall["flops"] >= 2 * model.macs
    assert info["without_formula"] == {}
    assert overall["complete"]
    assert info["provenance"]["execution"] == "abstract"
    assert any(
        each["code"] == "balanced-routing" for each in info["provenance"]["assumptions"]
    ) == ("Mixtral" in model.name)
