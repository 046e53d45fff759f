"""Beside MemTracker, torch's own view of memory, which watches a real run: the same bytes, sorted by its rules.

On the CPU it counts the bytes of a block as they are; only on CUDA does it round them up. It runs below a dispatch mode, as a
record does, so where autograd adds up gradients both have a new block. Its rules differ from ours where it cannot look ahead:

- It does not know what will be kept: an activation is what the forward pass has made, also what is let go at once.
- A gradient is one once autograd has handed it to the parameter. Before that it is temporary.
- All that an optimizer makes is its state, also what does not stay.
- The gradient of ones that a backward pass starts from is an activation, because the pass has not begun.
- What a checkpoint runs once more is an activation inside of modules only, because their hooks tell it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from tests.torchvision_cpu import torchvision
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.trace.records import StorageKind
from torchscan.types import Trace

# isort: split
import transformers

from torchscan import estimate_memory

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")

STANDING: Mapping[StorageKind, str] = {
    "parameter": "Parameter",
    "buffer": "Buffer",
    "input": "Other",
    "optimizer state": "Optstate",
}


class Checkpointed(nn.Module):
    """A block that runs once more, with an addition of its own that no hook of a module announces."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: self.body(x + 1) + x, x, use_reentrant=False)


class LanguageModelLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "vocab_size": 500,
        }
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss


def mlp() -> tuple[nn.Module, Tensor]:
    """With few samples, so that a step peaks in its optimizer."""
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(4, 32)


def resnet() -> tuple[nn.Module, Tensor]:
    """ResNet-50 with one block of each width."""
    model = torchvision.models.ResNet(
        torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10
    )
    return model, torch.randn(2, 3, 64, 64)


def encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.randn(3, 20, 64)


def llama() -> tuple[nn.Module, Tensor]:
    return LanguageModelLoss(), torch.randint(500, (2, 100))


def checkpointed() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(
        nn.Linear(32, 32), *(Checkpointed() for _ in range(3)), nn.Linear(32, 10)
    ), torch.randn(256, 32)


def adamw(parameters: list[Tensor]) -> Optimizer:
    return AdamW(parameters, foreach=False)


def tracked_step(
    model: nn.Module, x: Tensor, make: Callable[[list[Tensor]], Optimizer] | None
) -> Mapping[str, int]:
    """What it says of the peak of a step; with an optimizer the second one, for which the state is there."""
    optimizer = None if make is None else make(list(model.train().parameters()))
    tracker = MemTracker()
    if optimizer is not None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.track_external(optimizer)
    tracker.track_external(model, x)
    with tracker:
        loss = model(x).sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
    model.zero_grad()
    return {
        str(getattr(key, "value", key)): size
        for key, size in tracker.get_tracker_snapshot("peak")[CPU].items()
    }


class AsTracked:
    """Sorts the memory of a record as it does."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._blocks = MemoryTimeline(trace, in_place_sums=False).blocks
        self._begin_of_backward = [op.phase for op in trace.ops].index("backward")
        #: by block the last operator of the backward pass on it: of a gradient the view that the parameter gets
        self._handed_over = {
            tensor.storage: tensor.producer
            for tensor in trace.tensors
            if tensor.producer is not None and trace.ops[tensor.producer].phase == "backward"
        }
        self._last_call = max(op.module_call for op in trace.ops if op.phase == "forward")

    def at(self, moment: int) -> Mapping[str, int]:
        """Bytes by its names."""
        found = Counter[str]()
        for number, block in enumerate(self._blocks):
            if block.first <= moment < block.end:
                found[self._name(number, moment)] += block.size
        return found

    def _name(self, number: int, moment: int) -> str:
        storage = self._trace.storages[number]
        if storage.born is None:
            return STANDING[storage.kind]
        maker = self._trace.ops[storage.born]
        if storage.kind == "gradient" and self._handed_over[number] <= moment:
            return "Gradient"
        if maker.phase == "optimizer":
            return "Optstate"
        again = maker.origin == "checkpoint" and maker.module_call > self._last_call
        return (
            "Activation"
            if maker.phase == "forward" or again or storage.born == self._begin_of_backward
            else "Temp"
        )


STEPS = [
    *((mlp, adamw), (resnet, None), (encoder, None), (encoder, adamw)),
    *((llama, None), (llama, adamw), (checkpointed, None), (checkpointed, adamw)),
]


@pytest.mark.parametrize(("build", "optimizer"), STEPS)
def test_a_step_peaks_at_the_same_bytes_of_each_kind(build: Any, optimizer: Any) -> None:
    model, x = build()
    tracked = tracked_step(model, x, optimizer)
    request = PassRequest(
        module=model,
        args=(x,),
        mode="train",
        execute="abstract",
        backward=torch.sum,
        optimizer=optimizer,
    )
    trace = record_pass(request)
    totals = [moment.total for moment in MemoryTimeline(trace, in_place_sums=False).moments]
    found = AsTracked(trace).at(totals.index(max(totals)))
    assert {**dict.fromkeys(tracked, 0), **found, "Total": max(totals)} == tracked


@pytest.mark.parametrize("build", [mlp, resnet, llama])
def test_every_layer_peaks_at_the_same_bytes_in_an_inference(build: Any) -> None:
    """Those that are called. All have operators here: of a layer without any it says what was there when it was called."""
    model, x = build()
    tracker = MemTracker()
    tracker.track_external(model.eval(), x)
    with torch.no_grad(), tracker:
        model(x)
    paths = {module: path for path, module in model.named_modules()}
    tracked = {
        paths[module]: found.local_peak[CPU] for module, found in tracker.memory_tracking.items()
    }
    estimate = estimate_memory(model, args=(x,))
    assert {layer.path: layer.peak_bytes for layer in estimate.layers} == tracked
    assert estimate.peak_bytes == tracker.get_tracker_snapshot("peak")[CPU]["Total"]
