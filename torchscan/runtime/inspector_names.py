"""Values of calls under the names, and in the units, of Inspector Gadgets (``torch_inspector``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchscan.runtime.run import CallRun

_MEGABYTE, _MILLISECONDS = 1e6, 1e3


def to_inspector_names(call: CallRun) -> dict[str, Any]:
    """Return a call's values: memory in megabytes, times in milliseconds, one bool for NaN and Inf."""
    forward = call.device_forward or call.forward
    backward = call.device_backward or call.backward
    return {
        "type": call.type_name,
        "input_shapes": _to_lists(call.input_shapes),
        "output_shapes": _to_lists(call.output_shapes),
        "grad_in_shape": _to_lists(call.grad_in_shapes),
        "grad_out_shape": _to_lists(call.grad_out_shapes),
        "num_parameters": call.num_parameters,
        "num_learnable_parameters": call.num_learnable_parameters,
        "param_memory_usage": _to_megabytes(call.param_memory),
        "gradient_memory_usage": _to_megabytes(call.gradient_memory),
        "input_memory_usage": [_to_megabytes(call.input_memory)],
        "output_memory_usage": [_to_megabytes(call.output_memory)],
        "effective_additional_memory_fwd": _to_megabytes(call.memory_delta_fwd),
        "effective_additional_memory_bwd": _to_megabytes(call.memory_delta_bwd),
        "forward_nan": _has_any(call.forward_nan, call.forward_inf),
        "grad_in_nan": _has_any(call.grad_in_nan, call.grad_in_inf),
        "grad_out_nan": _has_any(call.grad_out_nan, call.grad_out_inf),
        "total_memory": _to_megabytes(call.total_memory),
        "forward_latency": forward.median * _MILLISECONDS,
        "backward_latency": backward.median * _MILLISECONDS,
    }


def _to_lists(shapes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return [list(shape) for shape in shapes]


def _to_megabytes(size: int | None) -> float | None:
    return None if size is None else size / _MEGABYTE


def _has_any(nan: int | None, inf: int | None) -> bool | None:
    """Return whether there are NaN or Inf, or None if they were not counted."""
    return None if nan is None or inf is None else bool(nan or inf)
