"""torchscan: what a PyTorch model is and what it costs, before anything is trained."""

from torchscan._version import __version__
from torchscan.analyses.conventions import Convention
from torchscan.analyses.memory_estimate import MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import LayerMemory, Moment
from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline
from torchscan.analyses.totals import by_module, by_module_and_operator, by_operator, total_cost
from torchscan.budgets import assert_budget
from torchscan.crawler import (
    crawl_module,
    module_dmas,
    module_flops,
    module_macs,
    module_rf,
    receptive_field,
    record,
    summary,
)
from torchscan.errors import BudgetError, InputError, NeedsValuesError, RecordError, TorchscanError, UnpricedError
from torchscan.estimator import analyze_roofline, estimate_memory
from torchscan.hardware.devices import Device, register_device
from torchscan.hardware.process_memory import get_process_gpu_ram
from torchscan.ops import OpCost, Work, cost_of, window_of
from torchscan.report.aggregate import aggregate_info
from torchscan.report.compare import Comparison, LayerChange, compare_info, comparison_table, format_comparison
from torchscan.report.costs import cost_table
from torchscan.report.data import from_json, json_schema, to_csv, to_json, to_pandas
from torchscan.report.drawing import draw_receptive_field
from torchscan.report.export import format_info, info_table, to_html, to_latex, to_markdown
from torchscan.report.fields import field_table
from torchscan.report.memory import draw_memory, format_memory, memory_table
from torchscan.report.roofline import draw_roofline, format_roofline, roofline_table
from torchscan.report.select import select_layers
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.tables import model_table
from torchscan.trace.events import ModuleCall, OpCall, OpSignature, TensorSpec
from torchscan.trace.trace import Trace

__all__ = [
    "AxisField",
    "BudgetError",
    "Cell",
    "Column",
    "Comparison",
    "Convention",
    "Device",
    "GroupLoad",
    "InputError",
    "LayerChange",
    "LayerField",
    "LayerMemory",
    "MemoryEstimate",
    "ModuleCall",
    "Moment",
    "NeedsValuesError",
    "OpCall",
    "OpCost",
    "OpSignature",
    "OperatorLoad",
    "ReceptiveField",
    "RecordError",
    "Roofline",
    "Row",
    "Table",
    "TensorSpec",
    "TorchscanError",
    "Trace",
    "UnpricedError",
    "Verdict",
    "Work",
    "__version__",
    "aggregate_info",
    "analyze_roofline",
    "assert_budget",
    "by_module",
    "by_module_and_operator",
    "by_operator",
    "compare_info",
    "comparison_table",
    "cost_of",
    "cost_table",
    "crawl_module",
    "draw_memory",
    "draw_receptive_field",
    "draw_roofline",
    "estimate_memory",
    "field_table",
    "format_comparison",
    "format_info",
    "format_memory",
    "format_roofline",
    "from_json",
    "get_process_gpu_ram",
    "info_table",
    "json_schema",
    "memory_table",
    "model_table",
    "module_dmas",
    "module_flops",
    "module_macs",
    "module_rf",
    "receptive_field",
    "record",
    "register_device",
    "roofline_table",
    "select_layers",
    "summary",
    "to_csv",
    "to_html",
    "to_json",
    "to_latex",
    "to_markdown",
    "to_pandas",
    "total_cost",
    "window_of",
]
