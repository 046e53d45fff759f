"""Costs of calls in serving: quantized weights and caches, and caches that grow in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from torchscan.analyses.generation.stored import Stored
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: products of an input with a weight
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "linear",
        "matmul",
        "_grouped_mm",
        "mv",
        "dot",
        "einsum",
    )
) | {"transformers.grouped_mm_fallback"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The way a model is served. By default it is unchanged, except that caches grow in place."""

    weights: Stored | None = None
    cache: Stored | None = None
    #: as eager code does it: what is joined is copied, and each kernel is launched by itself
    eager: bool = False


AS_IT_IS = Serving(eager=True)


@dataclass(frozen=True, slots=True)
class Served:
    """The costs of the calls of a record, and how many weights each of them unpacks."""

    costs: tuple[OpCost, ...]
    unpacked: tuple[int, ...]
    #: the calls that append to a cache, of which the rest was not touched since the last token
    appends: frozenset[int] = frozenset()


class Repriced:
    """A record as it is served."""

    def __init__(self, trace: Trace, serving: Serving) -> None:
        self._trace = trace
        self._serving = serving
        self.packed = {} if serving.weights is None else packed_weights(trace, serving.weights)

    def served(self, costs: tuple[OpCost, ...]) -> Served:
        """The costs of the calls of the record, given those as they are."""
        if self._serving == AS_IT_IS:
            return Served(costs, (0,) * len(costs))
        changed = [self._served(op, cost) for op, cost in zip(self._trace.ops, costs, strict=True)]
        appends = frozenset(
            index for index, op in enumerate(self._trace.ops) if self._is_append(op)
        )
        return Served(
            tuple(cost for cost, _ in changed), tuple(unpacked for _, unpacked in changed), appends
        )

    def _served(self, op: OpCall, cost: OpCost) -> tuple[OpCost, int]:
        if op.signature.is_view:
            return cost, 0
        if self._is_append(op):
            cost = self._as_append(op, cost)
        elif self._serving.cache is not None:
            cost = self._with_small_cache(op, cost, self._serving.cache)
        return self._with_packed_weights(op, cost)

    def _is_append(self, op: OpCall) -> bool:
        return not self._serving.eager and not op.signature.is_view and self._joins_cache(op)

    def _joins_cache(self, op: OpCall) -> bool:
        return (
            op.signature.operator == "aten.cat"
            and any(map(self._is_cache, op.inputs))
            and not self._is_recurrent(op)
        )

    def _is_recurrent(self, op: OpCall) -> bool:
        """Return whether a state is replaced: the result is no longer than the longest operand."""
        return op.signature.outputs[0].numel <= max(spec.numel for spec in op.signature.inputs)

    def _is_cache(self, tensor: int) -> bool:
        record = self._trace.tensors[tensor]
        return self._trace.storages[record.storage].kind == "cache" and record.spec.is_arithmetic

    def _as_append(self, op: OpCall, cost: OpCost) -> OpCost:
        """Only what is new is read and written."""
        new = sum(
            self._trace.tensors[each].spec.stored_bytes
            for each in set(op.inputs)
            if not self._was_kept(each)
        )
        return _with_bytes(cost, new, new)

    def _was_kept(self, tensor: int) -> bool:
        storage = self._trace.storages[self._trace.tensors[tensor].storage]
        return storage.kind == "cache" and storage.born is None

    def _with_small_cache(self, op: OpCall, cost: OpCost, cache: Stored) -> OpCost:
        records = [
            self._trace.tensors[each] for each in dict.fromkeys(op.inputs) if self._is_cache(each)
        ]
        saved = sum(
            _saved(
                each.spec.stored_bytes, cache.share(each.spec.shape[-1], each.spec.dtype.itemsize)
            )
            for each in records
        )
        return (
            _with_bytes(cost, max(0, cost.bytes_read - saved), cost.bytes_written)
            if saved
            else cost
        )

    def _with_packed_weights(self, op: OpCall, cost: OpCost) -> tuple[OpCost, int]:
        """Return the cost with packed weights, and the number of weights that were read.

        The bytes of weights are those read besides the other operands. Of experts, only those count
        that are reached.
        """
        if not self.packed or op.signature.operator not in _PRODUCTS:
            return cost, 0
        records = [self._trace.tensors[each] for each in dict.fromkeys(op.inputs)]
        weights = [each for each in records if each.storage in self.packed]
        if not weights:
            return cost, 0
        others = sum(each.spec.stored_bytes for each in records if each.storage not in self.packed)
        read = max(0, cost.bytes_read - others)
        share, itemsize = self.packed[weights[0].storage], weights[0].spec.dtype.itemsize
        return _with_bytes(
            cost, cost.bytes_read - _saved(read, share), cost.bytes_written
        ), read // itemsize


def _saved(size: int, share: Fraction) -> int:
    return size - int(-(-size * share.numerator // share.denominator))


def _with_bytes(cost: OpCost, read: int, written: int) -> OpCost:
    avoidable = cost.avoidable_bytes_read * read // max(cost.bytes_read, 1)
    return replace(cost, bytes_read=read, bytes_written=written, avoidable_bytes_read=avoidable)


def packed_weights(trace: Trace, weights: Stored) -> dict[int, Fraction]:
    """Return the share that is left of each packed weight, by its storage.

    Weights of products are packed, except the embedding and the product that computes the scores,
    which quantizers leave alone.
    """
    if not weights.is_packed:
        return {}
    looked_up = {
        trace.tensors[op.inputs[0]].storage
        for op in trace.ops
        if op.signature.operator == "aten.embedding"
    }
    last = _last_product(trace)
    found: dict[int, Fraction] = {}
    for index, op in enumerate(trace.ops):
        if op.signature.operator in _PRODUCTS and index != last:
            for tensor in op.inputs:
                record = trace.tensors[tensor]
                if (
                    trace.storages[record.storage].kind == "parameter"
                    and len(record.spec.shape) >= 2
                ):
                    found[record.storage] = weights.share(
                        _columns(record.spec.shape, record.spec.stride), record.spec.dtype.itemsize
                    )
    return {storage: share for storage, share in found.items() if storage not in looked_up}


def _last_product(trace: Trace) -> int | None:
    products = (index for index, op in enumerate(trace.ops) if op.signature.operator in _PRODUCTS)
    return max(products, default=None)


def _columns(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the size of the dimension whose elements are adjacent in memory."""
    return next((size for size, step in zip(shape, stride, strict=True) if step == 1), shape[-1])
