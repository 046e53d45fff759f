"""The front verbs: record a pass, describe it, print it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torchscan.analyses.conventions import Convention
from torchscan.analyses.module_costs import call_costs, unpriced_operators
from torchscan.analyses.receptive_field import ReceptiveField, receptive_fields
from torchscan.analyses.receptive_field.result import Short
from torchscan.analyses.totals import require_prices, total_cost
from torchscan.errors import TorchscanError
from torchscan.hardware.process_memory import NO_OVERHEAD, cuda_overhead
from torchscan.ops import OpCost
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.passes import record_pass
from torchscan.recording.request import Execute, Mode, PassRequest, require_module
from torchscan.recording.training.gradients import Backward
from torchscan.report.aggregate import aggregate_info
from torchscan.report.columns import DEFAULT_COLUMNS
from torchscan.report.export import check_layout, format_info
from torchscan.report.info import Info, info_of
from torchscan.report.table import Cut
from torchscan.trace.trace import Trace


def record(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode = "eval",
    execute: Execute = "auto",
    backward: Backward = False,
) -> Trace:
    """Run ``module`` once and return the record of what happened: modules, operators, tensors, parameters.

    Args:
        module: what to record. It is as before afterwards, also if its forward pass raises.
        input_shape: the shape of one sample, without the batch dimension; a list of shapes for several inputs, or a dict
            of them by the names of the arguments.
        dtype: the type of the inputs made from ``input_shape``, one or one per input (a list, or a dict by
            name); by default the model's own.
        args: complete positional arguments, instead of ``input_shape``.
        kwargs: keyword arguments of the forward pass.
        batch_size: the batch dimension of inputs made from ``input_shape``.
        mode: "eval", "train" or "same" (each module as it is set).
        execute: "abstract" works on shapes alone, "real" computes on the model's own device, "auto" takes the real way
            where the model is on CUDA or the abstract way does not lead through; ``trace.provenance`` says which and why.
        backward: also run the backward pass, to the parameters and inputs that require gradients: True, from a gradient for
            each output; or from the loss that this function makes of the output. No ``.grad`` is touched. The mode stays what
            ``mode`` says: a training step has ``mode="train"``.

    """
    request = PassRequest(module, input_shape, dtype, args, kwargs, batch_size, mode, execute, backward)
    return record_pass(request)


def crawl_module(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode = "eval",
    execute: Execute = "auto",
    backward: Backward = False,
    strict: bool = False,
    convention: Convention = "torchscan",
    receptive_field: bool = True,
) -> Info:
    """Record one pass and return what it costs, per layer and overall, as plain JSON-serialisable data.

    Takes the arguments of :func:`record`; with ``strict`` an operator whose cost is not known raises. With another
    ``convention``, ``macs`` is what that tool would have reported. Without ``receptive_field`` the layers go without theirs.
    docs/info.md describes the result.
    """
    require_module(module)
    on_cuda = is_on_cuda(module)
    before = cuda_overhead() if on_cuda else NO_OVERHEAD
    trace = record(
        module,
        input_shape,
        dtype,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        mode=mode,
        execute=execute,
        backward=backward,
    )
    overheads = (before, cuda_overhead() if on_cuda else NO_OVERHEAD)
    if strict:
        require_prices(trace, call_costs(trace))
    return info_of(trace, convention, _fields(trace) if receptive_field else None, overheads)


def _fields(trace: Trace) -> ReceptiveField | None:
    """A mistake of ours in following the windows must not cost the user the other figures."""
    try:
        return receptive_fields(trace)
    except Exception as error:
        warnings.warn(f"the receptive field could not be followed, layers go without it: {error!r}", stacklevel=3)
        return None


def summary(
    module: nn.Module,
    input_shape: Shapes | None = None,
    wrap_mode: Cut = "mid",
    max_depth: int | None = None,
    receptive_field: bool = False,
    effective_rf_stats: bool = False,
    *,
    columns: Sequence[str] | None = None,
    width: int = 80,
    dtype: DTypes | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode = "eval",
    execute: Execute = "auto",
    backward: Backward = False,
    strict: bool = False,
    convention: Convention = "torchscan",
) -> None:
    """Print the table of :func:`crawl_module`: layers as a tree, then the totals.

    ``max_depth`` folds deeper layers into their parents (a model that is less deep is shown whole), ``columns`` chooses
    what is shown of each layer, ``receptive_field`` adds its receptive field and ``effective_rf_stats`` its stride and padding
    in terms of the input, ``wrap_mode`` says where names that do not fit ``width`` are cut: at the head, in the middle
    or at the tail. Shapes and numbers are never cut. ``convention`` is that of :func:`crawl_module`.
    """
    check_layout(columns, wrap_mode, width)
    shown = _columns(receptive_field, effective_rf_stats) if columns is None else columns
    info = crawl_module(
        module,
        input_shape,
        dtype,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        mode=mode,
        execute=execute,
        backward=backward,
        strict=strict,
        convention=convention,
        receptive_field=not {"rf", "s", "p"}.isdisjoint(shown),
    )
    if max_depth is not None:
        deepest = max(layer["depth"] for layer in info["layers"])
        info = aggregate_info(info, min(max_depth, deepest))
    print(format_info(info, wrap_mode, columns=shown, width=width))  # noqa: T201 - printing is what it is for


def _columns(receptive_field: bool, effective_rf_stats: bool) -> list[str]:
    """The usual ones and those asked for; all together they leave no room for the types in 80 columns."""
    asked = [*(["rf"] if receptive_field else []), *(["s", "p"] if effective_rf_stats else [])]
    return [name for name in DEFAULT_COLUMNS if name != "type" or len(asked) < 3] + asked


def receptive_field(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode = "eval",
    execute: Execute = "auto",
    strict_norm: bool = False,
    axes: Mapping[str, Sequence[int]] | None = None,
) -> ReceptiveField:
    """Which part of each input one unit of each layer sees, per input and axis, and why where it is everything.

    Takes the arguments of :func:`record`. ``strict_norm`` counts what the statistics of a normalisation are made from as seen.
    ``axes`` names the spatial dimensions of inputs, ``{"args[0]": (1, 2)}``, where they are not found: by default they are all
    but the batch and the channels, over which the first product sums.
    """
    trace = record(
        module,
        input_shape,
        dtype,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        mode=mode,
        execute=execute,
    )
    return receptive_fields(trace, strict_norm=strict_norm, axes=axes)


def module_flops(module: nn.Module, inputs: Any, out: Any = None) -> int:  # noqa: ARG001 - a known signature
    """FLOPs of one module on a tensor, a tuple of arguments or a dict of keywords. One that cannot run warns and gives 0."""
    return _cost_on(module, inputs).flops


def module_macs(module: nn.Module, inp: Any, out: Any = None) -> int:  # noqa: ARG001 - a known signature
    """Multiply-accumulates of one module on such inputs. One that cannot run warns and gives 0."""
    return _cost_on(module, inp).macs


def module_dmas(module: nn.Module, inp: Any, out: Any = None) -> int:  # noqa: ARG001 - a known signature
    """Memory accesses, in elements, of one module on such inputs. One that cannot run warns and gives 0."""
    return _cost_on(module, inp).dmas


def module_rf(module: nn.Module, inp: Any, out: Any = None) -> tuple[Short, Short, Short]:  # noqa: ARG001 - a known signature
    """Receptive field, stride and padding of one module on such inputs: numbers, or one per axis where they differ."""
    field = receptive_fields(_record_on(module, inp)).output
    return field.rf, field.stride, field.padding


def _record_on(module: nn.Module, inputs: Any) -> Trace:
    if isinstance(inputs, Mapping):
        return record(module, kwargs=inputs, mode="same")
    return record(module, args=(inputs,) if isinstance(inputs, Tensor) else tuple(inputs), mode="same")


def _cost_on(module: nn.Module, inputs: Any) -> OpCost:
    try:
        trace = _record_on(module, inputs)
    except TorchscanError as error:
        warnings.warn(f"no cost can be given, 0 is returned: {error}", stacklevel=3)
        return OpCost()
    unknown = unpriced_operators(trace, call_costs(trace))
    if unknown:
        warnings.warn(f"a lower bound, because the cost of {', '.join(unknown)} is not known", stacklevel=3)
    return total_cost(trace)
