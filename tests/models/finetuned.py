"""Published runs of full fine-tuning on A100 cards, and estimates of what they allocate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan import estimate_memory
from torchscan.analyses.memory_estimate import MemoryEstimate

FINETUNING = "finetune_fms_acceleration_a100.csv.gz"
CARD = "NVIDIA A100-SXM4-80GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningRun:
    """A published run of full fine-tuning."""

    name: str
    cards: int
    #: sequences of one card
    batch: int
    tokens: int
    #: ``max_memory_allocated`` of the first card
    allocated_bytes: int


def santacoder(layers: int = 24) -> nn.Module:
    """Return GPTBigCode with multi-query attention: one head of keys and values."""
    import transformers

    return transformers.GPTBigCodeForCausalLM(
        transformers.GPTBigCodeConfig(
            vocab_size=49280,
            n_positions=2048,
            n_embd=2048,
            n_layer=layers,
            n_head=16,
            n_inner=8192,
            activation_function="gelu_pytorch_tanh",
            multi_query=True,
        )
    )


def powerlm(layers: int = 40) -> nn.Module:
    """Return Granite with 3B parameters, when it has 40 layers."""
    import transformers

    return transformers.GraniteForCausalLM(
        transformers.GraniteConfig(
            vocab_size=49152,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=layers,
            num_attention_heads=36,
            num_key_value_heads=36,
            max_position_embeddings=4096,
            embedding_multiplier=12.0,
            logits_scaling=9.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
            tie_word_embeddings=True,
        )
    )


def llama_3(layers: int = 32, **sizes: Any) -> nn.Module:
    """Return Llama-3-8B, or one with other sizes of its config."""
    import transformers

    known = {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
    }
    config = transformers.LlamaConfig(num_hidden_layers=layers, **known | sizes)
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


class _Model(NamedTuple):
    #: makes the model from the sizes of its published config
    build: Callable[[], nn.Module]
    #: the path of its layers
    layers: str
    #: whether the loss is computed in 32 bits: transformers 4.48, which was measured, computed
    #: that of GPTBigCode in the type of the logits
    upcasts: bool


MODELS: Mapping[str, _Model] = {
    "bigcode/gpt_bigcode-santacoder": _Model(santacoder, "transformer.h", upcasts=False),
    "ibm/PowerLM-3b": _Model(powerlm, "model.layers", upcasts=True),
    "meta-llama/Meta-Llama-3-8B": _Model(llama_3, "model.layers", upcasts=True),
    "TechxGenus/Meta-Llama-3-8B-GPTQ": _Model(llama_3, "model.layers", upcasts=True),
}


def loss_in_half(labels: Tensor, output: Any) -> Tensor:
    """Return the loss in the type of the logits."""
    scores = output.logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    return F.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1))


def allocated_by(run: FinetuningRun, *, holds_output: bool) -> int:
    """Return the estimate of ``max_memory_allocated``: bf16, AdamW, gradient checkpointing."""
    known = MODELS[run.name]
    with torch.device("meta"):
        model: Any = known.build().bfloat16().train()
    model.gradient_checkpointing_enable()
    tokens = torch.zeros(run.batch, run.tokens, dtype=torch.long)
    labels = {"labels": tokens} if known.upcasts else {}
    step: dict[str, Any] = {
        "kwargs": {"input_ids": tokens, "use_cache": False, **labels},
        "training": True,
        "loss": _loss_of if known.upcasts else partial(loss_in_half, tokens),
        "optimizer": "AdamW",
        "holds_output": holds_output,
        "device": CARD,
        "progress": False,
    }
    estimate: MemoryEstimate
    if run.cards == 1:
        estimate = estimate_memory(model, **step)
    else:
        shard = partial(_shard, known.layers)
        estimate = torchscan.parallel.plan(
            model, mesh={"dp": run.cards}, apply=shard, **step
        ).memory
    assert estimate.verdict is not None
    return estimate.verdict.allocated_bytes


def _loss_of(output: Any) -> Any:
    return output.loss


def _shard(path: str, model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for part in (*model.get_submodule(path).children(), model):
        fully_shard(part, mesh=mesh["dp"])
