"""Whether a model stays within its limits, and which layers are to blame where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from torch import nn

from torchscan import units
from torchscan.budgets.file import BASELINE_FIGURES, Budget
from torchscan.errors import BudgetError, InputError, UnpricedError
from torchscan.figures import FIGURES, Measured, Question, activation_peak, limits_of, measure
from torchscan.files import write_text
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.precision import Precision
from torchscan.recording.request import Mode
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.report.columns import full_name_of
from torchscan.report.compare import Comparison, compare_info, growth
from torchscan.report.data import read_report, to_json
from torchscan.report.info import Info
from torchscan.report.info_data import Layer, summed
from torchscan.report.table import printable
from torchscan.targets import Built, asked, with_model

_MOST_LAYERS = 5


@dataclass(frozen=True, slots=True)
class Excess:
    """One figure that is more than it may be."""

    figure: str
    value: float
    allowed: float
    #: the baseline's; None: the limit stands in the budget
    before: float | None
    #: the layers to look at, each with what it adds
    layers: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        figure = FIGURES[self.figure]
        value, allowed = figure.text(self.value), figure.text(self.allowed)
        if value == allowed:  # what is too much by less than is shown
            value, allowed = f"{self.value:,.12g}", f"{self.allowed:,.12g}"
        before = "" if self.before is None else f"{figure.text(self.before)} before, "
        head = f"{figure.heading}: {value}, {before}at most {allowed} ({growth(self.allowed, self.value)})"
        return "\n".join([head, *(f"  {name}: {what}" if what else f"  {name}" for name, what in self.layers)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found."""

    name: str
    figures: Mapping[str, float]
    excesses: tuple[Excess, ...] = ()
    #: what is worth saying though nothing is exceeded
    remarks: tuple[str, ...] = ()
    #: whether every operator has a price; if not, costs are lower bounds
    is_complete: bool = True

    @property
    def is_fine(self) -> bool:
        """Whether all is within its limits."""
        return not self.excesses

    def __str__(self) -> str:
        """One line where all is well; else what is too much, and the layers to look at."""
        known = {name: FIGURES[name].written(value, is_complete=self.is_complete) for name, value in self.figures.items()}
        figures = ", ".join(f"{FIGURES[name].heading} {text}" for name, text in known.items())
        head = f"{self.name}: {figures}" if self.is_fine else f"{self.name} exceeds its budget"
        body = [line for excess in self.excesses for line in str(excess).split("\n")]
        return "\n".join([head, *(f"  {line}" for line in [*body, *self.remarks])])


def assert_budget(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode | None = None,
    training: bool = False,
    optimizer: OptimizerChoice | None = None,
    precision: Precision | None = None,
    device: str | None = None,
    strict: bool = True,
    max_params: float | str | None = None,
    max_trainable_params: float | str | None = None,
    max_model_size: float | str | None = None,
    max_macs: float | str | None = None,
    max_flops: float | str | None = None,
    max_dmas: float | str | None = None,
    max_activation_memory: float | str | None = None,
    max_peak_memory: float | str | None = None,
    max_latency: float | str | None = None,
) -> None:
    """Raise :class:`BudgetError`, an ``AssertionError``, if a figure of ``module`` is more than it may be.

    Inputs, ``batch_size`` and ``mode`` are those of :func:`record`; ``training``, ``optimizer``, ``precision`` and
    ``device``, for limits of memory and latency, those of :func:`estimate_memory` and :func:`analyze_roofline`. Limits are
    numbers or texts: ``25e6``, ``"25M"``, ``"4.2G"``, ``"100 MiB"``, ``"12 ms"``. With ``strict``, costs that are only known
    from below cannot be within a limit: an operator without a price raises :class:`UnpricedError`.
    """
    given = {
        "params": max_params,
        "trainable_params": max_trainable_params,
        "model_size": max_model_size,
        "macs": max_macs,
        "flops": max_flops,
        "dmas": max_dmas,
        "activation_memory": max_activation_memory,
        "peak_memory": max_peak_memory,
        "latency": max_latency,
    }
    limits = limits_of(given)
    if not limits:
        raise InputError('no limit was given: assert_budget(model, (3, 224, 224), max_params="25M"), say')
    question = Question(module, input_shape, dtype, args, kwargs, batch_size, mode, training, optimizer, precision, device)
    outcome = check_model(Budget(type(module).__name__, limits=limits, strict=strict), question)
    if not outcome.is_fine:
        raise BudgetError(str(outcome))


def check_budget(budget: Budget, *, update: bool = False, is_own_process: bool = True) -> Outcome:
    """Build the target of a budget and check it. With ``update`` its baseline is recorded anew."""
    if budget.target is None:
        raise InputError(f"{budget.place}: there is no target to build: give one, or check it in a test")

    def check(built: Built) -> Outcome:
        return check_model(budget, question_of(budget, built.converted(budget.dtype)), update=update)

    return with_model(budget.target, check, folder=budget.folder, is_own_process=is_own_process)


def check_model(budget: Budget, question: Question, *, update: bool = False) -> Outcome:
    """Check a model that is there. With ``update`` the baseline is recorded anew, and cannot be exceeded."""
    wanted = dict.fromkeys([*budget.limits, *(BASELINE_FIGURES if budget.baseline is not None else ())])
    measured = measure(question, wanted)
    if budget.strict:
        _require_prices(budget, measured, wanted)
    values = {name: FIGURES[name].value(measured) for name in wanted}
    excesses = [_over(name, values[name], limit, measured) for name, limit in budget.limits.items() if values[name] > limit]
    remarks: list[str] = []
    if budget.baseline is not None:
        if update:
            remarks.append(_record_baseline(budget, measured.info))
        else:
            grown, remarks = _against_baseline(budget, measured.info, values)
            excesses += grown
    return Outcome(printable(budget.name), values, tuple(excesses), tuple(remarks), measured.is_complete)


