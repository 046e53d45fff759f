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

#: where a moment of a pass is: the layer by its former path, the phase, the operator, and which of
#: its calls there it is
_Place = tuple[str, str, str, int]


class Short(NamedTuple):
    """A pass of few layers of each kind."""

    rank: RankPlan
    #: the number of layers of each kind
    numbers: Sequence[int]
    #: by the paths of layers, those that they have in the complete model
    paths: Mapping[str, str]
    fabric: Fabric


class Extrapolated:
    """Figures of all layers: each further layer of a kind adds as much as the last one recorded.

    ``f(N) = f(n) + Σ (N_k − n_k) · (f(n + e_k) − f(n))``, for each figure, and for the live memory
    at each moment that all passes have. A moment in a layer between has less memory than one of
    these, or lies between two of them.
    """

    def __init__(self, base: Short, more: Sequence[Short], numbers: Sequence[int]) -> None:
        """Extrapolate from ``base`` to layers in these ``numbers``, by kind.

        ``more`` has for each kind a pass with one further layer.
        """
        self._base = base
        self._more = more
        pairs = zip(numbers, base.numbers, strict=True)
        self._times = [number - before for number, before in pairs]

    def figure(self, name: str) -> int:
        """Return a figure of a plan, such as ``local_params``, for all layers."""
        more = [getattr(each.rank, name) for each in self._more]
        return int(self._sum(getattr(self._base.rank, name), more))

    @property
    def waits(self) -> dict[Phase, Waiting]:
        """The seconds of each phase.

        Overlap is computed at the end: few layers overlap a smaller, or larger, share of
        communication than all layers do.
        """
        others = [_waits(each) for each in self._more]
        extrapolated: dict[Phase, Waiting] = {}
        for phase, base in _waits(self._base).items():
            columns = zip(base, *(each[phase] for each in others), strict=True)
            extrapolated[phase] = Waiting(*(self._sum(first, more) for first, *more in columns))
        return extrapolated

    def products(self, flops: FlopsConvention) -> float:
        """Return the MACs without those that are computed again."""
        recorded = [products_of(each.rank.trace) for each in (self._base, *self._more)]
        base, *more = [sum(map(attrgetter(flops), each)) for each in recorded]
        return self._sum(base, more)

    def sent_bytes(self, num_microbatches: int) -> int:
        """Return the bytes that a rank sends in a step of ``num_microbatches``."""
        sent: list[int] = []
        for short in (self._base, *self._more):
            of_rank = 0
            for each in short.rank.collectives:
                # Collectives of the optimizer run once in a step.
                times = 1 if each.phase == "optimizer" else num_microbatches
                of_rank += times * each.sent_bytes
            sent.append(of_rank)
        base, *more = sent
        return int(self._sum(base, more))

    @property
    def peak(self) -> dict[MemoryKind, int]:
        """The live memory by kind at the peak."""
        moments, others = _moments(self._base), [_moments(each) for each in self._more]
        peak = [0] * len(KINDS)
        has_moment = False
        for place, base in moments.items():
            if not all(place in each for each in others):
                continue
            columns = zip(base, *(each[place] for each in others), strict=True)
            sizes = [int(self._sum(size, more)) for size, *more in columns]
            if not has_moment or sum(sizes) > sum(peak):
                peak = sizes
            has_moment = True
        return dict(zip(KINDS, peak, strict=True))

    def _sum(self, base: float, more: Sequence[float]) -> float:
        pairs = zip(self._times, more, strict=True)
        return base + sum(times * (each - base) for times, each in pairs)


def _waits(short: Short) -> dict[Phase, Waiting]:
    rank = short.rank
    operators = () if rank.roofline is None else rank.roofline.operators
    computing: dict[Phase, float] = {}
    for each in operators:
        if each.limiter != "links":
            computing[each.phase] = computing.get(each.phase, 0.0) + each.time_estimate
    links: Mapping[int, float] = link_times(rank.trace, short.fabric)
    if rank.roofline is not None:
        seconds = seconds_by_op(rank.trace, rank.roofline)
        links = overlap_with_products(rank.trace, short.fabric, links, seconds)
    return waiting(rank.trace, links, computing)


def _moments(short: Short) -> dict[_Place, tuple[int, ...]]:
    """Return the live memory at each place. Operators between layers count for the layer before.

    All-gathers of parameters are such operators.
    """
    num_calls: Counter[tuple[str, str, str]] = Counter()
    moments: dict[_Place, tuple[int, ...]] = {}
    latest_layer, latest_phase = "", ""
    for each in short.rank.memory.timeline:
        layer, inside = _former(each.layer, short.paths)
        nearest = layer or latest_layer
        if (nearest, each.phase) != (latest_layer, latest_phase):
            latest_layer, latest_phase = nearest, each.phase
            num_calls.clear()
        key = (f"{nearest}:{layer}{inside}", each.phase, each.operator)
        moments.setdefault((*key, num_calls[key]), each.bytes_by_kind)
        num_calls[key] += 1
    return moments


def _former(layer: str, paths: Mapping[str, str]) -> tuple[str, str]:
    """Return the layer of a list that a module is in, and the path of the module in it.

    The layer has its path in the complete model. Other modules have none, and their own path.
    """
    parts = layer.split(".")
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        if path in paths:
            return paths[path], ".".join(["", *parts[end:]])
    return "", layer
