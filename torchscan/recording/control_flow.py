"""Control flow of torch: ``torch.cond``, and the loops of :mod:`torchscan.recording.loops`.

torch compiles the functions that it is given, which would hide the modules that they call. While a
pass is recorded, they are called directly: the body of a loop as often as the loop runs, and one
branch of a condition. A condition that depends on data counts the branch with more FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from torchscan.notes import Note
from torchscan.ops import compute_cost
from torchscan.recording.loops import Loops, run_map, run_scan
from torchscan.recording.patches import Contexts, substituted
from torchscan.recording.recorder import Recorder
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import control_flow


@dataclass
class OmittedCalls:
    """Calls of branches that are not taken, which are not part of the trace."""

    ops: set[int] = field(default_factory=set)
    modules: set[int] = field(default_factory=set)


def control_flow_followed(
    recorder: Recorder,
    omitted: OmittedCalls,
    assume: Callable[[Note], None],
    num_iterations: int | None,
) -> Contexts:
    """Yield the contexts in which functions given to torch's control flow are called directly.

    Loops that data ends have ``num_iterations`` if that is given.
    """
    loops = Loops(recorder.values, num_iterations, assume)
    replacements: dict[str, Callable[..., Any]] = {
        "_hop_compile_and_call": run_uncompiled,
        "cond_op": _Conditions(recorder, omitted, assume).run,
        "while_loop_op": loops.run_while,
        "scan_op": run_scan,
        "associative_scan_op": loops.scan_pointwise,
        "map_impl": run_map,
    }
    for module, name in control_flow():
        yield substituted(module, name, replacements[name])


class _Position(NamedTuple):
    """The numbers of calls recorded so far."""

    num_ops: int
    num_modules: int


class _Conditions:
    """The conditions of a pass."""

    def __init__(
        self, recorder: Recorder, omitted: OmittedCalls, assume: Callable[[Note], None]
    ) -> None:
        self._ops = recorder.ops
        self._modules = recorder.tree.calls
        self._values = recorder.values
        self._omitted = omitted
        self._assume = assume

    def run(
        self,
        condition: Any,
        true_function: Callable[..., Any],
        false_function: Callable[..., Any],
        operands: Sequence[Any],
    ) -> Any:
        """Return the result of the branch that is taken, or of the one with more FLOPs."""
        is_tensor = isinstance(condition, Tensor)
        # Other threads may call torch.cond, too, and on data.
        is_known = not (is_tensor and is_recording())
        if is_known or self._values.is_certain(condition):
            return true_function(*operands) if condition else false_function(*operands)

        before = self._position()
        if_true = true_function(*operands)
        between = self._position()
        try:
            if_false = false_function(*operands)
        finally:  # a checkpoint raises here once it has recomputed what it needs
            after = self._position()
            is_true_kept = self._flops(before, between) >= self._flops(between, after)
            start, end = (between, after) if is_true_kept else (before, between)
            self._omitted.ops.update(range(start.num_ops, end.num_ops))
            self._omitted.modules.update(range(start.num_modules, end.num_modules))
        self._assume(Note.of("costliest-branch", branch="true" if is_true_kept else "false"))
        return if_true if is_true_kept else if_false

    def _position(self) -> _Position:
        return _Position(len(self._ops), len(self._modules))

    def _flops(self, start: _Position, end: _Position) -> int:
        flops = 0
        for index in range(start.num_ops, end.num_ops):
            if index not in self._omitted.ops:
                flops += compute_cost(self._ops[index].signature).cost.flops
        return flops


def run_uncompiled(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Run a function that torch would compile."""
    if kwargs is None:
        kwargs = {}
    return function(*args, **kwargs)
