"""Weights & Biases: a run of its own there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.accepting import number_above_zero, quote
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks.figures import limited_histogram, require, to_scalars, to_statistics
from torchscan.watching.sinks.paged import PATIENCE, Paged
from torchscan.watching.sinks.sink import Sink, SinkData


class WandB(Sink):
    """A sink for Weights & Biases: histograms, scalars, notes, and the page of the run.

    They are in a new run there, under ``train/…`` and ``eval/…``. A step is logged once the curves
    have reached it, or with the next one.

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
        #: values of steps that are not logged yet, by step
        self._rows: dict[int, dict[str, Any]] = {}
        self._newest = 0
        self._has_curves = False
        self.init = {"project": project, "settings": {"console": "off", "quiet": True}, **init}
        self._run: Any = None

    def on_open(self, run: Path) -> None:
        """Get ready to make its pages."""
        self._pages = None if self.page_every is None else Paged(run, self.page_every)

    def on_data(self, seen: SinkData) -> None:
        """Log the step. Passes of one step are one there: of several evaluations the last one stays."""
        if seen.step < self._newest:
            raise ValueError(
                f"step {seen.step} comes after step {self._newest}, and W&B accepts only later "
                "steps: start a new W&B run"
            )
        self._newest = seen.step
        page = _panel(self._pages.newest() if self._pages else None)
        self._add(seen.step, {**_values(seen), **page})
        if not self._has_curves:
            self._log_before(seen.step)

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Log the loss, the learning rate and the gradient norm of each step."""
        self._has_curves = True
        for point in points:
            self._add(point.step, to_scalars(phase, point))
        if phase == "train" and points:
            self._log_before(points[-1].step + 1)

    def on_note(self, note: Note) -> None:
        """Log the text with the step, or with the last one that is logged."""
        step = max(note.values["step"], self._opened().step)
        self._add(step, {"note": str(note.values["text"])})

    def _opened(self) -> Any:
        import wandb

        if self._run is None:
            self._run = wandb.init(**self.init)
        return self._run

    def _add(self, step: int, values: dict[str, Any]) -> None:
        """Add values to a row, unless later ones are logged: W&B accepts only later steps."""
        if step >= self._opened().step:
            self._rows.setdefault(step, {}).update(values)

    def _log_before(self, end: int | None) -> None:
        """Log the rows of steps before ``end``, or all."""
        for step in sorted(self._rows):
            if end is None or step < end:
                self._opened().log(self._rows.pop(step), step=step)

    def on_close(self) -> None:
        """Finish the run."""
        self._log_before(None)
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
        edges, counts = limited_histogram(found)
        if counts:
            values[name] = wandb.Histogram(np_histogram=(counts, edges))
        values |= {f"{name}/{figure}": value for figure, value in to_statistics(found).items()}
    return values
