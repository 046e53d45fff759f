"""Blocks of memory of a compiled pass, derived from the trace of an eager pass.

torch.compile changes memory in three ways. The partitioner chooses what the forward pass saves.
Inductor fuses pointwise operators and reductions, so values that only fused operators read have no
memory. And what a checkpoint computes again is computed just before the backward pass needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchscan.analyses.memory_blocks import Block
from torchscan.analyses.saved_tensors import CompiledGraph
from torchscan.trace.trace import Trace


def compiled_blocks(
    trace: Trace, blocks: Sequence[Block], layers: Collection[str] = ()
) -> list[Block]:
    """Return the blocks as they are if the model is compiled. A loss outside of it is not.

    ``layers`` are the modules that are compiled, each by itself; by default those that FSDP shards,
    or the complete model.
    """
    return _CompiledLifetimes(CompiledGraph(trace, layers)).changed(blocks)


class _CompiledLifetimes:
    """Lifetimes of the storages that compiled calls create, from the last to the first."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._ops = graph.trace.ops
        #: storage -> the last call that needs it; those that stay in registers are in ``_fused``
        self._last: dict[int, int] = {}
        self._fused: set[int] = set()
        #: storage -> the first call that needs it, if a checkpoint computes it
        self._begin: dict[int, int] = {}
        tensors = graph.trace.tensors
        self._results = {tensors[each].storage for each in graph.trace.root.outputs}

    def changed(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with new lifetimes, and without those that stay in registers."""
        changed = list(blocks)
        for number in reversed(self._graph.created):
            changed[number] = self._changed(number, blocks[number])
        return changed

    def _changed(self, number: int, block: Block) -> Block:
        maker = self._graph.maker(number)
        is_saved = number in self._graph.saved
        readers = self._graph.readers[number]
        if maker < self._graph.first_backward and not is_saved:
            readers = self._graph.forward_readers(number)
        last = self._last_call(number, maker, readers)
        if is_saved:
            last = max(last, self._last_again(number))
        self._last[number] = last
        begin = self._begin[number] = self._begin_of(number, maker)

        is_result = self._is_result(number, block)
        is_written_again = len(self._graph.writers[number]) > 1
        has_memory = is_saved or is_result or is_written_again
        if not has_memory and all(self._graph.can_fuse(maker, each) for each in readers):
            self._fused.add(number)
            return block._replace(size=0)
        end = block.end if is_result else last + 1
        return block._replace(first=min(begin, end - 1), end=end)

    def _is_result(self, number: int, block: Block) -> bool:
        """Return whether a storage outlives the compiled pass, or a separate loss reads it.

        A saved tensor that autograd did not release before the end does not outlive it.
        """
        if number in self._results:
            return True
        read = self._graph.backward_readers(number)
        if block.end > self._graph.num_ops and not read:
            return True
        is_forward = self._graph.maker(number) < self._graph.first_backward
        readers = self._graph.forward_readers(number) if is_forward else ()
        return any(not self._graph.is_compiled(each) for each in readers)

    def _last_call(self, number: int, maker: int, readers: Sequence[int]) -> int:
        """Return the last call that needs a storage: calls that are fused with a reader count."""
        last = max([maker, *readers])
        for reader in readers:
            if self._graph.is_fusible(reader):
                written = self._graph.written_by(self._ops[reader]) - {number}
                last = max([last, *[self._last[each] for each in written & self._fused]])
        return last

    def _last_again(self, number: int) -> int:
        """Return the last call of the backward pass that needs a saved storage.

        It may need what is computed again from the storage.
        """
        last, seen, waiting = 0, {number}, [number]
        while waiting:
            each = waiting.pop()
            last = max([last, *self._graph.backward_readers(each)])
            computed = set(self._graph.users[each]) - self._graph.saved - seen
            seen |= computed
            waiting += computed
        return last

    def _begin_of(self, number: int, maker: int) -> int:
        """Return when a storage is computed: in a checkpoint, when a call first needs it."""
        if self._ops[maker].origin != "checkpoint":
            return maker
        times = []
        for reader in self._graph.readers[number]:
            op = self._ops[reader]
            written = self._graph.written_by(op) if op.origin == "checkpoint" else ()
            times.append(min([self._begin.get(each, reader) for each in written], default=reader))
        return max(maker, min(times, default=maker))
