"""What a training step does beyond its forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.tensors import hollow_twin
from torchscan.recording.recorder import Recorder
from torchscan.recording.training.gradients import (
    Substitutes,
    differentiable_outputs,
    outside_of_everything,
    require_hollow_leaves,
    run_backward,
)
from torchscan.recording.training.optimizers import OptimizerChoice, implementations_of, optimizer_on, state_of, take_step


def differentiate(loss: Any, recorder: Recorder, substitutes: Substitutes) -> None:
    """Run the backward pass."""
    outputs = [substitutes.of(output) for output in differentiable_outputs(loss)]
    if substitutes.without_data:
        require_hollow_leaves(outputs)
    recorder.begin("backward")
    run_backward(outputs, substitutes)


def name_gradients(recorder: Recorder, substitutes: Substitutes, inputs: Sequence[tuple[str, Tensor]]) -> None:
    """Say of the memory of gradients that stay whose they are."""
    known_slots = ((slot.path, substitutes.known(slot.tensor)) for slot in recorder.inventory.slots)
    for name, known in (*known_slots, *inputs):
        gradient = known.grad if known is not None and known.is_leaf else None
        number = None if gradient is None else recorder.table.storages.find(gradient)
        if gradient is not None and gradient.layout is not torch.strided:
            recorder.assume(f"that the sparse gradient of {name} takes no memory, which is not followed")
        if number is not None:
            recorder.table.storages.call_it(number, "gradient", name)


def optimize(
    choice: OptimizerChoice, recorder: Recorder, substitutes: Substitutes, originals: Mapping[int, int], target: str
) -> None:
    """Make the optimizer and its state out of sight, and record the step that follows."""
    tensors = [slot for slot in recorder.inventory.slots if not slot.is_buffer]
    slots = {originals.get(id(slot.tensor), id(slot.tensor)): slot for slot in tensors}
    with implementations_of(target), torch._C.DisableTorchFunction():
        with outside_of_everything():
            parameters = {identity: _updated(slot.tensor, recorder, substitutes) for identity, slot in slots.items()}
            paths = {id(parameters[identity]): slot.path for identity, slot in slots.items()}
            optimizer = optimizer_on(choice, parameters)
            take_step(optimizer)
            for parameter, name, value in state_of(optimizer):
                is_elsewhere = target == "cuda" and not value.is_meta  # step counts, which stay on the host
                recorder.table.enter_state(value, f"{paths[id(parameter)]}.{name}", elsewhere=is_elsewhere)
        recorder.begin("optimizer")
        take_step(optimizer)


def _updated(tensor: Tensor, recorder: Recorder, substitutes: Substitutes) -> Tensor:
    """What an optimizer may write to instead of a parameter: what functions got, or, if that has data, a hollow twin of it."""
    substitute = substitutes.of(tensor)
    if substitutes.without_data or substitute.is_meta:
        return substitute
    twin, gradient = hollow_twin(substitute).requires_grad_(substitute.requires_grad), substitute.grad
    recorder.table.enter_state(twin, "", elsewhere=True)  # its memory is the parameter's, which is counted
    if gradient is not None:
        twin.grad = hollow_twin(gradient)
        recorder.table.enter_state(twin.grad, "", elsewhere=True)
    return twin
