"""The parts of a window rule: steps from an operand to a result, and the ways that they make up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Taps:
    """The indices i that index j reads: ``table[j mod P] + (j div P) · rise``, for P table entries.

    A convolution has one entry, ``−p + d·t`` for its taps t, and rises by the stride. A transposed
    convolution has one entry per phase.
    """

    table: tuple[tuple[int, ...], ...]
    rise: int


@dataclass(frozen=True, slots=True)
class Along:
    """A dimension of the operand that is read along a dimension of the result."""

    dim: int
    taps: Taps


@dataclass(frozen=True, slots=True)
class At:
    """A dimension of the operand that is read at one index."""

    index: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A dimension of the operand that is read completely.

    It is contracted, averaged or normalized over.
    """


@dataclass(frozen=True, slots=True)
class UpTo(Whole):
    """A dimension of the operand that is read up to the index along a dimension of the result.

    Causal attention and cumulative sums do so. In a receptive field, it counts as read completely.
    """

    dim: int


WHOLE = Whole()
HERE = Taps(((0,),), 1)
Dim = Along | At | Whole


@dataclass(frozen=True, slots=True)
class Look:
    """A step: the way in which each dimension is read, and the shape after the step."""

    dims: tuple[Dim, ...]
    shape: tuple[int, ...]
    is_identity: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set ``is_identity``.

        It is true if no element is moved or mixed, provided that the shape is the same.
        """
        same = len(self.dims) == len(self.shape)
        for dim, each in enumerate(self.dims):
            same = same and isinstance(each, Along) and each.dim == dim and each.taps is HERE
        object.__setattr__(self, "is_identity", same)


@dataclass(frozen=True, slots=True)
class Reshape:
    """A step: the same elements in the same order, in a different shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfold:
    """A step: the windows of a dimension as a new last one.

    ``i = step · j + spacing · k`` for k < size.
    """

    dim: int
    size: int
    step: int
    spacing: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """The last step: a part of the result comes from this operand.

    It is that from ``start`` to ``stop`` along a dimension of the result.
    """

    dim: int
    start: int
    stop: int


Step = Look | Reshape | Unfold | Piece
#: what is special about a way: statistics of a normalization; padding that wraps around, or that
#: copies or reflects; a hull, which may be larger than the elements that are read
Note = Literal["norm-stats", "wraps", "padded", "hull"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way from an operand to the result."""

    steps: tuple[Step, ...]
    note: Note | None = None
    is_identity: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set ``is_identity``: no step changes anything, provided that the shape is the same."""
        same = all(isinstance(step, Look) and step.is_identity for step in self.steps)
        object.__setattr__(self, "is_identity", same and self.note is None)


#: the ways from one operand; empty if its values are not read; None if it is read completely
Ways = tuple[Way, ...] | None
#: for each operand, in the order of ``signature.inputs``; operands left out are read completely
Looks = tuple[Ways, ...]


@dataclass(frozen=True, slots=True)
class EachOutput:
    """The return value of a rule whose results read the operands in different ways."""

    looks: tuple[Looks, ...]


Windows = Looks | EachOutput
NOT_READ: Ways = ()
