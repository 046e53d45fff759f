"""Content of the info dict, in which traces become plain, JSON-serializable data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from torchscan.analyses.conventions import Convention
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.module_costs import (
    call_costs,
    formula_problems,
    module_costs,
    operators_without_formula,
)
from torchscan.analyses.parameters import ParameterCount, parameters_by_call, unused_parameters
from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.analyses.receptive_field.short_results import plain_short
from torchscan.analyses.roofline import Roofline
from torchscan.garbage import collected_later
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead
from torchscan.hints import HintedLayer
from torchscan.notes import Note
from torchscan.ops import OpCost
from torchscan.plain import to_plain
from torchscan.report.info import Info
from torchscan.report.info_data import (
    SUMS,
    InfoData,
    InputData,
    Layer,
    OverheadData,
    ProvenanceData,
    Shapes,
)
from torchscan.trace.provenance import Provenance
from torchscan.trace.trace import Trace


@collected_later()
def info_of(
    trace: Trace,
    convention: Convention = "torchscan",
    fields: ReceptiveField | None = None,
    overheads: tuple[Overhead, Overhead] = (NO_OVERHEAD, NO_OVERHEAD),
    memory: MemoryEstimate | None = None,
    roofline: Roofline | None = None,
) -> Info:
    """Return everything that :func:`torchscan.crawl_module` returns.

    ``overheads`` are those before the forward pass and after it.
    """
    costs = call_costs(trace, convention)
    own_costs, parameters = module_costs(trace, costs), parameters_by_call(trace)
    order = tree_order(trace)
    layers = [_layer(trace, index, own_costs[index], parameters[index]) for index in order]
    overall: Any = {}
    for key in SUMS:
        overall[key] = sum([layer[key] for layer in layers])
    overall["complete"] = layers[0]["complete"]
    pre, fwd = overheads
    cuda: OverheadData = {"pre": pre.cuda, "fwd": fwd.cuda}
    framework: OverheadData = {"pre": pre.framework, "fwd": fwd.framework}
    data: InfoData = {
        "overheads": {"cuda": cuda, "framework": framework},
        "layers": layers,
        "overall": overall,
        "without_formula": {},
        "unused_parameters": unused_parameters(trace),
        "provenance": _provenance(trace.provenance, convention),
    }
    if fields is not None:
        _add_fields(data, order, list(fields))
    if not all(layer["complete"] for layer in layers):
        _add_unknown_costs(data, trace, costs)
    if memory is not None:
        _add_memory(data, memory)
    if roofline is not None:
        _add_times(data, roofline)
    return Info(data)


def tree_order(trace: Trace) -> list[int]:
    """Return the indices of calls of modules, each after the one that called it.

    Calls that a backward pass computes again are next to those that they repeat.
    """
    order = []
    waiting = [call.index for call in reversed(trace.modules) if call.parent is None]
    while waiting:
        index = waiting.pop()
        order.append(index)
        waiting += reversed(trace.modules[index].children)
    return order


def _add_unknown_costs(data: InfoData, trace: Trace, costs: Sequence[OpCost]) -> None:
    for name, paths in operators_without_formula(trace, costs).items():
        data["without_formula"][name] = sum(paths.values())
    problems = formula_problems(trace, data["without_formula"])
    if problems:
        data["formula_problems"] = list(map(to_plain, problems))


def _add_fields(data: InfoData, order: Sequence[int], fields: Sequence[LayerField]) -> None:
    for layer, index in zip(data["layers"], order, strict=True):
        field = fields[index]
        layer["rf"], layer["s"] = plain_short(field.rf), plain_short(field.stride)
        layer["p"] = plain_short(field.padding)
        axes: Any = [list(map(AxisField.to_dict, output)) for output in field.outputs]
        layer["receptive_field"] = axes


def _add_memory(data: InfoData, memory: MemoryEstimate) -> None:
    by_path = {each.path: each for each in memory.layers}
    for layer in data["layers"]:
        known = None if layer["call"] else by_path.get(layer["path"])
        activation_bytes = peak_bytes = None
        if known is not None:
            activation_bytes, peak_bytes = known.activation_bytes, known.peak_bytes
        layer["activation_bytes"] = activation_bytes
        layer["peak_bytes"] = peak_bytes
    data["overall"]["peak_bytes"] = memory.peak_bytes
    note = Note.of("memory-estimate", peak_bytes=memory.peak_bytes)
    data.setdefault("estimates", []).append(to_plain(note))


def _add_times(data: InfoData, roofline: Roofline) -> None:
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for each in roofline.operators:
        times[each.layer, each.call].append(each.time_estimate)
    for layer in data["layers"]:
        layer["time_estimate"] = math.fsum(times.get((layer["path"], layer["call"]), ()))
    data["overall"]["time_estimate"] = roofline.time_estimate
    note = Note.of(
        "time-estimate",
        device=roofline.device,
        precision=roofline.precision,
        compiled=roofline.compiled,
        seconds=roofline.time_estimate,
        margin=roofline.error_margin.share,
    )
    data.setdefault("estimates", []).append(to_plain(note))


def _layer(trace: Trace, index: int, cost: OpCost, parameters: ParameterCount) -> Layer:
    call = trace.modules[index]
    name = call.type_name
    if call.parent is not None:
        # the path from the calling module: ``layers.0`` in a model that has a list
        above = trace.modules[call.parent].path
        name = call.path.removeprefix(f"{above}.") or name
    layer = {
        "name": name,
        "path": call.path,
        "depth": call.depth,
        "type": call.type_name,
        "call": call.call,
        "input_shape": _shapes(trace, call.inputs),
        "output_shape": _shapes(trace, call.outputs),
        "grad_params": parameters.grad_params,
        "nograd_params": parameters.nograd_params,
        "param_size": parameters.param_size,
        "num_buffers": parameters.num_buffers,
        "buffer_size": parameters.buffer_size,
        "flops": cost.flops,
        "macs": cost.macs,
        "dmas": cost.elements_read + cost.elements_written,
        "bytes_read": cost.bytes_read,
        "bytes_written": cost.bytes_written,
        "rf": None,
        "s": None,
        "p": None,
        "receptive_field": None,
        "is_shared": parameters.is_shared,
        "is_leaf": not call.children,
        "complete": cost.is_complete,
    }
    return cast("Layer", HintedLayer(layer))


def _shapes(trace: Trace, indices: tuple[int, ...]) -> Shapes:
    """Return one shape, a list of several, or None for no tensor.

    The batch is −1 if torchscan made the inputs.
    """
    batch_size = trace.provenance.batch_size
    shapes = [list(trace.tensors[index].spec.shape) for index in indices]
    for shape in shapes:
        if shape and shape[0] == batch_size:
            shape[0] = -1
    if len(shapes) == 1:
        return shapes[0]
    return shapes or None


def _provenance(provenance: Provenance, convention: Convention) -> ProvenanceData:
    inputs: list[InputData] = []
    for each in provenance.inputs:
        dtype = str(each.dtype).removeprefix("torch.")
        inputs.append({"name": each.name, "shape": list(each.shape), "dtype": dtype})
    return {
        "execution": provenance.execution,
        "reasons": list(map(to_plain, provenance.reasons)),
        "mode": provenance.mode,
        "backward": provenance.backward,
        "batch_size": provenance.batch_size,
        "inputs": inputs,
        "assumptions": list(map(to_plain, provenance.assumptions)),
        "unrecorded_modules": list(provenance.unrecorded_modules),
        "unreadable_weights": list(map(to_plain, provenance.unreadable_weights)),
        "torchscan_version": provenance.torchscan_version,
        "torch_version": provenance.torch_version,
        "convention": convention,
    }
