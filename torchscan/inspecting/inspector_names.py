"""Values of calls under the names, and in the units, of Inspector Gadgets (``torch_inspector``)."""

from __future__ import annotations

from typing import Any

#: ``CallRun``, whose ``to_dict`` calls this module
CallRun = Any
_MEGABYTE, _MILLISECONDS = 1e6, 1e3
#: their name -> ours
_COUNTS = {
    "num_parameters": "num_parameters",
    "num_learnable_parameters": "num_learnable_parameters",
}
_SHAPES = {
    "input_shapes": "input_shapes",
    "output_shapes": "output_shapes",
    "grad_in_shape": "grad_in_shapes",
    "grad_out_shape": "grad_out_shapes",
}
_MEMORY = {
    "param_memory_usage": "param_memory",
    "gradient_memory_usage": "gradient_memory",
    "effective_additional_memory_fwd": "memory_delta_fwd",
    "effective_additional_memory_bwd": "memory_delta_bwd",
    "total_memory": "total_memory",
}
#: lists with one entry per tensor there, and with the sum here
_SUMS = {"input_memory_usage": "input_memory", "output_memory_usage": "output_memory"}
#: NaN or Inf
_CHECKS = {"forward_nan": "forward", "grad_in_nan": "grad_in", "grad_out_nan": "grad_out"}


def to_inspector_names(call: CallRun) -> dict[str, Any]:
    """Return the values of a call: megabytes, milliseconds, and booleans for NaN and Inf."""
    forward = call.device_forward or call.forward
    backward = call.device_backward or call.backward
    values: dict[str, Any] = {"type": call.type_name}
    for name, own in _SHAPES.items():
        values[name] = [list(shape) for shape in getattr(call, own)]
    for name, own in _COUNTS.items():
        values[name] = getattr(call, own)
    for name, own in _MEMORY.items():
        values[name] = _to_megabytes(getattr(call, own))
    for name, own in _SUMS.items():
        values[name] = [_to_megabytes(getattr(call, own))]
    for name, own in _CHECKS.items():
        counts = getattr(call, f"{own}_nan"), getattr(call, f"{own}_inf")
        values[name] = None if None in counts else any(counts)
    values["forward_latency"] = forward.median * _MILLISECONDS
    values["backward_latency"] = backward.median * _MILLISECONDS
    return values


def _to_megabytes(size: int | None) -> float | None:
    return None if size is None else size / _MEGABYTE
