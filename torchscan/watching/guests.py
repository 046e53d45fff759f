"""The user's sinks and statistics in the worker. If one fails, only that one is disabled."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.notes import Note
from torchscan.watching.lost_steps import format_error

if TYPE_CHECKING:
    from torch import Tensor

    from torchscan.watching.schema import CurvePoint, Phase
    from torchscan.watching.sinks.sink import Sink, SinkData

    Statistic = Callable[[Tensor], float]

#: seconds that a statistic may take
_PATIENCE = 10.0
#: seconds that a sink may take to close after a trainer that was killed
_LAST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Code of the user, whose modules may take long to import."""

    sinks: Sequence[Sink] = ()
    custom: Mapping[str, Statistic] = field(default_factory=dict)


class Guests:
    """``report`` takes what the user is to know, once for each that has failed."""

    def __init__(self, report: Callable[[Note], None]) -> None:
        #: with when each was last shown a step, by their identities: a sink of the user's may have
        #: no hash
        self._sinks: dict[int, tuple[Sink, float]] = {}
        self._custom: dict[str, Statistic] = {}
        self._report = report
        self._failed: set[str] = set()
        #: until when the user's code that runs now may take, on the clock of time.monotonic()
        self._until: float | None = None

    def admit(self, guest: Guest) -> None:
        """Begin to show steps to these sinks, and to compute these statistics."""
        self._sinks = {id(sink): (sink, -math.inf) for sink in guest.sinks}
        self._custom = dict(guest.custom)

    @property
    def deadline(self) -> float | None:
        """The time by which the running code of the user must end, or None if none is running."""
        return self._until

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        self._until = time.monotonic() + seconds
        try:
            with _limited(seconds):
                yield
        finally:
            self._until = None

    @property
    def has_statistics(self) -> bool:
        """True if there are statistics."""
        return bool(self._custom)

    @property
    def has_sinks(self) -> bool:
        """True if there are sinks."""
        return bool(self._sinks)

    def figures(self, values: Sequence[Tensor]) -> dict[str, list[float]]:
        """Return the value of each statistic for each tensor, NaN if it fails."""
        figures = {}
        for name, statistic in self._custom.items():
            figures[name] = [self._figure(name, statistic, each) for each in values]
        return figures

    def open(self, run: Path) -> None:
        """The run begins, in this folder."""
        for sink, _ in list(self._sinks.values()):
            self._call(sink, sink.on_open, run)

    def show(self, seen: SinkData) -> None:
        """To each sink for which it is time."""
        now = time.monotonic()
        for sink, last in list(self._sinks.values()):
            if not sink.frequency or now >= last + 1 / sink.frequency:
                self._sinks[id(sink)] = sink, now
                self._call(sink, sink.on_data, seen)

    def show_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Show each sink points of the curves."""
        for sink, _ in list(self._sinks.values()):
            self._call(sink, sink.on_curves, phase, points)

    def show_note(self, note: Note) -> None:
        """Show each sink a note of the user's program."""
        for sink, _ in list(self._sinks.values()):
            self._call(sink, sink.on_note, note)

    def close(self, *, is_orphan: bool = False) -> None:
        """End the run; sinks have little time if training ended without (``is_orphan``)."""
        for sink, _ in list(self._sinks.values()):
            self._call(sink, sink.on_close, limit=_LAST if is_orphan else math.inf)
        self._sinks = {}

    def _call(
        self, sink: Sink, method: Callable[..., None], *args: Any, limit: float = math.inf
    ) -> None:
        try:
            with self._limited(min(sink.timeout, limit)):
                method(*args)
        except (Exception, SystemExit) as error:
            del self._sinks[id(sink)]
            name, text = type(sink).__name__, format_error(error)
            self._report(Note.of("sink-disabled", sink=name, method=method.__name__, error=text))

    def _figure(self, name: str, statistic: Statistic, values: Tensor) -> float:
        if name in self._failed:
            return math.nan
        try:
            with self._limited(_PATIENCE):
                return float(statistic(values))
        except (Exception, SystemExit) as error:
            self._failed.add(name)
            self._report(Note.of("statistic-disabled", name=name, error=format_error(error)))
            return math.nan


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(*_: object) -> None:
        is_over = time.monotonic() >= begun + seconds
        raise TimeoutError(
            f"it took longer than {seconds:g} s" if is_over else "training ended before it finished"
        )

    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
