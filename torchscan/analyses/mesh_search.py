"""Results of a search for meshes, and their derivation from passes of few layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torchscan.analyses.memory_blocks import KINDS, MemoryKind
from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.plan_result import RankPlan
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.analyses.roofline.links import Fabric, Waiting, link_times, waiting
from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.trace.events import Phase

#: where a moment of a pass is: the layer by its former path, the phase, the operator, and which of its calls there it is
_Place = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshChoice:
    """A training step on one mesh. Bytes and times are those of one device."""

    #: size of each mesh dimension, by name
    mesh: Mapping[str, int]
    #: parameters that one device holds
    local_params: int
    #: largest number of bytes of tensors at once
    peak_bytes: int
    #: bytes at the peak, by kind
    by_kind: Mapping[MemoryKind, int]
    #: bytes that torch's allocator reserves, with the context
    needed_bytes: int
    #: True if ``needed_bytes`` fit on the device
    fits: bool
    #: True if ``needed_bytes`` follows from a pass of all layers
    is_replayed: bool
    #: bytes that one device sends in a step, at least
    sent_bytes: int
    #: seconds of a step
    time_estimate: float
    #: seconds of a step that computation waits for links
    waiting: float
    #: tokens of all devices per second
    tokens_per_second: float
    #: model FLOPs utilization: the model's products, without recomputation, as a share of the peak
    #: of all devices
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSearch(Result):
    """Training steps on several meshes, the fastest that fit first."""

    device: str
    num_gpus: int
    #: tokens of a sequence
    length: int
    #: sequences of all devices in a step
    sequences: int
    precision: str
    optimizer: str
    #: True if each layer is recomputed in the backward pass
    checkpoint: bool
    #: rank of the adapters that are trained, or None if the complete model is trained
    lora: int | None
    #: error margin of the times
    error_margin: ErrorMargin | None
    params: int
    choices: tuple[MeshChoice, ...]
    #: meshes that were left out, with the reason
    refused: Mapping[str, Note]
    #: number of recorded passes
    num_traces: int
    assumptions: tuple[Note, ...]

    @property
    def best(self) -> MeshChoice | None:
        """The fastest that fits."""
        return next((each for each in self.choices if each.fits), None)

    def __repr__(self) -> str:
        """A short one."""
        found = (
            "none fits" if self.best is None else f"best {printable(format_mesh(self.best.mesh))}"
        )
        return (
            f"<MeshSearch for {self.num_gpus} {self.device}: {len(self.choices)} meshes, {found}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        names = (
            "device",
            "num_gpus",
            "length",
            "sequences",
            "precision",
            "optimizer",
            "checkpoint",
            "lora",
            "params",
            "num_traces",
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        plain["error_margin"] = None if self.error_margin is None else self.error_margin.share
        choices = [
            {each.name: getattr(one, each.name) for each in fields(one)} for one in self.choices
        ]
        made = [
            {**each, "mesh": dict(each["mesh"]), "by_kind": dict(each["by_kind"])}
            for each in choices
        ]
        return {
            **plain,
            "choices": made,
            "refused": to_plain(self.refused),
            "assumptions": to_plain(self.assumptions),
        }


def format_mesh(mesh: Mapping[str, int]) -> str:
    """``dp 8 × tp 8``."""
    return " × ".join(f"{name} {size}" for name, size in mesh.items())


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
    def seconds(self) -> tuple[float, float]:
        """Return the seconds of the step, and the part of them that waits for links.

        Overlap is computed at the end: few layers overlap a smaller, or larger, share of
        communication than all layers do.
        """
        base, more = _waits(self._base), [_waits(each) for each in self._more]
        phases = [self._waiting(base[phase], [each[phase] for each in more]) for phase in base]
        waits = math.fsum(each.waited_for + each.left for each in phases)
        return math.fsum(each.computing for each in phases) + waits, waits

    def _waiting(self, base: Waiting, more: Sequence[Waiting]) -> Waiting:
        return Waiting(
            *(self._sum(each, [one[at] for one in more]) for at, each in enumerate(base))
        )

    @property
    def products(self) -> int:
        """MACs without those that are computed again."""
        return int(
            self._sum(_products(self._base.rank), [_products(each.rank) for each in self._more])
        )

    @property
    def peak(self) -> dict[MemoryKind, int]:
        """Return the live memory by kind at the peak."""
        moments, others = _moments(self._base), [_moments(each) for each in self._more]
        common = [place for place in moments if all(place in each for each in others)]
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
    return waiting(rank.trace, link_times(rank.trace, short.fabric), computing)


def _products(rank: RankPlan) -> int:
    pairs = zip(rank.trace.ops, call_costs(rank.trace), strict=True)
    return sum(
        _needed_macs(op.signature.operator, cost.macs)
        for op, cost in pairs
        if op.origin != "checkpoint"
    )


def _needed_macs(operator: str, macs: int) -> int:
    """Return the MACs without the product that the backward pass of fused attention recomputes.

    It is one of five products.
    """
    is_attention = "attention" in operator and operator.endswith("backward")
    return macs * 4 // 5 if is_attention else macs


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