def question_of(budget: Budget, built: Built, **given: Any) -> Question:
    """What a budget asks of a model; what is ``given`` besides goes before."""
    names = ("batch_size", "mode", "training", "optimizer", "precision", "device")
    has_inputs = not {"input_shape", "args", "kwargs"}.isdisjoint(given)
    inputs = {} if has_inputs else asked(str(budget.target or budget.place), built, budget.inputs, budget.dtype)
    return Question(built.module, **{name: getattr(budget, name) for name in names} | inputs | given)


def _require_prices(budget: Budget, measured: Measured, wanted: Mapping[str, None]) -> None:
    costs = [name for name in wanted if FIGURES[name].is_cost]
    if costs and not measured.is_complete:
        names = ", ".join([*measured.info["unpriced"], *measured.info["provenance"]["missed"]])
        raise UnpricedError(
            f"{budget.place or budget.name}: {FIGURES[costs[0]].heading} are only known from below, because these have no "
            f"price: {names}; price them (docs/adding-operators.md), or take strict=False for the bound"
        )


# -- limits --------------------------------------------------------------------------------------------------------------


def _over(name: str, value: float, limit: float, measured: Measured) -> Excess:
    return Excess(name, value, limit, None, tuple(_largest(name, measured)))


def _largest(name: str, measured: Measured) -> list[tuple[str, str]]:
    """The layers that have the most of it; of memory and times those of the estimates."""
    keys = FIGURES[name].keys
    if keys:

        def own(layer: Layer) -> int:
            return summed(layer, keys)

        largest = sorted(measured.info["layers"], key=own, reverse=True)[:_MOST_LAYERS]
        return [(f"{full_name_of(layer)} ({layer['type']})", FIGURES[name].text(own(layer))) for layer in largest if own(layer)]
    if name == "activation_memory" and (moment := activation_peak(measured)) is not None:
        return [(f"peak in {moment.layer or 'the model'}", moment.operator)]
    if name == "peak_memory" and measured.memory is not None:
        return [(f"peak in {measured.memory.peak_layer or 'the model'}", measured.memory.peak_operator)]
    if measured.roofline is None:
        return []
    leaves = {layer["path"] for layer in measured.info["layers"] if layer["is_leaf"]}
    slowest = sorted((each for each in measured.roofline.layers if each.name in leaves), key=lambda each: -each.time_estimate)
    shown = [each for each in slowest[:_MOST_LAYERS] if each.time_estimate]
    return [(each.name or "the model", units.duration(each.time_estimate)) for each in shown]


# -- baselines -----------------------------------------------------------------------------------------------------------


def _record_baseline(budget: Budget, info: Info) -> str:
    assert budget.baseline is not None  # noqa: S101 - or there is nothing to update
    write_text(budget.baseline, to_json(info) + "\n")
    return f"baseline recorded in {_from_here(budget.baseline)}"


def _against_baseline(budget: Budget, info: Info, values: Mapping[str, float]) -> tuple[list[Excess], list[str]]:
    assert budget.baseline is not None  # noqa: S101 - it is what was asked for
    if not budget.baseline.exists():
        raise InputError(
            f"{budget.place}: there is no baseline {_from_here(budget.baseline)!r} yet: "
            "record it with torchscan check --update, or pytest --torchscan-update"
        )
    try:
        before = read_report(budget.baseline)
    except InputError as error:
        raise InputError(f"{budget.place}: the baseline cannot be used: {error}") from error
    comparison = compare_info(before, info)
    _require_same_question(budget, comparison)
    old = {name: float(FIGURES[name].value(Measured(before))) for name in BASELINE_FIGURES}
    excesses = [
        Excess(name, values[name], allowed, old[name], tuple(_grown(name, comparison)))
        for name in BASELINE_FIGURES
        if values[name] > (allowed := _more(old[name], budget.tolerance.get(name, 0.0)))
    ]
    shrunk = [FIGURES[name].heading for name in BASELINE_FIGURES if values[name] < old[name]]
    hint = f"less than the baseline: {', '.join(shrunk)}; record it anew to keep it so (--update)"
    return excesses, [hint] if shrunk and not excesses else []


def _from_here(path: Path) -> str:
    """As one would write it here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _more(value: float, share: float) -> float:
    """Without the rounding of binary fractions: 15 % more than 100 is 115, and not a little less."""
    return float(Fraction(value) * (1 + Fraction(str(share))))


def _require_same_question(budget: Budget, comparison: Comparison) -> None:
    """Figures for other inputs say nothing about the model. Another torch or torchscan may count otherwise: that is growth."""
    differ = [key for key in ("inputs", "batch_size", "mode", "convention", "backward") if key in comparison.passes]
    if differ:
        raise InputError(
            f"{budget.place}: the baseline is that of other {', '.join(each.replace('_', ' ') for each in differ)}: "
            "record it anew (--update)"
        )


def _grown(name: str, comparison: Comparison) -> list[tuple[str, str]]:
    keys, text = FIGURES[name].keys, FIGURES[name].text
    grown = comparison.grown(*keys)
    lines = [
        (
            f"{full_name_of(each.layer)} ({each.layer['type']})",
            f"{'new, ' if each.kind == 'added' else ''}+{text(each.difference(*keys))}",
        )
        for each in grown[:_MOST_LAYERS]
    ]
    more = [(f"… and {len(grown) - _MOST_LAYERS} more layers", "")] if len(grown) > _MOST_LAYERS else []
    return lines + more
