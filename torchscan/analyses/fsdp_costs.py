"""Closed forms of FSDP: what a rank holds, gathers, reduces and copies, for any number of ranks.

Each parameter is sharded along its first dimension; smaller shards are padded. With ``p`` bytes of
a unit and ``n`` ranks, an all-gather or a reduce-scatter sends ``(n − 1)/n · p``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchscan.analyses.roofline import Fabric
from torchscan.ops.communication import Kind, sent_bytes
from torchscan.trace.events import GroupSpec


class ParameterShape(NamedTuple):
    """A parameter as a rank has it before it is sharded over data-parallel ranks."""

    rows: int
    #: elements of a row
    width: int
    #: bytes of an element: as stored, as all-gathered, of a gradient, and of one that is reduced
    stored: int
    gathered: int
    gradient: int
    reduced: int
    is_trained: bool
    #: True if it is sharded along "dp" alone, because "ep" has divided it before
    is_expert: bool = False
    #: True if it is all-gathered in 8 bits, with a scale
    is_scaled: bool = False

    def shard(self, num_ranks: int) -> int:
        """Return the elements of the largest shard, to which all are padded."""
        return -(-self.rows // num_ranks) * self.width


def flatten_shapes(shapes: Sequence[ParameterShape]) -> list[ParameterShape]:
    """Return the flat parameters of a unit of FSDP1: one for each kind of parameters."""
    numel: Counter[ParameterShape] = Counter()
    for each in shapes:
        numel[each._replace(rows=1, width=1)] += each.rows * each.width
    return [each._replace(rows=rows) for each, rows in numel.items()]


class UnitBytes(NamedTuple):
    """A unit of FSDP, such as a layer, on one of its ranks. Sizes are bytes."""

    #: number of parameters that the rank holds
    params: int
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
    #: of parameters that are all-gathered in 8 bits: how many there are, the elements that a rank
    #: holds, and the bytes of the largest value of each, which gives its scale
    num_scaled: int
    scaled: int
    scales: int


def unit_bytes(shapes: Sequence[ParameterShape], num_ranks: int) -> UnitBytes:
    """Return the bytes of a unit over a number of ranks."""
    params, stored, trained, gradients, contributed, reduced_shard = 0, 0, 0, 0, 0, 0
    num_scaled, scaled, scales = 0, 0, 0
    for each in shapes:
        shard = each.shard(num_ranks)
        params += shard
        stored += shard * each.stored
        contributed += shard * each.gathered
        if each.is_scaled:
            num_scaled += 1
            scaled += shard
            scales += each.stored
        if each.is_trained:
            trained += shard * each.stored
            gradients += each.rows * each.width * each.gradient
            reduced_shard += shard * each.reduced
    return UnitBytes(
        params=params,
        stored=stored,
        trained=trained,
        gathered=num_ranks * contributed,
        gradients=gradients,
        reduced=num_ranks * reduced_shard,
        reduced_shard=reduced_shard,
        contributed=contributed,
        num_scaled=num_scaled,
        scaled=scaled,
        scales=scales,
    )


#: the unit without parameters
NOTHING = UnitBytes(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def sum_units(units: Iterable[UnitBytes]) -> UnitBytes:
    """Return the bytes of several units."""
    return UnitBytes(*map(sum, zip(NOTHING, *units, strict=True)))


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

    def scatter_time(self, unit: UnitBytes) -> float:
        """Return the seconds of the reduce-scatter."""
        return self._seconds("reduce-scatter", self.shards, unit.reduced)

    def copy_time(self, unit: UnitBytes) -> float:
        """Return the seconds of the all-reduce among copies."""
        return self._seconds("all-reduce", self.copies, unit.reduced_shard)

    def scale_time(self, size: int) -> float:
        """Return the seconds in which ranks find the scales of weights that have 8 bits."""
        return self._seconds("all-reduce", self.shards, size)

    def scale_sends(self, size: int) -> int:
        """Return the bytes that a rank sends for these scales."""
        return sent_bytes("all-reduce", size, self.shards.size)

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


class ShardedUnit(NamedTuple):
    """A unit of FSDP, with the groups that it communicates in."""

    size: UnitBytes
    groups: DataParallel

    @property
    def gather_time(self) -> float:
        """Seconds of the all-gather of the parameters."""
        return self.groups.gather_time(self.size)

    @property
    def scatter_time(self) -> float:
        """Seconds of the reduce-scatter of the gradients."""
        return self.groups.scatter_time(self.size)

    @property
    def copy_time(self) -> float:
        """Seconds of the all-reduce among copies."""
        return self.groups.copy_time(self.size)

    @property
    def gather_sends(self) -> int:
        """Bytes that a rank sends in the all-gather."""
        return self.groups.gather_sends(self.size)

    @property
    def reduce_sends(self) -> int:
        """Bytes that a rank sends to reduce the gradients."""
        return self.groups.reduce_sends(self.size)
