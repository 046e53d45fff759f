"""Names, arguments and keys of older releases and of other tools, and what to write instead.

The tables are looked up when a name, an argument or a key does not exist, and never before. The
file must not import torch: ``import torchscan`` loads it.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, NoReturn, Self

from torchscan.errors import InputError

# -- names ---------------------------------------------------------------------------------------

_TYPES = """
Alarm AxisField CallChange CallRun Cell Check Checked Collective Column Comparison Compilation
CompiledFrame Convention Device DeviceRun Distribution Expected Generation GenerationSweep GraphEdge
GraphNode GroupLoad GroupRun History Info InputRecord InspectedCall Latency LayerChange LayerField
LayerMemory MemoryEstimate MeshChoice MeshSearch ModuleCall ModuleGraph Moment NonFinite OpCall
OpCost OpSignature OperatorLoad Page ParameterRecord PipelinePlan PipelineProcess Plan Polynomial
Provenance RankPlan ReceptiveField Roofline Row Run RunComparison RunFacts
RunProvenance Series Server Slice StagePlan StorageRecord Straggler SymbolicCosts Table
TensorRecord TensorSpec TimeChange Timeline Trace Verdict WatchedRun Watcher Work
"""
_SINKS = "MLflow Seen Sink TensorBoard Video WandB"

_OVERALL = "crawl_module(module, input_shape)['overall']"
_PARAMS = "crawl_module(module, input_shape)['overall']['grad_params']"
_SUMMARY = "summary(module, input_shape)"
_GRAPH = "Scan(module, input_shape).graph()"


def _macs(convention: str) -> str:
    return f"crawl_module(module, input_shape, convention={convention!r})['overall']['macs']"


#: where a name is from -> the name -> what to write instead, as code
NAMES: Mapping[str, Mapping[str, str]] = {
    "was a module in torchscan 0.1 or 0.2": {
        "compare": "torchscan.compare(before, after)",
        "flops": f"{_OVERALL}['flops']",
        "version": "torchscan.__version__",
    },
    "was in torchscan 0.2": {
        "AnalysisReport": "torchscan.types.Info",
        "Diagnostic": "crawl_module(module, input_shape)['unpriced']",
        "FlopReport": "torchscan.types.Trace",
        "IncompleteAnalysisError": "torchscan.UnpricedError",
        "LayerReport": "crawl_module(module, input_shape)['layers'][0]",
        "MetricResult": _OVERALL,
        "ReportDiff": "torchscan.types.Comparison",
        "compare_reports": "compare(before, after)",
        "measure_flops": f"{_OVERALL}['flops']",
        "measure_peak_memory": "estimate_memory(module, input_shape).peak_bytes",
        "metric_result": _OVERALL,
    },
    "was internal to torchscan 0.1 and 0.2": {
        "adaptive_kernel_size": "module_flops(module, inputs)",
        "format_line_str": "format_info(info)",
        "format_s": "f'{text:<{width}}'",
        "num_params": "sum(p.numel() for p in module.parameters())",
        "wrap_string": "textwrap.shorten(text, width)",
    },
    "is from fvcore": {
        "ActivationCountAnalysis": "estimate_memory(module, input_shape)",
        "FlopCountAnalysis": _macs("fvcore"),
        "activation_count": "estimate_memory(module, input_shape)",
        "flop_count": _macs("fvcore"),
        "flop_count_str": "print(crawl_module(module, input_shape, convention='fvcore'))",
        "flop_count_table": "summary(module, input_shape, convention='fvcore')",
        "parameter_count": _PARAMS,
        "parameter_count_table": "summary(module, input_shape, columns=['params'])",
    },
    "is from thop": {
        "clever_format": "format_info(crawl_module(module, input_shape))",
        "profile": "crawl_module(module, input_shape, convention='thop')['overall']",
    },
    "is from ptflops": {
        "flops_to_string": "format_info(crawl_module(module, input_shape))",
        "get_model_complexity_info": _macs("ptflops"),
        "macs_to_string": "format_info(crawl_module(module, input_shape))",
        "params_to_string": "format_info(crawl_module(module, input_shape))",
    },
    "is from torch.utils.flop_counter": {
        "FlopCounterMode": _macs("flop_counter"),
        "register_flop_formula": "cost_of(operator)",
    },
    "is from torchinfo": {
        "ColumnSettings": "summary(module, input_shape, columns=['params', 'macs'])",
        "LayerInfo": "crawl_module(module, input_shape)['layers'][0]",
        "ModelStatistics": _OVERALL,
        "RowSettings": "summary(module, input_shape, columns=['params', 'macs'])",
        "Verbosity": "crawl_module(module, input_shape)",
    },
    "is from calflops": {
        "calculate_flops": f"{_OVERALL}['flops']",
        "calculate_flops_hf": f"{_OVERALL}['flops']",
    },
    "is from DeepSpeed": {
        "FlopsProfiler": "inspect(module, input_shape)",
        "get_model_profile": _OVERALL,
    },
    "is from another tool": {
        "ModelSummary": _SUMMARY,
        "count_flops": f"{_OVERALL}['flops']",
        "count_macs": f"{_OVERALL}['macs']",
        "count_ops": f"{_OVERALL}['flops']",
        "count_parameters": _PARAMS,
        "count_params": _PARAMS,
        "draw_graph": _GRAPH,
        "make_dot": _GRAPH,
        "profile_macs": f"{_OVERALL}['macs']",
        "stat": _SUMMARY,
        "summary_string": "format_info(crawl_module(module, input_shape))",
        "total_flops": f"{_OVERALL}['flops']",
        "total_macs": f"{_OVERALL}['macs']",
        "total_params": _PARAMS,
    },
    "has moved in 1.0": {
        **{name: f"torchscan.types.{name}" for name in _TYPES.split()},
        **{name: f"torchscan.sinks.{name}" for name in _SINKS.split()},
        "Remedies": "torchscan.types.Suggestions",
        "Remedy": "torchscan.types.Suggestion",
        "Spread": "torchscan.types.ErrorMargin",
        "gather_plan": "torchscan.parallel.gather",
        "plan": "torchscan.parallel.plan",
        "plan_pipeline": "torchscan.parallel.pipeline",
        "search_meshes": "torchscan.parallel.search",
    },
    "is another function since 1.0": {
        "assert_generation": "assert_budget(generation)",
        "assert_plan": "assert_budget(plan)",
        "by_module": "trace.table(by='module')",
        "by_module_and_operator": "trace.table(by='module')",
        "by_operator": "trace.table(by='operator')",
        "compare_info": "compare(before, after)",
        "device_named": "Scan(module, input_shape, device=name)",
        "json_schema": "torchscan.types.json_schema()",
        "module_graph": _GRAPH,
        "page_of_run": "open_run(path).to_html(file)",
        "run_schema": "torchscan.types.json_schema('run')",
        "sweep_generation": "analyze_generation(module, batch_size=[1, 8, 32])",
        "to_page": "html_report(module, input_shape)",
        "total_cost": _OVERALL,
    },
    "is a method since 1.0": {
        "comparison_table": "comparison.table()",
        "cost_table": "trace.table()",
        "draw_generation": "generation.plot()",
        "draw_layers": "info.plot()",
        "draw_memory": "estimate.plot()",
        "draw_meshes": "search.plot()",
        "draw_models": "model_table(models, input_shape).plot()",
        "draw_pipeline": "pipeline.plot()",
        "draw_plan": "plan.plot()",
        "draw_receptive_field": "field.plot()",
        "draw_roofline": "roofline.plot()",
        "field_table": "field.table()",
        "format_comparison": "comparison.to_text()",
        "format_memory": "estimate.to_text()",
        "format_roofline": "roofline.to_text()",
        "formula_table": "costs.table()",
        "generation_table": "generation.table()",
        "graph_table": "graph.table()",
        "group_table": "group.table()",
        "info_table": "info.table()",
        "memory_table": "estimate.table()",
        "mesh_table": "search.table()",
        "pipeline_table": "pipeline.table()",
        "plan_table": "plan.table()",
        "remedies_table": "suggestions.table()",
        "roofline_table": "roofline.table()",
        "run_table": "run.table()",
        "to_csv": "info.to_csv()",
        "to_dot": "graph.to_dot()",
        "to_html": "info.to_html()",
        "to_json": "info.to_json()",
        "to_latex": "info.to_latex()",
        "to_markdown": "info.to_markdown()",
        "to_mermaid": "graph.to_mermaid()",
        "to_pandas": "info.to_pandas()",
        "to_svg": "graph.to_svg()",
    },
}
#: beginnings of the formulas by class that 0.1 and 0.2 had, and the function for all classes
PREFIXES: Mapping[str, str] = {
    "flops_": "module_flops(module, inputs)",
    "macs_": "module_macs(module, inputs)",
    "dmas_": "module_dmas(module, inputs)",
    "rf_": "module_rf(module, inputs)",
}

# -- keys and arguments --------------------------------------------------------------------------

#: keys of 0.2 in the dict of ``crawl_module`` and its layers -> what to write instead
KEYS: Mapping[str, str] = {
    "totals": "info['overall'], for example info['overall']['macs']",
    "schema_version": "info.to_json(), which names its schema",
    "diagnostics": "info['unpriced'] (operators without a cost formula)",
    "context": "info['provenance']",
    "inputs": "info['provenance']['inputs']",
    "operator_flops": "record(module, input_shape).table(by='operator')",
    "parameters": "layer['grad_params'], layer['nograd_params'] or layer['param_size']",
    "buffers": "layer['num_buffers'] or layer['buffer_size']",
    "metrics": "layer['flops'], layer['macs'], layer['dmas'], layer['rf'], layer['s'] or layer['p']",
    "input": "layer['input_shape']",
    "output": "layer['output_shape']",
    "call_index": "layer['call']",
}

#: attributes of what torchinfo's ``summary`` returns -> what to write instead
_STATISTICS: Mapping[str, str] = {
    "summary_list": "info['layers']",
    "total_mult_adds": "info['overall']['macs']",
    "total_param_bytes": "info['overall']['param_size']",
    "total_params": "info['overall']['grad_params'] + info['overall']['nograd_params']",
    "trainable_params": "info['overall']['grad_params']",
}

#: argument -> its values in 0.2 -> what to write instead
VALUES: Mapping[str, Mapping[str, str]] = {
    "mode": {
        "full": "leave mode= out, since everything is counted",
        "structure": "leave mode= out and read 'output_shape' and 'grad_params' of each layer",
    },
    "wrap_mode": {"end": "give 'tail'"},
}

#: arguments of other tools -> what to give. It applies to functions that have the argument it names
_GIVE: Mapping[str, str] = {
    "model": "module=",
    **dict.fromkeys(
        ("input_size", "input_res"), "input_shape=(3, 224, 224) for one sample, and batch_size="
    ),
    **dict.fromkeys(("input_data", "inputs", "input_constructor"), "args=(x,), or kwargs={'x': x}"),
    "dtypes": "dtype=",
    "batch_dim": "batch_size=, since input_shape= is that of one sample",
    "col_names": "columns=['type', 'output_shape', 'params', 'macs']",
    **dict.fromkeys(("row_settings", "col_width"), "columns= and width="),
    "backward": "training=True, mode='eval', and what to differentiate as loss=",
    "context_bytes": "cuda_context=",
    "depth": "max_depth=",
    "print_per_layer_stat": "columns=, or crawl_module(...) for the same without printing",
    **dict.fromkeys(
        ("backend", "backend_specific_config"),
        "convention='ptflops' for the numbers of its usual backend",
    ),
    "report_missing": "strict=True to refuse operators without a cost formula",
}
#: arguments that have no counterpart -> why
_LEAVE_OUT: Mapping[str, str] = {
    "verbose": "crawl_module(...) gives what summary(...) prints",
    **dict.fromkeys(
        ("as_strings", "flops_units", "param_units", "output_precision"),
        "values are numbers, and format_info(...) makes text of them",
    ),
    **dict.fromkeys(
        ("row_settings", "col_width", "col_names"),
        "format_info(...) lays out the table, with columns= and width=",
    ),
    **dict.fromkeys(("depth", "max_depth"), "aggregate_info(info, max_depth) folds the layers"),
    **dict.fromkeys(
        ("print_per_layer_stat", "ret_layer_info"),
        "crawl_module(...) has every layer, and summary(...) prints them",
    ),
    "ost": "summary(...) prints, and format_info(...) gives the same text to write anywhere",
    "ignore_modules": "all that runs is counted; select_layers(...) picks layers",
    "device": "the model stays where it is, and runs on shapes alone unless it is on a GPU",
    "cache_forward_pass": "Scan(...) keeps its pass for all questions",
    **dict.fromkeys(("backend", "backend_specific_config"), "operators are counted as they run"),
    "report_missing": "operators without a cost formula are named in any case",
    **dict.fromkeys(
        ("custom_ops", "custom_modules_hooks", "supported_ops"),
        "costs belong to operators, not to modules: see torchscan.cost_of",
    ),
}

# -- look them up --------------------------------------------------------------------------------


def hint_for_name(name: str, module: str = "torchscan") -> str | None:
    """Return what to write instead of a name that ``module`` does not have, or None."""
    for origin, replacements in NAMES.items():
        if name in replacements:
            return f"{module}.{name} {origin}: write {replacements[name]}"
    for prefix, replacement in PREFIXES.items():
        if name.startswith(prefix):
            return f"{module}.{name} was internal to torchscan 0.1 and 0.2: write {replacement}"
    return None


def raise_for_name(module: str, name: str) -> NoReturn:
    """Raise the AttributeError of a module without that name."""
    hint = hint_for_name(name, module)
    raise AttributeError(hint or f"module {module!r} has no attribute {name!r}")


class HintFinder:
    """An import hook that finds nothing, but answers imports of names in the tables.

    Python would say "cannot import name", whatever ``__getattr__`` of a module raises.
    """

    packages = (
        "torchscan",
        "torchscan.modules",
        "torchscan.process",
        "torchscan.report",
        "torchscan.utils",
    )

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG003 - of importlib
        """Raise an ImportError if there is a hint for the name."""
        package, _, name = fullname.rpartition(".")
        hint = hint_for_name(name, package) if package in cls.packages else None
        if hint is not None:
            raise ImportError(hint, name=fullname)


def forward_old_module(name: str, *submodules: str) -> None:
    """Give a module that forwards old names its submodules, which are itself, and hints."""
    module: Any = sys.modules[name]
    module.__getattr__ = functools.partial(raise_for_name, name)
    for each in submodules:
        sys.modules[f"{name}.{each}"] = module
        setattr(module, each, module)


class HintedDict(dict[str, Any]):
    """A dict that answers keys of torchscan 0.2 with those to use."""

    def __missing__(self, key: object) -> NoReturn:
        """Raise a KeyError, with a hint if there is one."""
        hint = KEYS.get(key) if isinstance(key, str) else None
        raise KeyError(key if hint is None else f"{key!r} was a key in torchscan 0.2: read {hint}")


class HintedLayer(HintedDict):
    """A layer in the dict of ``crawl_module``. Its deep copies and pickles are plain dicts."""

    def copy(self) -> Self:
        """Return a shallow copy, which has hints, too."""
        return type(self)(self)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Return how to build a plain dict, which every serializer knows."""
        return dict, (dict(self),)


