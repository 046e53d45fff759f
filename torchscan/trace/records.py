"""Records of the tensors, memory blocks and parameters in a trace. They hold no tensor.

They are tuples: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchscan.trace.events import TensorSpec

TensorKind = Literal[
    "input", "parameter", "buffer", "constant", "optimizer state", "cache", "intermediate"
]
#: "gathered": sharded parameters while they are all-gathered
StorageKind = TensorKind | Literal["gradient", "gathered"]


class TensorRecord(NamedTuple):
    """One tensor that took part in the pass; tensors of equal ``storage`` share memory."""

    spec: TensorSpec
    storage: int
    kind: TensorKind
    #: path of a parameter or buffer, position of an input ("args[0]", "kwargs['mask']"), else ""
    name: str
    #: index of the operator call that created it, or None if it existed before
    producer: int | None


class StorageRecord(NamedTuple):
    """One block of memory, of which tensors are views."""

    #: bytes
    size: int
    #: index of the operator call that created it, or None if it existed before
    born: int | None
    #: number of operator calls before its last tensor was freed, or None if it was alive at the end
    died: int | None
    #: kind of its contents; "gradient" is that of a parameter, until it is used
    kind: StorageKind
    #: path of the parameter or buffer, also of its gradient or state; position of an input; else ""
    name: str


class ParameterRecord(NamedTuple):
    """One parameter or buffer slot of a module.

    Slots of equal ``identity``, the position of the first of them, hold the same tensor (tied
    weights).
    """

    owner: str
    name: str
    identity: int
    is_buffer: bool
    requires_grad: bool
    numel: int
    #: number of elements on this rank
    local_numel: int
    stored_bytes: int
    #: True if an operator of the pass read or wrote it
    is_used: bool
    #: indices of its storages; several for a subclass that wraps several tensors
    storages: tuple[int, ...]

    @property
    def path(self) -> str:
        """The name in ``named_parameters()``."""
        return f"{self.owner}.{self.name}" if self.owner else self.name
