"""How each result is shown, printed and in a notebook. The front door loads this when a result is first shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchscan.analyses.generation.formulas import SymbolicCosts
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.mesh_search import MeshSearch
from torchscan.analyses.module_graph import ModuleGraph
from torchscan.analyses.pipeline_schedule import PipelinePlan
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.roofline import Roofline
from torchscan.analyses.suggestions_result import Suggestions
from torchscan.hardware.device_specs import Device
from torchscan.report import csv, html, json, latex, markdown, text  # noqa: F401 - each registers the format that it writes
from torchscan.report.compare_runs import RunComparison
from torchscan.report.comparison import Comparison, comparison_table, format_comparison
from torchscan.report.costs import cost_table
from torchscan.report.device_table import device_table
from torchscan.report.export import format_info, to_html
from torchscan.report.fields import field_table, layer_table
from torchscan.report.formula_table import formula_table
from torchscan.report.generation_table import generation_table
from torchscan.report.graphs.languages import graph_table
from torchscan.report.graphs.svg import to_svg
from torchscan.report.group_table import group_table
from torchscan.report.html import part_of
from torchscan.report.info import Info
from torchscan.report.memory_table import format_memory, memory_table
from torchscan.report.mesh_table import mesh_table
from torchscan.report.pipeline_table import pipeline_table
from torchscan.report.plan_table import plan_table
from torchscan.report.roofline_table import format_roofline, roofline_table
from torchscan.report.run_table import run_table
from torchscan.report.suggestions_table import suggestions_table
from torchscan.report.table import Table
from torchscan.results import shows
from torchscan.runtime.group_run import GroupRun
from torchscan.runtime.run import RunFacts
from torchscan.trace.trace import Trace

R = TypeVar("R")


def _shows_as(
    kind: type[R], table: Callable[[R], Table], words: Callable[[R], str] | None = None
) -> None:
    """As its table; as text, perhaps with more."""
    shows(
        kind,
        words or (lambda result: table(result).write("text")),
        lambda result: part_of(table(result).shown),
    )


shows(Info, format_info, to_html)
_shows_as(Table, lambda table: table)
_shows_as(Trace, cost_table)
shows(
    ModuleGraph,
    lambda graph: graph_table(graph).write("text"),
    lambda graph: f'<div class="torchscan">{to_svg(graph)}</div>',
)
_shows_as(Device, device_table)
_shows_as(ReceptiveField, field_table)
_shows_as(LayerField, layer_table)
_shows_as(MemoryEstimate, memory_table, format_memory)
_shows_as(Roofline, roofline_table, format_roofline)
_shows_as(Suggestions, suggestions_table)
_shows_as(Generation, generation_table)
_shows_as(GenerationSweep, generation_table)
_shows_as(SymbolicCosts, formula_table)
_shows_as(MeshSearch, mesh_table)
_shows_as(Plan, plan_table)
_shows_as(GroupRun, group_table)
_shows_as(PipelinePlan, pipeline_table)
_shows_as(
    RunFacts, lambda run: run_table(run, max_depth=None), lambda run: run_table(run).write("text")
)  # a page folds
_shows_as(Comparison, comparison_table, format_comparison)
_shows_as(RunComparison, comparison_table, format_comparison)
