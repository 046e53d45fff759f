"""The contents of a watched run's page."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torchscan._version import __version__
from torchscan.files import path_of
from torchscan.live.history import WatchedRun
from torchscan.live.schema import Series
from torchscan.measured import Measured
from torchscan.pages import Page
from torchscan.report.paging.late import with_all_calls
from torchscan.report.paging.layer_rows import key_of, truncate_text
from torchscan.report.paging.model_page import document
from torchscan.report.paging.page_data import by_key
from torchscan.wrong_arguments import explain_wrong_types

#: what the worker has noted of it
FIRST_NAN = re.compile(r"step (\d+): NaN in (.+?)(?: and \d+ more)?\. torchscan")


def data_of_run(run: WatchedRun, measured: Measured, *others: WatchedRun) -> dict[str, Any]:
    """The graph that was drawn of its model, or else the tree of its modules, with what the run has measured."""
    graph = run.graph or _without_graph(run)
    calls = dict.fromkeys([("", 0), *((each.path, each.invocation) for each in run.series)])
    types = {
        "": str(run.about.get("model", "model")),
        **{each.path: each.type_name for each in run.series},
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
    """Return the measurements of a run, with the source of its first NaN."""
    nan, made = _first_nan(run), {}
    if nan is not None and nan.series is not None:
        made = {(nan.series.path, nan.series.invocation): f"{nan.what}, step {nan.step}"}
    return by_key(replace(measured, producers={**made, **measured.producers}))


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
    return Page(
        document(data_of_run(runs[0], replace(measured[0], histories=histories), *runs[1:]))
    )


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
        "remarks": [
            "Graph: none was drawn of this model, so there are its modules and no lines between them."
        ],
    }


class _Nan(NamedTuple):
    """The first NaN of a run."""

    what: str
    step: str
    series: Series | None


def wrong_in(runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
    """The first NaN of each run, of which that of the first leads to who made it; and which processes are missing."""
    found = [(run, nan) for run in runs if (nan := _first_nan(run)) is not None]
    missing = [(run, said) for run in runs for said in run.missing]
    several = len(runs) > 1
    return [
        *(
            _verdict(nan, run, is_linked=run is runs[0], is_of_several=several)
            for run, nan in found
        ),
        *(
            {
                "label": f"Missing in {truncate_text(run.path.name)}" if several else "Missing",
                "value": "",
                "said": said,
            }
            for run, said in missing
        ),
    ]


def _verdict(nan: _Nan, run: WatchedRun, *, is_linked: bool, is_of_several: bool) -> dict[str, Any]:
    label = f"First NaN in {truncate_text(run.path.name)}" if is_of_several else "First NaN"
    path = (
        {"path": key_of(nan.series.path, nan.series.invocation)}
        if is_linked and nan.series is not None
        else {}
    )
    return {"label": label, "value": truncate_text(nan.what), "said": f"step {nan.step}", **path}


def _first_nan(run: WatchedRun) -> _Nan | None:
    for _, said in run.events:
        if (found := FIRST_NAN.match(said)) is not None:
            return _Nan(
                found[2],
                found[1],
                next((each for each in run.series if each.label == found[2]), None),
            )
    return None
