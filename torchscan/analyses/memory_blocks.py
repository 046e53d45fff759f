"""Blocks of memory, and the kinds of what they hold."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

#: "gathered" are sharded parameters while they are all-gathered; "activations" are kept for the
#: backward pass or, if there is none, for other layers; "temporary" is all other memory that
#: operators allocate
MemoryKind = Literal[
    "parameters",
    "gathered",
    "buffers",
    "inputs",
    "gradients",
    "optimizer",
    "cache",
    "activations",
    "temporary",
]
KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


class Block(NamedTuple):
    """A block of memory: its bytes, alive from moment ``first`` until just before ``end``."""

    size: int
    first: int
    end: int
    kind: MemoryKind
