"""The work of an operator call, as a formula returns it, and its cost, with all counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torchscan.trace.events import OpSignature, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one operator call, as its formula returns it.

    A count of None follows from the specs of operands and results.
    """

    macs: int = 0
    #: floating-point operations other than the two of each multiply-accumulate
    other_flops: int = 0
    #: elements read without a cache; None: every element of every operand once
    elements_read: int | None = None
    #: bytes that must at least be read; None: the distinct elements of every distinct operand
    bytes_read: int | None = None
    #: bytes of these that another routing of the same rows would not read
    avoidable_bytes_read: int = 0
    #: elements written; None: every element of every result and of every operand that is written to
    elements_written: int | None = None
    #: bytes written; None: those of the same elements
    bytes_written: int | None = None
    #: the true numbers depend on values, and are no less than these
    is_lower_bound: bool = False

    def __post_init__(self) -> None:
        """Check that counts are whole numbers, of any type."""
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "is_lower_bound" or (type(value) is int and value >= 0):
                continue
            if value is None and name not in ("macs", "other_flops", "avoidable_bytes_read"):
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
                raise ValueError(f"{name} is {value!r}: give a whole number")
            object.__setattr__(self, name, int(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """The cost of one or more operator calls. docs/conventions.md explains each number."""

    macs: int = 0
    flops: int = 0
    elements_read: int = 0
    elements_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    #: bytes of the expected reads that another routing of the same rows would not read: of experts
    avoidable_bytes_read: int = 0
    #: False if an operator without a cost formula is included: then every number is a lower bound
    is_complete: bool = True

    @property
    def dmas(self) -> int:
        """Memory accesses without a cache: elements read plus elements written."""
        return self.elements_read + self.elements_written

    @property
    def min_bytes_read(self) -> int:
        """Bytes that are read with any routing of the rows."""
        return self.bytes_read - self.avoidable_bytes_read

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(
            macs=self.macs + other.macs,
            flops=self.flops + other.flops,
            elements_read=self.elements_read + other.elements_read,
            elements_written=self.elements_written + other.elements_written,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            avoidable_bytes_read=self.avoidable_bytes_read + other.avoidable_bytes_read,
            is_complete=self.is_complete and other.is_complete,
        )


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call, and whether it has a formula, costs nothing or has no formula."""

    state: Literal["formula", "costless", "unknown"]
    cost: OpCost


def elements(specs: Iterable[TensorSpec]) -> int:
    """Return the number of elements that one access of each of these tensors touches."""
    return sum(spec.accessed_numel for spec in specs)


def stored_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the bytes of the distinct elements of these tensors."""
    return sum(spec.stored_bytes for spec in specs)


def complete_work(work: Work, signature: OpSignature) -> OpCost:
    """Return the cost: ``FLOPs = 2·MACs + other FLOPs``, and missing counts from the specs."""
    written = signature.all_written
    elements_read, bytes_read = work.elements_read, work.bytes_read
    if elements_read is None:
        elements_read = elements(signature.inputs)
    if bytes_read is None:
        bytes_read = stored_bytes(signature.distinct_inputs)
    elements_written, bytes_written = work.elements_written, work.bytes_written
    if elements_written is None:
        elements_written = elements(written)
    if bytes_written is None:
        bytes_written = stored_bytes(written)
    return OpCost(
        macs=work.macs,
        flops=2 * work.macs + work.other_flops,
        elements_read=elements_read,
        elements_written=elements_written,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        avoidable_bytes_read=work.avoidable_bytes_read,
    )
