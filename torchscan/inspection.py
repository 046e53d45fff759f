"""``inspect``, which measures and checks a model in real steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from torchscan.errors import (
    Argument,
    Give,
    InputError,
    TorchName,
)
from torchscan.hardware.device_specs import device_named
from torchscan.inspecting.checks import Check
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.reactions import Reaction, finding_listener
from torchscan.inspection_run import Run
from torchscan.recording.request import require_module
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def inspect(
    module: nn.Module,
    *,
    warm_up: int = 1,
    steps: int | None = None,
    on_nonfinite: Reaction = "record",
    checks: Sequence[Check] = (),
    device: str | None = None,
    expected: bool = True,
    loop_iterations: int | None = None,
) -> Run:
    """Measure and check each call of a module, forward and backward, in real steps.

    Steps in the context of the result are inspected. Nothing is put on the model, and its results
    are the same bit by bit.

    Args:
        module: the model. It is left unchanged.
        warm_up: of several steps, how many of the first are left out.
        steps: how many training steps are measured. In later ones the loss, the gradients and the
            parameters are checked for NaN and Inf, and the call at fault is repeated on a copy to
            find the operator. Forward passes without a backward pass, as in a validation, are
            measured separately and do not count. None: all are measured.
        on_nonfinite: what happens when a value is NaN or infinite that should not be, in any step:
            it is recorded, warned of as well, or :class:`NonFiniteError` is raised where it was
            made. The same goes for what ``checks`` raise an alarm at.
        checks: functions of a path, a kind ("output", "output_gradient", "parameter",
            "parameter_gradient") and a tensor. What they return is noted: a number, or an
            :class:`Alarm`; None is not.
        device: the name of the device whose roofline says what each call should take. None: the GPU
            that the model is on, or the CPU once that was measured
            (``torchscan devices --measure``).
        expected: estimate what each call should take on the device.
        loop_iterations: the number of iterations of each ``torch.while_loop`` whose end depends on
            data, in estimated costs and times.
    """
    require_module(module)
    _require_number("warm_up", warm_up, 0)
    _require_number("steps", steps, 1)
    _require_number("loop_iterations", loop_iterations, 1)
    _require_checks(checks)
    if device is not None:
        device_named(device)
    return Run(
        module,
        warm_up=warm_up,
        steps=steps,
        on_nonfinite=on_nonfinite,
        checks=checks,
        device=device,
        expected=expected,
        loop_iterations=loop_iterations,
    )


def _require_number(name: str, number: int | None, least: int) -> None:
    if number is None:
        return
    if type(number) is not int or number < least:
        raise InputError.of_value(name, number, f"give a whole number, {least} or more")


def _require_checks(checks: Sequence[Check]) -> None:
    if callable(checks) or not all(map(callable, checks)):
        raise InputError(
            Argument("checks"),
            " is not a list of functions: give ",
            Give("checks", [TorchName("check")]),
        )


def guard_of(on_nonfinite: Reaction) -> NonFiniteGuard:
    """Return the guard that checks the steps of all models of a script."""
    return NonFiniteGuard(finding_listener(on_nonfinite))


def inspect_within(
    guard: NonFiniteGuard, module: nn.Module, *, steps: int, on_nonfinite: Reaction
) -> Run:
    """Return an inspection of a model in a script whose steps a guard checks."""
    return Run(
        module,
        warm_up=1,
        steps=steps,
        on_nonfinite=on_nonfinite,
        checks=(),
        device=None,
        guard=guard,
    )
