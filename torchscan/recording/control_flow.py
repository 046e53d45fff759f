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
from torchscan.recording.recorder import Recorder
from torchscan.recording.undo import is_recording


@dataclass
class OmittedCalls:
    """Calls of branches that are not taken, which are not part of the trace."""

    ops: set[int] = field(default_factory=set)
    modules: set[int] = field(default_factory=set)


class _Position(NamedTuple):
    """The numbers of calls recorded so far."""

    num_ops: int
    num_modules: int


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The functions that run torch's control flow in a pass, named like those that they replace."""

    recorder: Recorder
    omitted: OmittedCalls
    assume: Callable[[Note], None]
    #: number of iterations of loops whose end depends on data, or None
    num_iterations: int | None

    scan_op = staticmethod(run_scan)
    map_impl = staticmethod(run_map)

    @staticmethod
    def _hop_compile_and_call(
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function that torch would compile."""
        if kwargs is None:
            kwargs = {}
        return function(*args, **kwargs)

    def while_loop_op(self, *operands: Any, **options: Any) -> tuple[Any, ...]:
        """Return what the last iteration of a ``while_loop`` carries."""
        loops = Loops(self.recorder.values, self.num_iterations, self.assume)
        return loops.run_while(*operands, **options)

    def associative_scan_op(self, *operands: Any, **options: Any) -> Any:
        """Return the partial results of ``associative_scan``."""
        loops = Loops(self.recorder.values, self.num_iterations, self.assume)
        return loops.scan_pointwise(*operands, **options)

    def cond_op(
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
        if is_known or self.recorder.values.is_certain(condition):
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
            self.omitted.ops.update(range(start.num_ops, end.num_ops))
            self.omitted.modules.update(range(start.num_modules, end.num_modules))
        self.assume(Note.of("costliest-branch", branch="true" if is_true_kept else "false"))
        return if_true if is_true_kept else if_false

    def _position(self) -> _Position:
        return _Position(len(self.recorder.ops), len(self.recorder.tree.calls))

    def _flops(self, start: _Position, end: _Position) -> int:
        flops = 0
        for index in range(start.num_ops, end.num_ops):
            if index not in self.omitted.ops:
                flops += compute_cost(self.recorder.ops[index].signature).cost.flops
        return flops