_NO_DATA = "summary() prints and returns no data: write info = crawl_module(...) and read {}"


class PrintedSummary:
    """The result of ``summary``. It displays nothing, since the table is printed already."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return nothing to display."""
        return ""

    def __bool__(self) -> bool:
        """Return False, as None does."""
        return False

    def _ipython_display_(self) -> None:
        """Display nothing in a notebook."""

    def __getitem__(self, key: object) -> NoReturn:
        """Raise a TypeError that names the function which returns data."""
        known = KEYS.get(key) if isinstance(key, str) else None
        raise TypeError(_NO_DATA.format(known or f"info[{key!r}]"))

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that names the function which returns data."""
        raise AttributeError(_NO_DATA.format(_STATISTICS.get(name, "info['overall']")))


def refuse_old_values(arguments: Mapping[str, object]) -> None:
    """Raise an InputError if an argument has a value of torchscan 0.2."""
    for name, advice_by_value in VALUES.items():
        given = arguments.get(name)
        if isinstance(given, str) and given in advice_by_value:
            advice = advice_by_value[given]
            raise InputError(f"{name} is {given!r}, which torchscan 0.2 had: {advice}")


def explain_unknown_arguments(called: str, unknown: Sequence[str], known: Set[str]) -> str:
    """Return the message for arguments that a function does not have: one for all of them."""
    if len(unknown) == 1:
        advice, text = _advise(unknown[0], known)
        return f"{called}() {_ALONE[advice].format(name=repr(unknown[0]), text=text)}"
    names_by_advice: dict[tuple[str, str], list[str]] = {}
    for name in unknown:
        names_by_advice.setdefault(_advise(name, known), []).append(repr(name))
    answers = [
        _TOGETHER[advice].format(names=" and ".join(names), text=text)
        for (advice, text), names in names_by_advice.items()
    ]
    return f"{called}() got {len(unknown)} unexpected keyword arguments: {'; '.join(answers)}"


#: kind of advice -> the message for one argument
_ALONE = {
    "give": "has no argument {name}: give {text}",
    "leave out": "has no argument {name}, and needs none: {text}",
    "similar": "got an unexpected keyword argument {name}: {text}",
}
#: kind of advice -> its part in the message for several arguments
_TOGETHER = {
    "give": "for {names} give {text}",
    "leave out": "leave out {names} ({text})",
    "similar": "for {names}, {text}",
}


def _advise(name: str, known: Set[str]) -> tuple[str, str]:
    """Return the kind of advice for an argument, and its text."""
    text = _GIVE.get(name, "")
    if not known.isdisjoint(re.findall(r"(\w+)=", text)):
        return "give", text
    if name in _LEAVE_OUT:
        return "leave out", _LEAVE_OUT[name]
    similar = difflib.get_close_matches(name, known, 1)
    known_names = ", ".join(sorted(known))
    return "similar", f"did you mean {similar[0]!r}?" if similar else f"there are {known_names}"
