"""Comparison of two models or two runs, side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, overload

from torch import nn

from torchscan.errors import InputError
from torchscan.inspecting.run import Inspected
from torchscan.pages import Excuse, collect_content
from torchscan.report.compare_runs import RunComparison, compare_runs
from torchscan.report.comparison import ComparedSide, Comparison, compare_infos
from torchscan.report.info_data import InfoDict
from torchscan.scan import Scan
from torchscan.wrong_arguments import explain_wrong_types


@overload
def compare(before: InfoDict | Scan, after: InfoDict | Scan) -> Comparison: ...


@overload
def compare(before: Inspected, after: Inspected) -> RunComparison: ...


@explain_wrong_types
def compare(before: Any, after: Any) -> Comparison | RunComparison:
    """Return the changes from ``before`` to ``after``: two scans or infos, or two inspected runs.

    Layers are matched by path and call. ``to_html()`` shows both sides aligned, also layers whose
    index or prefix has changed; for two scans, it has the graphs of both models.
    """
    if isinstance(before, Inspected) and isinstance(after, Inspected):
        return compare_runs(before.facts, after.facts)
    if isinstance(before, Inspected) or isinstance(after, Inspected):
        raise InputError("a run cannot be compared with a report: give two runs, or two reports")
    for side, name in ((before, "before"), (after, "after")):
        if isinstance(side, nn.Module):
            raise InputError(f"{name} is a model without inputs: give Scan(model, input_shape)")
    return compare_sides(_side_of(before), _side_of(after))


def compare_sides(before: ComparedSide, after: ComparedSide) -> Comparison:
    """Return the changes between two sides, with what a page shows of them."""
    comparison = compare_infos(before.info, after.info)
    return replace(comparison, _sides=(before, after))


def side_of_scan(scan: Scan, title: str | None = None, excuse: Excuse = str) -> ComparedSide:
    """Return a scan as one side of a comparison, whose page is made when it is asked for.

    ``excuse`` returns the text of a part that has no answer, from the error.
    """
    has_device = scan.has_device
    info = scan.describe(receptive_field=False, memory=has_device, times=has_device)
    content = partial(collect_content, scan, title, excuse=excuse, receptive_field=False)
    return ComparedSide(info=info, content=cache(content))


def _side_of(given: Any) -> ComparedSide:
    if isinstance(given, ComparedSide):
        return given
    return side_of_scan(given) if isinstance(given, Scan) else ComparedSide(info=given)
