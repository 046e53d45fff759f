"""Blocks of memory of a compiled pass, derived from the trace of an eager one.

torch.compile changes memory in three ways. AOTAutograd's partitioner chooses what the forward pass
saves: a minimum cut between what cannot be computed again and what the backward pass needs. Inductor
fuses pointwise operators and reductions, so values that only fused operators read have no memory.
And what a checkpoint computes again is computed just before the backward pass needs it.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchscan.analyses.minimum_cut import FlowNetwork
from torchscan.once import once
from torchscan.trace.events import OpCall, OpSignature
from torchscan.trace.trace import Trace

if TYPE_CHECKING:
    from torchscan.analyses.memory_blocks import Block

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

_MAX_DISTANCE = 100
_GROWTH = 1.1
_REDUCTION = 4


def compiled_blocks(trace: Trace, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks as they are if the model is compiled. A loss outside of it is not."""
    return _CompiledPass(trace, blocks).blocks


class _CompiledPass:
    """The storages of a pass as nodes of a graph: each is written by calls that read others."""

    def __init__(self, trace: Trace, blocks: Sequence[Block]) -> None:
        self._trace = trace
        self._recorded = blocks
        self._num_ops = len(trace.ops)
        self._first_backward = next(
            (index for index, op in enumerate(trace.ops) if op.phase != "forward"), self._num_ops
        )
        #: storage -> calls that read it, and calls that write it
        self._readers: dict[int, list[int]] = defaultdict(list)
        self._writers: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(trace.ops):
            self._note(index, op)

    def _note(self, index: int, op: OpCall) -> None:
        if op.signature.is_view:
            return
        written = self._written_by(op)
        for storage in written:
            self._writers[storage].append(index)
        for storage in {self._trace.tensors[each].storage for each in op.inputs}:
            self._readers[storage].append(index)

    def _written_by(self, op: OpCall) -> set[int]:
        written = {self._trace.tensors[each].storage for each in op.outputs}
        if op.signature.written:
            # operands that are written to come first, as in ``add_`` and ``out=`` of a single one
            specs = list(op.signature.written)
            written |= {
                self._trace.tensors[each].storage
                for each in op.inputs
                if self._trace.tensors[each].spec in specs
            }
        return written

    # -- which calls are compiled -----------------------------------------------------------------

    @once
    def _compiled_until(self) -> int:
        """The end of the compiled forward pass: calls after it belong to a separate loss."""
        end = self._trace.root.end
        return self._first_backward if end is None else min(end, self._first_backward)

    @once
    def _compiled_from(self) -> int:
        """The first compiled call of the backward pass; before it are those of a separate loss."""
        outside = range(self._compiled_until, self._first_backward)
        written = {each for index in outside for each in self._written_by(self._trace.ops[index])}
        readers = [self._uses(storage, backward=True) for storage in written]
        last = max([each for found in readers for each in found], default=self._first_backward - 1)
        return last + 1

    def _is_compiled(self, index: int) -> bool:
        op = self._trace.ops[index]
        if op.phase == "optimizer" or not op.signature.operator.startswith("aten."):
            return False
        if index < self._first_backward:
            return index < self._compiled_until
        return index >= self._compiled_from

    def _is_fusible(self, index: int) -> bool:
        return self._is_compiled(index) and _is_cheap(self._trace.ops[index].signature)

    # -- what the forward pass saves ----------------------------------------------------------------

    @once
    def _forward(self) -> list[int]:
        """The storages that compiled calls of the forward pass create, in their order."""
        made = [
            (storage.born, number)
            for number, storage in enumerate(self._trace.storages)
            if storage.born is not None
            and storage.born < self._compiled_until
            and storage.kind == "intermediate"
            and self._is_compiled(storage.born)
        ]
        return [number for _, number in sorted(made)]

    def _uses(self, storage: int, *, backward: bool) -> list[int]:
        readers = self._readers[storage]
        middle = bisect.bisect_left(readers, self._first_backward)
        return readers[middle:] if backward else readers[:middle]

    @once
    def _users(self) -> dict[int, list[int]]:
        """For each storage of the forward pass, the storages that calls there write from it."""
        known = set(self._forward)
        users: dict[int, list[int]] = defaultdict(list)
        for storage in self._forward:
            for reader in self._uses(storage, backward=False):
                outputs = self._written_by(self._trace.ops[reader]) & known
                users[storage] += sorted(outputs - {storage})
        return users

    @once
    def _distances(self) -> dict[int, int]:
        """For each storage of the forward pass, how many calls it is from the backward pass."""
        distances: dict[int, int] = {}
        for storage in reversed(self._forward):
            nearest = min(
                [distances.get(user, _MAX_DISTANCE) for user in self._users[storage]],
                default=_MAX_DISTANCE,
            )
            is_read = bool(self._uses(storage, backward=True))
            distances[storage] = 1 if is_read else min(nearest + 1, _MAX_DISTANCE)
        return distances

    def _maker(self, storage: int) -> int:
        made = self._trace.storages[storage].born
        assert made is not None  # noqa: S101 - of the forward pass
        return made

    def _can_fuse(self, writer: int, reader: int) -> bool:
        if not self._is_compiled(reader):
            return False
        name = self._trace.ops[reader].signature.operator
        return name == "aten.cat" or (self._is_fusible(writer) and self._is_fusible(reader))

    def _is_computed_again(self, storage: int) -> bool:
        """Return whether the partitioner may compute it again in the backward pass."""
        maker = self._maker(storage)
        op = self._trace.ops[maker]
        name = op.signature.operator.removeprefix("aten.")
        if not self._is_fusible(maker) or name in _KEPT or name.startswith(_RANDOM):
            return False
        later = self._uses(storage, backward=True)
        if any(not self._can_fuse(maker, each) for each in later):
            return False
        read = sum(spec.stored_bytes for spec in op.signature.inputs)
        return self._trace.storages[storage].size * _REDUCTION >= read

    @once
    def _saved(self) -> frozenset[int]:
        """The storages of the forward pass that are kept for the backward pass."""
        if self._first_backward == self._num_ops:
            return frozenset()
        network = FlowNetwork(2 * len(self._forward) + 2)
        source, sink = 2 * len(self._forward), 2 * len(self._forward) + 1
        index_of = {storage: index for index, storage in enumerate(self._forward)}
        far = self._used_far_apart()
        for storage, index in index_of.items():
            network.connect(2 * index, 2 * index + 1, self._weight(storage))
            if storage in far or not self._is_computed_again(storage):
                network.connect(source, 2 * index, None)
            if self._uses(storage, backward=True):
                network.connect(2 * index + 1, sink, None)
            for user in self._users[storage]:
                network.connect(2 * index + 1, 2 * index_of[user], None)
        reached = network.reached_after_cut(source, sink)
        return frozenset(
            storage
            for storage, index in index_of.items()
            if 2 * index in reached and 2 * index + 1 not in reached
        )

    def _weight(self, storage: int) -> int:
        distance = max(1, min(self._distances[storage], _MAX_DISTANCE))
        weight = int(self._trace.storages[storage].size * _GROWTH**distance)
        maker = self._maker(storage)
        is_fused = all(self._can_fuse(maker, each) for each in self._readers[storage])
        return 2 * weight if is_fused else weight

    def _used_far_apart(self) -> set[int]:
        """Return the storages written by a late reader, between which and an early one is a product.

        Both can't be fused with what they read, so the partitioner doesn't compute the late one again.
        """
        found: set[int] = set()
        for storage in self._forward:
            users = self._users[storage]
            if len(users) < 2:
                continue
            limit = self._first_unfused(users)
            maker = self._maker(storage)
            found |= {
                user
                for user in users
                if self._maker(user) > limit and self._can_fuse(maker, self._maker(user))
            }
        return found

    def _first_unfused(self, starts: Sequence[int]) -> int:
        """Return the first call after these that can't be fused with what it reads, or the last."""
        last = max(self._maker(each) for each in starts)
        waiting = {(self._maker(each), each, True) for each in starts}
        while waiting:
            made, storage, is_fused = nearest = min(waiting)
            waiting.remove(nearest)
            if not is_fused:
                return made
            for user in self._users[storage]:
                if self._maker(user) <= last:
                    waiting.add((self._maker(user), user, self._can_fuse(made, self._maker(user))))
        return last

    # -- lifetimes ------------------------------------------------------------------------------------

    @once
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, without those that stay in registers, and with their new lifetimes."""
        changed = list(self._recorded)
        #: storage -> the last call that needs it; those that stay in registers are in ``_fused``
        self._last: dict[int, int] = {}
        self._fused: set[int] = set()
        #: storage -> the first call that needs it, if a checkpoint computes it
        self._begin: dict[int, int] = {}
        mine = [
            number
            for number, storage in enumerate(self._trace.storages)
            if storage.kind == "intermediate"
            and storage.born is not None
            and self._is_compiled(storage.born)
        ]
        mine.sort(key=self._maker)
        for number in reversed(mine):
            changed[number] = self._changed(number, changed[number])
        return tuple(changed)

    def _changed(self, number: int, block: Block) -> Block:
        """Return the block of a storage; those of storages made later are known."""
        maker = self._maker(number)
        is_forward = maker < self._first_backward
        readers = self._readers[number]
        if is_forward and number not in self._saved:
            readers = self._uses(number, backward=False)
        is_result = self._is_result(number, block) or (is_forward and self._is_output(number))
        is_in_place = len(self._writers[number]) > 1
        last = max([maker, *[self._last_of(each, number) for each in readers]])
        if is_forward and number in self._saved:
            last = max(last, self._last_again(number))
        self._last[number] = last
        begin = self._begin[number] = self._lazy(number, maker)
        if not (is_result or is_in_place or number in self._saved) and all(
            self._can_fuse(maker, each) for each in readers
        ):
            self._fused.add(number)
            return block._replace(size=0)
        end = block.end if is_result else last + 1
        return block._replace(first=min(begin, end - 1), end=end)

    def _is_result(self, number: int, block: Block) -> bool:
        """Return whether a storage outlives the pass; what autograd forgot to release does not."""
        is_saved = number not in self._results and bool(self._uses(number, backward=True))
        return block.end > self._num_ops and not is_saved

    @once
    def _results(self) -> frozenset[int]:
        return frozenset(self._trace.tensors[each].storage for each in self._trace.root.outputs)

    def _is_output(self, number: int) -> bool:
        """Return whether something outside of the compiled forward pass reads it there."""
        outside = [
            each for each in self._uses(number, backward=False) if not self._is_compiled(each)
        ]
        return bool(outside)

    def _last_of(self, reader: int, storage: int) -> int:
        """Return the last call that needs what a call has read: those fused with it count."""
        if not self._is_fusible(reader):
            return reader
        later = [
            self._last[each]
            for each in self._written_by(self._trace.ops[reader]) - {storage}
            if each in self._fused
        ]
        return max([reader, *later])

    def _last_again(self, number: int) -> int:
        """Return the last call of the backward pass that needs a saved storage, or what is computed from it."""
        last, seen, waiting = 0, {number}, [number]
        while waiting:
            each = waiting.pop()
            last = max([last, *self._uses(each, backward=True)])
            for user in self._users[each]:
                if user not in self._saved and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        return last

    def _lazy(self, number: int, maker: int) -> int:
        """Return when a checkpoint's result is computed: before the first call that needs it."""
        if self._trace.ops[maker].origin != "checkpoint":
            return maker
        times = [
            min(
                (
                    self._begin.get(each, reader)
                    for each in self._written_by(self._trace.ops[reader])
                ),
                default=reader,
            )
            if self._trace.ops[reader].origin == "checkpoint"
            else reader
            for reader in self._readers[number]
        ]
        return max(maker, min(times, default=maker))


def _is_cheap(signature: OpSignature) -> bool:
    name = signature.operator.removeprefix("aten.").removesuffix("_")
    return name in _CHEAP or torch.Tag.pointwise in signature.op.tags
