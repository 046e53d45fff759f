"""Operator calls that depend on a router's picks, found by following the picks through the trace.

A router compares scores (``topk``, ``argmax``, ``sort``): each row picks k of n experts. Its picks
reach the experts in two ways. Either an operator gets them, or counts computed from them (a gather
of weights, a grouped product). Or the model loops over the experts, and each call of one gets the
rows that picked it: those at the true places of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchscan.analyses.routing_operators import (
    BETWEEN_DEVICES,
    GATHERING,
    GROUPED,
    KEEPING,
    OWN_PICKS,
    ROUTERS,
    dim_of,
    numel_without,
    only_reads_shape,
    puts_into_first,
    routing_of,
)
from torchscan.analyses.rows_by_expert import ExpertRows, Rows
from torchscan.ops import OpCost
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class _Trail:
    """Numbers computed from the picks of a router."""

    #: the call that picked; ``~call`` if something else had a say (another router, a padding mask):
    #: how many it picks is open
    router: int
    #: True if they still are the picks
    are_picks: bool
    #: the mask of which they are the true places, or None
    mask: int | None = None


class RoutedCalls:
    """The routing behind each operator call of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._trails: dict[int, _Trail] = {}
        #: tensors with the same values in every pass
        self._fixed: set[int] = set()
        self._rows: dict[int, Rows] = {}
        self._experts = ExpertRows()
        #: rows in the order of their experts, and parts of them: how many rows all of them are
        self._sorted: dict[int, int] = {}
        #: True if experts get parts whose sizes the model has read: which rows an expert gets, and
        #: if any, is not known
        self.is_split_by_counts = False
        #: by tensor that holds all picks of a row along a dimension, or the first of them
        self._dim_of_picks: dict[int, int] = {}
        #: by router
        self._routers: dict[int, Routing] = {}
        self._routings: dict[int, Routing] = {}
        #: by call of a product for each expert, the router whose picks it got
        self.router_of_product: dict[int, int] = {}
        #: by the identity of a signature, which many calls share
        signatures = {id(op.signature): op.signature for op in trace.ops}
        self._operators = {key: signature.operator for key, signature in signatures.items()}
        self.has_routers = not ROUTERS.keys().isdisjoint(self._operators.values())
        if self.has_routers:
            for index, op in enumerate(trace.ops):
                self._follow(index, op)

    def routing(self, call: int) -> Routing:
        """Return the routing behind the indices that a call got."""
        return self._routings.get(call, UNKNOWN)

    def follows_picks(self, tensor: int) -> bool:
        """Return whether a tensor holds the picks of a router, or numbers made of them."""
        return tensor in self._trails

    def with_avoidable_bytes(self, costs: tuple[OpCost, ...]) -> tuple[OpCost, ...]:
        """Return the costs with the weights of experts that a pass calls one by one as avoidable.

        They are avoidable as far as possible.
        """
        if not self._experts.rows_of_call:
            return costs
        calls = self._experts.rows_of_call
        weights = {index: self._weights(self._trace.ops[index]) for index in calls}
        return self._experts.with_avoidable_bytes(costs, weights, self._routers)

    def _weights(self, op: OpCall) -> int:
        """Return the bytes that a call reads of what the model holds."""
        num_bytes = 0
        for tensor in dict.fromkeys(op.inputs):
            record = self._trace.tensors[tensor]
            storage = self._trace.storages[record.storage]
            if storage.born is None and storage.kind not in ("input", "cache"):
                num_bytes += record.spec.stored_bytes
        return num_bytes

    def _trails_of(self, op: OpCall) -> list[_Trail]:
        return [self._trails[tensor] for tensor in op.inputs if tensor in self._trails]

    # -- following -------------------------------------------------------------------------------

    def _follow(self, index: int, op: OpCall) -> None:
        operator = self._operators[id(op.signature)]
        if operator in ROUTERS and self._is_router(op):
            self._enter_router(index, op)
        elif self._fixed.issuperset(op.inputs) or only_reads_shape(operator):
            self._fixed.update(op.outputs)
        elif operator in BETWEEN_DEVICES:
            self._follow_exchange(index, op)
        elif not self._trails.keys().isdisjoint(op.inputs):
            self._follow_picks(index, op)
        elif not self._rows.keys().isdisjoint(op.inputs):
            self._note_rows(index, op, None)
        elif op.inputs and op.inputs[0] in self._sorted:
            self._follow_sorted(op)

    def _follow_sorted(self, op: OpCall) -> None:
        whole, rows = self._sorted[op.inputs[0]], op.signature.inputs[0].shape
        if op.signature.is_view or op.signature.operator in KEEPING:
            for out, spec in zip(op.outputs, op.signature.outputs, strict=True):
                if len(spec.shape) == len(rows):
                    self._sorted[out] = whole
        elif rows and rows[0] < whole and self._weights(op):
            self.is_split_by_counts = True

    def _sorts_rows(self, op: OpCall) -> bool:
        """Return whether rows of data are gathered in an order computed from picks.

        One row alone has nothing to share.
        """
        if op.signature.operator not in GATHERING or op.inputs[0] in self._trails:
            return False
        for trail in self._trails_of(op):
            if trail.are_picks or trail.mask is not None or self._routers[trail.router].rows == 1:
                return False
        return True

    def _follow_picks(self, index: int, op: OpCall) -> None:
        trail = self._trail_through(op)
        if trail is not None:
            trail = self._after_slice(index, op, trail)
            self._trails.update(dict.fromkeys(op.outputs, trail))
            if op.signature.operator == "aten.sort":
                # Positions come after what was sorted.
                positions = replace(trail, are_picks=False)
                self._trails.update(dict.fromkeys(op.outputs[1:], positions))
            if op.signature.operator == "aten.nonzero":
                self._experts.told_by[index] = trail.router, op.inputs[0]
        self._note_routing(index, op)
        self._note_rows(index, op, self._gathered(op))
        if self._sorts_rows(op):
            self._sorted[op.outputs[0]] = max(op.signature.outputs[0].shape[:1], default=0)

    def _is_router(self, op: OpCall) -> bool:
        """Return whether a call compares scores, and not picks."""
        if ROUTERS[op.signature.operator] >= len(op.outputs) or op.inputs[0] in self._trails:
            return False
        return op.signature.inputs[0].is_arithmetic

    def _enter_router(self, index: int, op: OpCall) -> None:
        position = ROUTERS[op.signature.operator]
        picks = op.signature.outputs[position]
        routing = routing_of(op.signature, picks.numel)
        if routing is None:
            return
        self._routers[index] = routing
        self._trails[op.outputs[position]] = _Trail(index, are_picks=True)
        if len(picks.shape) == len(op.signature.inputs[0].shape):
            self._dim_of_picks[op.outputs[position]] = dim_of(op.signature) or 0

    def _follow_exchange(self, index: int, op: OpCall) -> None:
        """Follow rows of all devices, of several tensors, or picks among the experts of one."""
        pairs = zip(op.inputs, op.outputs, strict=True)
        followed = {out: self._trails[given] for given, out in pairs if given in self._trails}
        if followed and op.signature.operator == OWN_PICKS:
            rows, picks = op.signature.inputs[0].shape
            named = op.signature.arguments
            self._routers[index] = Routing(named["choices"], picks, rows, named["num_devices"])
            followed = dict.fromkeys(followed, _Trail(index, are_picks=True))
        self._trails.update(followed)

    def _after_slice(self, index: int, op: OpCall, trail: _Trail) -> _Trail:
        """Return a separate router's trail if only some of the picks or rows are left."""
        if op.signature.operator != "aten.slice":
            return trail
        dim = self._dim_of_picks.get(op.inputs[0])
        if dim is None:
            return trail
        shape = op.signature.outputs[0].shape
        self._dim_of_picks[op.outputs[0]] = dim
        rows = numel_without(shape, dim)
        self._routers[index] = replace(self._routers[trail.router], picks=shape[dim], rows=rows)
        return replace(trail, router=index)

    def _trail_through(self, op: OpCall) -> _Trail | None:
        """Return the trail of results, or None if they are computed from data, too."""
        is_alone = True
        for tensor in op.inputs:
            if tensor in self._trails or tensor in self._fixed:
                continue
            if self._trace.tensors[tensor].spec.is_arithmetic:
                return None
            is_alone = False
        trails = self._trails_of(op)
        keeps = op.signature.is_view or op.signature.operator in KEEPING
        masks = {trail.mask for trail in trails} - {None}
        mask = None
        if op.signature.operator == "aten.nonzero":
            mask = op.inputs[0]
        elif len(masks) == 1:
            (mask,) = masks

        routers = {trail.router for trail in trails}
        router = self._merge_routers(routers, is_alone=is_alone)
        return _Trail(router, keeps and all(trail.are_picks for trail in trails), mask)

    def _merge_routers(self, routers: set[int], *, is_alone: bool) -> int:
        """Return the only router, or one of which the picks are unknown if more than it decided."""
        if is_alone and len(routers) == 1:
            (router,) = routers
            return router
        several = ~min(max(router, ~router) for router in routers)
        self._routers.setdefault(several, UNKNOWN)
        return several

    def _note_routing(self, index: int, op: OpCall) -> None:
        operator = op.signature.operator
        trails = self._trails_of(op)
        is_known = operator in GROUPED
        if operator in GATHERING:
            is_known = all(trail.are_picks for trail in trails)
        routers = {trail.router for trail in trails}
        if is_known and len(routers) == 1:
            (router,) = routers
            self._routings[index] = self._routers[router]
            if operator in GROUPED:
                self.router_of_product[index] = router

    def _note_rows(self, index: int, op: OpCall, gathered: Rows | None) -> None:
        """Note rows that a mask gathers, and what is computed of the rows of one mask alone."""
        all_rows = {self._rows[tensor] for tensor in op.inputs if tensor in self._rows}
        if gathered is not None:
            all_rows.add(gathered)
        if len(all_rows) != 1:
            return
        (rows,) = all_rows
        if gathered is None:
            self._experts.rows_of_call[index] = rows
        if gathered is not None or op.inputs[0] in self._rows or not puts_into_first(op.signature):
            self._rows.update(dict.fromkeys(op.outputs, rows))

    def _gathered(self, op: OpCall) -> Rows | None:
        """Return the rows of data that a mask, or the places where it is true, selects."""
        if op.signature.operator not in GATHERING or op.inputs[0] in self._trails:
            return None
        for tensor in op.inputs[1:]:
            trail = self._trails.get(tensor)
            if trail is None:
                continue
            spec = self._trace.tensors[tensor].spec
            mask, num_rows = trail.mask, spec.numel
            if not spec.is_arithmetic and spec.dtype.itemsize == 1:
                mask, num_rows = tensor, op.signature.outputs[0].shape[0]
            if mask is not None:
                self._experts.count[trail.router, mask] = num_rows
                return trail.router, mask
        return None
