"""The info dict: the one border where records become plain, JSON-serialisable data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchscan.analyses.conventions import Convention
from torchscan.analyses.module_costs import call_costs, module_costs, unpriced_operators
from torchscan.analyses.parameters import ParameterCount, parameters_by_call, unused_parameters
from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.receptive_field.result import plain_short
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead
from torchscan.ops import OpCost
from torchscan.trace.events import ModuleCall, Provenance
from torchscan.trace.trace import Trace

Layer = dict[str, Any]


#: the same, or what was read from a file
InfoDict = Mapping[str, Any]


class Info(dict[str, Any]):
    """What ``crawl_module`` returns: a dict of plain data, which a notebook shows as a table that opens and sorts."""

    def _repr_html_(self) -> str:
        from torchscan.report.html import to_html  # it shows what stands here

        return to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - a known signature
        from torchscan.report.text import format_info

        printer.text(format_info(self))


#: the figures of a layer that add up
PARAMETER_SUMS = ("grad_params", "nograd_params", "param_size", "num_buffers", "buffer_size")
COST_SUMS = ("flops", "macs", "dmas", "bytes_read", "bytes_written")


def info_of(
    trace: Trace,
    convention: Convention = "torchscan",
    fields: ReceptiveField | None = None,
    overheads: tuple[Overhead, Overhead] = (NO_OVERHEAD, NO_OVERHEAD),
) -> Info:
    """Everything that :func:`torchscan.crawl_module` returns. ``overheads`` are those before the forward pass and after it."""
    costs = call_costs(trace, convention)
    own = zip(trace.modules, module_costs(trace, costs), parameters_by_call(trace), strict=True)
    layers = [_layer(trace, *each) for each in own]
    for layer, field in zip(layers, fields or (), strict=bool(fields)):
        layer.update(_field(field))
    overall = {key: sum(layer[key] for layer in layers) for key in (*PARAMETER_SUMS, *COST_SUMS)}
    return Info(
        {
            "overheads": {
                part: dict(zip(("pre", "fwd"), (getattr(each, part) for each in overheads), strict=True))
                for part in ("cuda", "framework")
            },
            "layers": layers,
            "overall": {**overall, "complete": layers[0]["complete"]},
            "unpriced": {name: sum(paths.values()) for name, paths in unpriced_operators(trace, costs).items()},
            "unused_parameters": unused_parameters(trace),
            "provenance": {**_provenance(trace.provenance), "convention": convention},
        }
    )


def _layer(trace: Trace, call: ModuleCall, cost: OpCost, parameters: ParameterCount) -> Layer:
    return {
        "name": _name(trace, call),
        "path": call.path,
        "depth": call.depth,
        "type": call.type_name,
        "call": call.call,
        "input_shape": _shapes(trace, call.inputs),
        "output_shape": _shapes(trace, call.outputs),
        **{key: getattr(parameters, key) for key in PARAMETER_SUMS},
        **{key: getattr(cost, key) for key in COST_SUMS},
        **_NO_FIELD,
        "is_shared": parameters.is_shared,
        "is_leaf": not call.children,
        "complete": cost.is_complete,
    }


_NO_FIELD: Layer = {"rf": None, "s": None, "p": None, "receptive_field": None}


def _field(field: LayerField) -> Layer:
    """In short, and in full: of each output, of each input, of each axis."""
    short = {"rf": plain_short(field.rf), "s": plain_short(field.stride), "p": plain_short(field.padding)}
    return {**short, "receptive_field": [[axis.as_dict() for axis in axes] for axes in field.outputs]}


def _name(trace: Trace, call: ModuleCall) -> str:
    """The path from the module that called it: ``layers.0`` in a model that keeps a list of layers."""
    if call.parent is None:
        return call.type_name
    above = trace.modules[call.parent].path
    return call.path.removeprefix(f"{above}.") or call.type_name


def _shapes(trace: Trace, indices: tuple[int, ...]) -> list[Any] | None:
    """One shape, a list of several, None for no tensor; the batch is −1 where torchscan made the inputs."""
    batch = trace.provenance.batch_size
    shapes = [_with_batch(trace.tensors[index].spec.shape, batch) for index in indices]
    return None if not shapes else shapes[0] if len(shapes) == 1 else shapes


def _with_batch(shape: tuple[int, ...], batch: int | None) -> list[int]:
    return [-1, *shape[1:]] if shape and shape[0] == batch else list(shape)


def _provenance(provenance: Provenance) -> dict[str, Any]:
    inputs = [
        {"name": each.name, "shape": list(each.shape), "dtype": str(each.dtype).removeprefix("torch.")}
        for each in provenance.inputs
    ]
    return {
        "execution": provenance.execution,
        "reason": provenance.reason,
        "mode": provenance.mode,
        "backward": provenance.backward,
        "batch_size": provenance.batch_size,
        "inputs": inputs,
        "assumptions": list(provenance.assumptions),
        "missed": list(provenance.missed),
        "torchscan_version": provenance.torchscan_version,
        "torch_version": provenance.torch_version,
    }
