"""What each call keeps in memory, counted by hand in bytes of single precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.inspecting.test_inspection import by_path, inspected
from tests.recording.test_record import Calls
from torchscan.inspecting import call_memory
from torchscan.inspecting.call_memory import Allocator, MemoryWatch
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import TELLS_UNPACKING

told = pytest.mark.skipif(
    not TELLS_UNPACKING, reason="this torch does not tell what hooks have packed"
)


def test_parameters_and_gradients_of_a_call_are_those_below_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8, bias=False)))
    model[0].requires_grad_(False)
    found = by_path(inspected(model, lambda each: each(torch.ones(2, 4)).sum().backward()))
    numbers = {
        path: (call.num_parameters, call.num_learnable_parameters) for path, call in found.items()
    }
    assert numbers == {"": (104, 64), "0": (40, 0), "1": (64, 64), "1.0": (64, 64)}
    memory = {path: (call.param_memory, call.gradient_memory) for path, call in found.items()}
    assert memory == {"": (416, 256), "0": (160, 0), "1": (256, 256), "1.0": (256, 256)}


def test_a_parameter_that_is_shared_counts_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert (
        by_path(inspected(model, lambda each: each(torch.ones(2, 4)).sum().backward()))[
            ""
        ].param_memory
        == 64
    )


@told
def test_what_is_given_returned_and_saved() -> None:
    """Linear saves its input, ReLU its result; weights are not counted again."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    found = by_path(inspected(model, lambda each: each(torch.ones(2, 4)).sum().backward()))
    sizes = {
        path: (call.input_memory, call.output_memory, call.saved_memory)
        for path, call in found.items()
    }
    assert sizes == {"": (32, 8, 96), "0": (32, 64, 32), "1": (64, 64, 64), "2": (64, 8, 64)}
    assert found["1"].total_memory == 128
    assert found["2"].total_memory == 2 * 36 + 64 + 8
    assert found[""].memory_delta_fwd == 64 + 8
    assert found[""].memory_peak_fwd is None  # the CPU's allocator is not asked


def test_on_a_device_the_allocator_counts_what_nodes_leave_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call leaves 30 bytes, its nodes 10 and −15; the peak is new in the first node."""
    counts = iter([(50, 60), (80, 90), (110, 190), (95, 190)])
    monkeypatch.setattr(Allocator, "read", lambda _: Allocator(*next(counts)))
    monkeypatch.setattr(call_memory, "device_of", lambda _: torch.device("cuda"))
    model = nn.Linear(4, 4)
    watch = MemoryWatch(model)
    call = Call(model, "", 0, 0, None, None)
    watch.note_start(call, ((2, 4),), lambda: None)
    watch.note_end(call, [], [])
    watch.note_node(call, Allocator(100, 100))
    watch.note_node(call, Allocator(110, 190))
    (found,) = watch.close_step().values()
    assert (found.memory_delta_fwd, found.memory_peak_fwd) == (30, 90)
    assert (found.memory_delta_bwd, found.memory_peak_bwd) == (10 - 15, 190)


@told
def test_without_gradients_nothing_is_saved() -> None:
    @torch.no_grad()
    def run(model: nn.Module) -> None:
        model(torch.ones(2, 4))

    found = by_path(inspected(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), run))
    assert [call.saved_memory for call in found.values()] == [0, 0, 0]
    assert found["1"].memory_delta_fwd == 64
    assert found["1"].grad_out_shapes == ()


@told
def test_a_checkpoint_saves_nothing_and_is_not_run_to_find_out() -> None:
    runs = []

    def count(self: Any, x: Tensor) -> Any:
        runs.append(x)
        return self.linear(x).exp()

    block = Calls(count, linear=nn.Linear(4, 4))
    model = Calls(
        lambda self, x: self.last(checkpoint(self.block, x, use_reentrant=False)),
        block=block,
        last=nn.Linear(4, 1),
    )
    found = inspected(model, lambda each: each(torch.ones(2, 4)).sum().backward())
    assert found.calls[1].path == "block"
    assert found.calls[1].saved_memory == 0
    assert len(runs) == 2 + 1  # forward and again, and once on shapes for the costs


def test_what_hooks_have_packed_is_left_alone() -> None:
    unpacked: list[Tensor] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    def run(model: nn.Module) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each, unpack):
            result = model(torch.ones(2, 4))
        assert not unpacked
        result.sum().backward()

    inspected(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), run)
    assert unpacked


def test_shapes_of_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    found = by_path(inspected(model, lambda each: each(torch.ones(2, 4)).sum().backward()))
    assert [(call.grad_in_shapes, call.grad_out_shapes) for call in found.values()] == [
        ((), ((2, 1),)),
        ((), ((2, 8),)),
        (((2, 8),), ((2, 1),)),
    ]


def test_other_shapes_are_read_anew() -> None:
    def run(model: nn.Module) -> None:
        for rows in (2, 3):
            model(torch.ones(rows, 4)).sum().backward()

    assert by_path(inspected(nn.Sequential(nn.Linear(4, 8)), run))["0"].output_memory == 3 * 8 * 4
