"""Costs of the parts of a model on one rank: each kind of layer, and the operators around layers.

They are derived from the trace of a short model that is not sharded over data-parallel ranks, so
they hold for any number of these ranks. Times and bytes grow linearly with the sequences of a micro
batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from torchscan.analyses.memory_blocks import KINDS, MemoryKind
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.analyses.model_products import products_of
from torchscan.analyses.part_costs import (
    AFTER,
    BEFORE,
    AttentionCosts,
    AttentionShapes,
    OptimizerCosts,
    PartCosts,
    PassCosts,
    RingCosts,
)
from torchscan.analyses.roofline import Fabric, Roofline
from torchscan.analyses.roofline.async_products import overlap_with_products
from torchscan.analyses.roofline.exposed_collectives import is_in_background
from torchscan.analyses.roofline.links import link_times
from torchscan.ops.communication import COLLECTIVES, group_of, sent_bytes, whole_bytes
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

#: kinds of memory that a pass allocates; other kinds stay from step to step
_OF_PASS: tuple[MemoryKind, ...] = ("inputs", "activations", "temporary", "gathered")


class LocalTrace:
    """A trace of a short model on one rank, by parts."""

    def __init__(
        self, trace: Trace, roofline: Roofline, fabric: Fabric, layers: Sequence[str]
    ) -> None:
        """``layers`` are the paths of the layers in the short model; each is compiled by itself."""
        self._trace = trace
        self._layer_by_call = [enclosing_layer(call.path, layers) for call in trace.modules]
        self._parts = self._assign_parts()
        self._seconds = seconds_by_op(trace, roofline)
        self._links = overlap_with_products(trace, fabric, link_times(trace, fabric), self._seconds)
        compiled_layers = layers if roofline.compiled else ()
        timeline = MemoryTimeline(trace, compiled=roofline.compiled, layers=compiled_layers)
        self._moments = timeline.moments
        self._live = [0] * len(self._moments)
        for place in map(KINDS.index, _OF_PASS):
            for index, moment in enumerate(self._moments):
                self._live[index] += moment.bytes_by_kind[place]
        blocks = enumerate(timeline.blocks)
        self._blocks = [(storage, block) for storage, block in blocks if block.kind in _OF_PASS]

    def parts(self) -> dict[str, PartCosts]:
        """Return the costs of each part, by the path of its layer."""
        pairs = zip(self._trace.ops, self._parts, strict=True)
        forward = [part for op, part in pairs if op.phase == "forward"]
        names = dict.fromkeys((BEFORE, *forward, AFTER))
        saved = self._saved_before(names)
        products = products_of(self._trace)
        found: dict[str, PartCosts] = {}
        for name, own in self.indices(names).items():
            macs = [products[index] for index in own]
            ops = [self._trace.ops[index] for index in own]
            weights = list(filter(self.is_weight_gradient, own))
            found[name] = PartCosts(
                forward=self._pass(own, "forward", saved[name].before),
                backward=self._pass(own, "backward", saved[name].before),
                weight_gradients=self._sum(weights),
                saved_bytes=saved[name].after - saved[name].before,
                received_bytes=saved[name].received,
                pending_bytes=self._pending_bytes(weights),
                output_bytes=self.output_bytes(name),
                sent_bytes=sum(map(sent_bytes_of, ops)),
                macs=math.fsum(map(attrgetter("computed"), macs)),
                dense_macs=math.fsum(map(attrgetter("dense"), macs)),
                attention=self._attention(own),
            )
        return found

    def indices(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Return the indices of the calls of each part."""
        found: dict[str, list[int]] = {name: [] for name in names}
        for index, part in enumerate(self._parts):
            if part:
                found[part].append(index)
        return found

    def optimizer(self) -> OptimizerCosts:
        """Return the costs of the optimizer for each byte of a trained parameter."""
        steps = [index for index, op in enumerate(self._trace.ops) if op.phase == "optimizer"]
        trained = self.trained_bytes()
        if not steps or not trained:
            return OptimizerCosts(0.0, 0.0, 0.0)
        state = self._moments[-1].by_kind["optimizer"]
        start = min(self._live[steps[0] - 1], self._live[steps[-1]])
        beyond = max(self._live[index] for index in steps) - start
        return OptimizerCosts(self._sum(steps) / trained, state / trained, max(0, beyond) / trained)

    def trained_bytes(self) -> int:
        """Return the bytes of the parameters that are trained."""
        storages: set[int] = set()
        for each in self._trace.parameters:
            if each.requires_grad and not each.is_buffer:
                storages.update(each.storages)
        return sum(self._trace.storages[storage].size for storage in storages)

    def _assign_parts(self) -> list[str]:
        """Return the part of each operator call.

        Operators between two layers belong to the layer that runs first in this pass.
        """
        layers = [self._layer_by_call[op.module_call] for op in self._trace.ops]
        parts = [""] * len(layers)
        for phase, first, last in (("forward", BEFORE, AFTER), ("backward", AFTER, BEFORE)):
            own = [index for index, op in enumerate(self._trace.ops) if op.phase == phase]
            inside = [index for index in own if layers[index]]
            current = first
            for index in own:
                current = layers[index] or current
                is_over = bool(inside) and index > inside[-1]
                parts[index] = last if is_over else current
        return parts

    def _saved_before(self, names: Iterable[str]) -> dict[str, _Saved]:
        """Return the bytes that are kept for the backward pass, before and after each part."""
        kept: Counter[str] = Counter()
        received: Counter[str] = Counter()
        for part, size, is_result in self._kept_blocks():
            kept[part] += size
            received[part] += size if is_result else 0
        saved: dict[str, _Saved] = {}
        before = 0
        for name in names:
            saved[name] = _Saved(before, before + kept[name], received[name])
            before += kept[name]
        return saved

    def _kept_blocks(self) -> Iterator[tuple[str, int, bool]]:
        """Yield the part, the bytes, and whether they are a layer's result, of what is kept."""
        ops = self._trace.ops
        start = next((index for index, op in enumerate(ops) if op.phase == "backward"), len(ops))
        results = {
            self._trace.tensors[call.outputs[0]].storage
            for call in self._trace.modules
            if call.outputs and self._layer_by_call[call.index] == call.path
        }
        for storage, block in self._blocks:
            if block.first < start < block.end:
                # the result of a layer is kept by the next one, if that needs it
                is_result = storage in results
                owner = block.end - 1 if is_result else block.first
                yield self._parts[min(owner, len(ops) - 1)], block.size, is_result

    def _pending_bytes(self, weights: Iterable[int]) -> int:
        """Return the bytes that calls for gradients of parameters read of the backward pass."""
        storages: set[int] = set()
        for index in weights:
            inputs = self._trace.ops[index].inputs
            storages.update(self._trace.tensors[each].storage for each in inputs)
        pending = 0
        for storage, block in self._blocks:
            if storage in storages and self._trace.ops[block.first].phase == "backward":
                pending += block.size
        return pending

    def _pass(self, own: Sequence[int], phase: Phase, saved: int) -> PassCosts:
        here = [index for index in own if self._trace.ops[index].phase == phase]
        links = [index for index in here if index in self._links]
        behind = [index for index in links if is_in_background(self._trace, index)]
        waited_for = math.fsum(self._links[index] for index in links)
        in_background = math.fsum(self._links[index] for index in behind)
        return PassCosts(
            computing=self._sum(here),
            waited_for=waited_for - in_background,
            behind=in_background,
            peak_bytes=max((self._live[index] for index in here), default=saved) - saved,
        )

    def attention_shapes(self, name: str) -> AttentionShapes | None:
        """Return the operands of a part's attention, or None if it has no such operator."""
        for op in self._trace.ops:
            is_inside = self._layer_by_call[op.module_call] == name
            if is_inside and is_attention(op) and op.phase == "forward":
                operands = [spec.shape[1:] for spec in op.signature.inputs[:3]]
                return AttentionShapes(*operands)
        return None

    def ring(self, name: str) -> RingCosts:
        """Return the costs of a part that is nothing but attention over parts of sequences."""
        costs = self.parts()[name]
        sent = {"forward": 0, "backward": 0}
        for op in self._trace.ops:
            if op.phase in sent:
                sent[op.phase] += sent_bytes_of(op)
        return RingCosts(costs.forward, costs.backward, sent["forward"], sent["backward"])

    def _attention(self, own: Iterable[int]) -> AttentionCosts:
        """Return the seconds of the attention among some calls."""
        forward, backward, again, calls = 0.0, 0.0, 0, 0
        for index in own:
            op = self._trace.ops[index]
            if not is_attention(op):
                continue
            seconds = self._seconds.get(index, 0.0)
            if op.phase == "forward":
                forward, calls = forward + seconds, calls + 1
            elif op.signature.operator.endswith("_backward"):
                backward += seconds
            else:
                again += 1
        return AttentionCosts(forward, backward, again / max(1, calls))

    def _sum(self, indices: Sequence[int]) -> float:
        return math.fsum(self._seconds.get(index, 0.0) for index in indices)

    def is_weight_gradient(self, index: int) -> bool:
        """Return whether a call computes nothing but gradients of parameters."""
        op = self._trace.ops[index]
        storages = [self._trace.storages[self._trace.tensors[each].storage] for each in op.outputs]
        is_gradient = bool(storages) and all(each.kind == "gradient" for each in storages)
        return op.phase == "backward" and is_gradient

    def output_bytes(self, name: str) -> int:
        """Return the bytes of a layer's result."""
        call = next((each for each in self._trace.modules if each.path == name), None)
        if call is None or not call.outputs:
            return 0
        return self._trace.tensors[call.outputs[0]].spec.stored_bytes


