"""MLflow: metrics, and histograms as files beside them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.argument_checks import flag, quote
from torchscan.watching.distributions import quantiles
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks.sink import (
    Sink,
    SinkData,
    histogram,
    number_of_finite,
    require,
    to_scalars,
    to_statistics,
)

#: metrics that MLflow takes at once
_BATCH = 1000
_SHARES = {"q05": 0.05, "median": 0.5, "q95": 0.95}
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")
_ALLOWS_FILES = "MLFLOW_ALLOW_FILE_STORE"


class MLflow(Sink):
    """A sink for MLflow: statistics and quantiles as metrics, histograms as JSON files.

    Metrics begin with ``train/`` and ``eval/``. There is one histogram file per step.

    Args:
        tracking_uri: a server (``http:…``), a database (``sqlite:///mlflow.db``) or a folder
            (``file:/…/mlruns``).
        experiment: name of the experiment, which is created if it does not exist.
        run_id: an existing MLflow run, which its creator ends; by default, a new run.
        tags: tags of the new run.
        histograms: write histograms.
    """

    timeout = 60.0

    def __init__(
        self,
        tracking_uri: str,
        experiment: str = "torchscan",
        *,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        histograms: bool = True,
    ) -> None:
        require("mlflow", "MLflow", "mlflow-skinny")
        self.tracking_uri = _name_of("tracking_uri", tracking_uri)
        self.experiment = _name_of("experiment", experiment)
        self.run_id = None if run_id is None else _name_of("run_id", run_id)
        self.tags = _tags_of(tags)
        self.histograms = flag("histograms", histograms)
        self._is_ours = run_id is None
        self._client: Any = None

    def on_data(self, seen: SinkData) -> None:
        """Log the step."""
        self._log(list(_metrics(seen)))
        if self.histograms:
            histograms = {}
            for series, found in seen.distributions.items():
                edges, counts = histogram(found)
                histograms[series.label] = {"edges": edges, "counts": counts}
            file = f"histograms/{seen.phase}/{seen.step}-{seen.number}.json"
            self._client.log_dict(self.run_id, histograms, file)

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Log loss and learning rate of each step, and gradient norms of sampled ones."""
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            milliseconds = int(point.time * 1000)
            for name, value in to_scalars(phase, point).items():
                metrics.append(Metric(name, value, milliseconds, point.step))
        self._log(metrics)

    def on_note(self, note: Note) -> None:
        """Set a tag with the text, such as ``note.12`` after 12 steps."""
        self._log([])
        self._client.set_tag(self.run_id, f"note.{note.values['step']}", str(note.values["text"]))

    def _log(self, metrics: Sequence[Any]) -> None:
        if self._client is None:
            self._open()
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.run_id, metrics[first : first + _BATCH])

    def on_close(self) -> None:
        """End the run, if it is ours."""
        if self._client is not None and self._is_ours:
            self._client.set_terminated(self.run_id)
            self.run_id = None
        self._client = None

    def _open(self) -> None:
        from mlflow import MlflowClient

        with _folders_allowed(self.tracking_uri):
            client = MlflowClient(self.tracking_uri)
            if self.run_id is None:
                known = client.get_experiment_by_name(self.experiment)
                if known is None:
                    experiment = client.create_experiment(self.experiment)
                else:
                    experiment = known.experiment_id
                self.run_id = client.create_run(experiment, tags=self.tags).info.run_id
        self._client = client


def _name_of(name: str, value: object) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise InputError(f"{name} is {quote(value)}: give a string")
    return text


def _tags_of(tags: object) -> dict[str, str]:
    if tags is None:
        return {}
    if not isinstance(tags, Mapping) or not all(isinstance(name, str) for name in tags):
        raise InputError(f"tags is {quote(tags)}: give a dict of strings")
    return {name: str(value) for name, value in tags.items()}


@contextlib.contextmanager
def _folders_allowed(uri: str) -> Iterator[None]:
    """Allow folders as MLflow stores inside the context, which MLflow refuses by default."""
    is_ours = urlparse(uri).scheme in ("", "file") and _ALLOWS_FILES not in os.environ
    if is_ours:
        os.environ[_ALLOWS_FILES] = "true"
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_ALLOWS_FILES]


def _metrics(seen: SinkData) -> Iterator[Any]:
    from mlflow.entities import Metric

    milliseconds = int(seen.time * 1000)
    for series, found in seen.distributions.items():
        values = to_statistics(found)
        if number_of_finite(found):
            extremes = (found.min, found.max)
            values |= zip(_SHARES, quantiles(found.counts, _SHARES.values(), extremes), strict=True)
        for name, value in values.items():
            # MLflow has no parentheses in names: ``0 (2) output`` is ``0 _2_ output``.
            key = _NOT_IN_NAMES.sub("_", f"{seen.phase}/{series.label}/{name}")
            yield Metric(key, value, milliseconds, seen.step)
