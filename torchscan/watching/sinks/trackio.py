"""Trackio: scalars and histograms in a local project or a Hugging Face Space."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.argument_checks import quote
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks.sink import (
    Sink,
    SinkData,
    limited_histogram,
    require,
    to_scalars,
    to_statistics,
)


class Trackio(Sink):
    """A sink for Trackio: histograms, scalars under ``train/…`` and ``eval/…``, and notes.

    Args:
        project: the project, which is created if it does not exist.
        init: other arguments of ``trackio.init``: ``name="first"``, ``space_id="me/runs"``.
            Trackio's own logging of CPU and GPU is off unless it is asked for.
    """

    timeout = 60.0

    def __init__(self, project: str, **init: Any) -> None:
        require("trackio", "Trackio", "trackio")
        if not isinstance(project, str) or not project:
            raise InputError(f"project is {quote(project)}: give a name")
        self.init = {"project": project, "auto_log_cpu": False, "auto_log_gpu": False, **init}
        self._run: Any = None

    def on_data(self, seen: SinkData) -> None:
        """Log the step."""
        import trackio

        values: dict[str, Any] = {}
        for series, found in seen.distributions.items():
            name = f"{seen.phase}/{series.label}"
            edges, counts = limited_histogram(found)
            if counts:
                values[name] = trackio.Histogram(np_histogram=(counts, edges))
            for statistic, value in to_statistics(found).items():
                values[f"{name}/{statistic}"] = value
        self._log(values, seen.step)

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Log loss and learning rate of each step, and gradient norms of sampled ones."""
        for point in points:
            self._log(to_scalars(phase, point), point.step)

    def on_note(self, note: Note) -> None:
        """Log the text as a report of the step."""
        import trackio

        self._log({"note": trackio.Markdown(str(note.values["text"]))}, note.values["step"])

    def on_close(self) -> None:
        """Finish the run."""
        import trackio

        run, self._run = self._run, None
        if run is not None:
            with contextlib.redirect_stdout(io.StringIO()):
                trackio.finish()

    def _log(self, values: dict[str, Any], step: int) -> None:
        import trackio

        if not values:
            return
        if self._run is None:
            with contextlib.redirect_stdout(io.StringIO()):  # which is the training program's
                self._run = trackio.init(**self.init)
        self._run.log(values, step=step)
