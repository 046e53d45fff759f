"""Specs and outcomes of operators that several passes share, for example those of a search.

Torch takes milliseconds for the first call of an operator on new shapes. Passes of the same layers
on other meshes, or of one layer more, call the same operators on the same shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torchscan.trace.events import OpSignature, TensorSpec


class KnownOutcomes:
    """Outcomes by the key of a call. Keys contain addresses of specs, so both are kept together."""

    def __init__(self) -> None:
        self.specs: dict[tuple[object, ...], TensorSpec] = {}
        self.signatures: dict[tuple[Any, ...], OpSignature] = {}
        #: by the key of a call, the way to make its result again
        self.plans: dict[tuple[Any, ...], Any] = {}


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
