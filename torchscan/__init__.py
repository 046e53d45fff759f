"""torchscan: what a PyTorch model is and what it costs, before anything is trained.

Names are imported when they are first used, so that ``torchscan --help`` need not wait for torch.
"""

from importlib import import_module
from typing import Any

from torchscan import results
from torchscan._version import __version__

#: where each name of the front door is at home; ``__init__.pyi`` says the same to type checkers, and a test compares them
_HOMES = {
    "Convention": "torchscan.analyses.conventions",
    "MemoryEstimate": "torchscan.analyses.memory_estimate",
    "Verdict": "torchscan.analyses.memory_estimate",
    "LayerMemory": "torchscan.analyses.memory_timeline",
    "Moment": "torchscan.analyses.memory_timeline",
    "AxisField": "torchscan.analyses.receptive_field",
    "LayerField": "torchscan.analyses.receptive_field",
    "ReceptiveField": "torchscan.analyses.receptive_field",
    "GroupLoad": "torchscan.analyses.roofline",
    "OperatorLoad": "torchscan.analyses.roofline",
    "Roofline": "torchscan.analyses.roofline",
    "by_module": "torchscan.analyses.totals",
    "by_module_and_operator": "torchscan.analyses.totals",
    "by_operator": "torchscan.analyses.totals",
    "total_cost": "torchscan.analyses.totals",
    "crawl_module": "torchscan.crawler",
    "module_dmas": "torchscan.crawler",
    "module_flops": "torchscan.crawler",
    "module_macs": "torchscan.crawler",
    "module_rf": "torchscan.crawler",
    "receptive_field": "torchscan.crawler",
    "record": "torchscan.crawler",
    "summary": "torchscan.crawler",
    "InputError": "torchscan.errors",
    "NeedsValuesError": "torchscan.errors",
    "RecordError": "torchscan.errors",
    "TorchscanError": "torchscan.errors",
    "UnpricedError": "torchscan.errors",
    "analyze_roofline": "torchscan.estimator",
    "estimate_memory": "torchscan.estimator",
    "Device": "torchscan.hardware.devices",
    "register_device": "torchscan.hardware.devices",
    "get_process_gpu_ram": "torchscan.hardware.process_memory",
    "OpCost": "torchscan.ops",
    "Work": "torchscan.ops",
    "cost_of": "torchscan.ops",
    "window_of": "torchscan.ops",
    "aggregate_info": "torchscan.report.aggregate",
    "draw_receptive_field": "torchscan.report.drawing",
    "draw_memory": "torchscan.report.memory",
    "format_memory": "torchscan.report.memory",
    "draw_roofline": "torchscan.report.roofline",
    "format_roofline": "torchscan.report.roofline",
    "format_info": "torchscan.report.export",
    "ModuleCall": "torchscan.trace.events",
    "OpCall": "torchscan.trace.events",
    "OpSignature": "torchscan.trace.events",
    "TensorSpec": "torchscan.trace.events",
    "Trace": "torchscan.trace.trace",
    "select_layers": "torchscan.report.select",
    "to_markdown": "torchscan.report.export",
    "to_latex": "torchscan.report.export",
    "to_csv": "torchscan.report.data",
    "to_json": "torchscan.report.data",
    "from_json": "torchscan.report.data",
    "json_schema": "torchscan.report.data",
    "to_pandas": "torchscan.report.data",
    "to_html": "torchscan.report.export",
    "assert_budget": "torchscan.budgets",
    "BudgetError": "torchscan.errors",
    "compare_info": "torchscan.report.compare",
    "format_comparison": "torchscan.report.compare",
    "Comparison": "torchscan.report.compare",
    "LayerChange": "torchscan.report.compare",
    "model_table": "torchscan.tables",
    "Table": "torchscan.report.table",
    "Column": "torchscan.report.table",
    "Row": "torchscan.report.table",
    "Cell": "torchscan.report.table",
    "comparison_table": "torchscan.report.compare",
    "cost_table": "torchscan.report.costs",
    "field_table": "torchscan.report.fields",
    "info_table": "torchscan.report.export",
    "memory_table": "torchscan.report.memory",
    "roofline_table": "torchscan.report.roofline",
}

__all__ = ["__version__", *_HOMES]
__all__.sort()


results.load_writers_by(lambda: import_module("torchscan.report.shown"))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        try:
            return import_module(f"{__name__}.{name}")  # torchscan.crawler, say, as if all had been imported
        except ModuleNotFoundError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
