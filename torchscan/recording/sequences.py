"""The number of tokens that a pass takes, and the same pass with another number of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Give, InputError, TorchName
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.tensor_layouts import CONCRETE_INTEGERS
from torchscan.recording.example_inputs import example_inputs
from torchscan.recording.request import PassRequest

_META = torch.device("meta")


def positions_of(module: nn.Module) -> int | None:
    """Return the number of tokens that a model's config allows, or None if it has no limit."""
    config: Any = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def with_complete_arguments(request: PassRequest) -> PassRequest:
    """Return the same pass with example arguments on the meta device in place of shapes."""
    if request.input_shape is None:
        return request
    args, named = example_inputs(
        request.module, request.input_shape, request.dtype, request.batch_size, _META
    )
    return replace(
        request,
        input_shape=None,
        dtype=None,
        batch_size=1,
        args=args,
        kwargs={**(request.kwargs or {}), **named},
    )


def length_of(request: PassRequest) -> int:
    """Return the length of the first argument with tokens: integers of shape [batch, length]."""
    for tensor in tensors_in((request.args, request.kwargs)):
        if _is_of_tokens(tensor) and tensor.dtype is not torch.bool and tensor.dim() == 2:
            return tensor.shape[1]
    raise InputError(
        "the longest sequence needs an input of tokens, integers of the shape [batch, length]: "
        "give ",
        Give("dtype", TorchName("torch.long")),
    )


def with_length(request: PassRequest, length: int) -> PassRequest:
    """Return the same pass with another number of tokens, which begin again where they end.

    So do tensors with a value for each token: masks, positions, labels.
    """
    known = length_of(request)

    def stretched(tensor: Tensor) -> Tensor:
        return _stretched(tensor, known, length) if _is_of_tokens(tensor) else tensor

    args, kwargs = copy_arguments((request.args, request.kwargs), stretched)
    return replace(request, args=args, kwargs=kwargs)


def _is_of_tokens(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    return tensor.layout is torch.strided


def _stretched(tensor: Tensor, known: int, length: int) -> Tensor:
    """Return a tensor of another length along each dimension of this one, except the first."""
    places = [place for place, size in enumerate(tensor.shape) if place and size == known]
    size = list(tensor.shape)
    for place in places:
        size[place] = length
    if tensor.is_meta or torch.Size(size).numel() > CONCRETE_INTEGERS:
        return torch.empty(size, dtype=tensor.dtype, device=_META)
    for place in places:
        indices = torch.arange(length, device=tensor.device) % known
        tensor = tensor.index_select(place, indices)
    return tensor
