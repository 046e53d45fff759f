"""Operator calls that depend on a router's picks, found by following the picks through the trace.

A router compares scores (``topk``, ``argmax``, ``sort``): each row picks k of n experts. Its picks
reach the experts in two ways. Either an operator gets them, or counts computed from them (a gather
of weights, a grouped product). Or the model loops over the experts, and each call of one gets the
rows that picked it: those at the true places of a mask.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchscan.ops import OpCost
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.recording.execution.balanced_routing import BALANCED_INDICES
from torchscan.trace.events import OpCall, OpSignature
from torchscan.trace.trace import Trace

#: router -> position of the picks among its results
_ROUTERS = {str(op.overloadpacket): position for op, position in BALANCED_INDICES.items()}

#: they return what they were given, in another order or type; sorting returns positions too
_KEEPS = ("to", "_to_copy", "clone", "contiguous", "reshape", "flatten", "clamp", "clamp_", "sort")
_KEEPING = frozenset(f"aten.{name}" for name in _KEEPS)
#: handed the ends of groups of rows, not the picks
_GROUPED = frozenset(
    {
        *("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2"),
        *("transformers.grouped_mm_fallback", "transformers.grouped_mm_fallback_backward"),
    }
)
_GATHERS = ("index", "_unsafe_index", "index_select", "embedding", "gather", "take_along_dim")
_GATHERING = frozenset(f"aten.{name}" for name in _GATHERS)
#: their result is the first operand, with something put into it
_PLACES = ("index_add", "index_put", "index_copy", "scatter", "scatter_add", "scatter_reduce")
_PLACING = frozenset(f"aten.{name}" for name in _PLACES)


@dataclass(frozen=True, slots=True)
class _Trail:
    """Numbers made of the picks of a router."""

    #: the call that picked; ``~call`` if something else had a say (another router, a padding mask): how many it picks is open
    router: int
    #: whether they still are the picks
    are_picks: bool
    #: they are the true places of this mask
    mask: int | None = None


#: the rows that picked one expert: the router's call, and the mask that tells them
_Rows = tuple[int, int]


class RoutedCalls:
    """The routing behind each operator call of a record."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._trails: dict[int, _Trail] = {}
        #: tensors with the same values in every pass
        self._fixed: set[int] = set()
        self._rows: dict[int, _Rows] = {}
        #: how many rows picked it
        self._count: dict[_Rows, int] = {}
        #: by call, the rows that it computes on
        self._rows_of_call: dict[int, _Rows] = {}
        #: by call that looks for the true places of a mask, the rows that these are
        self._told_by: dict[int, _Rows] = {}
        #: rows in the order of their experts, and parts of them: how many rows all of them are
        self._sorted: dict[int, int] = {}
        #: whether experts get parts whose sizes the model has read: which rows an expert gets, and whether any, is not told
        self.is_split_by_counts = False
        #: by tensor that holds all picks of a row along a dimension, or the first of them
        self._dim_of_picks: dict[int, int] = {}
        #: by router
        self._routers: dict[int, Routing] = {}
        self._routings: dict[int, Routing] = {}
        #: by call of a product for each expert, the router whose picks it got
        self.router_of_product: dict[int, int] = {}
        #: by the identity of a signature, which many calls share
        self._operators = {
            key: signature.operator
            for key, signature in {id(op.signature): op.signature for op in trace.ops}.items()
        }
        if not _ROUTERS.keys().isdisjoint(self._operators.values()):
            for index, op in enumerate(trace.ops):
                self._follow(index, op)

    def routing(self, call: int) -> Routing:
        """Return the routing behind the indices that a call got."""
        return self._routings.get(call, UNKNOWN)

    def follows_picks(self, tensor: int) -> bool:
        """Return whether a tensor holds the picks of a router, or numbers made of them."""
        return tensor in self._trails

    def with_avoidable_bytes(self, costs: tuple[OpCost, ...]) -> tuple[OpCost, ...]:
        """The costs, where the weights of experts that a pass went through one by one can be avoided as far as possible.

        If m experts got rows, and a row picks k, then of all their weights ``1 − k/m`` are avoidable, and of their masks.
        """
        weights = {index: self._weights(self._trace.ops[index]) for index in self._rows_of_call}
        hit = {self._rows_of_call[index] for index, size in weights.items() if size}
        masks = {
            index: costs[index].bytes_read for index, rows in self._told_by.items() if rows in hit
        }
        sizes, rows_of_call, needed = (
            weights | masks,
            self._rows_of_call | self._told_by,
            self._count_experts(hit),
        )
        return tuple(
            _with_avoidable(cost, sizes[index], *needed[rows_of_call[index][0]])
            if sizes.get(index)
            else cost
            for index, cost in enumerate(costs)
        )

    def _count_experts(self, hit: set[_Rows]) -> dict[int, tuple[int, int]]:
        """Return by router the number of experts that are needed, and of those that got rows.

        If not all picks are found, it is only certain that each row picked an expert.
        """
        counts: dict[int, list[int]] = defaultdict(list)
        for router, mask in hit:
            counts[router].append(self._count[router, mask])
        picks = {
            router: self._routers[router].of(self._routers[router].choices, sum(each)).picks
            for router, each in counts.items()
        }
        return {
            router: (min(picks[router], len(each)), len(each)) for router, each in counts.items()
        }

    def _weights(self, op: OpCall) -> int:
        """Bytes that a call reads of what the model holds."""
        records = [self._trace.tensors[tensor] for tensor in dict.fromkeys(op.inputs)]
        return sum(each.spec.stored_bytes for each in records if self._is_held(each.storage))

    def _is_held(self, storage: int) -> bool:
        record = self._trace.storages[storage]
        return record.born is None and record.kind not in ("input", "cache")

    # -- following ---------------------------------------------------------------------------------------------------

    def _follow(self, index: int, op: OpCall) -> None:
        operator = self._operators[id(op.signature)]
        if operator in _ROUTERS and self._is_router(op):
            self._enter_router(index, op)
        elif self._fixed.issuperset(op.inputs) or _fills(operator):
            self._fixed.update(op.outputs)
        elif not self._trails.keys().isdisjoint(op.inputs):
            self._follow_picks(index, op)
        elif not self._rows.keys().isdisjoint(op.inputs):
            self._note_rows(index, op, None)
        elif op.inputs and op.inputs[0] in self._sorted:
            self._follow_sorted(op)

    def _follow_sorted(self, op: OpCall) -> None:
        whole, rows = self._sorted[op.inputs[0]], op.signature.inputs[0].shape
        if op.signature.is_view or op.signature.operator in _KEEPING:
            same = (
                out
                for out, spec in zip(op.outputs, op.signature.outputs, strict=True)
                if len(spec.shape) == len(rows)
            )
            self._sorted.update(dict.fromkeys(same, whole))
        elif rows and rows[0] < whole and self._weights(op):
            self.is_split_by_counts = True

    def _sorts_rows(self, op: OpCall) -> bool:
        """Rows of data are gathered in an order made of picks. One row alone has nothing to share."""
        if op.signature.operator not in _GATHERING or op.inputs[0] in self._trails:
            return False
        trails = [self._trails[tensor] for tensor in op.inputs if tensor in self._trails]
        return all(
            trail.mask is None and not trail.are_picks and self._routers[trail.router].rows != 1
            for trail in trails
        )

    def _follow_picks(self, index: int, op: OpCall) -> None:
        trail = self._trail_through(op)
        if trail is not None:
            self._enter_trail(op, self._after_slice(index, op, trail))
            if op.signature.operator == "aten.nonzero":
                self._told_by[index] = trail.router, op.inputs[0]
        self._note_routing(index, op)
        self._note_rows(index, op, self._gathered(op))
        if self._sorts_rows(op):
            self._sorted[op.outputs[0]] = max(op.signature.outputs[0].shape[:1], default=0)

    def _is_router(self, op: OpCall) -> bool:
        """Scores are compared, not picks."""
        signature = op.signature
        position = _ROUTERS.get(signature.operator)
        return (
            position is not None
            and position < len(op.outputs)
            and signature.inputs[0].is_arithmetic
            and op.inputs[0] not in self._trails
        )

    def _enter_router(self, index: int, op: OpCall) -> None:
        position = _ROUTERS[op.signature.operator]
        routing = _routing_of(op.signature, op.signature.outputs[position].numel)
        if routing is not None:
            self._routers[index] = routing
            self._trails[op.outputs[position]] = _Trail(index, are_picks=True)
            if len(op.signature.outputs[position].shape) == len(op.signature.inputs[0].shape):
                self._dim_of_picks[op.outputs[position]] = _dim_of(op.signature) or 0

    def _after_slice(self, index: int, op: OpCall, trail: _Trail) -> _Trail:
        """Some of the picks of each row, or some of the rows, are as good as picked by a router of their own."""
        dim = (
            self._dim_of_picks.get(op.inputs[0]) if op.signature.operator == "aten.slice" else None
        )
        if dim is None:
            return trail
        shape = op.signature.outputs[0].shape
        self._dim_of_picks[op.outputs[0]] = dim
        self._routers[index] = replace(
            self._routers[trail.router], picks=shape[dim], rows=_numel_without(shape, dim)
        )
        return replace(trail, router=index)

    def _trail_through(self, op: OpCall) -> _Trail | None:
        """None if it leads to no numbers made of picks, but to data."""
        trails = [self._trails[tensor] for tensor in op.inputs if tensor in self._trails]
        others = [
            tensor
            for tensor in op.inputs
            if tensor not in self._trails and tensor not in self._fixed
        ]
        if any(self._trace.tensors[tensor].spec.is_arithmetic for tensor in others):
            return None
        masks = {trail.mask for trail in trails} - {None}
        keeps = op.signature.is_view or op.signature.operator in _KEEPING
        mask = (
            op.inputs[0]
            if op.signature.operator == "aten.nonzero"
            else next(iter(masks))
            if len(masks) == 1
            else None
        )
        router = self._router_of({trail.router for trail in trails}, is_alone=not others)
        return _Trail(router, keeps and all(trail.are_picks for trail in trails), mask)

    def _router_of(self, routers: set[int], *, is_alone: bool) -> int:
        if is_alone and len(routers) == 1:
            return next(iter(routers))
        several = ~min(max(router, ~router) for router in routers)
        self._routers.setdefault(several, UNKNOWN)
        return several

    def _enter_trail(self, op: OpCall, trail: _Trail) -> None:
        for position, tensor in enumerate(op.outputs):
            is_position = op.signature.operator == "aten.sort" and position
            self._trails[tensor] = replace(trail, are_picks=False) if is_position else trail

    def _note_routing(self, index: int, op: OpCall) -> None:
        operator = op.signature.operator
        trails = [self._trails[tensor] for tensor in op.inputs if tensor in self._trails]
        is_told = operator in _GROUPED or (
            operator in _GATHERING and all(trail.are_picks for trail in trails)
        )
        if is_told and len({trail.router for trail in trails}) == 1:
            self._routings[index] = self._routers[trails[0].router]
            if operator in _GROUPED:
                self.router_of_product[index] = trails[0].router

    def _note_rows(self, index: int, op: OpCall, gathered: _Rows | None) -> None:
        """Rows are gathered by a mask; what is computed of the rows of one mask alone is its rows."""
        found = {self._rows[tensor] for tensor in op.inputs if tensor in self._rows}
        found |= set() if gathered is None else {gathered}
        if len(found) != 1:
            return
        (rows,) = found
        if gathered is None:
            self._rows_of_call[index] = rows
        if gathered is not None or op.inputs[0] in self._rows or not _puts_into_first(op.signature):
            self._rows.update(dict.fromkeys(op.outputs, rows))

    def _gathered(self, op: OpCall) -> _Rows | None:
        """The rows of data that a mask tells, or the places where it is true."""
        if op.signature.operator not in _GATHERING or op.inputs[0] in self._trails:
            return None
        for tensor in op.inputs[1:]:
            trail = self._trails.get(tensor)
            if trail is not None:
                spec = self._trace.tensors[tensor].spec
                is_mask = not spec.is_arithmetic and spec.dtype.itemsize == 1
                mask = tensor if is_mask else trail.mask
                if mask is not None:
                    self._count[trail.router, mask] = (
                        op.signature.outputs[0].shape[0] if is_mask else spec.numel
                    )
                    return trail.router, mask
        return None


