"""Control flow of torch (``torch.cond``, ``while_loop``, ``scan``, ``map``), as Python runs it.

torch compiles the functions that it is given, and would hide the modules that they call. While a
pass is recorded, it calls them instead: the body of a loop as often as the loop runs, and one
branch of a condition. A condition that depends on data has the branch with the most FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.notes import Note
from torchscan.ops import compute_cost
from torchscan.recording.patches import Contexts, overridden
from torchscan.recording.recorder import Position, Recorder
from torchscan.torch_versions import control_flow


def control_flow_followed(recorder: Recorder, assume: Callable[[Note], None]) -> Contexts:
    """Yield the contexts in which functions that torch is given are called as they are."""
    replacements = {
        **_REPLACEMENTS,
        "cond_op": _Conditions(recorder, assume).run,
    }
    for module, name in control_flow():
        yield overridden(module, name, _constant(replacements[name]))


def _constant(value: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda _: value


class _Conditions:
    """The conditions of a pass."""

    def __init__(self, recorder: Recorder, assume: Callable[[Note], None]) -> None:
        self._recorder = recorder
        self._assume = assume

    def run(
        self,
        predicate: Any,
        true_function: Callable[..., Any],
        false_function: Callable[..., Any],
        operands: Sequence[Any],
    ) -> Any:
        """Return the result of the branch that is taken, or of the one that costs more."""
        if self._recorder.knows(predicate):
            return true_function(*operands) if predicate else false_function(*operands)

        recorder = self._recorder
        before = recorder.position()
        if_true = true_function(*operands)
        between = recorder.position()
        if_false = false_function(*operands)
        after = recorder.position()
        is_true_dearer = self._flops(before, between) >= self._flops(between, after)
        taken = "true" if is_true_dearer else "false"
        self._assume(Note.of("dearest-branch", branch=taken))
        if is_true_dearer:
            recorder.omit(between, after)
            return if_true
        recorder.omit(before, between)
        return if_false

    def _flops(self, start: Position, end: Position) -> int:
        calls = self._recorder.ops[start.num_ops : end.num_ops]
        return sum(compute_cost(call.signature).cost.flops for call in calls)


def _while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> tuple[Any, ...]:
    values = tuple(carried)
    while condition(*values, *additional):
        values = body(*values, *additional)
    return values


def _scan(
    combine: Callable[..., Any],
    init: Sequence[Tensor],
    rows: Sequence[Tensor],
    additional_inputs: Sequence[Any],
) -> tuple[Any, ...]:
    carried = list(init)
    outputs = []
    for index in range(rows[0].shape[0]):
        row = [each.select(0, index) for each in rows]
        results = list(combine(*carried, *row, *additional_inputs))
        carried, output = results[: len(init)], results[len(init) :]
        outputs.append(output)
    return (*carried, *map(_stacked, zip(*outputs, strict=True)))


def _map(
    function: Callable[..., Any], rows: Sequence[Tensor], additional_inputs: Sequence[Any]
) -> Any:
    outputs = []
    for index in range(rows[0].shape[0]):
        row = [each.select(0, index) for each in rows]
        outputs.append(function(*row, *additional_inputs))
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.stack(outputs)
    return type(first)(map(_stacked, zip(*outputs, strict=True)))


def _stacked(values: Sequence[Any]) -> Any:
    return torch.stack(list(values)) if isinstance(values[0], Tensor) else None


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "_hop_compile_and_call": lambda function, args, kwargs=None: function(*args, **kwargs or {}),
    "while_loop_op": _while_loop,
    "scan_op": _scan,
    "map_impl": _map,
}
