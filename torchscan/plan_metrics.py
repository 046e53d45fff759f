"""Metrics of the plan of a mesh, which are about its largest rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchscan import units
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.roofline import Roofline
from torchscan.errors import Give, InputError
from torchscan.measures import COUNT_OPTIONS, DURATION_OPTIONS, MEMORY_OPTIONS, Measure
from torchscan.metrics import METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMetric(Measure[Plan]):
    """A value of a planned rank: the one with the highest peak memory."""

    #: True if it depends on the costs of operators
    is_cost: bool = False
    #: True if it depends on all weights
    has_weights: bool = False

    def doubts(self, answer: Plan) -> list[str]:
        """Return the reasons why it is a bound.

        They are operators without a formula, unrecorded modules, and unreadable weights.
        """
        trace = answer.largest_rank.trace
        doubts: list[str] = []
        if self.is_cost:
            doubts += operators_without_formula(trace, call_costs(trace))
            doubts += trace.provenance.unrecorded_modules
        if self.has_weights:
            doubts += map(str, trace.provenance.unreadable_weights)
        return doubts


def _timed(plan: Plan) -> Roofline:
    if plan.roofline is None:
        raise InputError(
            "times need a device: give plan() ",
            Give("device", "NVIDIA H200"),
            ", for example (`torchscan devices` lists all)",
        )
    return plan.roofline


_PEAK_MEMORY = METRICS["peak_memory"]
_LATENCY = METRICS["latency"]
_PARAMS_OF_RANK = PlanMetric(
    heading="Parameters per rank",
    value=lambda made: made.local_params,
    **COUNT_OPTIONS,
    has_weights=True,
)
_PEAK_OF_RANK = PlanMetric(
    heading=_PEAK_MEMORY.heading,
    value=lambda made: made.memory.peak_bytes,
    **MEMORY_OPTIONS,
    has_weights=True,
)
_SENT_BY_RANK = PlanMetric(
    heading="Sent per rank",
    value=lambda made: made.sent_bytes,
    **MEMORY_OPTIONS,
)
_LATENCY_OF_RANK = PlanMetric(
    heading=_LATENCY.heading,
    value=lambda made: _timed(made).time_estimate,
    **DURATION_OPTIONS,
    error_share=lambda made: _timed(made).error_margin.share,
    is_cost=True,
)
_WAITING = PlanMetric(
    heading="Waiting for links",
    value=lambda made: _timed(made).time_share("links"),
    text=units.share,
    parse=units.parse_share,
)

#: the metrics by name
OF_PLAN: Mapping[str, PlanMetric] = {
    "local_params": _PARAMS_OF_RANK,
    "peak_memory": _PEAK_OF_RANK,
    "sent": _SENT_BY_RANK,
    "latency": _LATENCY_OF_RANK,
    "waiting": _WAITING,
}
