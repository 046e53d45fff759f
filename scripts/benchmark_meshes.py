"""Compares estimated with published throughputs of training language models on 64 cards, sharded over all of them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import parallel


class _Published(NamedTuple):
    """Of 64 cards, with FSDP over all of them, and each layer computed again in the backward pass."""

    source: str
    model: str
    #: of transformers' Llama
    sizes: dict[str, int]
    device: str
    length: int
    batch: int
    #: of one card, and of its peak
    tokens: float
    mfu: float


_LLAMA = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
#: MPT's two products of 32,768 features are as much work as three of two thirds of that
_MPT = {**_LLAMA, "intermediate_size": 21845, "num_key_value_heads": 64, "vocab_size": 50368}
_TITAN = "torchtitan, docs/performance.md at 0413364"
_PUBLISHED = (
    _Published(
        _TITAN,
        "Llama 3 70B",
        {**_LLAMA, "num_key_value_heads": 8, "vocab_size": 128256},
        "A100-SXM4-80GB",
        8192,
        1,
        331,
        0.517,
    ),
    _Published(
        _TITAN,
        "Llama 2 70B",
        {**_LLAMA, "num_key_value_heads": 8, "vocab_size": 32000},
        "A100-SXM4-80GB",
        4096,
        2,
        353,
        0.505,
    ),
    _Published(
        "llm-foundry, scripts/train/benchmarking at 061f2c7",
        "MPT 70B",
        _MPT,
        "NVIDIA H100 80GB HBM3",
        2048,
        8,
        1039,
        0.4257,
    ),
)
_GPUS = 64


def compare_meshes() -> None:
    """Print each published row beside the estimate, then how long a search over all meshes of 64 cards takes."""
    print(
        "model        card                   tokens  batch  published  estimated    off  MFU published  here  GiB"
    )
    for each in _PUBLISHED:
        options: dict[str, Any] = {
            "precision": "bf16-mixed",
            "checkpoint": True,
            "meshes": [{"dp": _GPUS}],
        }
        asked = {
            "num_gpus": _GPUS,
            "device": each.device,
            "length": each.length,
            "batch_size": each.batch,
        }
        (found,) = parallel.search(_llama(each.sizes), **asked, **options).choices
        rate = found.tokens_per_second / _GPUS
        measured = f"{each.model:12} {each.device:22} {each.length:6} {each.batch:6} {each.tokens:10,.0f} {rate:10,.0f}"
        shares = f"{rate / each.tokens - 1:+6.0%}  {each.mfu:13.1%} {found.mfu:5.1%}"
        print(f"{measured} {shares} {found.needed_bytes / 2**30:4.0f}   {each.source}", flush=True)
    meshes = _all_meshes()
    start = time.perf_counter()
    search = parallel.search(
        _llama(_PUBLISHED[0].sizes),
        num_gpus=_GPUS,
        device="H100",
        global_batch_size=64,
        checkpoint=True,
        meshes=meshes,
    )
    took = time.perf_counter() - start
    print(
        f"{len(search.choices)} of {len(meshes)} meshes of {_GPUS} H100 in {took:.0f} s, which are possible; {search!r}"
    )
    print("\n".join(f"left out: {mesh}: {reason}" for mesh, reason in search.refused.items()))


def _all_meshes() -> list[dict[str, int]]:
    """Whatever divides 64 among copies, shards, and tensor parallelism."""
    sizes = [2**each for each in range(7)]
    return [
        {"replicate": copies, "dp": _GPUS // copies // tp, "tp": tp}
        for copies in sizes
        for tp in sizes
        if copies * tp <= _GPUS
    ]


def _llama(sizes: dict[str, int]) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(**sizes, max_position_embeddings=8192)
    with torch.device("meta"):
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model
