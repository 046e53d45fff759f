"""The user's checks: functions that are called with the tensors of real steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.compiler import is_compiling

from torchscan.errors import InputError, TorchscanError
from torchscan.inspecting.timing import StepTimes
from torchscan.notes import describe
from torchscan.recording.module_calls import Call

#: the result of a module and its gradient, or a parameter after the step and its gradient
Kind = Literal["output", "output_gradient", "parameter", "parameter_gradient"]


class Alarm(NamedTuple):
    """The result of a check that found a problem."""

    message: str


#: a function of the path of a module or parameter, the kind of the tensor, and the tensor, which
#: returns a value to note, an alarm, or None
Check = Callable[[str, Kind, Tensor], float | Alarm | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check for one tensor."""

    step: int
    check: str
    path: str
    kind: Kind
    #: number that the check returned, or None if it raised an alarm
    value: float | None
    #: message of the alarm, or None
    message: str | None
    #: True if gradients were off; then ``step`` counts such passes
    is_evaluation: bool = False

    def __str__(self) -> str:
        """Return ``step 3: norm of layers.0, output: 12.5``."""
        kind = "evaluation pass" if self.is_evaluation else "step"
        return f"{kind} {self.step}: {self.description}"

    @property
    def description(self) -> str:
        """The sentence about the value or alarm, without the step."""
        return describe(self)


class StepChecks:
    """The calls of the checks in one step."""

    def __init__(
        self,
        step: int,
        checks: Sequence[Check],
        names: Mapping[int, str],
        listener: Callable[[CheckResult], None],
        times: StepTimes,
    ) -> None:
        self._times = times
        self._step = step
        self._checks = checks
        #: names of parameters, by identity
        self._names = names
        self._listener = listener
        self.reports: list[CheckResult] = []
        #: True once the inspection is over, when nodes of a kept graph still have their hooks
        self.is_over = False

    def note_end(self, call: Call, tensors: Sequence[Tensor]) -> None:
        """Check the outputs of a call, and later their gradients."""
        for tensor in tensors if self._checks else ():
            self._check(call.path, "output", tensor)
            if tensor.grad_fn is not None:
                self._await_gradient(call.path, tensor.grad_fn, tensor.output_nr)

    def note_stored(self, parameter: Tensor) -> None:
        """Check a gradient that was accumulated."""
        if not self._checks:
            return
        name = self._names.get(id(parameter))
        if name is not None and parameter.grad is not None:
            self._check(name, "parameter_gradient", parameter.grad)

    def note_update(self, parameters: Mapping[str, Tensor]) -> None:
        """Check the parameters after the step."""
        for name, parameter in parameters.items() if self._checks else ():
            self._check(name, "parameter", parameter)

    def _await_gradient(self, path: str, node: Node, index: int) -> None:
        def check(gradients: Sequence[Tensor | None]) -> None:
            if is_compiling():
                return
            gradient = gradients[index] if index < len(gradients) else None
            if gradient is None or self.is_over:
                return
            start = self._times.begin_looking()
            try:
                self._check(path, "output_gradient", gradient)
            finally:  # a listener may raise
                self._times.end_looking(start)

        node.register_prehook(check)

    def _check(self, path: str, kind: Kind, tensor: Tensor) -> None:
        for check in self._checks:
            value = _run_check(check, path, kind, tensor)
            if value is None:
                continue
            name = _name_of(check)
            number = message = None
            if isinstance(value, Alarm):
                message = value.message
            else:
                number = _to_number(name, path, value)
            result = CheckResult(
                step=self._step, check=name, path=path, kind=kind, value=number, message=message
            )
            self.reports.append(result)
            if message is not None:
                self._listener(result)


def _run_check(check: Check, path: str, kind: Kind, tensor: Tensor) -> float | Alarm | None:
    try:
        with torch.no_grad():
            return check(path, kind, tensor.detach())
    except TorchscanError:
        raise
    except Exception as error:
        where = f"{path or 'the model'}, {kind.replace('_', ' ')}"
        raise InputError(
            f"check {_name_of(check)} raised {type(error).__name__} on {where}: {error}"
        ) from error


def _to_number(check: str, path: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"check {check} returned {type(value).__name__} for {path or 'the model'}: "
            "return a number, an Alarm or None"
        ) from error


def _name_of(check: Any) -> str:
    return str(getattr(check, "__name__", type(check).__name__))
