"""Curves in the worker: they are written to the store and shown to sinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchscan.watching.curves import NUM_KEPT
from torchscan.watching.guests import Guests
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.worker_session import WorkerSession


class CurveWriter:
    """Writer of the rows of the curves. Points that cannot be written come with the next ones."""

    def __init__(self, session: WorkerSession, guests: Guests) -> None:
        self._session, self._guests = session, guests
        #: points that are not written yet
        self._points: dict[Phase, list[CurvePoint]] = {}
        #: step and value of the first of the last training losses, which are not finite
        self.wrong_loss: tuple[int, str] | None = None

    def check_losses(self, rows: Sequence[Sequence[Any]]) -> None:
        """Keep the first loss that is not finite, until one is finite again."""
        for phase, step, _, _, loss, *_ in rows:
            if phase != "train" or loss is None:
                continue
            if math.isfinite(loss):
                self.wrong_loss = None
            elif self.wrong_loss is None:
                self.wrong_loss = step, "NaN" if math.isnan(loss) else "infinite"

    def take(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, and show them to sinks even if that fails."""
        new: dict[Phase, list[CurvePoint]] = {}
        for phase, *values in rows:
            new.setdefault(phase, []).append(CurvePoint(*values))
        for phase, points in new.items():
            kept = self._points.setdefault(phase, [])
            kept += points
            del kept[:-NUM_KEPT]
        try:
            self.flush()
        finally:
            for phase, points in new.items():
                self._guests.show_curves(phase, points)

    def flush(self) -> None:
        """Write the points that are not written yet."""
        if self._points:
            self._session.write_curves(self._points)
            self._points = {}
