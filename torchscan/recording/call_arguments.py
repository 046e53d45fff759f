"""The arguments of the model's call: copied or made from shapes, and known to the recorder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import NeedsValuesError
from torchscan.recording.attempts import Attempt
from torchscan.recording.bookkeeping.containers import (
    copy_arguments,
    held_tensors,
    named_tensors,
    tensors_in,
)
from torchscan.recording.bookkeeping.inventory import Inventory
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
    #: the tensors that these were made of
    originals: list[Tensor]
    #: the tensors that an earlier pass has kept, by position
    cached: list[tuple[str, Tensor]]

    @classmethod
    def of(cls, request: PassRequest, attempt: Attempt, inventory: Inventory) -> CallArguments:
        """Return the arguments of a request, made for an attempt."""
        kept = {id(slot.tensor) for slot in inventory.slots}
        args, kwargs, original_by_id = _make_for_attempt(request, attempt, kept)
        state = {name: kwargs.pop(name) for name in request.cached}
        named = [*named_tensors(args, "args"), *named_tensors(kwargs, "kwargs")]
        nested = [name for name, tensor in named if tensor.is_nested]
        if attempt.is_abstract and nested:
            raise NeedsValuesError(
                f"{nested[0]} is a nested tensor, which has no counterpart on the meta device"
            )
        owned = [(name, tensor) for name, tensor in named if id(tensor) in original_by_id]
        held = held_tensors(state, "kwargs")
        cached = [(name, tensor) for name, tensor in held if id(tensor) in original_by_id]
        return cls(
            args=args,
            kwargs=kwargs | state,
            named=named,
            owned=owned,
            originals=[original_by_id[id(tensor)] for _, tensor in owned],
            cached=cached,
        )

    def enter(self, recorder: Recorder, request: PassRequest, attempt: Attempt) -> None:
        """Tell the recorder about the inputs of the pass, and which of them may be written to."""
        table = recorder.table
        owned = {id(tensor) for _, tensor in self.owned}
        for name, tensor in self.named:
            if id(tensor) in owned:
                table.enter_copy(tensor, "input", name)
            else:
                table.name(tensor, "input", name)
        for name, tensor in self.cached:
            table.enter_copy(tensor, "cache", name)
        if attempt.is_abstract and not attempt.is_decomposed:  # where autograd sees no values
            self._give_values(table)
        if request.from_shapes:
            is_noted = not attempt.is_abstract or request.loop_iterations is not None
            self._enter_examples(recorder, request, matters_only_to_control_flow=not is_noted)
        recorder.inputs = [
            InputRecord(name, shape_of(tensor), tensor.dtype) for name, tensor in self.named
        ]

    def _give_values(self, table: TensorTable) -> None:
        """Keep the values of small floating-point tensors that were given: they may be masks."""
        for (_, tensor), original in zip(self.owned, self.originals, strict=True):
            values = values_of(original) if tensor.is_meta else None
            if values is not None:
                table.give_values(tensor, values)

    def _enter_examples(
        self, recorder: Recorder, request: PassRequest, *, matters_only_to_control_flow: bool
    ) -> None:
        """Enter inputs made from shapes: random numbers, or zeros for integers."""
        given = tensors_in([self.kwargs[name] for name in request.kwargs or ()])
        given_ids = set(map(id, given))
        for _, tensor in self.owned:
            if id(tensor) not in given_ids:
                recorder.values.enter_input(
                    tensor, matters_only_to_control_flow=matters_only_to_control_flow
                )


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


def _make_for_attempt(request: PassRequest, attempt: Attempt, kept: Collection[int]) -> _Made:
    """Return the arguments. If tensors of the model have no data, floating-point ones have none."""
    if attempt.without_data is None:
        return make_arguments(request, attempt.device, kept)
    args, kwargs, original_by_id = make_arguments(request, _META, kept)
    made, originals = attempt.without_data, dict(original_by_id)

    def placed(tensor: Tensor) -> Tensor:
        if not tensor.is_meta or tensor.layout is not torch.strided:
            return tensor
        found = made.tensor(tensor.shape, tensor.stride(), tensor.dtype, attempt.device)
        found = found.requires_grad_(tensor.requires_grad)
        originals[id(found)] = original_by_id.get(id(tensor), tensor)
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
        copied = _laid_out(own_copy(tensor, on_meta=device.type == "meta"), request)
        if copied is not tensor:
            made_of.append((copied, tensor))
        return copied

    given = tuple(request.args or ()), dict(request.kwargs or {})
    args, kwargs = copy_arguments(given, own)
    if request.input_shape is not None:
        positional, named = example_inputs(
            request.module, request.input_shape, request.dtype, request.batch_size, device
        )
        args = tuple(_laid_out(each, request) for each in positional)
        examples = {name: _laid_out(each, request) for name, each in named.items()}
        kwargs |= examples
        made_of.extend((each, each) for each in (*args, *examples.values()))
    return args, kwargs, {id(made): original for made, original in made_of}


def _laid_out(tensor: Tensor, request: PassRequest) -> Tensor:
    """Return images as convolutions take them, and other tensors as they are, such as masks."""
    if not request.channels_last:
        return tensor
    if tensor.layout is not torch.strided or tensor.dim() not in CHANNELS_LAST:
        return tensor
    convolutions = (each for each in request.module.modules() if isinstance(each, _ON_IMAGES))
    channels = {each.in_channels for each in convolutions}
    if not tensor.is_floating_point() or tensor.shape[1] not in channels:
        return tensor
    return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
