"""The contents of a watched run's page, computed once or again and again by its server."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchscan._version import __version__
from torchscan.files import path_of
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.pages import Page
from torchscan.report.paging.late import with_all_calls
from torchscan.report.paging.model_page import document
from torchscan.report.paging.page_data import by_key
from torchscan.report.paging.row_values import key_of, truncate_text
from torchscan.watching.distribution_columns import side_by_side
from torchscan.watching.distributions_over_steps import OverSteps
from torchscan.watching.explore.training import FollowedTraining, first_nan, training_of
from torchscan.watching.history import WatchedRun, readers_of
from torchscan.watching.processes import single_thread
from torchscan.watching.run_files import ranks_in
from torchscan.watching.schema import Phase, Series
from torchscan.watching.store import Reader
from torchscan.wrong_arguments import explain_wrong_types

#: calls whose distributions are kept at hand
_CALLS = 32
#: steps that are read before the first picture; then the others
_AT_FIRST = 160


def data_of_run(run: WatchedRun, measured: Measured, *others: WatchedRun) -> dict[str, Any]:
    """The graph that was drawn of its model, or else the tree of its modules, with what the run has measured."""
    graph, series = run.graph or _without_graph(run), run.series
    calls = dict.fromkeys([("", 0), *((each.path, each.invocation) for each in series)])
    types = {
        "": str(run.about.get("model", "model")),
        **{each.path: each.type_name for each in series},
    }
    return {
        **graph,
        **with_all_calls(graph["rows"], graph["levels"], calls, types),
        "question": [
            measured.source,
            *graph["question"],
            *(f"beside {each.path.name}" for each in others),
        ],
        "verdicts": [*wrong_in([run, *others]), *graph["verdicts"]],
        "measured": measured_by_key(run, measured),
    }


def measured_by_key(run: WatchedRun, measured: Measured) -> dict[str, Any]:
    """Return what the run has measured, with the call that its first NaN was seen in."""
    event, producers = first_nan(run.events), dict(measured.producers)
    if event is not None and _has_call(run, event.note):
        values = event.note.values
        producers.setdefault(_call_of(event.note), f"{values['series']}, step {values['step']}")
    return by_key(replace(measured, producers=producers))


@explain_wrong_types
def page_of_run(run: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Page:
    """A run that is, or was, watched as one HTML file: ``page_of_run("runs/first").save("run.html")``. A notebook shows it.

    Args:
        run: its folder.
        others: runs whose distributions are shown beside.
    """
    runs = [WatchedRun(path_of(each).resolve()) for each in (run, *others)]
    measured = [each.measured() for each in runs]
    names = names_of([each.path for each in runs])
    histories = [
        {**each, "run": name}
        for name, found in zip(names, measured, strict=True)
        for each in found.histories
    ]
    data = data_of_run(runs[0], replace(measured[0], histories=histories), *runs[1:])
    return Page(document(with_training(data, training_of(runs[0]))))


def with_training(data: Mapping[str, Any], training: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the data of a page with its training; then it has no memory and time of a pass."""
    if training is None:
        return {**data, "training": None}
    return {**data, "training": training, "memory": None, "roofline": None}


