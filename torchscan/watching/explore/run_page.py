"""The contents of a watched run's page, computed once or again and again by its server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchscan._version import __version__
from torchscan.files import path_of
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.report.paging.framed_page import Page
from torchscan.report.paging.late import with_all_calls
from torchscan.report.paging.model_page import document
from torchscan.report.paging.page_data import by_key
from torchscan.report.paging.row_values import key_of, truncate_text
from torchscan.watching.explore.nan_source import first_nan
from torchscan.watching.explore.training import losses_of, training_of
from torchscan.watching.history import WatchedRun
from torchscan.wrong_arguments import explain_wrong_types


def data_of_run(run: WatchedRun, measured: Measured, *others: WatchedRun) -> dict[str, Any]:
    """Return the graph of the model, else the tree of its modules, with what the run measured."""
    graph = run.graph or _without_graph(run)
    calls = {("", 0): None}
    types = {"": str(run.about.get("model", "model"))}
    for series in run.series:
        calls[series.path, series.invocation] = None
        types[series.path] = series.type_name
    beside = [f"beside {each.path.name}" for each in others]
    return {
        **graph,
        **with_all_calls(graph["rows"], graph["levels"], calls, types),
        "question": [measured.source, *graph["question"], *beside],
        "verdicts": [*wrong_in([run, *others]), *graph["verdicts"]],
        "measured": measured_by_key(run, measured),
    }


def measured_by_key(run: WatchedRun, measured: Measured) -> dict[str, Any]:
    """Return what the run has measured, with the call that its first NaN was seen in."""
    event = first_nan(run.events)
    producers = dict(measured.producers)
    if event is not None and _has_call(run, event.note):
        values = event.note.values
        producers.setdefault(_call_of(event.note), f"{values['series']}, step {values['step']}")
    return by_key(replace(measured, producers=producers))


@explain_wrong_types
def page_of_run(run: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Page:
    """Return a watched run as one HTML file: ``page_of_run("runs/first").save("run.html")``.

    It may still be recorded. A notebook shows the page.

    Args:
        run: its folder.
        others: runs whose losses and distributions are shown beside.
    """
    runs = [WatchedRun(path_of(each).resolve()) for each in (run, *others)]
    measured = [each.measured() for each in runs]
    names = names_of([each.path for each in runs])
    histories = []
    for name, found in zip(names, measured, strict=True):
        histories += [{**each, "run": name} for each in found.histories]
    first, *beside = runs
    data = data_of_run(first, replace(measured[0], histories=histories), *beside)
    losses = [losses_of(each, name) for each, name in zip(beside, names[1:], strict=True)]
    training = training_beside(training_of(first), losses)
    return Page(document(with_training(data, training)))


def training_beside(
    training: Mapping[str, Any] | None, losses: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the training of a run with the losses of other runs, if it has a training step."""
    if training is None:
        return None
    return {**training, "others": [each for each in losses if each["steps"]]}


def with_training(data: Mapping[str, Any], training: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the data of a page with its training; then it has no memory and time of a pass."""
    if training is None:
        return {**data, "training": None}
    return {**data, "training": training, "memory": None, "roofline": None}


def names_of(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders: the shortest ends of their paths that differ."""
    longest = max(len(each.parts) for each in runs)
    num_runs = len(set(runs))
    for size in range(1, longest + 1):
        names = [str(Path(*each.parts[-size:])) for each in runs]
        if len(set(names)) == num_runs:
            return names
    return [str(each) for each in runs]


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
    nans = []
    old = []
    for run in runs:
        events = run.events
        event = first_nan(events)
        if event is not None:
            is_linked = run is runs[0]
            nans.append(_nan_verdict(event.note, run, is_linked=is_linked, has_others=has_others))
        for each in events:
            if each.note.code == "text":
                verdict = _verdict("Event", run, each, has_others=has_others)
                old.append({**verdict, "isWrong": False})
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
