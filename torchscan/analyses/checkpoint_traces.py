"""Traces of other choices of checkpoints, derived from one in which all layers are checkpointed.

A checkpointed layer runs again in the backward pass. If it is not checkpointed, the backward pass
reads the results of its first run instead; under a policy, it does so for the operators that the
policy saves, as ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` does. So every
choice follows from the trace of all layers: calls that do not run again are removed, and the
results of the first run live until what they replace was freed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torchscan.analyses.checkpoint_edit import CheckpointEdit, LayerRun
from torchscan.errors import InputError
from torchscan.once import once
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

#: what the hooks of checkpoints call, as often as there are tensors to save
_DETACH = "aten.detach"


class CheckpointedTrace:
    """A training step whose layers are all checkpointed, and what other choices make of it."""

    def __init__(self, trace: Trace, layers: Sequence[str]) -> None:
        self.trace = trace
        self._layers = set(layers)

    @once
    def runs(self) -> tuple[LayerRun, ...]:
        """The layers that run again, in the order of their forward pass.

        Raises an InputError if a layer does not run again as it ran before.
        """
        runs: list[LayerRun] = []
        waiting: list[tuple[str, range]] = []
        forward_passes = iter(self._forward_passes())
        upcoming = next(forward_passes, None)
        for again in self._second_runs():
            while upcoming is not None and upcoming[1].start < again.start:
                waiting.append(upcoming)
                upcoming = next(forward_passes, None)
            layer, forward = self._take(waiting, again)
            pairs = self._pair(layer, forward, again)
            runs.append(LayerRun(layer=layer, forward=forward, again=again, first_run=pairs))
        return tuple(sorted(runs, key=lambda run: run.forward.start))

    def derive(
        self, *, plain: Collection[LayerRun] = (), saved: Collection[int] = frozenset()
    ) -> Trace:
        """Return the trace of another choice.

        Args:
            plain: the runs of layers that are not checkpointed.
            saved: calls of forward passes whose results are saved in layers that are.
        """
        if not plain and not saved:
            return self.trace
        edit = CheckpointEdit(self.trace)
        checkpointed = [run for run in self.runs if run not in plain]
        for run in plain:
            edit.remove_second_run(run, self._unpacking(run))
        for run in checkpointed:
            edit.save(run, saved, self.release(run))
        for run in plain:
            edit.release_arguments(run, self.release(run), checkpointed)
        return edit.to_trace()

    def release(self, run: LayerRun) -> int:
        """Return the moment in which a checkpoint is done, and frees all that it holds."""
        created = [each for each in self.trace.storages if each.born is not None]
        ends = [each.died for each in created if each.born in run.again]
        return max([end for end in ends if end is not None], default=run.again.stop)

    def _forward_passes(self) -> list[tuple[str, range]]:
        """Return the calls of layers that the model makes itself, with their operator calls."""
        trace = self.trace
        starts: list[int | None] = [min(call.ops, default=None) for call in trace.modules]
        for call in reversed(trace.modules):
            start = starts[call.index]
            if call.parent is not None and start is not None:
                known = starts[call.parent]
                starts[call.parent] = start if known is None else min(start, known)
        found = []
        for call in trace.modules:
            start = starts[call.index]
            if call.path not in self._layers or start is None or call.end is None:
                continue
            if trace.ops[start].phase == "forward":
                found.append((call.path, range(start, call.end)))
        return found

    def _second_runs(self) -> Iterator[range]:
        """Yield the calls that checkpoints make, divided by the layers that they belong to."""
        start = None
        for index, op in enumerate(self.trace.ops):
            is_again = op.origin == "checkpoint"
            if is_again and start is None:
                start = index
            elif not is_again and start is not None:
                yield range(start, index)
                start = None

    def _take(self, waiting: list[tuple[str, range]], again: range) -> tuple[str, range]:
        """Return the layer that runs again: the one that its modules name, or else the last."""
        paths = {self.trace.path_of(self.trace.ops[index]) for index in again}
        for place in range(len(waiting) - 1, -1, -1):
            layer, _ = waiting[place]
            if any(path.startswith(f"{layer}.") for path in paths):
                return waiting.pop(place)
        if not waiting:
            raise _not_repeated("a checkpoint of the model itself")
        return waiting.pop()

    def _pair(self, layer: str, forward: range, again: range) -> dict[int, int]:
        ops = self.trace.ops
        first_run = (index for index in forward if not _is_by_checkpoint(ops[index].signature))
        pairs: dict[int, int] = {}
        for index in again:
            signature = ops[index].signature
            if _is_by_checkpoint(signature):
                continue
            first = next(first_run, None)
            if first is None or ops[first].signature.op is not signature.op:
                raise _not_repeated(layer)
            if ops[first].signature.outputs != signature.outputs:
                raise _not_repeated(layer)
            pairs[index] = first
        return pairs

    def _unpacking(self, run: LayerRun) -> list[int]:
        """Return the calls by which the backward pass of a layer takes what was computed again."""
        ops, modules = self.trace.ops, self.trace.modules
        release = self.release(run)
        following = [each.again.start for each in self.runs if each.again.start > run.again.start]
        stop = min([release, *following])
        unpacking: list[int] = []
        for index in range(run.again.stop, stop):
            path = modules[ops[index].module_call].path
            if ops[index].signature.operator == _DETACH and f"{path}.".startswith(f"{run.layer}."):
                unpacking.append(index)
        return unpacking


def _is_by_checkpoint(signature: OpSignature) -> bool:
    """Return whether a call is one of torch's checkpoint: it hands on, or makes an empty tensor."""
    if signature.operator == "aten.empty":
        return signature.outputs[0].shape == (0,)
    return signature.operator == _DETACH


def _not_repeated(layer: str) -> InputError:
    return InputError(
        f"{layer} does not run again as it ran before, so other checkpoints cannot be derived: "
        "compare single ones by the argument checkpoint"
    )
