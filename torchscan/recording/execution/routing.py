"""Indices that operators pick by comparing values, for a pass that has no values.

A router sends each token to the experts with the highest scores. Without scores, as many different ones are hit as uniform
routing can be expected to hit, ``m = n·(1 − (1 − k/n)^rows)`` of ``n`` choices with ``k`` picks for each row, and all of these
equally often: row ``r`` gets the indices ``(r·k + j) mod m`` for ``j = 0 … k-1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.ops.routing import Routing
from torchscan.recording.execution.calls import About, Assumed, OpRequest
from torchscan.torch_versions import OpOverload, aten
from torchscan.trace.events import TensorSpec

#: operator -> position of the indices among its outputs
BALANCED_INDICES: dict[OpOverload, int] = {
    aten.topk.default: 1,
    aten.argmax.default: 0,
    aten.argmin.default: 0,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.argsort.default: 0,
    aten.argsort.stable: 0,
}
_LARGEST = 2**22


def balanced_indices(request: OpRequest, outputs: Sequence[TensorSpec]) -> Callable[[Any], Any] | None:
    """A function that puts balanced indices into the operator's result; None where they would be too many."""
    position = BALANCED_INDICES[request.op]
    spec = outputs[position]
    if spec.numel > _LARGEST:
        return None
    dim = _dim_of(request) if len(spec.shape) == len(request.tracked[0].spec.shape) else None
    choices = _choices_of(request)
    hit = _hit(choices, math.prod(request.tracked[0].spec.shape) // choices, spec.numel)

    def put(result: Any) -> Any:
        indices = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).copy_(_spread(spec.shape, dim, hit))
        if isinstance(result, Tensor):
            return indices
        return type(result)([*result[:position], indices, *result[position + 1 :]])

    return put


def picked_by(request: OpRequest) -> Assumed:
    """What these indices rest on."""
    return Assumed(about=About.PICKS, operator=str(request.op), choices=_choices_of(request))


def _choices_of(request: OpRequest) -> int:
    """How many there are to pick from."""
    source, dim = request.tracked[0].spec.shape, _dim_of(request)
    return max(math.prod(source) if dim is None else source[dim] if source else 1, 1)


def _hit(choices: int, rows: int, slots: int) -> int:
    """How many different choices are picked, as a whole number that is no smaller than the picks of one row."""
    routing = Routing(choices, slots // max(rows, 1), rows)
    return max(1, routing.picks, round(routing.expected))


def _dim_of(request: OpRequest) -> int | None:
    """The dimension that is chosen along, None for all of them."""
    names = [argument.name for argument in request.op._schema.arguments]
    default = request.op._schema.arguments[names.index("dim")].default_value
    position = names.index("dim")
    dim = request.args[position] if position < len(request.args) else request.kwargs.get("dim", default)
    return dim if isinstance(dim, int) else None


def _spread(shape: tuple[int, ...], dim: int | None, choices: int) -> Tensor:
    """Count through the rows; within a row along ``dim``."""
    if dim is None or not shape:
        return (torch.arange(math.prod(shape)) % choices).reshape(shape)
    moved = [size for axis, size in enumerate(shape) if axis != dim % len(shape)] + [shape[dim]]
    return (torch.arange(math.prod(shape)) % choices).reshape(moved).movedim(-1, dim)
