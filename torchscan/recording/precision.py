"""The number formats of a pass: a model converted to another one, or under autocast."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Give, InputError, Text
from torchscan.precisions import Precision
from torchscan.recording.bookkeeping.containers import copy_arguments
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensor_copies import own_copy, uninitialized
from torchscan.recording.bookkeeping.tensor_layouts import has_strides, kind_of, meta_copy
from torchscan.recording.request import CHANNELS_LAST, PassRequest
from torchscan.recording.state import leave_surroundings
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import is_fake_type

#: what tensors are stored in; operands in 8 bits are made of them for one product after the other
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}


class CopyError(InputError):
    """A model that cannot be copied."""


def in_precision(request: PassRequest, precision: Precision | None) -> PassRequest:
    """Return the same pass in another precision. The model itself stays as it is."""
    if precision is None:
        return request
    if precision.endswith("-mixed"):
        return replace(request, autocast=_TYPES[precision.removesuffix("-mixed")])
    return on_meta_copy(request, _TYPES[precision])


def type_of(precision: Precision) -> torch.dtype:
    """Return the type that tensors are converted to."""
    return _TYPES[precision]


def with_channels_last(request: PassRequest) -> PassRequest:
    """Return the same pass of a copy of the model, and of inputs, in channels-last layout."""
    copied = on_meta_copy(request)
    for slot in Inventory(copied.module).slots:
        parameter = slot.tensor
        if slot.is_buffer or parameter.layout is not torch.strided:
            continue
        layout = CHANNELS_LAST.get(parameter.dim())
        if layout is not None:
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return replace(copied, channels_last=True)


def on_meta_copy(request: PassRequest, dtype: torch.dtype | None = None) -> PassRequest:
    """Return the same pass of a copy of the model on the meta device, converted to ``dtype``."""

    def copied(undo: Undo) -> PassRequest:
        leave_surroundings(undo)
        return _on_meta_copy(request, dtype)

    return put_back_after(copied)


def _on_meta_copy(request: PassRequest, dtype: torch.dtype | None) -> PassRequest:
    inventory = Inventory(request.module)
    copies = {id(slot.tensor): _meta_copy(slot.tensor, dtype) for slot in inventory.all_slots}
    try:
        module = copy.deepcopy(request.module, dict(copies))
    except Exception as error:
        advice: Text = "" if dtype is None else (": give ", Give("precision", None))
        raise CopyError(
            f"an estimate of this model needs a copy, and copying it failed ({error})", advice
        ) from error
    args, kwargs = copy_arguments(
        (request.args, request.kwargs), lambda tensor: _meta_copy(tensor, dtype)
    )
    return replace(
        request,
        module=module,
        args=args,
        kwargs=kwargs,
        originals={id(copied): original for original, copied in copies.items()},
    )


def _meta_copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if nn.parameter.is_lazy(tensor):
        return uninitialized(
            tensor, torch.device("meta"), dtype if tensor.is_floating_point() else None
        )
    if not (tensor.is_floating_point() or is_fake_type(type(tensor))):
        return own_copy(tensor, on_meta=True)
    if not has_strides(tensor):
        raise CopyError(
            f"an estimate of this model needs a copy without data, and a {kind_of(tensor)} tensor "
            "has no such copy: give a dense tensor, or ",
            Give("precision", None),
        )
    copied = meta_copy(tensor, dtype if tensor.is_floating_point() else None)
    made: Any = nn.Parameter(copied) if isinstance(tensor, nn.Parameter) else copied
    return made.requires_grad_(tensor.requires_grad)  # type: ignore[no-any-return]