def _with_avoidable(cost: OpCost, weights: int, needed: int, hit: int) -> OpCost:
    avoidable = weights - weights * needed // hit
    return replace(
        cost, avoidable_bytes_read=min(cost.avoidable_bytes_read + avoidable, cost.bytes_read)
    )


def _routing_of(signature: OpSignature, slots: int) -> Routing | None:
    """Return the routing of a router's call, or None if it picks from all elements at once."""
    source, dim = signature.inputs[0], _dim_of(signature)
    if not source.numel or dim is None:
        return None
    rows = _numel_without(source.shape, dim)
    return Routing(source.shape[dim], slots // rows, rows)


def _dim_of(signature: OpSignature) -> int | None:
    """The dimension that is chosen along, None for all of them."""
    (default,) = (
        argument.default_value
        for argument in signature.op._schema.arguments
        if argument.name == "dim"
    )
    dim = signature.arguments.get("dim", default)
    return dim if isinstance(dim, int) else None


def _numel_without(shape: Sequence[int], dim: int) -> int:
    return math.prod(shape) // max(shape[dim], 1)


def _fills(operator: str) -> bool:
    """Return whether an operator only reads the shape of its operand."""
    name = operator.removeprefix("aten.")
    return name.startswith("new_") or name in ("zeros_like", "ones_like", "full_like", "empty_like")


def _puts_into_first(signature: OpSignature) -> bool:
    return signature.op._schema.is_mutable or signature.operator in _PLACING
