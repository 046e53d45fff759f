"""TensorBoard: a file of events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import Any

from torchscan.notes import Note
from torchscan.watching.argument_checks import path
from torchscan.watching.schema import CurvePoint, Distribution, Phase
from torchscan.watching.sinks.sink import (
    Sink,
    SinkData,
    histogram,
    number_of_finite,
    require,
    to_scalars,
    to_statistics,
)


class TensorBoard(Sink):
    """A sink for TensorBoard: histograms, scalars under ``train/…`` and ``eval/…``, and notes.

    After each step they are in the file.

    Args:
        folder: what ``tensorboard --logdir`` is given.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("tensorboard", "TensorBoard", "tensorboard")
        self.folder = os.path.abspath(path("folder", folder, "a folder such as 'runs/board'"))
        self._writer: Any = None

    def on_data(self, seen: SinkData) -> None:
        """Write the step, as one event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=seen.time, step=seen.step, summary=Summary(value=_values(seen)))
        self._write([event])

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Write the scalars of each step."""
        self._write(_curve_events(phase, points))

    def on_note(self, note: Note) -> None:
        """Write a note for the tab Text."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        text = str(note.values["text"]).encode()
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(
            tag="notes",
            metadata=SummaryMetadata(plugin_data=plugin),
            tensor=TensorProto(dtype=DT_STRING, string_val=[text]),
        )
        step = note.values["step"]
        self._write([Event(wall_time=time(), step=step, summary=Summary(value=[value]))])

    def _write(self, events: Iterable[Any]) -> None:
        """Add events to the file."""
        if self._writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer = EventFileWriter(self.folder)
        for event in events:
            self._writer.add_event(event)
        self._writer.flush()

    def on_close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _curve_events(phase: Phase, points: Sequence[CurvePoint]) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for point in points:
        scalars = to_scalars(phase, point).items()
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
        yield Event(wall_time=point.time, step=point.step, summary=Summary(value=values))


def _values(seen: SinkData) -> Iterator[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary

    for series, found in seen.distributions.items():
        tag = f"{seen.phase}/{series.label}"
        if number_of_finite(found):
            yield Summary.Value(tag=tag, histo=_histogram(found))
        for name, value in to_statistics(found).items():
            yield Summary.Value(tag=f"{tag}/{name}", simple_value=value)


def _histogram(found: Distribution) -> Any:
    """Each bucket ends at its limit. What is before the first edge is one, too, and empty."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

    edges, counts = histogram(found)
    number = number_of_finite(found)
    mean_square = found.std**2 + found.mean**2
    return HistogramProto(
        min=found.min,
        max=found.max,
        num=number,
        sum=number * found.mean,
        sum_squares=number * mean_square,
        bucket_limit=edges,
        bucket=[0, *counts],
    )
