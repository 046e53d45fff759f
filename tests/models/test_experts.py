"""Mixtures of experts of transformers with random weights, in all the ways in which they run their experts."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn as nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.recording.test_record import Calls
from tests.sweeps import some_of
from torchscan import analyze_roofline, crawl_module, record
from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.totals import by_operator, total_cost
from torchscan.types import OpCost

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore", "error:.*torchscan"
    ),  # transformers warns of what it will change
]

#: 16 experts, of which a token picks 4: a matrix of 64 × 64 for gate and input, one of 32 × 64 for the output, in 2 bytes
EXPERT = 64 * 64 * 2 + 32 * 64 * 2
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
#: that read the experts; transformers has a grouped product of its own where torch has none
OPERATORS = {
    "eager": ["aten.linear", "aten.matmul"],
    "batched_mm": ["aten.index"],
    "grouped_mm": ["aten._grouped_mm", "transformers.grouped_mm_fallback"],
}
WAYS = tuple(OPERATORS)


def configuration(name: str) -> Any:
    if name == "Qwen3Moe":
        sizes = {
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 1,
        }
        return transformers.Qwen3MoeConfig(**GROUPED, **sizes, head_dim=16, mlp_only_layers=[])
    if name == "DeepseekV3":
        heads = {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        }
        groups = {
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
            "intermediate_size": 64,
        }
        sizes = {
            "n_routed_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "num_key_value_heads": 4,
        }
        return transformers.DeepseekV3Config(**SIZES, **heads, **groups, **sizes)
    count = "num_experts" if name == "Olmoe" else "num_local_experts"
    sizes = {count: 16, "num_experts_per_tok": 4, "intermediate_size": 32}
    return getattr(transformers, f"{name}Config")(
        **GROUPED, **sizes, **({"head_dim": 16} if name == "GptOss" else {})
    )


def language_model(name: str, config: Any, way: str) -> nn.Module:
    config._experts_implementation = way
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.to(torch.bfloat16)


def cost_of_products(name: str, way: str, tokens: int) -> OpCost:
    """The operators that read the experts."""
    trace = record(
        language_model(name, configuration(name), way), (tokens,), torch.long, execute="abstract"
    )
    products = [
        cost
        for op, cost in zip(trace.ops, call_costs(trace), strict=True)
        if op.signature.operator in OPERATORS[way]
        and trace.path_of(op).startswith("model.layers.0.mlp.experts")
    ]
    return sum(products, OpCost())


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", some_of(["Qwen3Moe", "Mixtral", "Olmoe", "DeepseekV3", "GptOss"], {"Mixtral", "Olmoe"})
)
def test_a_layer_reads_the_experts_that_its_tokens_can_be_expected_to_hit(
    name: str, way: str, tokens: int
) -> None:
    """16 · (1 − (3/4)³) = 9.25 for 3 tokens, 4 for one; 4 at least.

    Besides, a grouped product reads 4 rows for each token, of 64 numbers and of 32, and twice the ends of 16 groups in 4 bytes;
    a loop the rows; a gather indices of 8 bytes, and where there is one, biases of 64 numbers.
    """
    cost, slots = cost_of_products(name, way, tokens), 4 * tokens
    bias = 2 * 64 * 2 if name == "GptOss" else 0
    hit = {"eager": {1: 4.0, 3: 9.0}}.get(way, {1: 4.0, 3: 9.25})[tokens]
    rows, indices = slots * (64 + 32) * 2, 2 * slots * 8
    if way == "batched_mm":
        others, each = indices * (2 if bias else 1), EXPERT + bias
    else:
        others, each = rows + (2 * 16 * 4 if way == "grouped_mm" else 0), EXPERT
    assert cost.bytes_read == pytest.approx(hit * each + others, abs=2)
    assert cost.min_bytes_read == pytest.approx(
        4 * each + others, abs=18
    )  # 9 experts in whole bytes, twice
    assert cost.macs == (0 if way == "batched_mm" else slots * EXPERT // 2)


def test_the_grouped_product_of_transformers_costs_what_torchs_does() -> None:
    """Ten rows of 8 numbers, four experts of 8 × 16: 1,280 MACs, and as many for each gradient."""
    importlib.import_module("transformers.integrations.moe")
    experts, ends = (
        nn.Parameter(torch.zeros(4, 8, 16)),
        torch.tensor([3, 3, 7, 10], dtype=torch.int32),
    )
    model = Calls(
        lambda self, x: torch.ops.transformers.grouped_mm_fallback(x, self.experts, ends),
        experts=experts,
    )
    costs = by_operator(
        record(
            model,
            args=(torch.zeros(10, 8, requires_grad=True),),
            training=True,
            mode="eval",
            execute="abstract",
        )
    )
    forward, backward = (
        costs[f"transformers.grouped_mm_fallback{each}"] for each in ("", "_backward")
    )
    assert (forward.macs, backward.macs) == (1280, 2560)
    hit = 4 * (1 - (3 / 4) ** 10)  # each row picks one expert
    assert forward.bytes_read == pytest.approx(4 * (10 * 8 + 4) + hit * 4 * 8 * 16, abs=1)
    assert backward.bytes_read == pytest.approx(
        4 * (10 * 8 + 4 + 10 * 16) + hit * 4 * 8 * 16, abs=1
    )
    assert (forward.elements_written, backward.elements_written) == (10 * 16, 10 * 8 + 4 * 8 * 16)


def qwen3_30b_a3b(way: str) -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        vocab_size=151936,
    )
    return language_model("Qwen3Moe", config, way)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["grouped_mm", "eager"])
def test_a_decoding_step_of_30_billion_parameters_reads_three_of_them(way: str) -> None:
    """A layer reads 18,874,368 numbers of attention, 262,144 of the router, and 8 experts of 3 · 2048 · 768 = 37,748,736.

    48 layers and a head of 2048 · 151,936 are 3,041,656,832 numbers: 6.08 GB in 2 bytes, 1.816 ms at 3.35 TB/s. Reading all
    128 experts would take 18 ms.
    """
    result = analyze_roofline(qwen3_30b_a3b(way), (1,), torch.long, batch_size=1, device="H100 SXM")
    assert result.time_bound == pytest.approx(2 * 3_041_656_832 / 3.35e12, rel=0.01)
    assert 2 * 3_041_656_832 < result.total.bytes_read < 1.01 * 2 * 3_041_656_832


def test_a_loop_promises_no_less_than_the_pass_in_which_all_tokens_agree() -> None:
    """12 equal tokens pick the same experts. What is not counted are numbers that tell the loop which expert is next."""
    torch.manual_seed(0)
    for name in ("Qwen3Moe", "DeepseekV3", "GptOss"):
        config = configuration(name)
        config._experts_implementation = "eager"
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        same = {"input_ids": torch.full((1, 12), 7)}
        real, abstract = (
            total_cost(record(model, kwargs=same, execute=how)) for how in ("real", "abstract")
        )
        assert abstract.min_bytes_read <= real.bytes_read + 1000
        assert abstract.bytes_read > 1.3 * real.bytes_read


@pytest.mark.sweep
def test_its_parameters_are_all_of_them() -> None:
    overall = crawl_module(qwen3_30b_a3b("grouped_mm"), (1,), torch.long)["overall"]
    assert overall["grad_params"] == 30_532_122_624
