"""Pipelines of torch in two real processes, whose memory is that of derived ones."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from tests.analyses.storage_counter import StorageCounter
from tests.ranks.processes import in_processes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RANKS, MICROBATCHES, LENGTH, WIDTH, VOCABULARY, LAYERS = 2, 8, 64, 128, 512, 8
SCHEDULES: list[tuple[Any, int]] = [
    ("1F1B", 1),
    ("Interleaved1F1B", 2),
    ("InterleavedZeroBubble", 2),
]


class Layer(nn.Module):
    """A layer of a transformer without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result."""
        result: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return result


class Part(nn.Module):
    """Layers of a language model, with its embedding and its head or without."""

    def __init__(self, num_layers: int, *, is_first: bool = True, is_last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if is_first else None
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the last part, or what it passes on."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


class Model(Part):
    """A language model with its loss."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the loss."""
        return {"loss": loss_of(super().forward(input_ids), labels)}


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def measure_peaks(rank: int, _: None) -> list[int]:
    """Return the largest bytes of tensors of a rank in a step, for each schedule."""
    return [measure_peak(rank, schedule, chunks) for schedule, chunks in SCHEDULES]


def measure_peak(rank: int, schedule: str, chunks: int) -> int:
    from torch.distributed import pipelining

    number = RANKS * chunks
    parts = [
        Part(LAYERS // number, is_first=index == 0, is_last=index == number - 1)
        for index in range(rank, number, RANKS)
    ]
    stages = [
        pipelining.PipelineStage(part, rank + RANKS * place, number, torch.device("cpu"))
        for place, part in enumerate(parts)
    ]
    kind = getattr(pipelining, f"Schedule{schedule}")
    runner = kind(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    tokens = torch.zeros(MICROBATCHES, LENGTH, dtype=torch.long)
    given: Any = (tokens,) if rank == 0 else ()
    target = {"target": tokens} if rank == RANKS - 1 else {}
    optimizer = torch.optim.AdamW([each for part in parts for each in part.parameters()])
    runner.step(*given, **target, return_outputs=False)  # allocates buffers
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()

    standing = [tensor for part in parts for tensor in part.parameters()]
    standing += [each for state in optimizer.state.values() for each in state.values()]
    for stage in stages:
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
            standing += [info.buffer for info in infos if info.buffer is not None]
    with StorageCounter(standing) as counter:
        runner.step(*given, **target, return_outputs=False)
    return max(counter.history)


@pytest.mark.sweep
def test_memory_of_derived_pipelines_is_that_of_real_ones(tmp_path: Path) -> None:
    measured = in_processes(RANKS, measure_peaks, None, tmp_path)
    with torch.device("meta"):
        model = Model(LAYERS)
    asked: dict[str, Any] = {"num_gpus": RANKS, "meshes": [{"pp": RANKS}], "device": "H100"}
    asked |= {"length": LENGTH, "global_batch_size": MICROBATCHES, "precision": "fp32"}
    for (schedule, chunks), peaks in zip(SCHEDULES, zip(*measured, strict=True), strict=True):
        (found,) = torchscan.parallel.search(
            model,
            **asked,
            checkpoint=False,
            accumulation_steps=MICROBATCHES,
            schedule=schedule,
            stages_per_rank=chunks,
        ).choices
        assert found.peak_bytes == pytest.approx(max(peaks), rel=0.03), schedule
