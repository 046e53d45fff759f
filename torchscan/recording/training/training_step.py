"""The training step after the forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from torchscan.errors import Argument
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import Slot
from torchscan.recording.bookkeeping.tensor_layouts import has_strides, kind_of, meta_copy
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest
from torchscan.recording.training.blockwise_optimizers import is_in_pages
from torchscan.recording.training.gradients import (
    differentiable_outputs,
    require_meta_leaves,
    run_backward,
)
from torchscan.recording.training.offloading import offload_update
from torchscan.recording.training.optimizer_steps import implementations_of, state_of, take_step
from torchscan.recording.training.optimizers import OptimizerError, optimizer_on
from torchscan.recording.training.repeated import repeated_step
from torchscan.recording.training.substitutes import Substitutes
from torchscan.torch_versions import (
    groups_of_shards,
    is_placed_elsewhere,
    is_sharded_type,
    local_part,
    outside_of_everything,
    placed_like,
    stands_for_itself,
    sum_over,
    without_torch_function,
)


def differentiate(loss: Any, recorder: Recorder, substitutes: Substitutes) -> None:
    """Run the backward pass."""
    outputs = [substitutes.of(output) for output in differentiable_outputs(loss)]
    if substitutes.on_meta:
        require_meta_leaves(outputs)
    recorder.begin("backward")
    run_backward(outputs, substitutes)


def name_gradients(
    tensors: Sequence[tuple[str, Tensor]], substitutes: Substitutes, recorder: Recorder
) -> None:
    """Name the parameters of gradients that stay in memory."""
    with without_torch_function():
        for name, tensor in tensors:
            known = tensor if stands_for_itself(tensor) else substitutes.known(tensor)
            gradient = None
            if known is not None and known.is_leaf:
                gradient = known.grad
            if gradient is None:
                continue
            gradient = local_part(gradient)
            if gradient.layout is not torch.strided:
                recorder.assume(Note.of("sparse-gradient", parameter=name))
            recorder.table.storages.name_memory(gradient, "gradient", name)


def optimize(
    request: PassRequest, slots: Sequence[Slot], recorder: Recorder, substitutes: Substitutes
) -> None:
    """Create the optimizer and its state outside of the trace, and record the step that follows.

    If requested, the norm of all gradients is clipped before the step, which is recorded, too.
    """
    assert request.optimizer is not None  # noqa: S101 - for the type checker
    originals, device_type = request.originals, request.device_type
    parameters = {
        originals.get(id(slot.tensor), id(slot.tensor)): slot
        for slot in slots
        if not slot.is_buffer
    }
    with implementations_of(device_type), without_torch_function():
        recorder.begin("optimizer")
        place_gradients(parameters.values(), recorder)
        with outside_of_everything():
            _refuse_sparse(parameters.values())
            updated = {
                identity: updated_in_place_of(slot.tensor, recorder.table, substitutes)
                for identity, slot in parameters.items()
            }
            optimizer = optimizer_on(request.optimizer, updated)
            paths = {id(updated[identity]): slot.path for identity, slot in parameters.items()}
        if request.clips_gradients:
            sharded = map(substitutes.of, map(attrgetter("tensor"), parameters.values()))
            _clip_gradients(list(updated.values()), sharded, is_gpu=device_type == "cuda")
        if request.updates_on_host:
            copied = () if request.parameters_on_host else updated.values()
            update_on_host(optimizer, copied, recorder)
            return
        with outside_of_everything():
            repeated = (
                repeated_step(optimizer, recorder, device_type) if substitutes.on_meta else None
            )
            if repeated is not None:
                repeated.write_down(paths)
                return
            take_step(optimizer, is_recorded=False)
            if device_type == "cuda":
                recorder.table.storages.leave_out_host()
            enter_states([optimizer], paths, recorder)
        take_step(optimizer, is_recorded=True)


def place_gradients(slots: Iterable[Slot], recorder: Recorder) -> None:
    """Redistribute gradients to the placements of their parameters."""
    for slot in slots:
        # A rank may hold another part of a gradient than of its parameter.
        if is_placed_elsewhere(slot.tensor.grad, slot.tensor):
            recorder.assume(Note.of("gradients-redistributed"))
            slot.tensor.grad = placed_like(slot.tensor.grad, slot.tensor)


def update_on_host(optimizer: Optimizer, copied: Iterable[Tensor], recorder: Recorder) -> None:
    """Record the copies of an update on the host, and note the size of the state there.

    The parameters to be ``copied`` are those on the device.
    """
    with outside_of_everything():
        take_step(optimizer, is_recorded=False)
    size = sum(each.numel() * each.element_size() for _, _, each in state_of(optimizer))
    recorder.assume(Note.of("optimizer-on-host", size=size))
    offload_update(copied)


def _clip_gradients(parts: Sequence[Tensor], parameters: Iterable[Tensor], *, is_gpu: bool) -> None:
    """Clip the norm of all gradients as ``clip_grad_norm_`` does.

    Of sharded gradients, torch sums the squared norms of all ranks: a scalar for each dimension of
    their mesh along which any of them is divided.

    Args:
        parts: this rank's parts of the parameters, which hold its parts of the gradients.
        parameters: the parameters, which are DTensors if they are sharded, with such gradients.
        is_gpu: use kernels that take many tensors at once, as torch does by default on a GPU.
    """
    gradients = [each.grad for each in parts if each.grad is not None]
    norm = get_total_norm(gradients, foreach=is_gpu)
    sharded = map(attrgetter("grad"), parameters)
    for group in groups_of_shards(sharded):
        total = sum_over(norm**2, group)
        norm = total**0.5
    clip_grads_with_norm_(parts, 1.0, norm, foreach=is_gpu)


def _refuse_sparse(slots: Iterable[Slot]) -> None:
    """Raise if the step would update a sparse parameter, which torch does not support."""
    for path, tensor in ((slot.path, slot.tensor) for slot in slots):
        if tensor.requires_grad and not has_strides(tensor):
            raise OptimizerError(
                f"{path} is a {kind_of(tensor)} tensor, which no torch optimizer updates: leave "
                "out ",
                Argument("optimizer"),
                ", or freeze it",
            )


def enter_states(
    optimizers: Iterable[Optimizer], paths: Mapping[int, str], recorder: Recorder
) -> None:
    """Enter the state of optimizers by the paths of parameters.

    On a GPU, step counts stay on the host. Paged states are outside of torch's memory.
    """
    table, paged_bytes = recorder.table, 0
    for optimizer in optimizers:
        for parameter, name, value in state_of(optimizer):
            table.enter_state(value, f"{paths[id(parameter)]}.{name}")
            if is_in_pages(optimizer, value):
                table.storages.is_elsewhere(table.find(value).storage)
                paged_bytes += value.numel() * value.element_size()
    if paged_bytes:
        recorder.assume(Note.of("state-in-pages", size=paged_bytes))


def updated_in_place_of(tensor: Tensor, table: TensorTable, substitutes: Substitutes) -> Tensor:
    """Return the tensor that an optimizer may write to in place of a parameter.

    It is the proxy, or a meta copy of it if it has data. Of sharded parameters, each rank updates
    its part.
    """
    substitute = substitutes.of(tensor)
    if not has_strides(substitute):  # it is frozen
        return substitute
    if substitutes.on_meta or (substitute.is_meta and not is_sharded_type(type(substitute))):
        return substitute
    updated, gradient = (
        meta_copy(local_part(substitute)).requires_grad_(substitute.requires_grad),
        substitute.grad,
    )
    table.enter_elsewhere(updated)  # its memory is the parameter's, which is counted
    if gradient is not None:
        updated.grad = meta_copy(local_part(gradient))
        table.enter_elsewhere(updated.grad)
    return updated
