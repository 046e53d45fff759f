"""Tensors that a compiled forward pass saves, derived from the trace of an eager pass.

AOTAutograd's partitioner chooses them: a minimum cut between what cannot be computed again and what
the backward pass needs. Rules and weights are those of ``torch._functorch.partitioners``.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Sequence

import torch

from torchscan.analyses.compiled_regions import OUTSIDE, compiled_regions
from torchscan.analyses.minimum_cut import FlowNetwork
from torchscan.once import once
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: operators that the partitioner recomputes and inductor fuses besides those that torch tags as
#: pointwise; some are decomposed into such ones
_CHEAP = frozenset(
    (
        "add", "sub", "mul", "div", "to", "_to_copy", "clone", "sum", "mean", "amax", "argmax",
        "max", "min", "var", "std", "var_mean", "where", "cat", "index", "gather", "full",
        "full_like", "zeros", "zeros_like", "ones", "empty", "empty_like", "new_zeros",
        "new_empty", "new_full", "arange", "triu", "tril", "scalar_tensor", "expand", "repeat",
        "pow", "silu", "gelu", "native_layer_norm", "native_layer_norm_backward", "_softmax",
        "_log_softmax", "_softmax_backward_data", "_fused_rms_norm",
        "_log_softmax_backward_data", "silu_backward", "gelu_backward", "nll_loss_forward",
        "nll_loss_backward", "sigmoid_backward", "tanh_backward", "threshold_backward",
        "embedding", "_fused_rms_norm_backward", "logsumexp", "slice_backward",
        "select_backward", "constant_pad_nd", "copy", "fill", "masked_fill",
        "_scaled_dot_product_attention_math", "view_as_complex", "view_as_real", "_conj", "any",
        "all", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit",
        "_batch_norm_with_update", "native_batch_norm_backward", "cudnn_batch_norm_backward",
        "batch_norm_backward", "native_group_norm", "native_group_norm_backward",
        "_adaptive_avg_pool2d", "avg_pool2d",
    )
)  # fmt: skip
#: among these, what is read at random places or has random results is not computed again
_KEPT = frozenset({"embedding", "nll_loss_forward", "native_dropout", "bernoulli", "cat"})
_RANDOM = ("native_dropout", "rand", "bernoulli", "uniform", "normal")

#: a tensor weighs 1.1 times as much for each call between it and the backward pass, up to 100
_MAX_DISTANCE = 100
_GROWTH = 1.1
#: results that are smaller than their operands by this factor are saved: sums of rows
_REDUCTION = 4


class CompiledGraph:
    """The storages of a pass as nodes of a graph: calls write some and read others."""

    def __init__(self, trace: Trace, layers: Collection[str] = ()) -> None:
        """``layers``: the modules that are compiled, as for :func:`compiled_regions`."""
        self.trace = trace
        self._regions = compiled_regions(trace, layers)
        self.num_ops = len(trace.ops)
        phases = [op.phase for op in trace.ops]
        self.first_backward = bisect.bisect_left([phase != "forward" for phase in phases], True)
        #: storage -> calls that read it, and calls that write it; views are looked through
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.writers: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(trace.ops):
            if op.signature.is_view:
                continue
            for storage in self.written_by(op):
                self.writers[storage].append(index)
            for storage in {trace.tensors[each].storage for each in op.inputs}:
                self.readers[storage].append(index)

    def written_by(self, op: OpCall) -> set[int]:
        """Return the storages that a call writes, also those of operands."""
        tensors = self.trace.tensors
        written = {tensors[each].storage for each in op.outputs}
        specs = op.signature.written
        if not specs:
            return written
        operands = [tensors[each] for each in op.inputs]
        return written | {each.storage for each in operands if each.spec in specs}

    def maker(self, storage: int) -> int:
        """Return the call that creates a storage."""
        made = self.trace.storages[storage].born
        if made is None:
            raise ValueError("the storage existed before the pass")
        return made

    # -- which calls are compiled -----------------------------------------------------------------

    @once
    def _compiled_until(self) -> int:
        """The end of the compiled forward pass: calls after it belong to a separate loss."""
        end = self.trace.root.end
        return self.first_backward if end is None else min(end, self.first_backward)

    @once
    def _compiled_from(self) -> int:
        """The first compiled call of the backward pass; before it are those of a separate loss."""
        written: set[int] = set()
        for op in self.trace.ops[self._compiled_until : self.first_backward]:
            written |= self.written_by(op)
        last = self.first_backward - 1
        for storage in written:
            last = max([last, *self.backward_readers(storage)])
        return last + 1

    def is_compiled(self, index: int) -> bool:
        """Return whether the compiler sees a call: collectives and optimizers are outside."""
        op = self.trace.ops[index]
        if self._regions is not None and self._regions[index] == OUTSIDE:
            return False
        if op.phase == "optimizer" or not op.signature.operator.startswith("aten."):
            return False
        if index < self.first_backward:
            return index < self._compiled_until
        return index >= self._compiled_from

    def is_fusible(self, index: int) -> bool:
        """Return whether the compiler generates the kernel of a call."""
        signature = self.trace.ops[index].signature
        name = signature.operator.removeprefix("aten.").removesuffix("_")
        is_cheap = name in _CHEAP or torch.Tag.pointwise in signature.op.tags
        return is_cheap and self.is_compiled(index)

    def can_fuse(self, writer: int, reader: int) -> bool:
        """Return whether a call can be in the kernel of another that reads its result."""
        if not self.is_compiled(reader):
            return False
        if self._regions is not None and self._regions[writer] != self._regions[reader]:
            return False
        name = self.trace.ops[reader].signature.operator
        return name == "aten.cat" or (self.is_fusible(writer) and self.is_fusible(reader))

    # -- what the forward pass saves --------------------------------------------------------------

    def backward_readers(self, storage: int) -> list[int]:
        """Return the calls of the backward pass that read a storage."""
        readers = self.readers[storage]
        return readers[bisect.bisect_left(readers, self.first_backward) :]

    def forward_readers(self, storage: int) -> list[int]:
        """Return the calls of the forward pass that read a storage."""
        readers = self.readers[storage]
        return readers[: bisect.bisect_left(readers, self.first_backward)]

    @once
    def created(self) -> list[int]:
        """The storages that compiled calls create, in their order."""
        storages = enumerate(self.trace.storages)
        made = [
            (storage.born, number)
            for number, storage in storages
            if storage.kind == "intermediate" and storage.born is not None
        ]
        return [number for born, number in sorted(made) if self.is_compiled(born)]

    @once
    def _forward(self) -> list[int]:
        return [each for each in self.created if self.maker(each) < self.first_backward]

    @once
    def users(self) -> dict[int, list[int]]:
        """For each storage of the forward pass, the storages that calls there write from it."""
        known = set(self._forward)
        users: dict[int, list[int]] = defaultdict(list)
        for storage in self._forward:
            for reader in self.forward_readers(storage):
                outputs = self.written_by(self.trace.ops[reader]) & known
                users[storage] += sorted(outputs - {storage})
        return users

    @once
    def saved(self) -> frozenset[int]:
        """The storages of the forward pass that are kept for the backward pass."""
        if self.first_backward == self.num_ops:
            return frozenset()
        network = FlowNetwork(2 * len(self._forward) + 2)
        source, sink = 2 * len(self._forward), 2 * len(self._forward) + 1
        index_of = {storage: index for index, storage in enumerate(self._forward)}
        far = self._used_far_apart()
        for storage, index in index_of.items():
            network.connect(2 * index, 2 * index + 1, self._weight(storage))
            if storage in far or not self._is_computed_again(storage):
                network.connect(source, 2 * index, None)
            if self.backward_readers(storage):
                network.connect(2 * index + 1, sink, None)
            for user in self.users[storage]:
                network.connect(2 * index + 1, 2 * index_of[user], None)
        reached = network.reached_after_cut(source, sink)
        cut = [2 * each in reached and 2 * each + 1 not in reached for each in index_of.values()]
        return frozenset(storage for storage, is_cut in zip(index_of, cut, strict=True) if is_cut)

    def _is_computed_again(self, storage: int) -> bool:
        """Return whether the partitioner may compute it again in the backward pass."""
        writers = self.writers[storage]
        in_forward = writers[: bisect.bisect_left(writers, self.first_backward)]
        for index in in_forward:
            name = self.trace.ops[index].signature.operator.removeprefix("aten.").removesuffix("_")
            if not self.is_fusible(index) or name in _KEPT or name.startswith(_RANDOM):
                return False
        maker = self.maker(storage)
        if any(not self.can_fuse(maker, each) for each in self.backward_readers(storage)):
            return False
        read = sum(spec.stored_bytes for spec in self.trace.ops[maker].signature.inputs)
        return self.trace.storages[storage].size * _REDUCTION >= read

    @once
    def _distances(self) -> dict[int, int]:
        """For each storage of the forward pass, how many calls it is from the backward pass."""
        distances: dict[int, int] = {}
        for storage in reversed(self._forward):
            nearest = [distances[user] for user in self.users[storage] if user in distances]
            if self.backward_readers(storage):
                nearest.append(0)
            distances[storage] = min([each + 1 for each in nearest], default=_MAX_DISTANCE)
        return distances

    def _weight(self, storage: int) -> int:
        """Return the weight of a tensor: twice its size, unless it has memory in any case."""
        distance = min(self._distances[storage], _MAX_DISTANCE)
        weight = int(self.trace.storages[storage].size * _GROWTH**distance)
        maker = self.maker(storage)
        is_fused = all(self.can_fuse(maker, each) for each in self.readers[storage])
        return 2 * weight if is_fused else weight

    def _used_far_apart(self) -> set[int]:
        """Return what a late reader writes if an earlier reader's result is multiplied before it.

        A kernel can't contain both readers, so the partitioner does not compute the late one again.
        """
        found: set[int] = set()
        for storage in self._forward:
            users = self.users[storage]
            if len(users) < 2:
                continue
            limit, maker = self._first_unfused(users), self.maker(storage)
            late = [user for user in users if self.maker(user) > limit]
            found |= {user for user in late if self.can_fuse(maker, self.maker(user))}
        return found

    def _first_unfused(self, starts: Sequence[int]) -> int:
        """Return the first call after these that can't be fused with what it reads, or the last."""
        last = max(self.maker(each) for each in starts)
        waiting = {(self.maker(each), each, True) for each in starts}
        while waiting:
            made, storage, is_fused = nearest = min(waiting)
            waiting.remove(nearest)
            if not is_fused:
                return made
            for user in self.users[storage]:
                later = self.maker(user)
                # a call in place writes to a storage that was created before: following it would
                # lead back here
                if made < later <= last:
                    waiting.add((later, user, self.can_fuse(made, later)))
        return last
