"""Checks for NaN and Inf in one pass over a tensor.

A sum is NaN if any value is, and infinite (or NaN, with both signs) if any value is infinite; it
takes a fortieth of the time of ``isfinite().all()``. A sum of finite values may overflow, so values
are counted before anything is reported.
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
    local_part,
    norms_of,
    without_dispatch,
    without_torch_function,
    without_tracing,
)

_NARROW = frozenset({torch.float16, torch.bfloat16})
_WIDE = frozenset({torch.float32, torch.float64})
_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


class NonFiniteCount(NamedTuple):
    """The number of non-finite values of a tensor."""

    nan: int = 0
    inf: int = 0

    @property
    def is_fine(self) -> bool:
        """All are finite."""
        return not self.nan and not self.inf

    def __add__(self, other: object) -> NonFiniteCount:
        return (
            NonFiniteCount(self.nan + other.nan, self.inf + other.inf)
            if isinstance(other, NonFiniteCount)
            else NotImplemented
        )


FINE = NonFiniteCount()


def is_on_device(tensor: Tensor) -> bool:
    """Return whether the host would have to wait for the values of a tensor."""
    return tensor.is_cuda


def max_magnitudes_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the largest magnitude of each tensor, as tensors of its device, without waiting for it.

    It is NaN if any value is, and infinite if any is infinite. Empty tensors, and types that a
    kernel is missing for, have none.
    """
    with without_tracing(), without_torch_function():
        parts = [values_of(each).detach() for each in tensors if is_readable(each)]
        plain = [each for each in parts if is_plain(each) and each.numel()]
        return list(norms_of(plain, math.inf)) if plain else []


def check_values(tensor: Tensor) -> NonFiniteCount:
    """Count what is not finite. What cannot be added up cannot be looked at, and passes."""
    if tensor.dtype in _WIDE and is_plain(tensor):
        with without_dispatch():  # half the time of the other way
            values = tensor.detach() if tensor.requires_grad else tensor
            total = values.sum().item()
        if cmath.isfinite(total):
            return FINE
    return _look_closely_at(tensor)


def _look_closely_at(tensor: Tensor) -> NonFiniteCount:
    try:
        with without_tracing(), without_torch_function():
            values = values_of(tensor)
            return FINE if cmath.isfinite(_sum(values).item()) else _counted(values)
    except (
        RuntimeError,
        NotImplementedError,
    ):  # a kernel is missing, or the memory that the count would take
        return FINE


def range_of(tensor: Tensor) -> tuple[float, float] | None:
    """The least and the greatest of its finite values (of a complex tensor, of their sizes), if there are any."""
    with without_tracing(), without_torch_function():
        values = values_of(tensor)
        values = values.abs() if values.is_complex() else values
        finite = values[torch.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if finite.numel() else None


def values_of(tensor: Tensor) -> Tensor:
    """Dense ones, in a type that can be added up."""
    values = _stored(local_part(tensor))
    return values.float() if values.element_size() == 1 else values


def _stored(tensor: Tensor) -> Tensor:
    """Return the values that a tensor without strides stores, without its indices."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.is_nested or tensor.layout in _COMPRESSED:
        return tensor.values()
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def _sum(values: Tensor) -> Tensor:
    return values.sum(dtype=torch.float32) if values.dtype in _NARROW else values.sum()


def _counted(values: Tensor) -> NonFiniteCount:
    """Return the counts, or :data:`FINE` itself, which callers compare by identity."""
    look = NonFiniteCount(int(torch.isnan(values).sum()), int(torch.isinf(values).sum()))
    return FINE if look.is_fine else look


class _KnownTensor(weakref.ref[Tensor]):
    """A tensor that was checked. One object for each keeps garbage collections rare."""

    __slots__ = ("counts", "version")

    #: number of writes to the tensor when it was checked
    version: int
    counts: NonFiniteCount

    def is_still(self, tensor: Tensor) -> bool:
        """Return whether this is the tensor, and nothing was written to it since."""
        return self.version == tensor._version and self() is tensor


class KnownTensors:
    """The tensors that were checked, so that none is checked twice.

    A result may be passed on, or returned by several modules in turn.
    """

    def __init__(self) -> None:
        #: by identity, which others may have once the tensor is gone
        self._looks: dict[int, _KnownTensor] = {}

    def check_all_values(self, tensors: Iterable[Tensor]) -> NonFiniteCount:
        """All of them together."""
        total = FINE
        for tensor in tensors:
            look = self.check_values(tensor)
            if look is not FINE:
                total += look
        return total

    def check_values(self, tensor: Tensor) -> NonFiniteCount:
        """Unless it is known since it was last written to."""
        known = self.get(tensor)
        return self.note(tensor, check_values(tensor)) if known is None else known

    def get(self, tensor: Tensor) -> NonFiniteCount | None:
        """Return the known counts of a tensor, or of the tensor that it is a view of.

        None in inference mode, where writes are not counted.
        """
        if tensor.is_inference():
            return None
        known = self._looks.get(id(tensor))
        if known is not None and known.is_still(tensor):
            return known.counts
        base = tensor._base
        if base is None or base.is_inference():
            return None
        known = self._looks.get(id(base))
        is_fine = known is not None and known.counts is FINE and known.is_still(base)
        return FINE if is_fine else None  # who knows which part is not

    def note(self, tensor: Tensor, look: NonFiniteCount) -> NonFiniteCount:
        """This is so until it is written to."""
        if not tensor.is_inference():
            known = self._looks[id(tensor)] = _KnownTensor(tensor)
            known.version, known.counts = tensor._version, look
        return look


def version_of(tensor: Tensor) -> int:
    """Return the number of writes to a tensor. It is not counted in inference mode."""
    return -1 if tensor.is_inference() else tensor._version
