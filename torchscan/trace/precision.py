"""The number formats of a pass: a model converted to another one, or under autocast."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchscan.errors import InputError
from torchscan.trace.containers import copy_arguments
from torchscan.trace.inventory import Inventory
from torchscan.trace.tensors import hollow_twin, own_copy

if TYPE_CHECKING:
    from torchscan.trace.passes import PassRequest

Precision = Literal["fp32", "fp16", "bf16", "amp-fp16", "amp-bf16"]

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class CopyError(InputError):
    """A model of which there can be no copy."""


def in_precision(request: PassRequest, precision: Precision | None) -> PassRequest:
    """The same pass in another precision; the model itself stays as it is."""
    if precision is None:
        return request
    if precision not in get_args(Precision):
        raise InputError(f"precision is {precision!r}: give one of {', '.join(map(repr, get_args(Precision)))}, or None")
    if precision.startswith("amp-"):
        return replace(request, autocast=_TYPES[precision.removeprefix("amp-")])
    return without_data(request, _TYPES[precision])


def without_data(request: PassRequest, dtype: torch.dtype | None = None) -> PassRequest:
    """The same pass of a copy of the model that has no data, of another type as ``module.to(dtype)`` would be."""
    inventory = Inventory(request.module)
    twins = {id(slot.tensor): _twin(slot.tensor, dtype) for slot in inventory.slots}
    try:
        module = copy.deepcopy(request.module, dict(twins))
    except Exception as error:
        raise CopyError(f"an estimate of this model needs a copy of it, and it cannot be copied: {error}") from error
    args, kwargs = copy_arguments((request.args, request.kwargs), lambda tensor: _twin(tensor, dtype))
    return replace(
        request, module=module, args=args, kwargs=kwargs, originals={id(twin): original for original, twin in twins.items()}
    )


def _twin(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if not tensor.is_floating_point():
        return own_copy(tensor, hollow=True)
    hollow = hollow_twin(tensor, dtype)
    made: Any = nn.Parameter(hollow, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else hollow
    return made  # type: ignore[no-any-return]
