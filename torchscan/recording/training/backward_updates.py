"""The optimizer's steps inside the backward pass: one for each parameter.

As in torch's tutorial, a hook of each parameter takes the step as soon as the gradient is
accumulated, and frees the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchscan.recording.bookkeeping.inventory import Slot
from torchscan.recording.bookkeeping.tensor_layouts import has_strides, meta_copy
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest
from torchscan.recording.training.optimizer_steps import implementations_of, take_step
from torchscan.recording.training.optimizers import optimizer_on
from torchscan.recording.training.substitutes import Substitutes
from torchscan.recording.training.training_step import enter_states, updated_in_place_of
from torchscan.recording.undo import run_at_end_of_pass
from torchscan.torch_versions import (
    local_part,
    outside_of_everything,
    set_version,
    stands_for_itself,
    without_torch_function,
)


class BackwardUpdates:
    """The optimizers of a backward pass, one for each parameter."""

    def __init__(self, request: PassRequest, recorder: Recorder, substitutes: Substitutes) -> None:
        self._choice = request.optimizer
        self._originals = request.originals
        self._device_type = request.device_type
        self._recorder = recorder
        self._substitutes = substitutes

    def prepare(self, slots: Iterable[Slot]) -> None:
        """Create the optimizers and their state outside of the trace, and register the hooks."""
        parameters = {
            self._originals.get(id(slot.tensor), id(slot.tensor)): slot
            for slot in slots
            if not slot.is_buffer and slot.tensor.requires_grad and has_strides(slot.tensor)
        }
        if isinstance(self._choice, Optimizer):
            groups = self._choice.param_groups
            own = {id(each) for group in groups for each in group["params"]}
            parameters = {key: slot for key, slot in parameters.items() if key in own}
        optimizers: list[Optimizer] = []
        paths: dict[int, str] = {}
        table = self._recorder.table
        with implementations_of(self._device_type), without_torch_function():
            with outside_of_everything():
                for identity, slot in parameters.items():
                    updated = updated_in_place_of(slot.tensor, table, self._substitutes)
                    optimizer = self._make(identity, updated)
                    optimizers.append(optimizer)
                    paths[id(updated)] = slot.path

                    is_known = stands_for_itself(slot.tensor)
                    leaf = slot.tensor if is_known else self._substitutes.of(slot.tensor)
                    hook = partial(self._update, updated=updated, optimizer=optimizer)
                    handle = leaf.register_post_accumulate_grad_hook(hook)
                    run_at_end_of_pass(handle.remove)
            table.storages.leave_out_host(self._device_type == "cuda")
            enter_states(optimizers, paths, self._recorder)
            table.storages.leave_out_host(False)

    def _make(self, identity: int, updated: Tensor) -> Optimizer:
        """Return the optimizer of one parameter after a first step, which creates its state."""
        assert self._choice is not None  # noqa: S101 - for the type checker
        optimizer = optimizer_on(self._choice, {identity: updated})
        updated.grad = torch.empty_like(updated)
        # The forward pass has saved the parameter, which must be as it was for the backward pass.
        version = updated._version
        take_step(optimizer, is_recorded=False)
        set_version(updated, version)
        updated.grad = None
        return optimizer

    def _update(self, leaf: Tensor, *, updated: Tensor, optimizer: Optimizer) -> None:
        """Take the step of one parameter, and free its gradient."""
        table = self._recorder.table
        self._recorder.begin("optimizer")
        table.storages.leave_out_host(self._device_type == "cuda")
        with implementations_of(self._device_type), without_torch_function():
            if updated is not leaf and leaf.grad is not None:
                with outside_of_everything():
                    updated.grad = meta_copy(local_part(leaf.grad))
                    table.enter_elsewhere(updated.grad)
            take_step(optimizer, is_recorded=True)
            updated.grad = leaf.grad = None
        table.storages.leave_out_host(False)
        self._recorder.begin("backward")
