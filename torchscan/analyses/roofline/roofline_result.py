"""The roofline of a pass: results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import fsum
from typing import TYPE_CHECKING, Any, Literal

from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.analyses.roofline.number_formats import Format
from torchscan.analyses.suggestions_result import NOBODY, Asker, Suggestions
from torchscan.formatters import table_of
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.trace.events import Phase

if TYPE_CHECKING:
    from torchscan.report.table import Table

#: what keeps an operator from being faster: arithmetic, memory, the second-level cache, its launch,
#: or links to other devices
Limiter = Literal["compute", "memory", "cache", "launch", "links"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Something that runs on the device. Times are in seconds."""

    macs: int
    flops: int
    elements_read: int
    elements_written: int
    bytes_read: int
    bytes_written: int
    #: FLOPs per byte of necessary traffic, or None without traffic
    intensity: float | None
    #: intensity from which on arithmetic is the limit, or None if not known: the device's FLOPs per
    #: byte in this precision, for several calls that of the slowest one
    ridge: float | None
    #: for several calls, the one with most of the time
    limiter: Limiter
    #: the shortest time that the data sheet allows
    time_bound: float
    #: the time to expect
    time_estimate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLoad(_Load):
    """One call of an operator on the device."""

    operator: str
    #: path of the module that called the operator
    layer: str
    #: call of that module, from 0 on
    call: int
    phase: Phase
    #: format in which products are computed
    precision: Format

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        return _plain(self, "operator", "layer", "call", "phase", "precision", *_FIGURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad(_Load):
    """Several calls: all of one operator, or all in a layer."""

    #: operator, or path of the layer; "" is the model
    name: str
    calls: int
    #: format of the operator that takes the most time
    precision: Format | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        before = _FIGURES.index("limiter")
        return _plain(self, "name", "calls", *_FIGURES[:before], "precision", *_FIGURES[before:])


_FIGURES = tuple(each.name for each in fields(_Load))


def _plain(load: _Load, *names: str) -> dict[str, Any]:
    return {name: getattr(load, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(Result):
    """The expected time of a pass on a device, and what limits each operator."""

    device: str
    #: requested precision, or None for the model's own
    precision: str | None
    batch_size: int | None
    compiled: bool
    #: shortest time that the data sheet allows, in seconds
    time_bound: float
    #: expected time, in seconds
    time_estimate: float
    #: four of five measured times are expected within the estimate times 1 ± ``error_margin.share``
    error_margin: ErrorMargin
    #: expected time of each phase
    time_by_phase: Mapping[Phase, float]
    #: peak operations per second, for each format that the pass computes in
    peak_flops: Mapping[str, float]
    #: memory bandwidth, in bytes per second
    bandwidth: float
    #: time of products at their peak rate, as a share of the expected time
    compute_utilization: float
    #: time of memory traffic at full bandwidth, as a share of the expected time
    memory_utilization: float
    operators: tuple[OperatorLoad, ...]
    layers: tuple[GroupLoad, ...]
    by_kind: Mapping[str, GroupLoad]
    assumptions: tuple[Note, ...]
    #: problems with the question, such as a batch that does not fit the device
    warnings: tuple[Note, ...]
    #: operators without a cost formula and modules that were not recorded, which times leave out
    without_formula: tuple[str, ...] = ()
    _asker: Asker[Suggestions] = field(default=NOBODY, repr=False, compare=False)

    def table(
        self,
        by: str = "layer",
        *,
        max_depth: int = 2,
        top: int = 15,
        fold_repeats: bool = False,
    ) -> Table:
        """Return times, shares of the peaks, and what takes the most time, longest first.

        Args:
            by: the rows: "layer", "kind" (all calls of an operator) or "operator" (one call).
            max_depth: the depth from which on layers are part of their parents.
            top: the number of rows; one more row holds the rest, so that the table adds up.
            fold_repeats: collapse identical layers that follow each other into one row.
        """
        return table_of(self, by=by, max_depth=max_depth, top=top, fold_repeats=fold_repeats)

    def suggestions(self) -> Suggestions:
        """Return changes that save time, each estimated separately, the best first."""
        return self._asker.answers()

    @property
    def time_range(self) -> tuple[float, float]:
        """The times within which four of five measured ones are expected, in seconds."""
        share = self.error_margin.share
        low = self.time_estimate * (1 - share)
        high = self.time_estimate * (1 + share)
        return max(low, self.time_bound), high

    @property
    def basis(self) -> str:
        """Batch size and precision of its times, for headings: ``"batch 64, fp16"``."""
        parts = []
        if self.batch_size is not None:
            parts.append(f"batch {self.batch_size:,}")
        if self.precision:
            parts.append(self.precision)
        return ", ".join(parts)

    @property
    def time_by_limiter(self) -> Mapping[Limiter, float]:
        """Expected time of the operators by their limit, the largest first."""
        times: dict[Limiter, list[float]] = defaultdict(list)
        for each in self.operators:
            times[each.limiter].append(each.time_estimate)
        sums = {limiter: fsum(each) for limiter, each in times.items()}
        longest_first = sorted(sums, key=lambda limiter: -sums[limiter])
        return {limiter: sums[limiter] for limiter in longest_first}

    def time_share(self, limiter: Limiter) -> float:
        """Return the share of the expected time that operators with this limit take."""
        if not self.time_estimate:
            return 0.0
        return self.time_by_limiter.get(limiter, 0.0) / self.time_estimate

    @property
    def total(self) -> GroupLoad:
        """The complete pass."""
        return self.layers[0]

    def __repr__(self) -> str:
        """Return a short description, because there are thousands of operators."""
        estimate = 1000 * self.time_estimate
        bound = 1000 * self.time_bound
        margin = 100 * self.error_margin.share
        times = f"{estimate:.3g} ms ± {margin:.0f} %, at least {bound:.3g} ms"
        return f"<Roofline on {self.device}: {times}, {self.total.limiter}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        operators = [each.to_dict() for each in self.operators]
        layers = [each.to_dict() for each in self.layers]
        by_kind = {name: each.to_dict() for name, each in self.by_kind.items()}
        return {
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "compiled": self.compiled,
            "time_bound": self.time_bound,
            "time_estimate": self.time_estimate,
            "bandwidth": self.bandwidth,
            "time_range": list(self.time_range),
            "time_range_reason": to_plain(self.error_margin.reason),
            "time_by_phase": dict(self.time_by_phase),
            "time_by_limiter": dict(self.time_by_limiter),
            "peak_flops": dict(self.peak_flops),
            "compute_utilization": self.compute_utilization,
            "memory_utilization": self.memory_utilization,
            "operators": operators,
            "layers": layers,
            "by_kind": by_kind,
            "assumptions": to_plain(self.assumptions),
            "warnings": to_plain(self.warnings),
        }
