"""The front verbs: record a pass, describe it, print it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor, nn

from torchscan.analyses.conventions import Convention
from torchscan.analyses.module_costs import (
    call_costs,
    operators_without_formula,
    unknown_cost_notes,
)
from torchscan.analyses.projective_field import ProjectiveField
from torchscan.analyses.receptive_field import ReceptiveField, receptive_fields
from torchscan.analyses.receptive_field.short_results import Short
from torchscan.analyses.totals import total_cost
from torchscan.errors import RecordError, TorchscanError
from torchscan.garbage import collected_later
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.hints import PrintedSummary
from torchscan.ops import OpCost
from torchscan.question import Question, asking
from torchscan.recording.arguments import RunArguments, ScanArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.report.info import Info
from torchscan.report.layer_table import check_layout, layer_table, needed_for, usual_columns
from torchscan.report.select import folded_to
from torchscan.report.table import Cut, Screen
from torchscan.report.text import format_text
from torchscan.report.unfinished import unfinished_table
from torchscan.scan import Scan
from torchscan.terminal import has_colours, width_of
from torchscan.trace.trace import Trace
from torchscan.user_warnings import warn_user
from torchscan.wrong_arguments import explain_wrong_types

#: what one module is called with: a tensor, its arguments in order, or its arguments by name
ModuleInputs = Tensor | Sequence[Any] | Mapping[str, Any]


@asking
def record(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    **asked: Unpack[RunArguments],
) -> Trace:
    """Run ``module`` once and return its trace: modules, operators, tensors, parameters."""
    return Scan(module, input_shape, dtype, **asked).trace


@asking
def crawl_module(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    strict: bool = False,
    convention: Convention = "torchscan",
    receptive_field: bool = True,
    memory: bool = False,
    **asked: Unpack[ScanArguments],
) -> Info:
    """Record one pass and return its costs, per layer and overall, as plain data that fits JSON.

    docs/info.md describes the result.

    Args:
        strict: raise if an operator has no cost formula, instead of marking totals as lower bounds.
        convention: whose rules ``macs`` follow: torchscan's own, or another tool's, as it would
            report them.
        receptive_field: whether to include the receptive field of each layer.
        memory: whether to include its memory. With a ``device`` there are times, too.
    """
    scan = Scan(module, input_shape, dtype, **asked)
    return scan.describe(
        convention,
        strict=strict,
        receptive_field=receptive_field,
        memory=memory,
        times=scan.has_device,
    )


@asking
def summary(
    module: nn.Module,
    input_shape: Shapes | None = None,
    wrap_mode: Cut = "mid",
    max_depth: int | None = None,
    receptive_field: bool = False,
    effective_rf_stats: bool = False,
    *,
    columns: Sequence[str] | None = None,
    width: int | None = None,
    fold_repeats: bool | None = None,
    dtype: DTypes | None = None,
    strict: bool = False,
    convention: Convention = "torchscan",
    **asked: Unpack[ScanArguments],
) -> PrintedSummary:
    """Print the table of :func:`crawl_module`: layers as a tree, then the totals.

    What is returned displays nothing: :func:`crawl_module` returns the values.

    Args:
        wrap_mode: where to cut names that do not fit ``width``: "head", "mid" or "tail". Shapes and
            numbers are never cut.
        max_depth: fold deeper layers into their parents; a shallower model is shown whole.
        receptive_field: show the receptive field of each layer.
        effective_rf_stats: show its stride and padding in terms of the input.
        columns: what to show of each layer, by name.
        width: in characters, by default of the terminal, or else 80. Columns without room are left
            out.
        fold_repeats: show equal blocks that follow each other as one row with their sum, and leave
            out what does nothing; by default where that saves half of the rows.
        strict: raise if an operator has no cost formula, instead of marking totals as lower bounds.
        convention: whose rules MACs follow: torchscan's own, or another tool's.
    """
    if width is None:
        width = width_of(sys.stdout)
    check_layout(columns, wrap_mode, width)
    has_device = "device" in asked and can_estimate_for(asked["device"])
    if columns is None:
        columns = usual_columns(receptive_field, effective_rf_stats, has_device)
    needed = needed_for(columns, has_device=has_device)
    screen = Screen(width, has_colours(sys.stdout))
    with collected_later():
        scan = Scan.of(Question(module=module, input_shape=input_shape, dtype=dtype, **asked))
        try:
            info = scan.describe(convention, strict=strict, **needed)
        except RecordError as error:
            unfinished = unfinished_table(error)
            if unfinished is not None:
                print(format_text(unfinished, screen))  # noqa: T201
            raise
        if max_depth is not None:
            info = folded_to(info, max_depth)
        table = layer_table(info, columns, wrap_mode, fold_repeats)
        print(format_text(table, screen))  # noqa: T201
        del scan, info  # else the garbage collector visits all their objects
    return PrintedSummary()


@asking
def receptive_field(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    strict_norm: bool = False,
    axes: Mapping[str, Sequence[int]] | None = None,
    **asked: Unpack[RunArguments],
) -> ReceptiveField:
    """Return the receptive field of each layer: the part of each input that one unit sees.

    If a unit sees a complete axis, the field has the reason.

    Args:
        strict_norm: count the elements behind a normalization's statistics as seen.
        axes: the spatial dimensions of inputs, if detection fails: ``{"args[0]": (1, 2)}``. By
            default all except the batch and the channels, over which the first product sums.
    """
    trace = Scan(module, input_shape, dtype, **asked).trace
    return receptive_fields(trace, strict_norm=strict_norm, axes=axes)


@asking
def projective_field(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    strict_norm: bool = False,
    axes: Mapping[str, Sequence[int]] | None = None,
    **asked: Unpack[RunArguments],
) -> ProjectiveField:
    """Return the projective field at each layer: the units that each position of an input reaches.

    It is the inverse of the receptive field, and ends where tensors end.

    Args:
        strict_norm: count the elements that a normalization's statistics influence as reached.
        axes: the spatial dimensions of inputs, as for :func:`receptive_field`.
    """
    from torchscan.analyses.projective_field.reach_walks import projective_fields

    trace = Scan(module, input_shape, dtype, **asked).trace
    return projective_fields(trace, strict_norm=strict_norm, axes=axes)


# Functions with the signatures of torchscan 0.1, in which ``out`` has no effect.


@explain_wrong_types
def module_flops(module: nn.Module, inputs: ModuleInputs, out: Any = None) -> int:  # noqa: ARG001
    """Return the FLOPs of one module on a tensor, a tuple of arguments or a dict of keywords.

    Warns and returns 0 if it cannot run.
    """
    return _cost_on(module, inputs).flops


@explain_wrong_types
def module_macs(module: nn.Module, inp: ModuleInputs, out: Any = None) -> int:  # noqa: ARG001
    """Return the multiply-accumulates of one module on such inputs.

    Warns and returns 0 if it cannot run.
    """
    return _cost_on(module, inp).macs


@explain_wrong_types
def module_dmas(module: nn.Module, inp: ModuleInputs, out: Any = None) -> int:  # noqa: ARG001
    """Return the memory accesses, in elements, of one module on such inputs.

    Warns and returns 0 if it cannot run.
    """
    return _cost_on(module, inp).dmas


@explain_wrong_types
def module_rf(
    module: nn.Module,
    inp: ModuleInputs,
    out: Any = None,  # noqa: ARG001
) -> tuple[Short, Short, Short]:
    """Return the receptive field, stride and padding of one module on such inputs.

    They are numbers, or one per axis if axes differ.
    """
    field = receptive_fields(_record_on(module, inp)).output
    return field.rf, field.stride, field.padding


def _record_on(module: nn.Module, inputs: Any) -> Trace:
    if isinstance(inputs, Mapping):
        return record(module, kwargs=inputs, mode="same")
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return record(module, args=args, mode="same")


def _cost_on(module: nn.Module, inputs: Any) -> OpCost:
    try:
        trace = _record_on(module, inputs)
    except TorchscanError as error:
        warn_user("computing the cost failed, so the result is 0: ", error)
        return OpCost()
    unknown = operators_without_formula(trace, call_costs(trace))
    for note in unknown_cost_notes(trace, unknown):
        warn_user(note.sentence)
    return total_cost(trace)


def apply(module: nn.Module, fn: Callable[..., object], name: str | None = None) -> None:
    """Call a function with each module and its path from the root, as torchscan 0.1 did.

    Args:
        module: the root.
        fn: a function of a module and its path, or (as in 0.1.0) of a module, its depth and name.
        name: the name of the root; by default its class in lower case.
    """
    has_depth = len(inspect.signature(fn).parameters) == 3
    root = type(module).__name__.lower() if name is None else name

    def visit(visited: nn.Module, above: tuple[str, ...]) -> None:
        if has_depth:
            fn(visited, len(above) - 1, above[-1])
        else:
            fn(visited, ".".join(above))
        for child_name, child in visited.named_children():
            visit(child, (*above, child_name))

    visit(module, (root,))
