"""Compares estimated with published training of language models on many GPUs, and times searches."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn
from training_records import device_of
from training_rows import TITAN_CARD

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
    mfu: float | None = None
    #: GiB that torch's allocator reserved on the GPU that needed most, or None
    gib: float | None = None
    #: True for torchtitan's H100, which has slower memory and less power
    is_titan_h100: bool = False


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
    "Llama 3.1 8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
}
_TITAN = "torchtitan, docs/performance.md at 0413364"
_TITAN_LARGE = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf, table "
_FSDP: dict[str, Any] = {"num_gpus": 64, "precision": "bf16-mixed", "checkpoint": True}
_FSDP |= {"meshes": [{"dp": 64}], "accumulation_steps": 1}
#: torchtitan's steps of December 2024: layers are compiled, and the loss is not
_TITAN_STEP: dict[str, Any] = {"precision": "bf16-mixed", "checkpoint": True, "compiled": True}
_TITAN_STEP |= {"float8": "tensorwise"}


def _on_h100(table: int, model: str, tokens: float, gib: float, **step: Any) -> _Published:
    """Return a row of torchtitan's tables of many H100."""
    asked = {"length": 8192, "accumulation_steps": 1, **_TITAN_STEP, **step}
    return _Published(f"{_TITAN_LARGE}{table}", model, asked, tokens, gib=gib, is_titan_h100=True)


def _with_parts(cp: int) -> dict[str, Any]:
    """Return the step of Llama 8B over 8 GPUs whose sequences have ``cp`` parts."""
    step = {"num_gpus": 8, "meshes": [{"dp": 8 // cp, "cp": cp}], "length": 32768 * cp}
    return {**step, "global_batch_size": 8 // cp}


def _in_pipeline(cp: int, length: int, sequences: int) -> dict[str, Any]:
    """Return the step of Llama 405B on 512 GPUs: torchtitan's default are 8 micro batches."""
    mesh = {"pp": 8, "dp": 8 // cp, "cp": cp, "tp": 8}
    step = {"num_gpus": 512, "meshes": [mesh], "async_tp": True, "accumulation_steps": 8}
    return {**step, "length": length, "global_batch_size": sequences * 8 // cp}


_70B: dict[str, Any] = {"num_gpus": 256, "meshes": [{"dp": 32, "tp": 8}], "global_batch_size": 512}
_INTERLEAVED: dict[str, Any] = {"schedule": "Interleaved1F1B", "stages_per_rank": 2}
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
    _on_h100(2, "Llama 3.1 8B", 3890, 83.9, **_with_parts(1)),
    _on_h100(2, "Llama 3.1 8B", 2540, 84.2, **_with_parts(2)),
    _on_h100(2, "Llama 3.1 8B", 1071, 84.0, **_with_parts(4)),
    _on_h100(2, "Llama 3.1 8B", 548, 84.5, **_with_parts(8)),
    _on_h100(4, "Llama 3 70B", 829, 71.9, **_70B),
    _on_h100(4, "Llama 3 70B", 876, 67.6, **_70B, async_tp=True),
    _on_h100(5, "Llama 3.1 405B", 100, 82.5, **_in_pipeline(1, 8192, 32), schedule="1F1B"),
    _on_h100(5, "Llama 3.1 405B", 128, 72.7, **_in_pipeline(1, 8192, 32), **_INTERLEAVED),
    _on_h100(6, "Llama 3.1 405B", 76, 75.3, **_in_pipeline(1, 32768, 8), schedule="1F1B"),
    _on_h100(6, "Llama 3.1 405B", 47, 75.9, **_in_pipeline(2, 65536, 8), schedule="1F1B"),
    _on_h100(6, "Llama 3.1 405B", 31, 77.1, **_in_pipeline(4, 131072, 8), schedule="1F1B"),
    _on_h100(6, "Llama 3.1 405B", 16, 84.9, **_in_pipeline(8, 262144, 8), schedule="1F1B"),
)
#: searches over all meshes: the model, and arguments of ``parallel.search``
_SEARCHES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Llama 3 70B", {"num_gpus": 64, "length": 4096, "global_batch_size": 64}),
    ("Llama 3.1 405B", {"num_gpus": 512, "length": 8192, "global_batch_size": 256}),
    ("Llama 3.1 405B", {"num_gpus": 1024, "length": 8192, "global_batch_size": 512}),
)


def compare_meshes() -> None:
    """Print each published row beside the estimate, then searches over all meshes with their time."""
    print(
        "model           GPUs  published  estimated    off  MFU published  here  GiB published  here"
    )
    for each in _PUBLISHED:
        _print_published(each)
    for model, asked in _SEARCHES:
        search, took = _timed_search(model, asked)
        print(f"\n{model} on {search.num_gpus:,} H100: {search.num_steps:,} steps in {took:.0f} s")
        print(search)


def _print_published(row: _Published) -> None:
    device = device_of(TITAN_CARD).name if row.is_titan_h100 else "H100"
    search, _ = _timed_search(row.model, {"device": device, **row.step})
    found = search.best or search.choices[0]
    rate = found.tokens_per_second / search.num_gpus
    measured = f"{row.model:14} {search.num_gpus:5} {row.tokens:10,.0f} {rate:10,.0f}"
    published = "" if row.mfu is None else f"{row.mfu:.1%}"
    memory = "" if row.gib is None else f"{row.gib:.1f}"
    shares = f"{rate / row.tokens - 1:+6.0%}  {published:>13} {found.mfu:5.1%}"
    mesh = ",".join(f"{name}={size}" for name, size in found.mesh.items())
    how = f"{mesh}, checkpoint {found.checkpoint}, {found.schedule or 'no pipeline'}"
    how += f", {search.length:,} tokens"
    sizes = f"{memory:>13} {found.needed_bytes / 2**30:5.1f}"
    print(f"{measured} {shares} {sizes}   {how}", flush=True)
    print(f"    {row.source}")


def _timed_search(model: str, asked: dict[str, Any]) -> tuple[MeshSearch, float]:
    """Return a search, and the seconds that it took."""
    length: int = asked["length"]
    module = _llama(_SIZES[model], max(8192, length))
    start = time.perf_counter()
    search = parallel.search(module, **{"device": "H100", **asked})
    return search, time.perf_counter() - start


def _llama(sizes: dict[str, int], positions: int = 8192) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(**sizes, max_position_embeddings=positions)
    with torch.device("meta"):
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


if __name__ == "__main__":
    compare_meshes()
