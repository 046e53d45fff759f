"""Values of a call that goes on: its inputs, and what it is suspected of."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from torchscan.inspecting.finiteness import NonFiniteCount, check_values, version_of


class CallInput(NamedTuple):
    """A tensor that a call was given, with its version and counts at the start."""

    tensor: Tensor
    version: int
    look: NonFiniteCount

    @property
    def is_written_to(self) -> bool:
        """True if the tensor was written to since the call started."""
        version = version_of(self.tensor)
        return version != self.version or (version < 0 and check_values(self.tensor) != self.look)


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """Something that is not finite, of which it is not certain yet what made it."""

    order: int
    look: NonFiniteCount
    numel: int
    #: of infinities: "+", "-" or both
    signs: str
    #: which they are of, and which are not kept for this
    tensors: list[weakref.ref[Tensor]]


@dataclass(slots=True)
class OpenValues:
    """A call that goes on: what it was given, and what it is suspected of."""

    args: tuple[Any, ...]
    inputs: list[CallInput]
    #: the module's own buffers, with their versions when the call started
    buffers: Sequence[tuple[str, Tensor, int]]
    suspicions: list[Suspicion] = field(default_factory=list)
