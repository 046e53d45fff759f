"""Requests to the allocator with repeated layers, against those of the complete model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.traces import call_of, trace_of
from tests.versions import before
from torchscan import Scan
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.analyses.repeated_layers import UnequalLayersError, repeat_layers
from torchscan.analyses.step_replay import ReplayedBlock, StepReplay
from torchscan.hardware.device_specs import device_named
from torchscan.parallel import plan
from torchscan.trace.trace import Trace

H100 = device_named("NVIDIA H100 80GB HBM3")
SHORT, LONG = 4, 7


class Block(nn.Module):
    """A layer with a residual connection, a norm and a wide part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, given: Tensor) -> Tensor:
        """Return the layer's result."""
        wide = torch.tanh(self.up(self.norm(given)))
        return given + self.down(wide)


class Stack(nn.Module):
    """Equal layers, and a head."""

    def __init__(self, layers: int, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.first = nn.Linear(512, 512)
        self.layers = nn.ModuleList(Block(512) for _ in range(layers))
        self.head = nn.Linear(512, 4096)

    def forward(self, given: Tensor) -> Tensor:
        """Return the head's result."""
        hidden = self.first(given)
        for layer in self.layers:
            hidden = (
                checkpoint(layer, hidden, use_reentrant=False)
                if self.checkpoints
                else layer(hidden)
            )
        return self.head(hidden)


def on_one_device(model: nn.Module) -> Trace:
    options: dict[str, Any] = {"training": True, "optimizer": "AdamW", "device": H100.name}
    return Scan(model, (512,), batch_size=4096, progress=False, **options).steps


def sharded(model: nn.Module) -> Trace:
    from torch.distributed.fsdp import fully_shard

    def shard(copied: Any, mesh: Any) -> None:
        for part in (*copied.layers, copied):
            fully_shard(part, mesh=mesh["dp"])

    options: dict[str, Any] = {"training": True, "optimizer": "AdamW", "device": H100.name}
    options |= {"input_shape": (512,), "batch_size": 4096, "progress": False}
    made = plan(model, mesh={"dp": 8}, apply=shard, **options)
    return made.ranks[0].trace


def replay_of(trace: Trace, *, compiled: bool) -> StepReplay:
    return Placement(trace, MemoryTimeline(trace, compiled=compiled), H100).replay


def peaks(replay: StepReplay) -> list[int]:
    return [allocator.peak_reserved for allocator in replay.run()]


@pytest.mark.few(2)
@pytest.mark.slow
@before("2.9", "collectives do not run on shapes")
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("record", [on_one_device, sharded])
def test_repeated_layers_reserve_what_all_layers_do(record: Any, checkpoints: bool) -> None:
    with torch.device("meta"):
        short, long = (Stack(each, checkpoints=checkpoints) for each in (SHORT, LONG))
    trace, longer = record(short), record(long)
    paths = [f"layers.{index}" for index in range(SHORT)]
    for compiled in (False, True):
        complete = replay_of(longer, compiled=compiled)
        repeated = repeat_layers(replay_of(trace, compiled=compiled), trace, paths, LONG - SHORT)
        assert peaks(repeated) == pytest.approx(peaks(complete), rel=0.02)
        assert sum(each.size for each in repeated.blocks) == pytest.approx(
            sum(each.size for each in complete.blocks), rel=0.001
        )


def test_a_gradient_of_each_repeated_layer_lives_until_the_layer_before_has_read_it() -> None:
    """Four layers of two calls each way; of the third layer, backward calls are 10 and 11.

    Its gradient is created in the first of them, and freed after the first one of the second layer:
    3 moments, for each of the two layers that are added, too. Their 8 calls come before.
    """
    calls_by_path = {f"layers.{layer}": [2 * layer, 2 * layer + 1] for layer in range(SHORT)}
    for layer, ops in enumerate(calls_by_path.values()):
        ops += [14 - 2 * layer, 15 - 2 * layer]
    calls = [call_of(torch.ops.aten.relu.default) for _ in range(8)]
    calls += [call_of(torch.ops.aten.relu.default, phase="backward") for _ in range(8)]
    replay = StepReplay(blocks=[ReplayedBlock(64, 10, 13)], num_moments=16)

    repeated = repeat_layers(replay, trace_of(calls, calls_by_path), [*calls_by_path], 2)
    assert repeated.num_moments == 16 + 2 * 2 * 2
    lifetimes = [(each.first, each.end) for each in repeated.blocks]
    assert sorted(lifetimes) == [(14, 17), (16, 19), (18, 21)]


def test_no_layers_are_repeated_if_they_are_few_or_differ() -> None:
    with torch.device("meta"):
        model = Stack(SHORT)
        other: Any = nn.Sequential(Block(512), nn.ReLU())
        model.layers[2] = other
    trace = on_one_device(model)
    replay = replay_of(trace, compiled=False)
    paths = [f"layers.{index}" for index in range(SHORT)]
    assert repeat_layers(replay, trace, paths, 0) is replay
    with pytest.raises(UnequalLayersError, match="other operators"):
        repeat_layers(replay, trace, paths, 1)
    with pytest.raises(UnequalLayersError, match="3 layers are fewer than 4"):
        repeat_layers(replay, trace, paths[:3], 1)
