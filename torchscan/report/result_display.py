"""Registration of the formatters of each result type, on the first use of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.analyses.generation.formulas import SymbolicCosts
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.analyses.generation.serving_search import ServingSearch
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot
from torchscan.analyses.mesh_search import MeshSearch
from torchscan.analyses.module_graph import ModuleGraph
from torchscan.analyses.pipeline_result import PipelinePlan
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.projective_field import LayerReach, ProjectiveField
from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.roofline import Roofline
from torchscan.analyses.suggestions_result import Suggestions
from torchscan.formatters import register_formatters, register_page_writer
from torchscan.hardware.device_specs import Device
from torchscan.inspecting.group_run import GroupRun
from torchscan.inspecting.run import RunFacts
from torchscan.report import (  # noqa: F401 - each registers what it writes
    csv,
    finding_texts,
    html,
    json,
    latex,
    markdown,
    pass_texts,
    plan_texts,
    result_texts,
    run_texts,
    snapshot_texts,
    text,
    training_texts,
)
from torchscan.report.checkpoint_table import checkpoint_table
from torchscan.report.comparison import Comparison
from torchscan.report.comparison_table import comparison_table, format_comparison
from torchscan.report.cost_table import cost_table
from torchscan.report.data import info_data_table, info_document
from torchscan.report.device_table import device_table
from torchscan.report.field_table import axis_table, field_table
from torchscan.report.formula_table import formula_table
from torchscan.report.generation_table import generation_table
from torchscan.report.graphs.languages import graph_table, to_dot, to_mermaid
from torchscan.report.graphs.svg import svg_part, to_svg
from torchscan.report.group_table import group_table
from torchscan.report.html import page, part_of
from torchscan.report.info import Info
from torchscan.report.json import table_content
from torchscan.report.layer_table import format_info, info_part, info_table
from torchscan.report.memory_table import format_memory, memory_table
from torchscan.report.mesh_table import mesh_table
from torchscan.report.paging.framed_page import Page
from torchscan.report.pictures.bars import draw_rows
from torchscan.report.pictures.checkpoint_plot import draw_checkpoints
from torchscan.report.pictures.generation_plot import draw_generation
from torchscan.report.pictures.inline import inline_plot
from torchscan.report.pictures.layer_plot import draw_layers
from torchscan.report.pictures.memory_plot import draw_memory
from torchscan.report.pictures.mesh_plot import draw_meshes
from torchscan.report.pictures.models import draw_models
from torchscan.report.pictures.pipeline_plot import draw_pipeline
from torchscan.report.pictures.plan_plot import draw_plan
from torchscan.report.pictures.receptive_field_plot import draw_fields, draw_receptive_field
from torchscan.report.pictures.roofline_plot import draw_roofline
from torchscan.report.pictures.serving_plot import draw_serving
from torchscan.report.pipeline_table import pipeline_table
from torchscan.report.plan_table import plan_table
from torchscan.report.projective_table import projective_table, reach_table
from torchscan.report.roofline_table import format_roofline, roofline_table
from torchscan.report.run_comparison import RunComparison
from torchscan.report.run_data import run_document
from torchscan.report.run_table import run_table
from torchscan.report.serving_table import serving_table
from torchscan.report.snapshot_table import all_places_table, snapshot_table
from torchscan.report.suggestions_table import suggestions_table
from torchscan.report.table import Cut, ModelTable, Table
from torchscan.results import Result
from torchscan.trace.trace import Trace


def _info_text(
    info: Info,
    columns: Sequence[str] | None = None,
    truncate: Cut = "mid",
    *,
    fold_repeats: bool | None = None,
    width: int = 80,
) -> str:
    return format_info(info, truncate, columns=columns, fold_repeats=fold_repeats, width=width)


def _table_part(table: Table) -> str:
    return part_of(table.shown)


def _titled_memory_table(estimate: MemoryEstimate) -> Table:
    """Return the table of an estimate, whose title names the model."""
    table = memory_table(estimate)
    for layer in estimate.layers:
        if not layer.path:
            return replace(table, title=f"{table.title}: {layer.type_name}")
    return table


def _with_plot(table: Callable[..., Table]) -> Callable[..., str]:
    """Return a formatter of HTML that shows the table and, with matplotlib, the plot."""

    @functools.wraps(table)  # for its options
    def write(result: Result, **options: Any) -> str:
        return part_of(table(result, **options).shown) + inline_plot(result)

    return write


def _comparison_page(
    comparison: Comparison | RunComparison, *, names: tuple[str, str] | None = None
) -> Page:
    """Return the page of both sides. What makes it is imported when it is asked for."""
    from torchscan.report.paging.comparison_page import comparison_page

    return comparison_page(comparison, names=names)


def _comparison_frame(
    comparison: Comparison | RunComparison, *, names: tuple[str, str] | None = None
) -> str:
    """Return the page of both sides in a frame, as notebooks show it."""
    frame = _comparison_page(comparison, names=names)._repr_html_()
    return f'<div class="torchscan" data-ready="static">{frame}</div>'


def _identity(table: Table) -> Table:
    return table


_memory_part = _with_plot(_titled_memory_table)
register_page_writer(page)
register_formatters(
    Info,
    info_table,
    text=_info_text,
    page_part=info_part,
    data_table=info_data_table,
    plot=draw_layers,
    document=info_document,
)
register_formatters(Table, _identity, page_part=_table_part, document=table_content)
register_formatters(
    ModelTable,
    _identity,
    page_part=_table_part,
    document=table_content,
    plot=draw_models,
)
register_formatters(Trace, cost_table, plot=draw_rows)
register_formatters(
    ModuleGraph,
    graph_table,
    page_part=svg_part,
    languages={"dot": to_dot, "mermaid": to_mermaid, "svg": to_svg},
)
register_formatters(Device, device_table)
register_formatters(
    ReceptiveField, field_table, page_part=_with_plot(field_table), plot=draw_fields
)
register_formatters(
    LayerField, axis_table, page_part=_with_plot(axis_table), plot=draw_receptive_field
)
register_formatters(ProjectiveField, projective_table, plot=draw_rows)
register_formatters(LayerReach, reach_table, plot=draw_rows)
register_formatters(
    MemoryEstimate,
    memory_table,
    page_part=_memory_part,
    page=lambda estimate: page(_titled_memory_table(estimate).title, _memory_part(estimate)),
    text=format_memory,
    plot=draw_memory,
)
register_formatters(MemorySnapshot, snapshot_table, data_table=all_places_table, plot=draw_rows)
register_formatters(
    Roofline,
    roofline_table,
    page_part=_with_plot(roofline_table),
    text=format_roofline,
    plot=draw_roofline,
)
register_formatters(Suggestions, suggestions_table, plot=draw_rows)
register_formatters(
    CheckpointCurve,
    checkpoint_table,
    page_part=_with_plot(checkpoint_table),
    plot=draw_checkpoints,
)
register_formatters(Generation, generation_table, plot=draw_generation)
register_formatters(
    GenerationSweep, generation_table, page_part=_with_plot(generation_table), plot=draw_generation
)
register_formatters(SymbolicCosts, formula_table)
register_formatters(MeshSearch, mesh_table, page_part=_with_plot(mesh_table), plot=draw_meshes)
register_formatters(
    ServingSearch, serving_table, page_part=_with_plot(serving_table), plot=draw_serving
)
register_formatters(Plan, plan_table, page_part=_with_plot(plan_table), plot=draw_plan)
register_formatters(
    PipelinePlan, pipeline_table, page_part=_with_plot(pipeline_table), plot=draw_pipeline
)
register_formatters(GroupRun, group_table, plot=draw_rows)
register_formatters(
    RunFacts,
    run_table,
    page_part=lambda run: _table_part(run_table(run, max_depth=None)),  # its rows open and close
    document=run_document,
    plot=draw_rows,
)
for _kind in (Comparison, RunComparison):
    register_formatters(
        _kind,
        comparison_table,
        text=format_comparison,
        page_part=_comparison_frame,
        page=_comparison_page,
        plot=draw_rows,
    )
