"""Weights & Biases: a run of its own there."""

from __future__ import annotations

from typing import Any

from torchscan.live.schema import Distribution
from torchscan.live.sinks.figures import figures_of, histogram, regrouped, require
from torchscan.live.sinks.sink import Seen, Sink

#: bars that a histogram there may have
_BARS = 512


class WandB(Sink):
    """Histograms and figures for Weights & Biases, under ``train/…`` and ``eval/…``, in a run of its own.

    Args:
        project: where the run goes.
        init: what else ``wandb.init`` takes: ``group="first"``, ``mode="offline"``, ``dir="runs"``.
    """

    timeout = 60.0

    def __init__(self, project: str | None = None, **init: Any) -> None:
        require("wandb", "WandB", "wandb")
        self.init = {"project": project, "settings": {"console": "off", "quiet": True}, **init}
        self._run: Any = None

    def on_data(self, seen: Seen) -> None:
        """Log the step. Passes of one step are one there: of several evaluations the last one stays."""
        import wandb

        if self._run is None:
            self._run = wandb.init(**self.init)
        if seen.step < self._run.step:
            raise ValueError(f"step {seen.step} comes after step {self._run.step}: there steps grow, so it takes a new run")
        self._run.log(_values(seen), step=seen.step)

    def on_close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _values(seen: Seen) -> dict[str, Any]:
    import wandb

    values: dict[str, Any] = {}
    for series, found in seen.distributions.items():
        name = f"{seen.phase}/{series.said}"
        edges, counts = _few_bars(found)
        if counts:
            values[name] = wandb.Histogram(np_histogram=(counts, edges))
        values |= {f"{name}/{figure}": value for figure, value in figures_of(found).items()}
    return values


def _few_bars(found: Distribution) -> tuple[list[float], list[int]]:
    """As many as there may be. Where there are more, the narrowest, which are around zero, are put together."""
    edges, counts = histogram(found)
    inner = sorted(edges[1:-1], key=abs, reverse=True)
    return regrouped(edges, counts, {edges[0], *inner[: _BARS - 1], edges[-1]}) if counts else ([], [])
