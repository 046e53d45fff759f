"""Some values of a tensor, spread over all of it, without reading the others."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from torchscan.runtime.finiteness import is_plain
from torchscan.torch_versions import is_functorch_wrapped, local_part

#: sizes of tensors whose places are remembered
_REMEMBERED = 4096


def values_of(tensor: Tensor) -> Tensor | None:
    """Those of this process, the sizes of complex ones; None: it has none that can be read."""
    if tensor.is_meta or is_functorch_wrapped(tensor):
        return None
    return tensor.detach() if is_plain(tensor) else _dense(local_part(tensor.detach()))


def sample_of(values: Tensor, numel: int, most: int) -> Tensor:
    """At most so many of these values."""
    if numel <= most:
        return values.reshape(-1)
    places = places_in(values.shape, values.stride(), most, values.device)
    if values.is_contiguous():
        return values.view(-1).index_select(0, places)
    span = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    return values.as_strided((span,), (1,)).index_select(0, places)


@lru_cache(_REMEMBERED)
def places_in(shape: torch.Size, strides: tuple[int, ...], most: int, device: torch.device) -> Tensor:
    """Where in memory the sampled values are: one in each of so many equal parts, somewhere in it.

    At equal distances they would be in step with some dimension, and see a few of its places only. They are the same each time.
    """
    numel = shape.numel()
    somewhere = torch.rand(most, generator=torch.Generator().manual_seed(numel), dtype=torch.float64, device="cpu")
    number = ((torch.arange(most, device="cpu") + somewhere) * (numel / most)).long().clamp(max=numel - 1)
    places = torch.zeros_like(number)
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        places += number % size * stride
        number = number // size
    return places.to(device)


def _dense(tensor: Tensor) -> Tensor | None:
    if tensor.is_nested or tensor.layout is torch.sparse_csr:
        return tensor.values()
    if tensor.layout is not torch.strided:
        return None
    return tensor.abs() if tensor.is_complex() else tensor
