"""Aim: metrics and distributions in a repository."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torchscan.notes import Note
from torchscan.watching.argument_checks import path
from torchscan.watching.schema import CurvePoint, Distribution, Phase
from torchscan.watching.sinks.sink import (
    Sink,
    SinkData,
    histogram,
    require,
    to_scalars,
    to_statistics,
)

#: bins of equal width, the only ones that Aim has
_NUM_BINS = 64


class Aim(Sink):
    """A sink for Aim: metrics, distributions and notes, with the context ``subset`` train or eval.

    Args:
        repo: the folder of the repository, which is created if it does not exist, or the address
            of a server (``aim://…``).
        init: other arguments of ``aim.Run``: ``experiment="first"``. Aim's own logging of the
            system and of the terminal is off unless it is asked for.
    """

    timeout = 60.0

    def __init__(self, repo: str | os.PathLike[str] = ".", **init: Any) -> None:
        require("aim", "Aim", "aim")
        where = os.fspath(repo) if isinstance(repo, str | os.PathLike) else repo
        if not (isinstance(where, str) and "://" in where):
            where = os.path.abspath(path("repo", repo, "a folder such as 'runs/aim'"))
        self.init = {
            "repo": where,
            "system_tracking_interval": None,
            "capture_terminal_logs": False,
            **init,
        }
        self._run: Any = None

    def on_data(self, seen: SinkData) -> None:
        """Track the step."""
        context = {"subset": seen.phase}
        for series, found in seen.distributions.items():
            distribution = _to_aim(found)
            if distribution is not None:
                self._track(distribution, series.label, seen.step, context)
            for statistic, value in to_statistics(found).items():
                self._track(value, f"{series.label}/{statistic}", seen.step, context)

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Track loss and learning rate of each step, and gradient norms of sampled ones."""
        for point in points:
            for name, value in to_scalars(phase, point).items():
                if math.isfinite(value):  # Aim refuses others
                    self._track(value, name.partition("/")[2], point.step, {"subset": phase})

    def on_note(self, note: Note) -> None:
        """Track the text."""
        import aim

        text = aim.Text(str(note.values["text"]))
        self._track(text, "note", note.values["step"], {"subset": "train"})

    def on_close(self) -> None:
        """Close the run."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _track(self, value: Any, name: str, step: int, context: Mapping[str, str]) -> None:
        if self._run is None:
            self._run = self._open()
        self._run.track(value, name=name, step=step, context=dict(context))

    def _open(self) -> Any:
        import aim

        repo = self.init["repo"]
        if "://" not in repo:
            os.makedirs(repo, exist_ok=True)
            if not aim.Repo.exists(repo):
                aim.Repo.from_path(repo, init=True)
        return aim.Run(**self.init)


def _to_aim(found: Distribution) -> Any:
    """Return a distribution in bins of equal width, or None if no value is finite.

    Values are spread evenly over the bars that they are counted in.
    """
    import aim
    import numpy as np

    edges, counts = histogram(found)
    if not counts:
        return None
    grid = np.linspace(edges[0], edges[-1], _NUM_BINS + 1)
    below = np.interp(grid, edges, np.cumsum([0, *counts]))
    return aim.Distribution(hist=np.diff(below), bin_range=(edges[0], edges[-1]))