def names_of(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders: the shortest ends of their paths that differ."""
    longest = max(len(each.parts) for each in runs)
    ends = ([str(Path(*each.parts[-size:])) for each in runs] for size in range(1, longest + 1))
    return next(
        (names for names in ends if len(set(names)) == len(set(runs))), [str(each) for each in runs]
    )


def _without_graph(run: WatchedRun) -> dict[str, Any]:
    return {
        "title": truncate_text(str(run.about.get("model", run.path.name))),
        "question": [],
        "verdicts": [],
        "rows": [],
        "levels": [],
        "memory": None,
        "roofline": None,
        "error": "",
        "version": __version__,
        "remarks": ["This run has no graph of its model, so modules are shown without edges."],
    }


def wrong_in(runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
    """Return what went wrong: the first NaN of each run, and missing ranks and steps.

    The first NaN of the first run links to the call that it was seen in. Events of old files are
    sentences, which are shown without a judgment.
    """
    has_others = len(runs) > 1
    nans = [
        _nan_verdict(event.note, run, is_linked=run is runs[0], has_others=has_others)
        for run in runs
        if (event := first_nan(run.events)) is not None
    ]
    old = [
        {**_verdict("Event", run, event, has_others=has_others), "isWrong": False}
        for run in runs
        for event in run.events
        if event.note.code == "text"
    ]
    missing = [
        _verdict("Missing", run, note, has_others=has_others)
        for run in runs
        for note in run.missing
    ]
    return [*nans, *old, *missing]


def _verdict(
    label: str, run: WatchedRun, fact: object, *, has_others: bool, value: str = ""
) -> dict[str, Any]:
    name = f"{label} in {truncate_text(run.path.name)}" if has_others else label
    return {"label": name, "value": value, "said": str(fact), "isWrong": True}


def _nan_verdict(
    note: Note, run: WatchedRun, *, is_linked: bool, has_others: bool
) -> dict[str, Any]:
    values = note.values
    series = truncate_text(str(values["series"]))
    step = f"step {values['step']}"
    verdict = _verdict("First NaN", run, step, has_others=has_others, value=series)
    if not is_linked or not _has_call(run, note):
        return verdict
    return {**verdict, "path": key_of(*_call_of(note))}


def _has_call(run: WatchedRun, note: Note) -> bool:
    return any((each.path, each.invocation) == _call_of(note) for each in run.series)


def _call_of(note: Note) -> tuple[str, int]:
    """Return the call of a module that a NaN was seen in."""
    return note.values["path"], note.values["invocation"]


class Followed:
    """One run, for any number of readers. It only reads."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._run = WatchedRun(path)
        self.path, self._name = path, name or path.name
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, _CallHistory] = OrderedDict()
        self._training = FollowedTraining(self._run)

    def page(self, *others: Followed) -> dict[str, Any]:
        """All but the distributions. ``others`` are shown beside."""
        # asked first: a graph that comes in between is then asked for again, and not missed
        is_drawn = self._is_drawn
        data = data_of_run(self._run, self._run.last(), *(each._run for each in others))
        return with_training({**data, "isDrawn": is_drawn}, self.training())

    def training(self) -> dict[str, Any] | None:
        """Return the curves and the layers over the steps, or None before the first training step."""
        return self._training.data()

    @property
    def _is_drawn(self) -> bool:
        """True if the graph of the model exists, which takes some seconds after the first step."""
        drawn = [reader.has_graph() for reader in self._readers()]
        return any(drawn)

    def _readers(self) -> Iterator[Reader]:
        return readers_of(ranks_in(self._run.path))

    def figures(self, *others: Followed) -> dict[str, Any]:
        """Return the measurements of the last step, by call."""
        measured, runs = self._run.last(), [self._run, *(each._run for each in others)]
        found = measured_by_key(self._run, measured)
        return {
            "source": measured.source,
            "wrong": wrong_in(runs),
            "isDrawn": self._is_drawn,
            **found,
        }

    def newest(self) -> tuple[object, ...]:
        """Return the amount of data. If the value changes, there are new data."""
        phase = self._run.shown_phase
        return tuple(
            (
                reader.last(phase),
                reader.last_pass(phase),
                len(reader.events()),
                reader.has_graph(),
            )
            for reader in self._readers()
        )

    def heat(self, key: str) -> dict[str, Any]:
        """The distributions of a call, by its key: first of some steps, and when asked again of all."""
        with self._lock:
            call = self._calls.setdefault(key, _CallHistory(key))
            self._calls.move_to_end(key)
            while len(self._calls) > _CALLS:
                self._calls.popitem(last=False)
        with call.lock, single_thread():
            call.read(self._run)
            return {
                "histories": [self._to_page_data(*each) for each in call.over.columns_by_series()],
                "isWhole": call.is_whole,
            }

    def _to_page_data(self, series: Series, picture: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": self._name, "kind": series.kind, "name": series.what, **picture}


class _CallHistory:
    """The history of a call.

    Each step is read once, or all again if a run returned to a checkpoint.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.lock = threading.Lock()
        self._forget()

    def _forget(self, phase: Phase = "train") -> None:
        self._phase = phase
        self.over = OverSteps(phase)
        #: of each process, when each step was written that has been read, by its number in the file
        self._read: dict[Path, dict[int, float]] = {}
        self.is_whole = False

    def read(self, run: WatchedRun) -> None:
        """Read the new data."""
        phase = run.shown_phase
        known = {reader.path: reader.written(phase) for reader in readers_of(ranks_in(run.path))}
        has_changed = any(self._has_changed(path, written) for path, written in known.items())
        if has_changed or phase != self._phase:
            self._forget(phase)
        new = [
            self._read_new(reader, known[reader.path])
            for reader in readers_of(ranks_in(run.path))
            if reader.path in known
        ]
        self.is_whole = all(new)

    def _has_changed(self, path: Path, written: Mapping[int, float]) -> bool:
        """Return whether the last step that was read has been removed or replaced."""
        read = self._read.get(path, {})
        return bool(read) and written.get(max(read)) != read[max(read)]

    def _read_new(self, reader: Reader, written: Mapping[int, float]) -> bool:
        """Read new steps, and return whether nothing is left to read."""
        read = self._read.setdefault(reader.path, {})
        new = sorted(written.keys() - read.keys(), reverse=True)
        wanted = new if read else new[:: max(1, len(new) // _AT_FIRST)]
        series = {
            number: each
            for number, each in reader.series().items()
            if key_of(each.path, each.invocation) == self._key
        }
        for number in wanted:
            if (watched := reader.step(self._phase, number)) is not None:
                found = side_by_side(watched.distributions)
                self.over.add_sampled(watched.place, found, series)
            read[number] = written[number]
        for number in read.keys() - written.keys():  # which is there no more, but in the picture
            del read[number]
        return len(wanted) == len(new)
