"""Costs of calls in serving: quantized weights and caches, and caches that grow in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

from torchscan.analyses.generation.kept_modules import is_kept
from torchscan.analyses.generation.stored import Stored
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall
from torchscan.trace.records import TensorRecord
from torchscan.trace.trace import Trace

#: formats of fewer than 16 bits that matrix units compute in
Compute = Literal["fp8", "fp4"]
BITS: Mapping[Compute, int] = {"fp8": 8, "fp4": 4}

#: products of an input with a weight
_PRODUCTS = frozenset(
    (
        *("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.dot"),
        *("aten.linear", "aten.matmul", "aten.einsum", "aten._grouped_mm"),
        "transformers.grouped_mm_fallback",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The way a model is served. By default it is unchanged, except that caches grow in place."""

    weights: Stored | None = None
    #: names and patterns of modules whose weights are not packed
    kept_modules: tuple[str, ...] = ()
    cache: Stored | None = None
    #: format of the products whose weights are packed, or None if these are unpacked first
    compute: Compute | None = None
    #: True if caches are appended to in place; False if they are copied for each token
    appends: bool = True
    #: True if attention runs as FlashAttention 3 where the device can
    has_flash_3: bool = False
    #: True if inputs of products in 8 or 4 bits are quantized by the kernel before
    fuses_quantization: bool = False
    #: True if products of the same input with several weights are one product
    joins_projections: bool = False
    #: True if mixtures of experts run as few kernels around the products of experts
    joins_experts: bool = False

    @property
    def fuses_experts(self) -> bool:
        """True if products of experts are in a format that fused kernels take."""
        is_small = self.weights is not None and self.weights.bits == BITS["fp4"]
        return is_small and self.compute is not None


AS_IT_IS = Serving(appends=False)


class Packed(NamedTuple):
    """The packed weights of a product."""

    #: weights that a kernel unpacks to compute with them
    unpacked: int = 0
    #: bytes of the other operand, which is quantized to compute in the format of the weights
    quantized: int = 0
    #: True if the kernel before, or the product itself, does that
    is_quantized_before: bool = False


_NOT_PACKED = Packed()


@dataclass(frozen=True, slots=True)
class Served:
    """The costs of the calls of a record, and the packed weights of each."""

    costs: tuple[OpCost, ...]
    packed: tuple[Packed, ...]
    #: the calls that append to a cache, of which the rest was not touched since the last token
    appends: frozenset[int] = frozenset()


def joined_projections(trace: Trace) -> dict[int, int]:
    """Return the first of the products that an engine computes as one, by the index of each other.

    Engines store the weights of queries, keys and values one below the other, and those of a gate
    and what it gates.
    """
    firsts: dict[tuple[object, ...], int] = {}
    joined: dict[int, int] = {}
    for index, op in enumerate(trace.ops):
        if op.signature.operator not in ("aten.mm", "aten.addmm", "aten.linear"):
            continue
        records = [trace.tensors[tensor] for tensor in op.inputs]
        matrices = [each for each in records if len(each.spec.shape) >= 2]
        kinds = [trace.storages[each.storage].kind for each in matrices]
        if kinds.count("parameter") != 1 or len(matrices) != 2:
            continue
        source = matrices[1 - kinds.index("parameter")]
        key = source.storage, source.spec.shape, source.spec.stride, op.phase
        first = firsts.setdefault(key, index)
        if first != index:
            joined[index] = first
    return joined


def prepared_calls(trace: Trace) -> frozenset[int]:
    """Return the calls that depend on parameters only, which an engine makes once.

    An example is the conversion of a router's weights to single precision.
    """
    prepared = {number for number, each in enumerate(trace.storages) if each.kind == "parameter"}
    calls = set()
    for index, op in enumerate(trace.ops):
        storages = {trace.tensors[tensor].storage for tensor in op.inputs}
        if not storages or op.signature.is_view or not storages <= prepared:
            continue
        calls.add(index)
        prepared.update(trace.tensors[tensor].storage for tensor in op.outputs)
    return frozenset(calls)


