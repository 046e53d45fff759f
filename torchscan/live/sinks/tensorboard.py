"""TensorBoard: a file of events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torchscan.live.accepting import path
from torchscan.live.schema import Distribution
from torchscan.live.sinks.figures import histogram, number_of_finite, require, to_statistics
from torchscan.live.sinks.sink import Sink, SinkData


class TensorBoard(Sink):
    """Histograms and figures for TensorBoard, under ``train/…`` and ``eval/…``. After each step they are in the file.

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

        if self._writer is None:
            self._writer = self._opened()
        event = Event(wall_time=seen.time, step=seen.step, summary=Summary(value=_values(seen)))
        self._writer.add_event(event)
        self._writer.flush()

    def on_close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        return EventFileWriter(self.folder)


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
    sums = {
        "num": number,
        "sum": number * found.mean,
        "sum_squares": number * (found.std**2 + found.mean**2),
    }
    return HistogramProto(
        min=found.min, max=found.max, **sums, bucket_limit=edges, bucket=[0, *counts]
    )
