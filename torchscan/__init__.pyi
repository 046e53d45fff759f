"""torchscan: what a PyTorch model is and what it costs, before anything is trained.

The list of the public names, each with where it is at home: the package reads it to import a name when it is first used.
"""

from torchscan._version import __version__ as __version__
from torchscan.analyses.collectives import Collective as Collective
from torchscan.analyses.conventions import Convention as Convention
from torchscan.analyses.generation.formulas import Polynomial as Polynomial
from torchscan.analyses.generation.formulas import SymbolicCosts as SymbolicCosts
from torchscan.analyses.generation.generation_result import Generation as Generation
from torchscan.analyses.generation.generation_result import GenerationSweep as GenerationSweep
from torchscan.analyses.memory_estimate import (
    MemoryEstimate as MemoryEstimate,
)
from torchscan.analyses.memory_estimate import (
    Verdict as Verdict,
)
from torchscan.analyses.memory_timeline import (
    LayerMemory as LayerMemory,
)
from torchscan.analyses.memory_timeline import (
    Moment as Moment,
)
from torchscan.analyses.mesh_search import MeshChoice as MeshChoice
from torchscan.analyses.mesh_search import MeshSearch as MeshSearch
from torchscan.analyses.module_graph import (
    GraphEdge as GraphEdge,
)
from torchscan.analyses.module_graph import (
    GraphNode as GraphNode,
)
from torchscan.analyses.module_graph import (
    ModuleGraph as ModuleGraph,
)
from torchscan.analyses.module_graph import (
    module_graph as module_graph,
)
from torchscan.analyses.pipeline_schedule import PipelinePlan as PipelinePlan
from torchscan.analyses.pipeline_schedule import PipelineProcess as PipelineProcess
from torchscan.analyses.pipeline_schedule import StagePlan as StagePlan
from torchscan.analyses.plan_result import Plan as Plan
from torchscan.analyses.plan_result import RankPlan as RankPlan
from torchscan.analyses.receptive_field import (
    AxisField as AxisField,
)
from torchscan.analyses.receptive_field import (
    LayerField as LayerField,
)
from torchscan.analyses.receptive_field import (
    ReceptiveField as ReceptiveField,
)
from torchscan.analyses.remedies_result import Remedies as Remedies
from torchscan.analyses.remedies_result import Remedy as Remedy
from torchscan.analyses.roofline import (
    GroupLoad as GroupLoad,
)
from torchscan.analyses.roofline import (
    OperatorLoad as OperatorLoad,
)
from torchscan.analyses.roofline import (
    Roofline as Roofline,
)
from torchscan.analyses.roofline import Spread as Spread
from torchscan.analyses.totals import (
    by_module as by_module,
)
from torchscan.analyses.totals import (
    by_module_and_operator as by_module_and_operator,
)
from torchscan.analyses.totals import (
    by_operator as by_operator,
)
from torchscan.analyses.totals import (
    total_cost as total_cost,
)
from torchscan.budgets import (
    Budget as Budget,
)
from torchscan.budgets import (
    assert_budget as assert_budget,
)
from torchscan.crawler import (
    crawl_module as crawl_module,
)
from torchscan.crawler import (
    module_dmas as module_dmas,
)
from torchscan.crawler import (
    module_flops as module_flops,
)
from torchscan.crawler import (
    module_macs as module_macs,
)
from torchscan.crawler import (
    module_rf as module_rf,
)
from torchscan.crawler import (
    receptive_field as receptive_field,
)
from torchscan.crawler import (
    record as record,
)
from torchscan.crawler import (
    summary as summary,
)
from torchscan.errors import AlarmError as AlarmError
from torchscan.errors import (
    BudgetError as BudgetError,
)
from torchscan.errors import (
    InputError as InputError,
)
from torchscan.errors import (
    NeedsValuesError as NeedsValuesError,
)
from torchscan.errors import NonFiniteError as NonFiniteError
from torchscan.errors import (
    RecordError as RecordError,
)
from torchscan.errors import (
    TorchscanError as TorchscanError,
)
from torchscan.errors import (
    UnpricedError as UnpricedError,
)
from torchscan.estimator import (
    analyze_roofline as analyze_roofline,
)
from torchscan.estimator import (
    estimate_memory as estimate_memory,
)
from torchscan.generation import analyze_generation as analyze_generation
from torchscan.generation import sweep_generation as sweep_generation
from torchscan.generation import symbolic_costs as symbolic_costs
from torchscan.hardware.device_specs import (
    Device as Device,
)
from torchscan.hardware.device_specs import (
    device_named as device_named,
)
from torchscan.hardware.device_specs import (
    register_device as register_device,
)
from torchscan.hardware.process_memory import get_process_gpu_ram as get_process_gpu_ram
from torchscan.inspection import Run as Run
from torchscan.inspection import inspect as inspect
from torchscan.live.explore.run_page import page_of_run as page_of_run
from torchscan.live.explore.serving import Server as Server
from torchscan.live.explore.serving import serve as serve
from torchscan.live.history import History as History
from torchscan.live.history import WatchedRun as WatchedRun
from torchscan.live.opening import open_run as open_run
from torchscan.live.schema import Distribution as Distribution
from torchscan.live.schema import Series as Series
from torchscan.live.sinks.mlflow import MLflow as MLflow
from torchscan.live.sinks.sink import Seen as Seen
from torchscan.live.sinks.sink import Sink as Sink
from torchscan.live.sinks.tensorboard import TensorBoard as TensorBoard
from torchscan.live.sinks.video import Video as Video
from torchscan.live.sinks.weights_and_biases import WandB as WandB
from torchscan.live.watcher import Watcher as Watcher
from torchscan.live.watcher import attach as attach
from torchscan.live.watcher import watch as watch
from torchscan.ops import (
    OpCost as OpCost,
)
from torchscan.ops import (
    Work as Work,
)
from torchscan.ops import (
    cost_of as cost_of,
)
from torchscan.ops import (
    window_of as window_of,
)
from torchscan.ops import (
    windows as windows,
)
from torchscan.pages import (
    Page as Page,
)
from torchscan.pages import (
    to_page as to_page,
)
from torchscan.ranks.gathering import gather_plan as gather_plan
from torchscan.ranks.meshes import search_meshes as search_meshes
from torchscan.ranks.pipeline import plan_pipeline as plan_pipeline
from torchscan.ranks.plan import plan as plan
from torchscan.report.aggregate import aggregate_info as aggregate_info
from torchscan.report.compare_runs import CallChange as CallChange
from torchscan.report.compare_runs import RunComparison as RunComparison
from torchscan.report.compare_runs import TimeChange as TimeChange
from torchscan.report.comparison import (
    Comparison as Comparison,
)
from torchscan.report.comparison import (
    LayerChange as LayerChange,
)
from torchscan.report.comparison import (
    compare_info as compare_info,
)
from torchscan.report.comparison import (
    comparison_table as comparison_table,
)
from torchscan.report.comparison import (
    format_comparison as format_comparison,
)
from torchscan.report.costs import cost_table as cost_table
from torchscan.report.data import (
    from_json as from_json,
)
from torchscan.report.data import (
    json_schema as json_schema,
)
from torchscan.report.data import (
    to_csv as to_csv,
)
from torchscan.report.data import (
    to_json as to_json,
)
from torchscan.report.data import (
    to_pandas as to_pandas,
)
from torchscan.report.export import (
    format_info as format_info,
)
from torchscan.report.export import (
    info_table as info_table,
)
from torchscan.report.export import (
    to_html as to_html,
)
from torchscan.report.export import (
    to_latex as to_latex,
)
from torchscan.report.export import (
    to_markdown as to_markdown,
)
from torchscan.report.fields import field_table as field_table
from torchscan.report.formula_table import formula_table as formula_table
from torchscan.report.generation_table import generation_table as generation_table
from torchscan.report.graphs.languages import (
    graph_table as graph_table,
)
from torchscan.report.graphs.languages import (
    to_dot as to_dot,
)
from torchscan.report.graphs.languages import (
    to_mermaid as to_mermaid,
)
from torchscan.report.graphs.svg import to_svg as to_svg
from torchscan.report.group_table import group_table as group_table
from torchscan.report.info import Info as Info
from torchscan.report.memory_table import (
    format_memory as format_memory,
)
from torchscan.report.memory_table import (
    memory_table as memory_table,
)
from torchscan.report.mesh_table import mesh_table as mesh_table
from torchscan.report.pictures.generation_plot import draw_generation as draw_generation
from torchscan.report.pictures.layer_plot import draw_layers as draw_layers
from torchscan.report.pictures.memory_plot import draw_memory as draw_memory
from torchscan.report.pictures.mesh_plot import draw_meshes as draw_meshes
from torchscan.report.pictures.models import draw_models as draw_models
from torchscan.report.pictures.pipeline_plot import draw_pipeline as draw_pipeline
from torchscan.report.pictures.plan_plot import draw_plan as draw_plan
from torchscan.report.pictures.receptive_field_plot import (
    draw_receptive_field as draw_receptive_field,
)
from torchscan.report.pictures.roofline_plot import draw_roofline as draw_roofline
from torchscan.report.pipeline_table import pipeline_table as pipeline_table
from torchscan.report.plan_table import plan_table as plan_table
from torchscan.report.remedies_table import remedies_table as remedies_table
from torchscan.report.roofline_table import (
    format_roofline as format_roofline,
)
from torchscan.report.roofline_table import (
    roofline_table as roofline_table,
)
from torchscan.report.run_data import run_schema as run_schema
from torchscan.report.run_table import run_table as run_table
from torchscan.report.select import select_layers as select_layers
from torchscan.report.table import (
    Cell as Cell,
)
from torchscan.report.table import (
    Column as Column,
)
from torchscan.report.table import (
    Row as Row,
)
from torchscan.report.table import (
    Table as Table,
)
from torchscan.runtime.checks import Alarm as Alarm
from torchscan.runtime.checks import Check as Check
from torchscan.runtime.checks import Checked as Checked
from torchscan.runtime.compiling import Compilation as Compilation
from torchscan.runtime.compiling import CompiledFrame as CompiledFrame
from torchscan.runtime.expected import Expected as Expected
from torchscan.runtime.facts import InspectedCall as InspectedCall
from torchscan.runtime.findings import NonFinite as NonFinite
from torchscan.runtime.group_run import GroupRun as GroupRun
from torchscan.runtime.provenance import RunProvenance as RunProvenance
from torchscan.runtime.run import CallRun as CallRun
from torchscan.runtime.run import DeviceRun as DeviceRun
from torchscan.runtime.run import Latency as Latency
from torchscan.runtime.run import RunFacts as RunFacts
from torchscan.runtime.stragglers import Straggler as Straggler
from torchscan.runtime.timeline import Slice as Slice
from torchscan.runtime.timeline import Timeline as Timeline
from torchscan.scan import Scan as Scan
from torchscan.tables import model_table as model_table
from torchscan.trace.events import (
    InputRecord as InputRecord,
)
from torchscan.trace.events import (
    ModuleCall as ModuleCall,
)
from torchscan.trace.events import (
    OpCall as OpCall,
)
from torchscan.trace.events import (
    OpSignature as OpSignature,
)
from torchscan.trace.events import (
    ParameterRecord as ParameterRecord,
)
from torchscan.trace.events import (
    Provenance as Provenance,
)
from torchscan.trace.events import (
    StorageRecord as StorageRecord,
)
from torchscan.trace.events import (
    TensorRecord as TensorRecord,
)
from torchscan.trace.events import (
    TensorSpec as TensorSpec,
)
from torchscan.trace.trace import Trace as Trace

__all__: list[str]
