"""Checks of tensors for NaN and Inf: on the host at once, on a device without waiting for it.

On the host, a sum tells it: it is NaN if any value is, and infinite (or NaN, with both signs) if
any value is infinite. It takes a fortieth of the time of ``isfinite().all()``. A sum of finite
values may overflow, so values are counted before anything is reported.

On a device, the largest magnitude tells it: it is finite if and only if all values are, and it
cannot overflow. One kernel computes those of many tensors: one kernel for each would take the host
ten times as long.
"""

from __future__ import annotations

import cmath
import math
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.torch_versions import (
    count_dispatch_modes,
    local_part,
    norms_of,
    without_dispatch,
    without_torch_function,
    without_tracing,
)

#: values of a tensor that is joined with others, to be checked at once
MAX_JOINED = 4096
_NARROW = frozenset({torch.float16, torch.bfloat16})
#: types whose sums rarely overflow
WIDE_TYPES = frozenset({torch.float32, torch.float64})
_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


# -- on the host ---------------------------------------------------------------------------------


class NonFiniteCount(NamedTuple):
    """The number of non-finite values of a tensor."""

    nan: int = 0
    inf: int = 0

    @property
    def is_fine(self) -> bool:
        """True if all values are finite."""
        return not self.nan and not self.inf

    def is_worse_than(self, before: NonFiniteCount) -> bool:
        """Return whether there is a NaN or, without one, an infinity that was not there before."""
        if self.nan:
            return not before.nan
        return bool(self.inf) and before.is_fine

    def can_come_from(self, others: Iterable[NonFiniteCount]) -> bool:
        """Return whether values with other counts explain these: an infinity explains no NaN."""
        if self.nan:
            return any(each.nan for each in others)
        return not all(each.is_fine for each in others)

    def __add__(self, other: object) -> NonFiniteCount:
        if not isinstance(other, NonFiniteCount):
            return NotImplemented
        return NonFiniteCount(self.nan + other.nan, self.inf + other.inf)


FINE = NonFiniteCount()


def check_values(tensor: Tensor) -> NonFiniteCount:
    """Return the counts of a tensor, or :data:`FINE` itself if all values are finite.

    A tensor that cannot be summed is not checked and counts as finite.
    """
    if tensor.dtype in WIDE_TYPES and is_plain(tensor):
        if count_dispatch_modes():
            with without_dispatch():  # half the time of the other way
                total = tensor.detach().sum().item()
        else:
            values = tensor.detach() if tensor.requires_grad else tensor
            total = values.sum().item()
        if cmath.isfinite(total):
            return FINE
    return _count_nonfinite(tensor)


def _count_nonfinite(tensor: Tensor) -> NonFiniteCount:
    try:
        with without_tracing(), without_torch_function():
            values = values_of(tensor)
            is_narrow = values.dtype in _NARROW
            total = values.sum(dtype=torch.float32) if is_narrow else values.sum()
            if cmath.isfinite(total.item()):
                return FINE
            num_nan = int(torch.isnan(values).sum())
            counts = NonFiniteCount(num_nan, int(torch.isinf(values).sum()))
    except (RuntimeError, NotImplementedError):  # no kernel, or no memory for the masks
        return FINE
    return FINE if counts.is_fine else counts  # callers compare by identity


def range_of(tensor: Tensor) -> tuple[float, float] | None:
    """Return the minimum and maximum of the finite values, or None if there are none.

    Those of a complex tensor are the magnitudes.
    """
    with without_tracing(), without_torch_function():
        values = values_of(tensor)
        values = values.abs() if values.is_complex() else values
        finite = values[torch.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if finite.numel() else None


def values_of(tensor: Tensor) -> Tensor:
    """Return this rank's values without their indices, in a type that can be summed."""
    part = local_part(tensor)
    if part.layout is torch.sparse_coo:
        values = part._values()
    elif part.is_nested or part.layout in _COMPRESSED:
        values = part.values()
    elif part.layout is not torch.strided:
        values = part.to_dense()
    else:
        values = part
    return values.float() if values.element_size() == 1 else values


def version_of(tensor: Tensor) -> int:
    """Return the number of writes to a tensor, or -1 in inference mode, where torch counts none."""
    return -1 if tensor.is_inference() else tensor._version


class _KnownTensor(weakref.ref[Tensor]):
    """A tensor that was checked. One object for each keeps garbage collections rare."""

    __slots__ = ("counts", "version")

    #: number of writes to the tensor when it was checked
    version: int
    counts: NonFiniteCount

    def is_still(self, tensor: Tensor) -> bool:
        """Return whether this is the tensor, and nothing was written to it since."""
        return self() is tensor and self.version == tensor._version


class KnownTensors:
    """The tensors that were checked, so that none is checked twice.

    A result may be passed on, or returned by several modules in turn. Tensors are referred to
    weakly.
    """

    def __init__(self) -> None:
        #: by identity, which other tensors may have once the tensor is gone
        self._known: dict[int, _KnownTensor] = {}

    def check_all_values(self, tensors: Iterable[Tensor]) -> NonFiniteCount:
        """Return the counts of all tensors together."""
        total = FINE
        for tensor in tensors:
            counts = self.check_values(tensor)
            if counts is not FINE:
                total += counts
        return total

    def check_values(self, tensor: Tensor) -> NonFiniteCount:
        """Return the counts of a tensor, which is read only if they are not known."""
        known = self.get(tensor)
        return self.note(tensor, check_values(tensor)) if known is None else known

    def get(self, tensor: Tensor) -> NonFiniteCount | None:
        """Return the known counts of a tensor, or of the tensor that it is a view of.

        None in inference mode, where writes are not counted.
        """
        known = self._known.get(id(tensor))
        # tensors of inference mode are never known
        if known is not None and known() is tensor and known.version == tensor._version:
            return known.counts
        base = tensor._base
        if base is None:
            return None
        known = self._known.get(id(base))
        # if the base is not finite, this part of it may be
        is_fine = known is not None and known.counts is FINE and known.is_still(base)
        return FINE if is_fine else None

    def note(self, tensor: Tensor, counts: NonFiniteCount) -> NonFiniteCount:
        """Remember the counts until the tensor is written to, and return them."""
        if not tensor.is_inference():
            known = self._known[id(tensor)] = _KnownTensor(tensor)
            known.version, known.counts = tensor._version, counts
        return counts


# -- on a device ---------------------------------------------------------------------------------


def is_on_device(tensor: Tensor) -> bool:
    """Return whether the host would have to wait for the values of a tensor."""
    return tensor.is_cuda


def max_magnitudes_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the largest magnitude of each tensor, as tensors of its device.

    It is NaN if any value is, and infinite if any is infinite. Nothing waits for the device. Empty
    tensors, and types that a kernel is missing for, have none.
    """
    with without_tracing(), without_torch_function():
        parts = [values_of(each).detach() for each in tensors if is_readable(each)]
        plain = [each for each in parts if is_plain(each) and each.numel()]
        return list(norms_of(plain, math.inf)) if plain else []
