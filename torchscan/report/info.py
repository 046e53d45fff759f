"""The info dict: the one border where records become plain, JSON-serialisable data."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from torchscan.analyses.conventions import Convention
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.module_costs import call_costs, module_costs, operators_without_formula
from torchscan.analyses.parameters import ParameterCount, parameters_by_call, unused_parameters
from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.receptive_field.receptive_field_result import plain_short
from torchscan.analyses.roofline import Roofline
from torchscan.garbage import collected_later
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead
from torchscan.hints import HintedDict, HintedLayer
from torchscan.notes import Note
from torchscan.ops import OpCost
from torchscan.plain import to_plain
from torchscan.report.info_data import (
    COST_SUMS,
    PARAMETER_SUMS,
    SUMS,
    AxisData,
    InfoData,
    Layer,
    Overall,
    ProvenanceData,
    Shape,
    Shapes,
    Sums,
)
from torchscan.results import PlotSize, Result, draw, table_of
from torchscan.trace.events import ModuleCall, Provenance
from torchscan.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Cut, Table


class Info(Result, HintedDict):
    """The result of ``crawl_module``: a dict of plain data that is shown as a table.

    In a notebook, the table opens and sorts.
    """

    def table(
        self,
        columns: Sequence[str] | None = None,
        truncate: Cut = "mid",
        *,
        fold_repeats: bool | None = None,
    ) -> Table:
        """Return the layers as a tree, each with the sums over everything that it calls.

        Args:
            columns: what to show of each layer, by name.
            truncate: where to truncate a name that does not fit: "head", "mid" or "tail".
            fold_repeats: collapse identical blocks into one row and hide layers without operators;
                by default if that saves half of the rows.
        """
        return table_of(self, columns=columns, truncate=truncate, fold_repeats=fold_repeats)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        by: str = "macs",
        top: int = 15,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw the ``top`` layers with the largest values of a column, ``by``, as bars."""
        return draw(self, ax=ax, by=by, top=top, size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy that is a plain dict."""
        return copy.deepcopy(dict(self))

    def _attributes(self, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - the same for all columns
        return {key: value for key, value in self.to_dict().items() if key != "layers"}

    def __str__(self) -> str:
        """Return the table, or the plain dict if the layers were removed."""
        return super().__str__() if "layers" in self else repr(self)

    def _repr_html_(self) -> str:
        """Return the table, or without layers what is left as the dict that it is."""
        if "layers" in self:
            return super()._repr_html_()

        # IPython would print the traceback of an error
        text = escape(str(self))
        return f"<pre>{text}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - the signature that IPython calls
        """Needed because IPython prefers its own printer for dicts."""
        printer.text(str(self))


@collected_later()
def info_of(
    trace: Trace,
    convention: Convention = "torchscan",
    fields: ReceptiveField | None = None,
    overheads: tuple[Overhead, Overhead] = (NO_OVERHEAD, NO_OVERHEAD),
    memory: MemoryEstimate | None = None,
    roofline: Roofline | None = None,
) -> Info:
    """Everything that :func:`torchscan.crawl_module` returns. ``overheads`` are those before the forward pass and after it."""
    costs = call_costs(trace, convention)
    own = list(
        zip(trace.modules, module_costs(trace, costs), parameters_by_call(trace), strict=True)
    )
    of = list(fields or [None] * len(trace.modules))
    layers = [_layer(trace, *own[index], of[index]) for index in tree_order(trace)]
    pre, fwd = overheads
    data: InfoData = {
        "overheads": {
            "cuda": {"pre": pre.cuda, "fwd": fwd.cuda},
            "framework": {"pre": pre.framework, "fwd": fwd.framework},
        },
        "layers": layers,
        "overall": _overall(layers),
        "without_formula": {
            name: sum(paths.values())
            for name, paths in operators_without_formula(trace, costs).items()
        },
        "unused_parameters": unused_parameters(trace),
        "provenance": _provenance(trace.provenance, convention),
    }
    if memory is not None:
        _add_memory(data, memory)
    if roofline is not None:
        _add_times(data, roofline)
    return Info(data)


def tree_order(trace: Trace) -> list[int]:
    """The calls of modules, each after the one that called it: what a backward pass computes again stands where it belongs."""
    found, waiting = [], [call.index for call in reversed(trace.modules) if call.parent is None]
    while waiting:
        found.append(waiting.pop())
        waiting += reversed(trace.modules[found[-1]].children)
    return found


def _add_memory(data: InfoData, memory: MemoryEstimate) -> None:
    by_path = {each.path: each for each in memory.layers}
    for layer in data["layers"]:
        known = None if layer["call"] else by_path.get(layer["path"])
        layer["activation_bytes"] = None if known is None else known.activation_bytes
        layer["peak_bytes"] = None if known is None else known.peak_bytes
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


def _layer(
    trace: Trace,
    call: ModuleCall,
    cost: OpCost,
    parameters: ParameterCount,
    field: LayerField | None,
) -> Layer:
    layer = {
        "name": _name(trace, call),
        "path": call.path,
        "depth": call.depth,
        "type": call.type_name,
        "call": call.call,
        "input_shape": _shapes(trace, call.inputs),
        "output_shape": _shapes(trace, call.outputs),
        **_sums(*_of_parameters(parameters), *_of_cost(cost)),
        "rf": None if field is None else plain_short(field.rf),
        "s": None if field is None else plain_short(field.stride),
        "p": None if field is None else plain_short(field.padding),
        "receptive_field": None if field is None else _axes(field),
        "is_shared": parameters.is_shared,
        "is_leaf": not call.children,
        "complete": cost.is_complete,
    }
    return cast("Layer", HintedLayer(layer))


def _axes(field: LayerField) -> list[list[AxisData]]:
    """Each axis of each output, in full."""
    return [[cast("AxisData", axis.to_dict()) for axis in axes] for axes in field.outputs]


def _overall(layers: list[Layer]) -> Overall:
    sums = _sums(*(sum([layer[key] for layer in layers]) for key in SUMS))
    return cast("Overall", {**sums, "complete": layers[0]["complete"]})


_of_parameters, _of_cost = attrgetter(*PARAMETER_SUMS), attrgetter(*COST_SUMS)


def _sums(*figures: int) -> Sums:
    return cast("Sums", dict(zip(SUMS, figures, strict=True)))


def _name(trace: Trace, call: ModuleCall) -> str:
    """The path from the module that called it: ``layers.0`` in a model that keeps a list of layers."""
    if call.parent is None:
        return call.type_name
    above = trace.modules[call.parent].path
    return call.path.removeprefix(f"{above}.") or call.type_name


def _shapes(trace: Trace, indices: tuple[int, ...]) -> Shapes:
    """One shape, a list of several, None for no tensor; the batch is −1 where torchscan made the inputs."""
    batch, tensors = trace.provenance.batch_size, trace.tensors
    shapes = [_with_batch(tensors[index].spec.shape, batch) for index in indices]
    return None if not shapes else shapes[0] if len(shapes) == 1 else shapes


def _with_batch(shape: tuple[int, ...], batch: int | None) -> Shape:
    return [-1, *shape[1:]] if shape and shape[0] == batch else list(shape)


def _provenance(provenance: Provenance, convention: Convention) -> ProvenanceData:
    return {
        "execution": provenance.execution,
        "reasons": to_plain(provenance.reasons),
        "mode": provenance.mode,
        "backward": provenance.backward,
        "batch_size": provenance.batch_size,
        "inputs": [
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": str(each.dtype).removeprefix("torch."),
            }
            for each in provenance.inputs
        ],
        "assumptions": to_plain(provenance.assumptions),
        "unrecorded_modules": list(provenance.unrecorded_modules),
        "unreadable_weights": to_plain(provenance.unreadable_weights),
        "torchscan_version": provenance.torchscan_version,
        "torch_version": provenance.torch_version,
        "convention": convention,
    }
