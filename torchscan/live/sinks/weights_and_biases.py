"""Weights & Biases: a run of its own there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.live.accepting import number_above_zero, quote
from torchscan.live.schema import Distribution
from torchscan.live.sinks.figures import histogram, regrouped, require, to_statistics
from torchscan.live.sinks.paged import PATIENCE, Paged
from torchscan.live.sinks.sink import Sink, SinkData

#: bars that a histogram there may have
_BARS = 512


class WandB(Sink):
    """Histograms and figures for Weights & Biases, under ``train/…`` and ``eval/…``, and the page of the run, in a run there.

    Args:
        project: where the run goes.
        page_every: seconds from one page to the next, at least: the graph and the distributions, as ``torchscan runs open``
            shows them, are the panel ``page``. None: there is no page.
        init: what else ``wandb.init`` takes: ``group="first"``, ``mode="offline"``, ``dir="runs"``.
    """

    timeout = 2 * PATIENCE

    def __init__(
        self, project: str | None = None, *, page_every: float | None = 600.0, **init: Any
    ) -> None:
        require("wandb", "WandB", "wandb")
        if project is not None and not isinstance(project, str):
            raise InputError(f"project is {quote(project)}: give a name, or None")
        what = "a number of seconds, or None for no page"
        self.page_every = (
            None if page_every is None else number_above_zero("page_every", page_every, what)
        )
        self._pages: Paged | None = None
        self.init = {"project": project, "settings": {"console": "off", "quiet": True}, **init}
        self._run: Any = None

    def on_open(self, run: Path) -> None:
        """Get ready to make its pages."""
        self._pages = None if self.page_every is None else Paged(run, self.page_every)

    def on_data(self, seen: SinkData) -> None:
        """Log the step. Passes of one step are one there: of several evaluations the last one stays."""
        import wandb

        if self._run is None:
            self._run = wandb.init(**self.init)
        if seen.step < self._run.step:
            raise ValueError(
                f"step {seen.step} comes after step {self._run.step}, and W&B accepts only later steps: start a new W&B run"
            )
        self._run.log(
            {**_values(seen), **_panel(self._pages.newest() if self._pages else None)},
            step=seen.step,
        )

    def on_close(self) -> None:
        """Finish the run."""
        run, pages = self._run, self._pages
        self._run = self._pages = None
        if run is None:
            return
        last = None if pages is None else pages.last()
        run.log(_panel(last))
        run.finish()
        if pages is not None and last is None:
            raise TimeoutError(
                "the panel 'page' does not show the end of the run: writing it failed or took more "
                f"than {PATIENCE:.0f} s"
            )


def _panel(page: str | None) -> dict[str, Any]:
    """Return the page as a panel, without the code that W&B would inject and the page refuses."""
    import wandb

    return {} if page is None else {"page": wandb.Html(page, inject=False)}


def _values(seen: SinkData) -> dict[str, Any]:
    import wandb

    values: dict[str, Any] = {}
    for series, found in seen.distributions.items():
        name = f"{seen.phase}/{series.label}"
        edges, counts = _few_bars(found)
        if counts:
            values[name] = wandb.Histogram(np_histogram=(counts, edges))
        values |= {f"{name}/{figure}": value for figure, value in to_statistics(found).items()}
    return values


def _few_bars(found: Distribution) -> tuple[list[float], list[int]]:
    """Return a histogram with W&B's maximum of bars. The narrowest ones, near zero, are merged."""
    edges, counts = histogram(found)
    inner = sorted(edges[1:-1], key=abs, reverse=True)
    return (
        regrouped(edges, counts, {edges[0], *inner[: _BARS - 1], edges[-1]}) if counts else ([], [])
    )
