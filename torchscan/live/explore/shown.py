"""What the page of a watched run shows."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

from torchscan._version import __version__
from torchscan.live.history import WatchedRun
from torchscan.measured import Measured
from torchscan.pages import Page
from torchscan.report.paging.data import by_key
from torchscan.report.paging.file import document
from torchscan.report.paging.late import with_all_calls
from torchscan.report.paging.rows import cut, key_of

#: what the worker has noted of it
FIRST_NAN = re.compile(r"step (\d+): NaN in (.+?)(?: and \d+ more)?\. torchscan")


def data_of_run(run: WatchedRun, measured: Measured) -> dict[str, Any]:
    """The graph that was drawn of its model, or else the tree of its modules, with what the run has measured."""
    graph = run.graph or _without_graph(run)
    calls = dict.fromkeys([("", 0), *((each.path, each.invocation) for each in run.series)])
    types = {"": str(run.about.get("model", "model")), **{each.path: each.type_name for each in run.series}}
    return {
        **graph,
        **with_all_calls(graph["rows"], graph["levels"], calls, types),
        "question": [measured.source, *graph["question"]],
        "verdicts": [*first_nan(run), *graph["verdicts"]],
        "measured": by_key(measured),
    }


def page_of_run(run: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Page:
    """A run that is, or was, watched as one HTML file: ``page_of_run("runs/first").save("run.html")``. A notebook shows it.

    Args:
        run: its folder.
        others: runs whose distributions are shown beside.
    """
    runs = [WatchedRun(each) for each in (run, *others)]
    measured = [each.measured() for each in runs]
    histories = [{**each, "run": of.path.name} for of, found in zip(runs, measured, strict=True) for each in found.histories]
    return Page(document(data_of_run(runs[0], replace(measured[0], histories=histories))))


def _without_graph(run: WatchedRun) -> dict[str, Any]:
    return {
        "title": cut(str(run.about.get("model", run.path.name))),
        "question": [],
        "verdicts": [],
        "rows": [],
        "levels": [],
        "memory": None,
        "roofline": None,
        "error": "",
        "version": __version__,
        "remarks": ["Graph: none was drawn of this model, so there are its modules and no lines between them."],
    }


def first_nan(run: WatchedRun) -> list[dict[str, Any]]:
    """The first NaN of the run, with the way to who made it."""
    for _, what in run.events:
        if (found := FIRST_NAN.match(what)) is not None:
            of = next((each for each in run.series if each.said == found[2]), None)
            link = {} if of is None else {"path": key_of(of.path, of.invocation)}
            return [{"label": "First NaN", "value": cut(found[2]), "said": f"step {found[1]}", **link}]
    return []
