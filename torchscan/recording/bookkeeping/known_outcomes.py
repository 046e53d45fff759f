"""Specs and outcomes of operators that several passes share, for example those of a search.

Torch takes milliseconds for the first call of an operator on new shapes. Passes of the same layers
on other meshes, or of one layer more, call the same operators on the same shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.storages import sparsity_of
from torchscan.recording.bookkeeping.tensor_layouts import sample_shapes, shape_of
from torchscan.trace.events import OpSignature, TensorSpec


@dataclass(slots=True)
class KnownOutcomes:
    """Outcomes by the key of a call. Keys contain addresses of specs, so both are kept together."""

    specs: dict[tuple[object, ...], TensorSpec] = field(default_factory=dict)
    signatures: dict[tuple[Any, ...], OpSignature] = field(default_factory=dict)
    #: by the key of a call, the way to recreate its result
    plans: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def spec_of(self, tensor: Tensor) -> TensorSpec:
        """Return the spec of a tensor; equal specs are one object, whose identity can be a key."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            shape, sparsity = shape_of(tensor), sparsity_of(tensor)
            spec = TensorSpec(
                shape,
                tensor.dtype,
                (),
                sparsity,
                is_nested=tensor.is_nested,
                samples=sample_shapes(tensor),
            )
            return self.specs.setdefault((spec,), spec)

        key = (tensor.shape, tensor.dtype, tensor.stride())
        known = self.specs.get(key)
        if known is not None:
            return known
        spec = TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.stride())
        self.specs[key] = spec
        return spec


_shared: ContextVar[KnownOutcomes | None] = ContextVar("known_outcomes", default=None)


@contextlib.contextmanager
def sharing_outcomes() -> Iterator[None]:
    """Share outcomes among the passes in this context, which must be about the same kernels."""
    token = _shared.set(KnownOutcomes())
    try:
        yield
    finally:
        _shared.reset(token)


def known_outcomes() -> KnownOutcomes:
    """Return the outcomes that passes share now, or else new ones."""
    return _shared.get() or KnownOutcomes()
