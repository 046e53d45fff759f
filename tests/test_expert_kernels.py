"""Mixtures of experts as engines run them, and checkpoints that keep modules in 16 bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan.types import Engine, Generation

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

PLAIN = Engine(name="plain", joins_projections=True)
HIDDEN, INNER, EXPERTS, PICKS, VOCABULARY = 256, 128, 16, 2, 1000
#: seconds of a launch that compiled code does not wait for
LAUNCH = 2.1e-6


def _mixture(**options: Any) -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=512,
        moe_intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=PICKS,
        **options,
    )
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model.eval()


def _asked(model: nn.Module, **options: Any) -> Generation:
    given: dict[str, Any] = {"device": "H100", "engine": PLAIN, **options}
    found = torchscan.analyze_generation(model, 64, 8, **given)
    assert isinstance(found, Generation)
    return found


def _expert_calls(found: Generation) -> list[Any]:
    loads = found.decode.operators
    return [load for load in loads if load.layer.startswith("model.layers.1.mlp")]


def test_an_engine_runs_a_mixture_in_seven_kernels() -> None:
    """Scores, picks, sorting, two products, the activation and the sum over picks."""
    launched = [load for load in _expert_calls(_asked(_mixture())) if load.time_estimate >= LAUNCH]
    assert len(launched) == 7
    assert [load.operator for load in launched if load.macs] == [
        "aten.mm",
        "aten._grouped_mm",
        "aten._grouped_mm",
    ]


def test_eager_code_launches_each_operator_of_a_mixture() -> None:
    eager = _expert_calls(_asked(_mixture(), engine="transformers"))
    assert "aten.sort" in [load.operator for load in eager if load.time_estimate > 10e-6]


def test_products_gather_the_rows_of_tokens() -> None:
    """The rows of 8 tokens are read once, though each has two experts, and 10.5 of 16 are hit."""
    found = _asked(_mixture(), batch_size=8)
    loads = {load.operator: load for load in reversed(_expert_calls(found))}
    share = 1 - (1 - PICKS / EXPERTS) ** 8
    weights = share * EXPERTS * HIDDEN * 2 * INNER * 2
    ends = EXPERTS * 4
    assert loads["aten._grouped_mm"].bytes_read == pytest.approx(weights + ends, abs=1)
    picks = 8 * PICKS * 8
    assert loads["aten.index"].bytes_read == 8 * HIDDEN * 2 + picks


def _bytes(numel: int, bits: float) -> float:
    return numel * bits / 8


@pytest.mark.parametrize(
    "kept",
    [
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"]},
    ],
)
def test_weights_of_kept_modules_stay_in_16_bits(kept: dict[str, Any]) -> None:
    """MXFP4 has 4 bits for each weight, and 8 for each 32."""
    found = _asked(_mixture(quantization_config=kept), weights="mxfp4")
    attention = 2 * HIDDEN * (8 + 2) * 32 * 2
    router = HIDDEN * EXPERTS
    experts = 3 * EXPERTS * HIDDEN * INNER
    norms = 2 * HIDDEN + 2 * 32
    whole = 2 * 2 * (attention // 2 + norms) + 2 * (2 * VOCABULARY * HIDDEN + HIDDEN)
    packed = 2 * _bytes(experts + router, 4 + 8 / 32)
    frequencies = 2 * 16 * 4
    assert found.weights_bytes == pytest.approx(whole + packed + frequencies, rel=1e-4)


def test_a_format_of_the_checkpoint_that_is_not_applied_is_noted() -> None:
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    notes = [note.code for note in _asked(_mixture(quantization_config=quantized)).assumptions]
    assert "checkpoint-format" in notes
    applied = _asked(_mixture(quantization_config=quantized), weights="mxfp4")
    assert "checkpoint-format" not in [note.code for note in applied.assumptions]
    assert "experts-fused" in notes


def test_blackwell_multiplies_inputs_of_8_bits_by_weights_of_4() -> None:
    found = _asked(_mixture(), device="B200", compute="fp8", weights="mxfp4")
    assert (found.compute, found.weights) == ("fp8", "mxfp4")
    with pytest.raises(torchscan.InputError, match="does not multiply it by weights in mxfp4"):
        _asked(_mixture(), compute="fp8", weights="mxfp4")


@pytest.mark.sweep
def test_margins_of_dense_models_are_not_those_of_mixtures() -> None:
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1)
    with torch.device("meta"):
        dense = transformers.LlamaForCausalLM(config).eval()
    of_mixture, of_dense = (
        _asked(each, engine="vllm-0.12", batch_size=8).margin.reason for each in (_mixture(), dense)
    )
    assert of_dense.code == "serving-validated"
    assert of_mixture != of_dense


def _with_shared_expert() -> nn.Module:
    config = transformers.DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=512,
        moe_intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=PICKS,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=0,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        qk_nope_head_dim=32,
        v_head_dim=32,
    )
    with torch.device("meta"):
        model: nn.Module = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    return model.eval()


@functools.cache
def _calls_with_shared_expert(engine: str | Engine) -> list[Any]:
    return _expert_calls(_asked(_with_shared_expert(), engine=engine))


def test_a_shared_expert_runs_beside_the_routed_ones() -> None:
    """Its products take the time of their bytes, and no launch of their own."""
    calls = _calls_with_shared_expert(PLAIN)
    shared = [load for load in calls if ".shared_experts" in load.layer]
    assert [load.operator for load in shared if load.macs] == ["aten.mm"] * 3
    assert all(load.time_estimate < LAUNCH for load in shared)
    assert sum(load.macs for load in shared) == 3 * HIDDEN * INNER
    eager = _calls_with_shared_expert("transformers")
    assert all(load.time_estimate > LAUNCH for load in eager if ".shared_experts" in load.layer)


def test_an_engine_converts_weights_once() -> None:
    """The router of DeepSeek-V3 computes with weights in single precision."""

    def converted(engine: Any) -> int:
        calls = _calls_with_shared_expert(engine)
        of_router = [load for load in calls if load.layer.endswith("mlp.gate")]
        return sum(
            load.operator == "aten._to_copy" and load.elements_read == EXPERTS * HIDDEN
            for load in of_router
        )

    assert (converted(PLAIN), converted("transformers")) == (0, 1)


def test_experts_in_4_bits_take_fewer_kernels_on_blackwell() -> None:
    """Scores, picks and sorting, two products, and the sum over picks."""
    options: dict[str, Any] = {"device": "B200", "weights": "mxfp4"}
    calls = _expert_calls(_asked(_mixture(), compute="fp8", **options))
    assert sum(load.time_estimate >= LAUNCH for load in calls) == 5
    unpacked = _expert_calls(_asked(_mixture(), **options))
    assert sum(load.time_estimate >= LAUNCH for load in unpacked) == 7
