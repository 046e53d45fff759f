"""Balanced indices for operators that pick by comparing values, in a pass without values.

A router sends each token to the experts with the highest scores. Without scores, the number of
different experts is the one that uniform routing is expected to hit, ``m = n·(1 − (1 − k/n)^rows)``
of ``n`` choices with ``k`` picks per row. All of these are hit equally often: row ``r`` gets the
indices ``(r·k + j) mod m`` for ``j = 0 … k-1``, shifted by one if it would get the same indices as
an earlier row.

If all choices are sorted, a router may use the first k of each row, for any k. So row ``r`` gets
the indices ``(s_r + j) mod n``. The first k of all rows hit the choices that are at most k behind a
start ``s_r``. Their number is the expected one if ``rows·(1 − k/n)^(rows − 1)`` of the gaps between
starts are longer than k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.ops.routing import Routing
from torchscan.recording.execution.assumptions import About, Assumed
from torchscan.recording.execution.calls import OpRequest
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


def balanced_indices(
    request: OpRequest, outputs: Sequence[TensorSpec]
) -> Callable[[Any], Any] | None:
    """Return a function that puts balanced indices into the operator's result.

    It is None where there would be too many.
    """
    position = BALANCED_INDICES[request.op]
    spec = outputs[position]
    if spec.numel > _LARGEST:
        return None
    source = request.tracked[0].spec.shape
    dim = _dim_of(request) if len(spec.shape) == len(source) else None
    choices = _choices_of(request)
    rows = math.prod(source) // choices
    is_order = dim is not None and spec.numel == rows * choices > 0

    def put(result: Any) -> Any:
        if is_order:
            balanced = _orders(rows, choices).flatten()
        else:
            balanced = _in_turn(choices, rows, spec.numel)
        indices = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
        indices.copy_(_arrange(balanced, spec.shape, dim))
        if isinstance(result, Tensor):
            return indices
        return type(result)([*result[:position], indices, *result[position + 1 :]])

    return put


def picked_by(request: OpRequest) -> Assumed:
    """Return the assumption behind the indices that a call picks."""
    return Assumed(about=About.PICKS, operator=str(request.op), choices=_choices_of(request))


def _choices_of(request: OpRequest) -> int:
    """Return the number of choices to pick from."""
    source, dim = request.tracked[0].spec.shape, _dim_of(request)
    if dim is None:
        return max(math.prod(source), 1)
    return max(source[dim], 1) if source else 1


def _dim_of(request: OpRequest) -> int | None:
    """Return the dimension that is chosen along, or None for all of them."""
    arguments = request.op._schema.arguments
    names = [argument.name for argument in arguments]
    position = names.index("dim")
    if position < len(request.args):
        dim = request.args[position]
    else:
        dim = request.kwargs.get("dim", arguments[position].default_value)
    return dim if isinstance(dim, int) else None


def _in_turn(choices: int, rows: int, slots: int) -> Tensor:
    """Return one choice after another, at least all picks of one row.

    Only some of them would ever come first in a row, were it not for the shift.
    """
    per_row = slots // max(rows, 1)
    routing = Routing(choices, per_row, rows)
    num_hit = max(1, routing.picks, round(routing.expected))
    slot = torch.arange(slots)
    shift = slot // math.lcm(num_hit, max(per_row, 1))
    return (slot + shift) % num_hit


def _arrange(indices: Tensor, shape: tuple[int, ...], dim: int | None) -> Tensor:
    """Arrange indices row by row; the entries of one row lie along ``dim``."""
    if dim is None or not shape:
        return indices.reshape(shape)
    moved = list(shape)
    moved.append(moved.pop(dim))
    return indices.reshape(moved).movedim(-1, dim)


def _orders(rows: int, choices: int) -> Tensor:
    """Return all choices in order, each row from another start."""
    gaps = _gaps_between_starts(rows)
    sums = gaps.cumsum(0) - gaps
    starts = (sums / gaps.sum() * choices).round().long()
    return (starts[:, None] + torch.arange(choices)) % choices


def _gaps_between_starts(rows: int) -> Tensor:
    """Return gaps between neighbors, long and short ones mixed.

    The i-th longest of them satisfies ``i − ½ = rows·(1 − gap)^(rows − 1)``.
    """
    # A stride through all rows that spreads neighbors far apart: near the golden ratio, without a
    # common divisor.
    stride = max(1, round(0.618 * rows))
    while math.gcd(stride, rows) != 1:
        stride += 1
    longest_first = (torch.arange(rows) * stride % rows + 0.5).double() / rows
    gaps: Tensor = 1 - longest_first ** (1 / max(rows - 1, 1))
    return gaps
