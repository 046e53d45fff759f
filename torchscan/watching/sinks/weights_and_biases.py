"""Weights & Biases: a sink with the page of the run, which a separate process writes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.argument_checks import number_above_zero, quote
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks.sink import (
    Sink,
    SinkData,
    limited_histogram,
    require,
    to_scalars,
    to_statistics,
)

#: seconds until the first, and of the last one at most
_FIRST, PATIENCE = 5.0, 60.0
#: of a processor's time a page takes one part in so many
_SHARE = 10
_PROGRAM = """import sys; sys.path[:] = {path!r}
from torchscan.watching.processes import Parent; Parent({worker}).end_with_it()
import torch; torch.set_num_threads(1)
from torchscan.watching.explore.run_page import page_of_run; page_of_run({run!r}).save({file!r})"""


class WandB(Sink):
    """A sink for Weights & Biases: histograms, scalars, notes, and the page of the run.

    They are in a new run there, under ``train/…`` and ``eval/…``. A step is logged once the curves
    have reached it, or with the next one.

    Args:
        project: where the run goes.
        page_every: seconds from one page to the next, at least: the graph and the distributions, as
            ``torchscan runs open`` shows them, are the panel ``page``. None: there is no page.
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
        """Log the step. Passes of one step are one there: the last of several evaluations stays."""
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
        """Log loss and learning rate of each step, and gradient norms of sampled ones."""
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


class Paged:
    """The page of a run, rewritten at most every ``every`` seconds."""

    def __init__(self, run: Path, every: float) -> None:
        self._run, self._every = run, every
        self._folder = tempfile.TemporaryDirectory(prefix="torchscan-")
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0
        self._next = time.monotonic() + min(_FIRST, every)

    def newest(self) -> str | None:
        """The page, if there is a new one. It is asked for each step, and does not wait."""
        if self._process is not None:
            return None if self._process.poll() is None else self._finished()
        if time.monotonic() >= self._next:
            self._begin()
        return None

    def last(self) -> str | None:
        """The page when the run is over; None: it takes too long."""
        self._end()
        process = self._begin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        page = self.newest()
        self._end()
        self._folder.cleanup()
        return page

    def _begin(self) -> subprocess.Popen[bytes]:
        self._begun = time.monotonic()
        path = [each for each in sys.path if type(each) is str]
        program = _PROGRAM.format(
            path=path, worker=os.getpid(), run=str(self._run), file=str(self._file)
        )
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self._process

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / "run.html"

    def _finished(self) -> str | None:
        """Return the page that the process has written, or None if it failed and reported that."""
        now, self._process = time.monotonic(), None
        self._next = now + max(self._every, (_SHARE - 1) * (now - self._begun))
        with contextlib.suppress(FileNotFoundError):
            page = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            return page
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