class Repriced:
    """A record as it is served."""

    def __init__(self, trace: Trace, serving: Serving) -> None:
        self._trace = trace
        self._serving = serving
        self.packed = packed_weights(trace, serving)

    def served(self, costs: tuple[OpCost, ...]) -> Served:
        """Return the costs of the calls of the record, given those as they are."""
        if self._serving == AS_IT_IS:
            return Served(costs, (_NOT_PACKED,) * len(costs))
        ops = self._trace.ops
        changed = [self._serve_call(op, cost) for op, cost in zip(ops, costs, strict=True)]
        appends = frozenset(index for index, op in enumerate(ops) if self._is_append(op))
        served_costs = tuple(cost for cost, _ in changed)
        packed = tuple(packed for _, packed in changed)
        return Served(served_costs, packed, appends)

    def _serve_call(self, op: OpCall, cost: OpCost) -> tuple[OpCost, Packed]:
        if op.signature.is_view:
            return cost, _NOT_PACKED
        if self._is_append(op):
            cost = self._cost_of_append(op, cost)
        elif self._serving.cache is not None:
            cost = self._with_small_cache(op, cost, self._serving.cache)
        return self._with_packed_weights(op, cost)

    def _is_append(self, op: OpCall) -> bool:
        if not self._serving.appends or op.signature.is_view:
            return False
        if op.signature.operator != "aten.cat" or not any(map(self._is_cache, op.inputs)):
            return False
        # a recurrent state is replaced by one that is no longer
        longest = max(spec.numel for spec in op.signature.inputs)
        return op.signature.outputs[0].numel > longest

    def _is_cache(self, tensor: int) -> bool:
        record = self._trace.tensors[tensor]
        return self._trace.storages[record.storage].kind == "cache" and record.spec.is_arithmetic

    def _cost_of_append(self, op: OpCall, cost: OpCost) -> OpCost:
        """Return the cost if only new elements are read and written."""
        new = 0
        for tensor in set(op.inputs):
            record = self._trace.tensors[tensor]
            storage = self._trace.storages[record.storage]
            was_kept = storage.kind == "cache" and storage.born is None
            if not was_kept:
                new += record.spec.stored_bytes
        return _with_bytes(cost, new, new)

    def _with_small_cache(self, op: OpCall, cost: OpCost, cache: Stored) -> OpCost:
        saved = 0
        for tensor in dict.fromkeys(op.inputs):
            if self._is_cache(tensor):
                spec = self._trace.tensors[tensor].spec
                share = cache.share(spec.shape[-1], spec.dtype.itemsize)
                saved += _saved_bytes(spec.stored_bytes, share)
        if not saved:
            return cost
        return _with_bytes(cost, max(0, cost.bytes_read - saved), cost.bytes_written)

    def _with_packed_weights(self, op: OpCall, cost: OpCost) -> tuple[OpCost, Packed]:
        """Return the cost with packed weights, and what becomes of the operands.

        The bytes of weights are those read besides the other operands. Of experts, only those count
        that are reached.
        """
        if not self.packed or op.signature.operator not in _PRODUCTS:
            return cost, _NOT_PACKED
        records = [self._trace.tensors[each] for each in dict.fromkeys(op.inputs)]
        weights = [each for each in records if each.storage in self.packed]
        if not weights:
            return cost, _NOT_PACKED
        others = sum(each.spec.stored_bytes for each in records if each.storage not in self.packed)
        weight_bytes = max(0, cost.bytes_read - others)
        share = self.packed[weights[0].storage]
        itemsize = weights[0].spec.dtype.itemsize

        read = cost.bytes_read - _saved_bytes(weight_bytes, share)
        if self._serving.compute is None:
            packed = Packed(unpacked=weight_bytes // itemsize)
        else:
            packed = Packed(quantized=others, is_quantized_before=self._serving.fuses_quantization)
            read -= others - others * BITS[self._serving.compute] // 16
        return _with_bytes(cost, read, cost.bytes_written), packed


def _saved_bytes(size: int, share: Fraction) -> int:
    return size - int(-(-size * share.numerator // share.denominator))


def _with_bytes(cost: OpCost, read: int, written: int) -> OpCost:
    avoidable = cost.avoidable_bytes_read * read // max(cost.bytes_read, 1)
    return replace(cost, bytes_read=read, bytes_written=written, avoidable_bytes_read=avoidable)


def packed_weights(trace: Trace, serving: Serving) -> dict[int, Fraction]:
    """Return the share that is left of each packed weight, by its storage.

    Weights of products are packed, except the embedding and the product that computes the scores,
    which quantizers leave alone, and modules that a checkpoint keeps.
    """
    weights = serving.weights
    if weights is None or not weights.is_packed:
        return {}
    looked_up = {
        trace.tensors[op.inputs[0]].storage
        for op in trace.ops
        if op.signature.operator == "aten.embedding"
    }
    found: dict[int, Fraction] = {}
    products = [op for op in trace.ops if op.signature.operator in _PRODUCTS]
    for op in products[:-1]:
        if is_kept(trace.path_of(op), serving.kept_modules):
            continue
        for record in _matrices_of_model(trace, op):
            if record.storage not in looked_up:
                columns = _columns(record.spec.shape, record.spec.stride)
                found[record.storage] = weights.share(columns, record.spec.dtype.itemsize)
    return found


def _matrices_of_model(trace: Trace, op: OpCall) -> list[TensorRecord]:
    """Return the operands of a call that are parameters with several dimensions."""
    records = [trace.tensors[tensor] for tensor in op.inputs]
    return [
        each
        for each in records
        if trace.storages[each.storage].kind == "parameter" and len(each.spec.shape) >= 2
    ]


def _columns(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the size of the dimension whose elements are adjacent in memory."""
    return next((size for size, step in zip(shape, stride, strict=True) if step == 1), shape[-1])
