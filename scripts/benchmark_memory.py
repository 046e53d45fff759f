"""How long an estimate of a training step takes, and what it needs itself."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch
from torch import nn

from tests.models.catalogue import TIMED
from tests.models.language_models import llama_3_1_70b
from torchscan import estimate_memory
from torchscan.units import memory

_TOKENS = 4096


def time_estimates(only: str = "") -> None:
    """Print a line for each model, then for Llama-3.1-70B in bf16 with and without checkpoints, on a card and on none."""
    print(
        f"{'model':32}{'peak':>14}{'phase':>11}{'activations':>14}{'seconds':>9}{'largest process':>17}"
    )
    for name, case in TIMED.items():
        if only.lower() in name.lower():
            _estimate(name, case.on_meta(), **case.inputs, batch_size=2)
    if only.lower() in "llama-3.1-70b":
        _estimate_llama()


def _estimate_llama() -> None:
    model: Any = llama_3_1_70b(_TOKENS).case.on_meta().bfloat16()
    ids = torch.zeros(1, _TOKENS, dtype=torch.long)
    arguments = {"input_ids": ids, "labels": ids, "use_cache": False}
    for checkpoints in ("", ", checkpoints"):
        if checkpoints:
            model.activation_checkpointing_enable()
        for device in (None, "NVIDIA H200"):
            name = f"Llama-3.1-70B{checkpoints}{', H200' if device else ''}"
            _estimate(name, model, kwargs=arguments, loss=lambda output: output.loss, device=device)


def _estimate(name: str, model: nn.Module, **arguments: Any) -> None:
    start = time.perf_counter()
    estimate = estimate_memory(model, training=True, optimizer="AdamW", **arguments)
    seconds = time.perf_counter() - start
    kept = max(moment.by_kind["activations"] for moment in estimate.timeline)
    process = memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    peak = f"{memory(estimate.peak_bytes):>14}{estimate.peak_phase:>11}{memory(kept):>14}"
    print(f"{name:32}{peak}{seconds:9.2f}{process:>17}")