class _Saved(NamedTuple):
    """Bytes alive before and after a part."""

    before: int
    after: int
    #: bytes among those that the part adds of the result of the part before
    received: int


def enclosing_layer(path: str, layers: Sequence[str]) -> str:
    """Return the path of the layer that a module is in, or nothing."""
    return next((each for each in layers if path == each or path.startswith(f"{each}.")), "")


def seconds_by_op(trace: Trace, roofline: Roofline) -> dict[int, float]:
    """Return the seconds of each call that computes; loads have the order of the calls."""
    keys = [(op.signature.operator, op.phase, trace.path_of(op)) for op in trace.ops]
    found: dict[int, float] = {}
    place = 0
    for load in roofline.operators:
        key = (load.operator, load.phase, load.layer)
        while keys[place] != key:
            place += 1
        if load.limiter != "links":
            found[place] = load.time_estimate
        place += 1
    return found


def sent_bytes_of(op: OpCall) -> int:
    """Return the bytes that a rank sends in a call."""
    kind, group = COLLECTIVES.get(op.signature.operator), group_of(op.signature)
    if kind is None or group is None:
        return 0
    return sent_bytes(kind, whole_bytes(op.signature), group.size)


def is_attention(op: OpCall) -> bool:
    """Return whether a call is scaled dot-product attention, in either pass."""
    return "_dot_product" in op.signature.operator and len(op.signature.inputs) > 2
