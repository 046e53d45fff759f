"""Some values of a tensor, spread over all of it, without reading the others."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from torchscan.observing.readable_tensors import is_plain, keeps_values
from torchscan.torch_versions import is_functorch_wrapped, local_part

#: sizes of tensors whose places are remembered
_REMEMBERED = 1024
#: besides those that are plain
_WITH_KERNELS = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)


def values_of(tensor: Tensor) -> Tensor | None:
    """Return this rank's values, magnitudes of complex ones, or None if they cannot be read."""
    if is_plain(tensor) and not tensor.is_meta:
        return tensor.detach()
    part = local_part(tensor)
    if part.is_meta or is_functorch_wrapped(part) or not keeps_values(type(part)):
        return None
    values = part.detach()
    return values if is_plain(values) else _dense(values)


@lru_cache(_REMEMBERED)
def places_in(numel: int, most: int, device: torch.device) -> Tensor:
    """Return the positions to sample: one in each of equal parts, at a random place in it.

    Equal distances would fall in step with a dimension and sample only a few of its places. The
    positions are the same each time.
    """
    somewhere = torch.rand(
        most, generator=torch.Generator().manual_seed(numel), dtype=torch.float64, device="cpu"
    )
    places = (torch.arange(most, device="cpu") + somewhere) * (numel / most)
    return places.long().clamp(max=numel - 1).to(device)


def _dense(tensor: Tensor) -> Tensor | None:
    if tensor.is_nested or tensor.layout is torch.sparse_csr:
        return tensor.values()
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_complex():
        return tensor.abs()
    return tensor if tensor.dtype in _WITH_KERNELS else tensor.float()


class ValueSampler:
    """The choice of values of each tensor. Positions are the same for all tensors of a size."""

    def __init__(self, max_width: int, device: torch.device) -> None:
        """Take up to ``max_width`` values of a tensor, and bring them to ``device``."""
        self.max_width, self.device = max_width, device
        #: positions to sample, by the number of values and the device
        self._places: dict[tuple[int, torch.device], Tensor] = {}
        #: those on the device of the rows, by the number of values
        self.ready_places: dict[int, Tensor] = {}

    def sample(self, values: Tensor) -> Tensor | None:
        """Return some of the values, or None if there are none."""
        numel, device = values.numel(), values.device
        if not numel or device.type == "meta":
            return None
        places = self._places.get((numel, device))
        if places is None:
            places = self._places[numel, device] = self.places_among(numel, device)
            if device == self.device:
                self.ready_places[numel] = places
        piece = torch.take(values, places)
        if piece.dtype.itemsize < 2 and piece.is_floating_point():  # cannot be joined with others
            piece = piece.float()
        return piece if piece.device == self.device else piece.to(self.device, non_blocking=True)

    def places_among(self, numel: int, device: torch.device | None = None) -> Tensor:
        """Return the positions to sample among this number of values."""
        device = device or self.device
        if numel <= self.max_width:
            return torch.arange(numel, device=device)
        return places_in(numel, self.max_width, device)
