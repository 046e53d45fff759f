"""Published language models: parameters and MACs to the last one as by hand, every operator known, on shapes alone."""

from __future__ import annotations

import pytest

from tests.models.language_models import LANGUAGE_MODELS, LanguageModel
from torchscan import crawl_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore", "error:.*torchscan"
    ),  # transformers warns of what it will change
]


@pytest.mark.parametrize("model", LANGUAGE_MODELS, ids=lambda model: model.name)
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
