"""Comparison of two models or two runs, side by side."""

from __future__ import annotations

import os
from typing import Any, overload

from torch import nn

from torchscan.errors import InputError
from torchscan.hardware.device_specs import device_named
from torchscan.inspecting.run import Inspected
from torchscan.once import has_answer
from torchscan.pages import Excuse, collect_content
from torchscan.precisions import checked_precision
from torchscan.recording.training.optimizers import name_of
from torchscan.report.comparison import ComparedSide, Comparison, compare_sides
from torchscan.report.info_data import InfoDict
from torchscan.report.run_comparison import RunComparison, compare_runs
from torchscan.scan import Scan
from torchscan.user_warnings import warn_user
from torchscan.wrong_arguments import explain_wrong_types


@overload
def compare(before: InfoDict | Scan, after: InfoDict | Scan) -> Comparison: ...


@overload
def compare(before: Inspected, after: Inspected) -> RunComparison: ...


@explain_wrong_types
def compare(before: Any, after: Any) -> Comparison | RunComparison:
    """Return the changes from ``before`` to ``after``: two scans or infos, or two inspected runs.

    Layers are matched by path and call, and aligned where an inserted layer has shifted an index or
    where a prefix has changed. ``to_html()`` shows both sides aligned; for two scans, it has the
    graphs of both models.
    """
    for side, name in ((before, "before"), (after, "after")):
        _require_comparable(name, side)
    if isinstance(before, Inspected) and isinstance(after, Inspected):
        return compare_runs(before.facts, after.facts)
    if isinstance(before, Inspected) or isinstance(after, Inspected):
        raise InputError("a run cannot be compared with a report: give two runs, or two reports")
    return compare_sides(_side_of(before), _side_of(after))


def _require_comparable(name: str, side: Any) -> None:
    """Raise an InputError if a side is something from which a comparable result can be made."""
    if isinstance(side, nn.Module):
        raise InputError(f"{name} is a model without inputs: give Scan(model, input_shape)")
    if isinstance(side, str | os.PathLike):
        raise InputError.of_value(
            name,
            os.fspath(side),
            "give open_run(path) for an inspected run, or from_json(text) for a report; "
            "serve(path, other_path) compares watched runs",
        )
    if type(side).__name__ == "WatchedRun":  # which this module cannot import
        raise InputError(
            f"{name} is a watched run, and compare takes inspected runs: give both paths to "
            "serve(path, other_path)"
        )


def side_of_scan(
    scan: Scan, title: str | None = None, excuse: Excuse = str, *, has_page: bool = True
) -> ComparedSide:
    """Return a scan as one side of a comparison, as plain data that outlives the model.

    Everything is collected now, because the model may be changed in place before a page is made.
    An estimate for a device raises an error; without a device, ``excuse`` returns the text of a
    part of the page that has no answer, from the error. ``has_page`` collects what only a page
    shows.
    """
    was_changed = scan.is_changed
    keeps_memory = scan.has_device and (has_answer(scan, "memory") or not was_changed)
    keeps_times = scan.has_device and (has_answer(scan, "roofline") or not was_changed)
    if scan.has_device and not (keeps_memory and keeps_times):
        warn_user(
            "a model was changed after its pass was recorded, so the comparison lacks its memory "
            "or time: make another scan, or compare infos from before the change"
        )
    info = scan.describe(receptive_field=False, memory=keeps_memory, times=keeps_times)
    content = None
    if has_page:
        content = collect_content(scan, title, excuse=excuse, receptive_field=False)
    settings = None if was_changed else scan.settings
    return ComparedSide(info=info, content=content, options=_options_of(scan), settings=settings)


def _options_of(scan: Scan) -> dict[str, str | int | None]:
    """Return the options that infos do not have, with one name for each device and optimizer."""
    asked = scan.question
    device = device_named(asked.device).name if scan.has_device else None
    return {
        "device": device,
        "optimizer": None if asked.optimizer is None else name_of(asked.optimizer),
        "precision": checked_precision(asked.precision),
        "loop_iterations": asked.loop_iterations,
    }


def _side_of(given: Any) -> ComparedSide:
    if isinstance(given, ComparedSide):
        return given
    return side_of_scan(given) if isinstance(given, Scan) else ComparedSide(info=given)
