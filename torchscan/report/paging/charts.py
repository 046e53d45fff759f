"""Memory over a pass and the roofline, as series that a page draws."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.report.memory_table import STACK, columns_of
from torchscan.report.paging.layer_rows import rounded
from torchscan.report.pictures.roofline_plot import points_of

#: columns of a chart, each the largest moment of a stretch
_MAX_COLUMNS = 360
_MAX_POINTS = 400


def memory_series(estimate: MemoryEstimate) -> dict[str, Any]:
    """Return the live memory over operators by kind, with the layer and operator per column."""
    timeline = estimate.timeline
    moments = list(columns_of(timeline, _MAX_COLUMNS))
    kinds = [kind for kind in STACK if any(moment.by_kind[kind] for moment in moments)]
    verdict = estimate.verdict
    return {
        "kinds": kinds,
        "sizes": [[moment.by_kind[kind] for moment in moments] for kind in kinds],
        "layers": [printable(moment.layer) for moment in moments],
        "operators": [moment.operator.removeprefix("aten.") for moment in moments],
        "phases": [
            [name, len(list(members))]
            for name, members in groupby(moment.phase for moment in moments)
        ],
        "peak": max(range(len(moments)), key=lambda at: moments[at].total, default=None),
        "peakLayer": printable(estimate.peak_layer),
        "peakBytes": estimate.peak_bytes,
        "capacity": None
        if verdict is None
        else verdict.capacity_bytes - verdict.cuda_context_bytes,
        "device": None if verdict is None else verdict.device,
    }


def roofline_series(roofline: Roofline) -> dict[str, Any]:
    """The roofs, and a point for all equal calls of an operator."""
    points = [
        {
            "x": rounded(point.load.intensity or 0.0),
            "y": rounded(point.rate),
            "share": rounded(point.time / roofline.time_estimate),
            "limiter": point.load.limiter,
            "layer": printable(point.load.layer),
            "operator": point.load.operator.removeprefix("aten."),
            "calls": point.calls,
        }
        for point in points_of(roofline)[:_MAX_POINTS]
    ]
    return {
        "points": points,
        "bandwidth": roofline.bandwidth,
        "peaks": [
            [form, peak] for form, peak in roofline.peak_flops.items() if math.isfinite(peak)
        ],
        "limits": [
            [name, rounded(time / (roofline.time_estimate or 1))]
            for name, time in roofline.time_by_limiter.items()
        ],
        "device": roofline.device,
    }
