"""``assert_budget``: limits on a model, or on a result that exists already."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from torch import nn

from torchscan.budgets.budget_check import check_model
from torchscan.budgets.budget_definition import Budget
from torchscan.budgets.generation_limits import GenerationLimits
from torchscan.budgets.plan_limits import PlanLimits
from torchscan.budgets.result_kinds import kind_of
from torchscan.budgets.result_limits import LimitedResult, check_result, numbers_of
from torchscan.errors import Argument, BudgetError, InputError
from torchscan.metrics import METRICS
from torchscan.question import DEFAULTS
from torchscan.recording.arguments import DEFINITIONS, StepArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.scan import Scan
from torchscan.signatures import spelled_out
from torchscan.user_warnings import warn_user


class Limits(TypedDict, total=False):
    """Upper limits of what a model may have or cost, as numbers or as text with a unit.

    Bare numbers are counts, bytes and seconds. A latency of 10 seconds or more needs a unit, since
    60 may be meant as 60 ms.

    Args:
        max_params: parameters: ``25e6`` or ``"25M"``.
        max_trainable_params: parameters that require gradients.
        max_model_size: bytes of parameters and buffers: ``"100 MiB"``.
        max_macs: multiply-accumulates of the forward pass: ``"4.2G"``.
        max_flops: floating-point operations of the forward pass.
        max_dmas: memory accesses of the forward pass, in elements.
        max_activation_memory: peak bytes of activations.
        max_peak_memory: peak bytes of everything.
        max_latency: the estimated time on ``device``: ``"12 ms"``.
    """

    max_params: float | str | None
    max_trainable_params: float | str | None
    max_model_size: float | str | None
    max_macs: float | str | None
    max_flops: float | str | None
    max_dmas: float | str | None
    max_activation_memory: float | str | None
    max_peak_memory: float | str | None
    max_latency: float | str | None


class BudgetArguments(StepArguments, Limits, GenerationLimits, PlanLimits, total=False):
    """The arguments of a scan, and the limits."""


LIMITS = frozenset(
    name
    for definition in (Limits, GenerationLimits, PlanLimits)
    for name in definition.__annotations__
)


@spelled_out(DEFAULTS, [*DEFINITIONS, Limits, GenerationLimits, PlanLimits])
def assert_budget(
    module: nn.Module | Scan | LimitedResult,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    strict: bool = True,
    per_sample: bool = False,
    **asked: Unpack[BudgetArguments],
) -> None:
    """Raise :class:`BudgetError`, an ``AssertionError``, if a model or a result exceeds a limit.

    Estimates are compared as they are; the message states how far they may be off. A result needs
    no further arguments, and takes the limits of its type only.

    Args:
        module: the model, or a result: an info dict, a memory estimate, a roofline, a generation, a
            plan, or a :class:`Scan`.
        strict: raise :class:`MissingFormulaError` if only a bound is known for a limited metric,
            because it then cannot be shown to stay within its limit.
        per_sample: divide MACs, FLOPs, DMAs and latency by ``batch_size`` before they are compared
            with their limits. Parameters and memory are those of the whole pass.
    """
    __tracebackhide__ = True  # pytest shows the test, and the message
    given: dict[str, Any] = {"input_shape": input_shape, "dtype": dtype, **asked}
    given = {name: value for name, value in given.items() if value is not None}
    limits = {name: given.pop(name) for name in list(given) if name in LIMITS}
    kind = kind_of(module)
    if kind is not None:
        outcome = check_result(
            module, kind, limits, strict=strict, per_sample=per_sample, others=given
        )
    else:
        budget = Budget(
            name=type(module.question.module if isinstance(module, Scan) else module).__name__,
            limits=numbers_of(limits, METRICS, "a model", 'max_params="25M"'),
            strict=strict,
            per_sample=per_sample,
        )
        outcome = check_model(budget, _scan_of(module, given))
    for remark in outcome.remarks:
        warn_user(str(remark))
    if not outcome.is_fine:
        raise BudgetError(str(outcome))


def _scan_of(module: Any, given: dict[str, Any]) -> Scan:
    if not isinstance(module, Scan):
        return Scan(module, **given)
    if given:
        raise InputError(
            Argument(next(iter(given))), " is for a model, and this is a Scan: give it to the Scan"
        )
    return module
