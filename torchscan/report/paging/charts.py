"""Memory over a pass and the roofline, as series that a page draws."""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import Any

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.report.memory_chart import columns_of, kinds_present
from torchscan.report.paging.row_values import rounded
from torchscan.report.pictures.roofline_plot import points_of

#: columns of a chart, each the largest moment of a stretch
_MAX_COLUMNS = 360
_MAX_POINTS = 400


def memory_series(estimate: MemoryEstimate) -> dict[str, Any]:
    """Return the live memory over operators by kind, with the layer and operator per column."""
    moments = list(columns_of(estimate.timeline, _MAX_COLUMNS))
    kinds = kinds_present(moments)
    sizes = [list(map(moment.by_kind.__getitem__, kinds)) for moment in moments]
    totals = [moment.total for moment in moments]
    peak = totals.index(max(totals)) if totals else None
    phases = []
    for name, members in groupby(moments, key=attrgetter("phase")):
        phases.append((name, len(list(members))))
    capacity = device = None
    verdict = estimate.verdict
    if verdict is not None:
        capacity = verdict.capacity_bytes - verdict.cuda_context_bytes
        device = verdict.device
    layers = [printable(moment.layer) for moment in moments]
    operators = [moment.operator.removeprefix("aten.") for moment in moments]
    return {
        "kinds": kinds,
        "sizes": list(zip(*sizes, strict=True)),
        "layers": layers,
        "operators": operators,
        "phases": phases,
        "peak": peak,
        "peakLayer": printable(estimate.peak_layer),
        "peakBytes": estimate.peak_bytes,
        "capacity": capacity,
        "device": device,
    }


def roofline_series(roofline: Roofline) -> dict[str, Any]:
    """Return the roofs, and a point for each set of equal calls of an operator."""
    points: list[dict[str, Any]] = []
    for point in points_of(roofline)[:_MAX_POINTS]:
        load = point.load
        share = rounded(point.time / roofline.time_estimate)
        data: dict[str, Any] = {"x": rounded(load.intensity or 0.0), "y": rounded(point.rate)}
        data |= {"share": share, "limiter": load.limiter, "layer": printable(load.layer)}
        data |= {"operator": load.operator.removeprefix("aten."), "calls": point.calls}
        points.append(data)
    whole = roofline.time_estimate or 1
    peaks = []
    for form, peak in roofline.peak_flops.items():
        if math.isfinite(peak):
            peaks.append((form, peak))
    limits = []
    for limiter, time in roofline.time_by_limiter.items():
        limits.append((limiter, rounded(time / whole)))
    return {
        "points": points,
        "bandwidth": roofline.bandwidth,
        "peaks": peaks,
        "limits": limits,
        "device": roofline.device,
    }
