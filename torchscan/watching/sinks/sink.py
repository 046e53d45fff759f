"""The base class of sinks, which get each sampled step in the process that writes the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchscan.notes import Note
from torchscan.watching.schema import CurvePoint, Distribution, Phase, Series

if TYPE_CHECKING:
    from torch import Tensor


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
    """Shown each step that is looked at. Derive from it, and give ``watch(model, run, sinks=[…])`` one of yours.

    It runs in the process that writes the run, so training does not wait for it. If it raises or takes longer than ``timeout``,
    a warning says so, and it is left alone from then on.
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
        """Take the loss, learning rate and gradient norm of steps, sampled or not, in order."""

    def on_note(self, note: Note) -> None:
        """Take a note of the user's program, such as ``watcher.note("epoch 3")``: text and step."""

    def on_close(self) -> None:
        """The run is over."""
