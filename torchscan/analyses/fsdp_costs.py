"""Closed forms of FSDP: what a rank holds, gathers, reduces and copies, for any number of ranks.

Each parameter is sharded along its first dimension; smaller shards are padded. With ``p`` bytes of
a unit and ``n`` ranks, an all-gather or a reduce-scatter sends ``(n − 1)/n · p``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchscan.analyses.roofline import Fabric
from torchscan.ops.communication import Kind, sent_bytes
from torchscan.trace.events import GroupSpec


class ParameterShape(NamedTuple):
    """A parameter as a rank has it before it is sharded over data-parallel ranks."""

    rows: int
    #: elements of a row
    width: int
    #: bytes of an element: as stored, as all-gathered, and of a gradient that is reduced
    stored: int
    gathered: int
    reduced: int
    is_trained: bool

    def shard(self, num_ranks: int) -> int:
        """Return the elements of the largest shard, to which all are padded."""
        return -(-self.rows // num_ranks) * self.width


class UnitBytes(NamedTuple):
    """A unit of FSDP, such as a layer, on one of its ranks. All numbers are bytes."""

    #: parameters that the rank holds, and those of them that are trained
    stored: int
    trained: int
    #: complete parameters and gradients
    gathered: int
    gradients: int
    #: complete gradients as they are reduced, and the part of a rank
    reduced: int
    reduced_shard: int
    #: parameters that a rank contributes to an all-gather
    contributed: int


def unit_bytes(shapes: Sequence[ParameterShape], num_ranks: int) -> UnitBytes:
    """Return the bytes of a unit over a number of ranks."""
    stored, trained, gradients, contributed, reduced_shard = 0, 0, 0, 0, 0
    for each in shapes:
        shard = each.shard(num_ranks)
        stored += shard * each.stored
        contributed += shard * each.gathered
        if each.is_trained:
            trained += shard * each.stored
            gradients += each.rows * each.width * each.gathered
            reduced_shard += shard * each.reduced
    return UnitBytes(
        stored=stored,
        trained=trained,
        gathered=num_ranks * contributed,
        gradients=gradients,
        reduced=num_ranks * reduced_shard,
        reduced_shard=reduced_shard,
        contributed=contributed,
    )


class DataParallel:
    """The groups of ranks that share parameters (FSDP), and that hold copies of them (HSDP)."""

    def __init__(self, fabric: Fabric, shards: GroupSpec, copies: GroupSpec) -> None:
        self._fabric = fabric
        self.shards = shards
        self.copies = copies
        self._known: dict[tuple[Kind, int, int], float] = {}

    def gather_time(self, unit: UnitBytes) -> float:
        """Return the seconds of an all-gather of the parameters."""
        return self._seconds("all-gather", self.shards, unit.gathered)

    def reduce_time(self, unit: UnitBytes) -> float:
        """Return the seconds in which gradients are reduced, over shards and copies."""
        return self.scatter_time(unit) + self.copy_time(unit)

    def scatter_time(self, unit: UnitBytes) -> float:
        """Return the seconds of the reduce-scatter."""
        return self._seconds("reduce-scatter", self.shards, unit.reduced)

    def copy_time(self, unit: UnitBytes) -> float:
        """Return the seconds of the all-reduce among copies."""
        return self._seconds("all-reduce", self.copies, unit.reduced_shard)

    def gather_sends(self, unit: UnitBytes) -> int:
        """Return the bytes that a rank sends in an all-gather."""
        return sent_bytes("all-gather", unit.gathered, self.shards.size)

    def reduce_sends(self, unit: UnitBytes) -> int:
        """Return the bytes that a rank sends to reduce the gradients."""
        scattered = sent_bytes("reduce-scatter", unit.reduced, self.shards.size)
        return scattered + sent_bytes("all-reduce", unit.reduced_shard, self.copies.size)

    def _seconds(self, kind: Kind, group: GroupSpec, size: int) -> float:
        key = (kind, group.size, size)
        if key not in self._known:
            time = self._fabric.collective_time(kind, group, size) if size else 0.0
            self._known[key] = time
        return self._known[key]
