"""The arguments of the model's call: copied or made from shapes, and known to the recorder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import NeedsValuesError
from torchscan.recording.attempts import Attempt
from torchscan.recording.bookkeeping.containers import (
    copy_arguments,
    held_tensors,
    named_tensors,
)
from torchscan.recording.bookkeeping.inventory import Inventory, modules_of
from torchscan.recording.bookkeeping.tensor_copies import own_copy, values_of
from torchscan.recording.bookkeeping.tensor_layouts import shape_of
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.example_inputs import example_inputs
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import CHANNELS_LAST, PassRequest
from torchscan.torch_versions import stands_for_itself
from torchscan.trace.provenance import InputRecord

_META = torch.device("meta")
_ON_IMAGES = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)

#: positional and keyword arguments; the originals by the ids of the tensors made of them
_Made = tuple[tuple[Any, ...], dict[str, Any], dict[int, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArguments:
    """The arguments of one call of the model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: the tensors in them by position
    named: list[tuple[str, Tensor]]
    #: the tensors in them that were made for this run
    owned: list[tuple[str, Tensor]]
    #: by the id of each of these, the tensor from which it was created; itself for a shape
    original_by_id: Mapping[int, Tensor]
    #: the tensors that an earlier pass has kept, by position
    cached: list[tuple[str, Tensor]]

    @classmethod
    def of(cls, request: PassRequest, attempt: Attempt, inventory: Inventory) -> CallArguments:
        """Return the arguments of a request, made for an attempt."""
        kept = {id(slot.tensor) for slot in inventory.slots}
        if attempt.without_data is None:
            args, kwargs, original_by_id = make_arguments(request, attempt.device, kept)
        else:
            args, kwargs, original_by_id = _make_without_data(request, attempt, kept)
        state = {name: kwargs.pop(name) for name in request.cached}
        named = [*named_tensors(args, "args"), *named_tensors(kwargs, "kwargs")]
        for name, tensor in named if attempt.is_abstract else ():
            if tensor.is_nested:
                raise NeedsValuesError(
                    f"{name} is a nested tensor, which has no counterpart on the meta device"
                )
        owned = [(name, tensor) for name, tensor in named if id(tensor) in original_by_id]
        held = held_tensors(state, "kwargs") if state else ()
        cached = [(name, tensor) for name, tensor in held if id(tensor) in original_by_id]
        return cls(
            args=args,
            kwargs=kwargs | state,
            named=named,
            owned=owned,
            original_by_id=original_by_id,
            cached=cached,
        )

    def enter(self, recorder: Recorder, request: PassRequest, attempt: Attempt) -> None:
        """Tell the recorder about the inputs of the pass, and which of them may be written to."""
        table = recorder.table
        for name, tensor in self.named:
            table.name(tensor, "input", name)
        for name, tensor in self.owned:
            table.enter_copy(tensor, "input", name)
            original = self.original_by_id[id(tensor)]
            if original is tensor:
                if not tensor.is_meta:
                    is_noted = not attempt.is_abstract or request.loop_iterations is not None
                    recorder.values.enter_input(tensor, matters_only_to_control_flow=not is_noted)
            elif tensor.is_meta and attempt.is_abstract and not attempt.is_decomposed:
                # Autograd sees no values here, and small tensors that were given may be masks.
                values = values_of(original)
                if values is not None:
                    table.give_values(tensor, values)
        for name, tensor in self.cached:
            table.enter_copy(tensor, "cache", name)
        recorder.inputs = [
            InputRecord(name, shape_of(tensor), tensor.dtype) for name, tensor in self.named
        ]


def enter_parameters(
    inventory: Inventory, request: PassRequest, attempt: Attempt, table: TensorTable
) -> None:
    """Tell the table about the model's own tensors, and remove gradients that would be added to."""
    for slot in inventory.slots if request.is_converted else ():
        table.enter_copy(slot.tensor, slot.kind, slot.path)
        # as it is afterwards, whatever autograd leaves on a tensor that it is handed directly
        slot.tensor.grad = None
    for slot in inventory.slots if request.has_backward else ():
        if stands_for_itself(slot.tensor):
            slot.tensor.grad = None  # it is put back when the pass is over
    for slot in inventory.slots if attempt.buffers else ():
        if slot.path in attempt.buffers:
            table.give_values(slot.tensor, attempt.buffers[slot.path].clone())


def _make_without_data(request: PassRequest, attempt: Attempt, kept: Collection[int]) -> _Made:
    """Return the arguments of a model without data: floating-point tensors have none either."""
    args, kwargs, original_by_id = make_arguments(request, _META, kept)
    made: Any = attempt.without_data
    originals = dict(original_by_id)

    def placed(tensor: Tensor) -> Tensor:
        if not tensor.is_meta or tensor.layout is not torch.strided:
            return tensor
        found: Tensor = made.tensor(tensor.shape, tensor.stride(), tensor.dtype, attempt.device)
        found.requires_grad_(tensor.requires_grad)
        original = original_by_id.get(id(tensor))
        if original is tensor:  # made from a shape
            original = found
        originals[id(found)] = tensor if original is None else original
        return found

    args, kwargs = copy_arguments((args, kwargs), placed)
    return args, kwargs, originals


def make_arguments(request: PassRequest, device: torch.device, kept: Collection[int]) -> _Made:
    """Return the arguments of the forward pass, and what the tensors among them were made of.

    Tensors are copied to ``device`` (on ``meta``, integers keep their values), except those whose
    id is in ``kept``.
    """
    made_of: list[tuple[Tensor, Tensor]] = []

    def own(tensor: Tensor) -> Tensor:
        if id(tensor) in kept:
            return tensor
        copied = own_copy(tensor, on_meta=device.type == "meta")
        if request.channels_last:
            copied = _laid_out(request, copied)
        if copied is not tensor:
            made_of.append((copied, tensor))
        return copied

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if request.args or request.kwargs:
        given = tuple(request.args or ()), dict(request.kwargs or {})
        args, kwargs = copy_arguments(given, own)
    if request.input_shape is not None:
        positional, named = example_inputs(
            request.module, request.input_shape, request.dtype, request.batch_size, device
        )
        if request.channels_last:
            lay_out = partial(_laid_out, request)
            positional = tuple(map(lay_out, positional))
            named = dict(zip(named, map(lay_out, named.values()), strict=True))
        args = positional
        kwargs |= named
        made_of.extend((each, each) for each in (*positional, *named.values()))
    return args, kwargs, {id(made): original for made, original in made_of}


def _laid_out(request: PassRequest, tensor: Tensor) -> Tensor:
    """Return images as convolutions take them, and other tensors as they are, such as masks."""
    if tensor.layout is not torch.strided or tensor.dim() not in CHANNELS_LAST:
        return tensor
    convolutions = (each for _, each in modules_of(request.module) if isinstance(each, _ON_IMAGES))
    channels = {each.in_channels for each in convolutions}
    if not tensor.is_floating_point() or tensor.shape[1] not in channels:
        return tensor
    return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
