"""Values of all layers from recorded passes of few layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from torchscan.analyses.memory_blocks import KINDS, MemoryKind
from torchscan.analyses.mesh_parts import seconds_by_op
from torchscan.analyses.model_products import FlopsConvention, products_of
from torchscan.analyses.plan_result import RankPlan
from torchscan.analyses.roofline.async_products import overlap_with_products
from torchscan.analyses.roofline.exposed_collectives import Waiting, waiting
from torchscan.analyses.roofline.links import Fabric, link_times
from torchscan.trace.events import Phase

#: where a moment of a pass is: the layer by its former path, the phase, the operator, and which of its calls there it is
_Place = tuple[str, str, str, int]


class Short(NamedTuple):
    """A pass in which of each kind of layers there are so many."""

    rank: RankPlan
    numbers: Sequence[int]
    #: by the paths of layers those that they have in the whole model
    paths: Mapping[str, str]
    fabric: Fabric


class Extrapolated:
    """Figures of all layers: each further layer of a kind adds as much as the last one recorded.

    ``f(N) = f(n) + Σ (N_k − n_k) · (f(n + e_k) − f(n))``, for each figure, and for the live memory
    at each moment that all passes have. A moment in a layer between has less memory than one of
    these, or lies between two of them.
    """

    def __init__(self, base: Short, more: Sequence[Short], numbers: Sequence[int]) -> None:
        """``more``: for each kind a pass with one further layer; ``numbers``: how many there are of each in all."""
        self._base = base
        self._more = more
        self._times = [
            number - before for number, before in zip(numbers, base.numbers, strict=True)
        ]

    def figure(self, name: str) -> int:
        """Return a figure of a plan, such as ``local_params``, for all layers."""
        return int(
            self._sum(
                getattr(self._base.rank, name), [getattr(each.rank, name) for each in self._more]
            )
        )

    @property
    def waits(self) -> dict[Phase, Waiting]:
        """The seconds of each phase.

        Overlap is computed at the end: few layers overlap a smaller, or larger, share of
        communication than all layers do.
        """
        others = [_waits(each) for each in self._more]
        found: dict[Phase, Waiting] = {}
        for phase, base in _waits(self._base).items():
            columns = zip(base, *(each[phase] for each in others), strict=True)
            found[phase] = Waiting(*(self._sum(first, more) for first, *more in columns))
        return found

    def products(self, flops: FlopsConvention) -> float:
        """Return the MACs without those that are computed again."""
        recorded = [products_of(each.rank.trace) for each in (self._base, *self._more)]
        base, *more = (sum(map(attrgetter(flops), each)) for each in recorded)
        return self._sum(base, more)

    def sent_bytes(self, num_microbatches: int) -> int:
        """Return the bytes that a rank sends in a step of so many micro batches."""
        base, *more = (
            _sent_bytes(each.rank, num_microbatches) for each in (self._base, *self._more)
        )
        return int(self._sum(base, more))

    @property
    def peak(self) -> dict[MemoryKind, int]:
        """Return the live memory by kind at the peak."""
        moments, others = _moments(self._base), [_moments(each) for each in self._more]
        everywhere = set(moments).intersection(*others)
        common = [place for place in moments if place in everywhere]
        sizes = (
            [
                int(self._sum(size, further))
                for size, *further in zip(
                    moments[place], *(each[place] for each in others), strict=True
                )
            ]
            for place in common
        )
        return dict(zip(KINDS, max(sizes, key=sum, default=[0] * len(KINDS)), strict=True))

    def _sum(self, base: float, more: Sequence[float]) -> float:
        return base + sum(
            times * (each - base) for times, each in zip(self._times, more, strict=True)
        )


def _waits(short: Short) -> dict[Phase, Waiting]:
    rank = short.rank
    computing: dict[Phase, float] = {}
    for each in rank.roofline.operators if rank.roofline is not None else ():
        if each.limiter != "links":
            computing[each.phase] = computing.get(each.phase, 0.0) + each.time_estimate
    links: Mapping[int, float] = link_times(rank.trace, short.fabric)
    if rank.roofline is not None:
        seconds = seconds_by_op(rank.trace, rank.roofline)
        links = overlap_with_products(rank.trace, short.fabric, links, seconds)
    return waiting(rank.trace, links, computing)


def _sent_bytes(rank: RankPlan, num_microbatches: int) -> int:
    """Return the bytes that a rank sends; collectives of the optimizer run once in a step."""
    sent = 0
    for each in rank.collectives:
        times = 1 if each.phase == "optimizer" else num_microbatches
        sent += times * each.sent_bytes
    return sent


def _moments(short: Short) -> dict[_Place, tuple[int, ...]]:
    """Return the live memory at each place. Operators between layers count for the layer before.

    All-gathers of parameters are such operators.
    """
    met: Counter[tuple[str, str, str]] = Counter()
    found: dict[_Place, tuple[int, ...]] = {}
    latest = ("", "")
    for each in short.rank.memory.timeline:
        layer, inside = _former(each.layer, short.paths)
        if (layer or latest[0], each.phase) != latest:
            latest = (layer or latest[0], each.phase)
            met.clear()
        key = (f"{latest[0]}:{layer}{inside}", each.phase, each.operator)
        found.setdefault((*key, met[key]), each.bytes_by_kind)
        met[key] += 1
    return found


def _former(layer: str, paths: Mapping[str, str]) -> tuple[str, str]:
    """The layer of a list that a module is in, by its path in the whole model, and where in it; else nothing and its path."""
    parts = layer.split(".")
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        if path in paths:
            return paths[path], ".".join(["", *parts[end:]])
    return "", layer
