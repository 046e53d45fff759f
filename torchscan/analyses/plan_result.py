"""Results of a plan: memory, computation and communication of the ranks of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torchscan.analyses.collectives import Collective
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.formatters import table_of
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.trace.trace import Trace
from torchscan.units import count, memory

if TYPE_CHECKING:
    from torchscan.report.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """Memory, costs and communication of one rank."""

    rank: int
    #: position of the rank in each mesh dimension
    place: Mapping[str, int]
    #: parameters that the rank holds
    local_params: int
    macs: int
    flops: int
    collectives: tuple[Collective, ...]
    memory: MemoryEstimate
    #: time of the rank, or None without a device
    roofline: Roofline | None
    trace: Trace
    #: mesh dimensions without a collective
    silent_dims: tuple[str, ...] = ()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the rank sends, at least."""
        return sum(each.sent_bytes for each in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, without the trace."""
        names = ("rank", "local_params", "macs", "flops", "sent_bytes")
        plain = {name: getattr(self, name) for name in names}
        collectives = [asdict(each) for each in self.collectives]
        return {
            **plain,
            "place": dict(self.place),
            "collectives": collectives,
            "memory": self.memory.to_dict(),
            "roofline": None if self.roofline is None else self.roofline.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Result):
    """Memory, computation and communication of the ranks of a mesh.

    Values of one rank are those of the planned rank with the highest peak memory.
    """

    #: size of each mesh dimension, by name
    mesh: Mapping[str, int]
    device: str | None
    training: bool
    #: samples of one rank, or None if inputs were given
    batch_size: int | None
    #: parameters of the complete model
    params: int
    #: the ranks that were planned
    ranks: tuple[RankPlan, ...]
    assumptions: tuple[Note, ...]
    warnings: tuple[Note, ...]

    def table(self, by: str = "group") -> Table:
        """Return the plan with one row per "group" of collectives, "rank" or "layer"."""
        return table_of(self, by=by)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.mesh.values())

    @property
    def largest_rank(self) -> RankPlan:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda each: each.memory.peak_bytes)

    @property
    def local_params(self) -> int:
        """Number of parameters that one rank holds."""
        return self.largest_rank.local_params

    @property
    def macs(self) -> int:
        """MACs of one rank."""
        return self.largest_rank.macs

    @property
    def flops(self) -> int:
        """FLOPs of one rank."""
        return self.largest_rank.flops

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Collectives of one rank."""
        return self.largest_rank.collectives

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank sends, at least."""
        return self.largest_rank.sent_bytes

    @property
    def memory(self) -> MemoryEstimate:
        """Memory of one rank."""
        return self.largest_rank.memory

    @property
    def roofline(self) -> Roofline | None:
        """Roofline of one rank, with the time that it waits for links, or None without a device."""
        return self.largest_rank.roofline

    def __repr__(self) -> str:
        """Return a short text: there are thousands of operators."""
        where = " × ".join(f"{name} {size:,}" for name, size in self.mesh.items())
        params = f"{count(self.local_params)} of {count(self.params)} parameters"
        peak, sent = memory(self.memory.peak_bytes), memory(self.sent_bytes)
        return f"<Plan of {printable(where)}: {params}, {peak} and {sent} sent per rank>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        names = ("device", "training", "batch_size", "num_ranks", "params")
        plain = {name: getattr(self, name) for name in names}
        notes = {name: to_plain(getattr(self, name)) for name in ("assumptions", "warnings")}
        return {
            "mesh": dict(self.mesh),
            **plain,
            **notes,
            "ranks": [each.to_dict() for each in self.ranks],
        }
