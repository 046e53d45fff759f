"""Export of a run that was recorded to a sink, which gets it as it would have during training."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from torchscan.watching.curves import merge_points
from torchscan.watching.merging import steps_of_ranks
from torchscan.watching.rank_readers import readers_of
from torchscan.watching.schema import Phase, RunEvent
from torchscan.watching.sinks.sink import Sink

#: a time in seconds since 1970, and what the sink is called with then
_Timed = tuple[float, Callable[[], None]]


def export_run(path: Path, files: Sequence[Path], events: Collection[RunEvent], sink: Sink) -> None:
    """Send the files of a run's ranks and the user's notes to a sink, in the order of time."""
    calls: list[Iterable[_Timed]] = []
    for phase in get_args(Phase):
        points = merge_points([reader.curves(phase) for reader in readers_of(files)])
        show = partial(sink.on_curves, phase)
        calls.append([(point.time, partial(show, [point])) for point in points])
        steps = steps_of_ranks(files, phase)
        calls.append((step.time, partial(sink.on_data, step)) for step in steps)
    notes = [event for event in events if event.note.code == "user-note"]
    calls.append([(event.time, partial(sink.on_note, event.note)) for event in notes])
    with contextlib.ExitStack() as last:
        last.callback(sink.on_close)
        sink.on_open(path)
        for _, call in heapq.merge(*calls, key=lambda timed: timed[0]):
            call()
