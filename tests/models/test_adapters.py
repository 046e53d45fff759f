"""Models with adapters of peft: what trains, what it takes, and how they generate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan import estimate_memory

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore", "error:.*torchscan")]

RANK = 8
#: of each layer, queries of 256 and values of 128, made from 256
ADAPTED = 2 * RANK * ((256 + 256) + (256 + 128))
BASE = 2 * 1000 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256


def _base(dtype: torch.dtype) -> Any:
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
    }
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(dtype)


def _with_adapters(base: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        base, peft.LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )


def _trained(model: Any, **options: Any) -> torchscan.types.MemoryEstimate:
    ids = torch.zeros(1, 128, dtype=torch.long)
    step: dict[str, Any] = {
        "training": True,
        "loss": lambda output: output.loss,
        "optimizer": "AdamW",
        "precision": "bf16-mixed",
    }
    return estimate_memory(
        model, kwargs={"input_ids": ids, "labels": ids, "use_cache": False}, **step, **options
    )


def _most(estimate: torchscan.types.MemoryEstimate, kind: Any) -> int:
    return max(each.by_kind[kind] for each in estimate.timeline)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_and_state_are_those_of_the_adapters_alone(dtype: torch.dtype) -> None:
    """Adapters are in single precision, whatever the model is in; AdamW has two numbers each, and a step for each tensor."""
    estimate = _trained(_with_adapters(_base(dtype)))
    assert _most(estimate, "parameters") == BASE * dtype.itemsize + ADAPTED * 4
    assert _most(estimate, "gradients") == ADAPTED * 4
    assert (
        _most(estimate, "optimizer") == 2 * ADAPTED * 4 + 8 * 4
    )  # two tensors in two places of two layers


def test_activations_that_only_frozen_weights_would_need_are_not_kept() -> None:
    """In 16 bits, 128 times: the 512 that go down; after attention, the 256 that a norm scales, and those that it returns."""
    frozen, whole = (
        _kept(model) for model in (_with_adapters(_base(torch.bfloat16)), _base(torch.bfloat16))
    )
    layer, adapted = "model.layers.1", "base_model.model.model.layers.1"
    assert whole[f"{layer}.mlp"] - frozen[f"{adapted}.mlp"] == 128 * 512 * 2
    norm = "post_attention_layernorm"
    assert whole[f"{layer}.{norm}"] - frozen[f"{adapted}.{norm}"] == 2 * 128 * 256 * 2


def _kept(model: Any) -> dict[str, int]:
    return {each.path: each.activation_bytes for each in _trained(model).layers}


def test_the_base_may_be_packed_in_4_bits() -> None:
    """In the layers half a byte a weight, and beside it a scale of 4 bytes for each 64, which is no parameter."""
    kernels = pytest.importorskip("bitsandbytes")
    base = _base(torch.bfloat16).to_empty(device="cpu")
    for path, layer in list(base.model.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            base.model.set_submodule(path, _packed(kernels.nn, layer))
    packed = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)
    model = _with_adapters(base)
    estimate = _trained(model)
    assert _most(estimate, "parameters") == (BASE - packed) * 2 + packed // 2 + ADAPTED * 4
    assert _most(estimate, "gradients") == ADAPTED * 4
    found = torchscan.analyze_generation(model.eval(), 16, 4, device="RTX 3090")
    assert found.params == BASE + ADAPTED
    assert (
        found.weights_bytes == _most(estimate, "parameters") + packed // 64 * 4 + 32 * 4
    )  # and frequencies


def _packed(layers: Any, layer: torch.nn.Linear) -> Any:
    made = layers.Linear4bit(
        *(layer.in_features, layer.out_features),
        bias=False,
        quant_type="nf4",
        compress_statistics=False,
        compute_dtype=layer.weight.dtype,
    )
    return made.to("cpu")


def test_what_has_adapters_generates() -> None:
    found = torchscan.analyze_generation(
        _with_adapters(_base(torch.bfloat16)).eval(), 16, 4, device="RTX 3090"
    )
    assert found.params == BASE + ADAPTED
    assert found.cache_bytes_per_token == 2 * 2 * 2 * 64 * 2


def test_random_numbers_stay_where_they_were() -> None:
    """Adapters of embeddings are drawn at random by peft."""
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(r=RANK, target_modules=["q_proj", "embed_tokens"])
    state = torch.get_rng_state()
    _trained(_base(torch.bfloat16), lora=adapters)
    assert torch.equal(torch.get_rng_state(), state)
