"""The base class of sinks, and statistics and histograms in the form that other tools take."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.distributions import bounds, is_finite
from torchscan.watching.schema import CurvePoint, Distribution, Phase, Series

if TYPE_CHECKING:
    from torch import Tensor


_ALWAYS = ("mean", "std", "min", "max")
_IF_KNOWN = ("update", "saturated", "dead", "sample_norm")
_IF_ANY = ("nan", "inf")
#: bars that a histogram may have in W&B and Trackio
_MAX_BARS = 512
_OF_CURVES = ("loss", "learning_rate", "gradient_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkData:
    """One step, as sinks are shown it."""

    step: int
    phase: Phase
    #: 0 for the first pass of its kind, counted over the run
    number: int
    #: seconds since 1970
    time: float
    distributions: Mapping[Series, Distribution]
    #: values as float32 on the CPU: all values of a series in ``whole``, in their shape, else the
    #: sampled ones; empty if read from a file
    values: Mapping[Series, Tensor] = field(default_factory=dict)


class Sink:
    """Base class of sinks, which get each sampled step: give one to ``watch(…, sinks=[…])``.

    Derive your own from it. It runs in the process that writes the run, so training does not wait
    for it. If it raises or takes longer than ``timeout``, a warning says so, and it is left alone
    from then on.
    """

    #: largest number of steps per second that the sink gets, or None for each sampled step
    frequency: float | None = None
    #: seconds that a call may take
    timeout: float = 10.0
    #: series whose complete values the sink needs, as patterns of :attr:`Series.label`
    whole: Sequence[str] = ()
    #: largest number of values of a tensor in ``whole``; of larger ones the sink gets the sampled
    #: values
    max_elements: int = sys.maxsize

    def on_open(self, run: Path) -> None:
        """It is shown what is in this folder, or is written there from now on."""

    def on_data(self, seen: SinkData) -> None:
        """A step was looked at."""

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Take loss and learning rate of all steps, and gradient norms of sampled ones."""

    def on_note(self, note: Note) -> None:
        """Take a note of the user's program, such as ``watcher.note("epoch 3")``: text and step."""

    def on_close(self) -> None:
        """The run is over."""


def require(package: str, what: str, project: str) -> None:
    """Raise an InputError if a package is missing.

    It is checked in the training process, because the worker would report it too late.
    """
    if find_spec(package) is None:
        raise InputError(f"{what} needs {package}: pip install {project}")


def to_statistics(found: Distribution) -> dict[str, float]:
    """Return the statistics with information: known values, and counts of NaN or Inf above zero."""
    known = {name: float(getattr(found, name)) for name in (*_ALWAYS, *_IF_KNOWN)} | dict(
        found.custom
    )
    there = {name: float(getattr(found, name)) for name in _IF_ANY if getattr(found, name)}
    return {name: value for name, value in known.items() if math.isfinite(value)} | there


def to_scalars(phase: Phase, point: CurvePoint) -> dict[str, float]:
    """Return the known values of a step's curves by name, such as ``train/loss``."""
    values = {name: getattr(point, name) for name in _OF_CURVES}
    return {f"{phase}/{name}": value for name, value in values.items() if value is not None}


def number_of_finite(found: Distribution) -> int:
    """Return the number of finite values among the sampled ones."""
    return found.sampled - found.nan - found.inf


def histogram(found: Distribution) -> tuple[list[float], list[int]]:
    """Return increasing edges, and the number of finite values between each two.

    There are no edges if there are no finite values.
    """
    bars = list(_bars(found))
    if not bars:
        return [], []
    lowest, _, _ = bars[0]
    edges = [lowest, *(high for _, high, _ in bars)]
    first, last = max(edges[0], found.min), min(edges[-1], found.max)
    if first < edges[1]:
        edges[0] = first
    if last > edges[-2]:
        edges[-1] = last
    return edges, [count for *_, count in bars]


def limited_histogram(found: Distribution) -> tuple[list[float], list[int]]:
    """Return a histogram with at most 512 bars. The narrowest ones, near zero, are merged."""
    edges, counts = histogram(found)
    if not counts:
        return [], []
    inner = sorted(edges[1:-1], key=abs, reverse=True)
    return regrouped(edges, counts, {edges[0], *inner[: _MAX_BARS - 1], edges[-1]})


def merged(edges: list[float], counts: list[int], width: float) -> tuple[list[float], list[int]]:
    """Merge bars until each has at least this width."""
    kept = edges[:1]
    for edge in edges[1:]:
        if edge - kept[-1] >= width:
            kept.append(edge)
    if kept[1:]:
        kept[-1] = edges[-1]
    return regrouped(edges, counts, {*kept, *edges[-1:]})


def regrouped(
    edges: list[float], counts: list[int], kept: Collection[float]
) -> tuple[list[float], list[int]]:
    """Merge bars so that only the kept edges remain, the first and the last among them."""
    sums = [0]
    for edge, count in zip(edges[1:], counts, strict=True):
        sums[-1] += count
        if edge in kept:
            sums.append(0)
    return [edge for edge in edges if edge in kept], sums[:-1]


def _bars(found: Distribution) -> Iterator[tuple[float, float, int]]:
    """Without gaps."""
    end = math.nan
    for low, high, count in sorted(
        (*bounds(number), count) for number, count in found.counts.items() if is_finite(number)
    ):
        if end < low:
            yield end, low, 0
        yield low, high, count
        end = high
