"""Compares estimated with published training of language models on many GPUs, and times searches."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import parallel
from torchscan.types import MeshSearch


class _Published(NamedTuple):
    """A published configuration and its throughput."""

    source: str
    model: str
    #: arguments of ``parallel.search``
    step: dict[str, Any]
    #: tokens per second of one GPU
    tokens: float
    #: model FLOPs utilization, or None if it was not published
    mfu: float | None
    #: what the estimate leaves out
    differs: str = ""


_LLAMA = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
_LLAMA |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}
#: sizes of transformers' Llama; MPT's two products of 32,768 features are as much work as three of
#: two thirds of that
_SIZES: dict[str, dict[str, int]] = {
    "Llama 3 70B": _LLAMA,
    "Llama 2 70B": {**_LLAMA, "vocab_size": 32000},
    "MPT 70B": {
        **_LLAMA,
        "intermediate_size": 21845,
        "num_key_value_heads": 64,
        "vocab_size": 50368,
    },
    "Llama 3.1 405B": {
        **_LLAMA,
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
    },
}
_TITAN = "torchtitan, docs/performance.md at 0413364"
_TITAN_LARGE = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf"
_FSDP: dict[str, Any] = {"num_gpus": 64, "precision": "bf16-mixed", "checkpoint": True}
_FSDP |= {"meshes": [{"dp": 64}], "accumulation_steps": 1}
_LARGE: dict[str, Any] = {"device": "H100", "precision": "bf16-mixed", "length": 8192}

_PUBLISHED = (
    _Published(
        _TITAN,
        "Llama 3 70B",
        {**_FSDP, "device": "A100-SXM4-80GB", "length": 8192, "batch_size": 1},
        331,
        0.517,
    ),
    _Published(
        _TITAN,
        "Llama 2 70B",
        {**_FSDP, "device": "A100-SXM4-80GB", "length": 4096, "batch_size": 2},
        353,
        0.505,
    ),
    _Published(
        "llm-foundry, scripts/train/benchmarking at 061f2c7",
        "MPT 70B",
        {**_FSDP, "device": "NVIDIA H100 80GB HBM3", "length": 2048, "batch_size": 8},
        1039,
        0.4257,
    ),
    _Published(
        _TITAN_LARGE,
        "Llama 3 70B",
        {
            **_LARGE,
            "num_gpus": 256,
            "meshes": [{"dp": 32, "tp": 8}],
            "global_batch_size": 512,
            "checkpoint": True,
            "accumulation_steps": 1,
        },
        829,
        None,
        "float8, compiled",
    ),
    _Published(
        _TITAN_LARGE,
        "Llama 3.1 405B",
        {
            **_LARGE,
            "num_gpus": 512,
            "meshes": [{"pp": 8, "dp": 8, "tp": 8}],
            "global_batch_size": 256,
            "checkpoint": True,
        },
        128,
        None,
        "float8, compiled, async TP",
    ),
)
#: searches over all meshes: the model, and arguments of ``parallel.search``
_SEARCHES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Llama 3 70B", {"num_gpus": 64, "length": 4096, "global_batch_size": 64}),
    ("Llama 3.1 405B", {"num_gpus": 512, "length": 8192, "global_batch_size": 256}),
    ("Llama 3.1 405B", {"num_gpus": 1024, "length": 8192, "global_batch_size": 512}),
)


def compare_meshes() -> None:
    """Print each published row beside the estimate, then searches over all meshes with their time."""
    print("model           GPUs  published  estimated    off  MFU published  here  GiB")
    for each in _PUBLISHED:
        _print_published(each)
    for model, asked in _SEARCHES:
        search, took = _timed_search(model, asked)
        print(f"\n{model} on {search.num_gpus:,} H100: {search.num_steps:,} steps in {took:.0f} s")
        print(search)


def _print_published(row: _Published) -> None:
    search, _ = _timed_search(row.model, row.step)
    found = search.best or search.choices[0]
    rate = found.tokens_per_second / search.num_gpus
    measured = f"{row.model:14} {search.num_gpus:5} {row.tokens:10,.0f} {rate:10,.0f}"
    published = "" if row.mfu is None else f"{row.mfu:.1%}"
    shares = f"{rate / row.tokens - 1:+6.0%}  {published:>13} {found.mfu:5.1%}"
    mesh = ",".join(f"{name}={size}" for name, size in found.mesh.items())
    how = f"{mesh}, checkpoint {found.checkpoint}, {found.schedule or 'no pipeline'}"
    differs = f"; not estimated: {row.differs}" if row.differs else ""
    print(f"{measured} {shares} {found.needed_bytes / 2**30:4.0f}   {how}", flush=True)
    print(f"    {row.source}{differs}")


def _timed_search(model: str, asked: dict[str, Any]) -> tuple[MeshSearch, float]:
    """Return a search, and the seconds that it took."""
    module = _llama(_SIZES[model])
    start = time.perf_counter()
    search = parallel.search(module, **{"device": "H100", **asked})
    return search, time.perf_counter() - start


def _llama(sizes: dict[str, int]) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(**sizes, max_position_embeddings=8192)
    with torch.device("meta"):
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


if __name__ == "__main__":
    compare_meshes()
