"""The data of a page's memory chart, by hand."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from torchscan import estimate_memory
from torchscan.analyses.memory_blocks import KINDS
from torchscan.report.paging.charts import memory_series
from torchscan.types import MemoryEstimate, Moment


def moment(operator: str, layer: str, phase: str, first: int, last: int) -> Moment:
    """The bytes of the first kind of memory and of the last; of the others there are none."""
    nothing = (0,) * (len(KINDS) - 2)
    return Moment(operator, layer, phase, (first, *nothing, last))  # type: ignore[arg-type]


MOMENTS = (
    moment("aten.mm", "fc", "forward", 8, 0),
    moment("aten.relu", "act", "forward", 8, 4),
    moment("aten.mm", "fc", "backward", 8, 9),
    moment("mine.op", "", "backward", 8, 2),
)


def estimated(device: str | None = None) -> MemoryEstimate:
    estimate = estimate_memory(nn.Linear(2, 2), (2,), device=device)
    return replace(estimate, timeline=MOMENTS, peak_layer="fc", peak_bytes=17)


def test_a_chart_has_the_kinds_of_memory_that_there_are_by_operator() -> None:
    series = memory_series(estimated())
    assert series["kinds"] == [KINDS[0], KINDS[-1]]
    assert series["sizes"] == [(8, 8, 8, 8), (0, 4, 9, 2)]
    assert series["layers"] == ["fc", "act", "fc", ""]
    assert series["operators"] == ["mm", "relu", "mm", "mine.op"]
    assert series["phases"] == [("forward", 2), ("backward", 2)]
    assert (series["peak"], series["peakLayer"], series["peakBytes"]) == (2, "fc", 17)
    assert (series["capacity"], series["device"]) == (None, None)


def test_the_line_of_a_device_is_what_its_context_leaves() -> None:
    estimate = estimated("NVIDIA L4")
    assert estimate.verdict is not None
    verdict = replace(estimate.verdict, capacity_bytes=100, cuda_context_bytes=30)
    series = memory_series(replace(estimate, verdict=verdict))
    assert (series["capacity"], series["device"]) == (70, "NVIDIA L4")
