"""The operators that routing goes through: routers, gathers and products for each expert."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.routing import Routing
from torchscan.recording.execution.balanced_routing import BALANCED_INDICES
from torchscan.trace.events import OpSignature

#: by router, the position of the picks among its results
ROUTERS = {str(op.overloadpacket): position for op, position in BALANCED_INDICES.items()}

#: the operator of picks among the experts of one device
OWN_PICKS = "torchscan.own_picks"
BETWEEN_DEVICES = (OWN_PICKS, "_c10d_functional.all_gather_into_tensor_coalesced")
#: operators that return what they were given, in another order or type; sorting returns positions,
#: too
_KEEPS = ("to", "_to_copy", "clone", "contiguous", "reshape", "flatten", "clamp", "clamp_", "sort")
KEEPING = frozenset(f"aten.{name}" for name in _KEEPS)
#: operators that get the ends of groups of rows, not the picks
GROUPED = frozenset(
    {
        *("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2"),
        *("transformers.grouped_mm_fallback", "transformers.grouped_mm_fallback_backward"),
    }
)
_GATHERS = ("index", "_unsafe_index", "index_select", "embedding", "gather", "take_along_dim")
GATHERING = frozenset(f"aten.{name}" for name in _GATHERS)
#: operators whose result is the first operand, with something put into it
_PLACES = ("index_add", "index_put", "index_copy", "scatter", "scatter_add", "scatter_reduce")
_PLACING = frozenset(f"aten.{name}" for name in _PLACES)


def routing_of(signature: OpSignature, slots: int) -> Routing | None:
    """Return the routing of a router's call, or None if it picks from all elements at once."""
    source = signature.inputs[0]
    dim = dim_of(signature)
    if not source.numel or dim is None:
        return None
    rows = numel_without(source.shape, dim)
    return Routing(source.shape[dim], slots // rows, rows)


def dim_of(signature: OpSignature) -> int | None:
    """Return the dimension along which a router picks, or None for all of them."""
    arguments = signature.op._schema.arguments
    (default,) = [each.default_value for each in arguments if each.name == "dim"]
    dim = signature.arguments.get("dim", default)
    return dim if isinstance(dim, int) else None


def numel_without(shape: Sequence[int], dim: int) -> int:
    """Return the number of elements in the other dimensions."""
    return math.prod(shape) // max(shape[dim], 1)


def only_reads_shape(operator: str) -> bool:
    """Return whether an operator only reads the shape of its operand."""
    name = operator.removeprefix("aten.")
    return name.startswith("new_") or name in ("zeros_like", "ones_like", "full_like", "empty_like")


def puts_into_first(signature: OpSignature) -> bool:
    """Return whether the result is the first operand, with something put into it."""
    return signature.op._schema.is_mutable or signature.operator in _PLACING
