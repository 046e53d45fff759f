"""Sentences of what inspections find: sources of NaN and Inf, results of checks, stragglers."""

from __future__ import annotations

from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.findings import Bad, NonFinite, Range
from torchscan.inspecting.stragglers import Straggler
from torchscan.notes import register_description
from torchscan.report import run_texts  # noqa: F401 - registers the sentences of reasons
from torchscan.units import duration, share

#: what a check that is read later comes before or after
_WHEN = {
    "backward": " after backward()",
    "gradient": " before the optimizer's step",
    "optimizer": " after the optimizer's step",
    "update": " after the optimizer's step",
}


def range_text(values: Range) -> str:
    """Return ``input 0: -2.1 … 3.4, 2 NaN``."""
    parts = _counts(values.nan, values.inf)
    if values.min is not None and values.max is not None:
        parts.insert(0, f"{values.min:.3g} … {values.max:.3g}")
    return f"{values.name}: {', '.join(parts)}"


def bad_text(bad: Bad) -> str:
    """Return ``weight: 1 NaN of 64``."""
    return f"{bad.name}: {' and '.join(_counts(bad.nan, bad.inf))} of {bad.numel:,}"


def _counts(nan: int, inf: int) -> list[str]:
    return [f"{number:,} {name}" for number, name in ((nan, "NaN"), (inf, "Inf")) if number]


# -- sources of NaN and Inf ------------------------------------------------------------------------


def finding_text(found: NonFinite) -> str:
    """Return where the first non-finite value of a step was, and what is known of its source."""
    if found.checked is not None:
        where = f"{found.checked} was {found.kind}{_WHEN.get(found.phase, '')}{_at(found)}"
        return f"{where}{_reasons(found)}"
    if found.phase in ("gradient", "optimizer"):
        return f"{_around_update(found)}{_reasons(found)}"
    weights = "; ".join(map(str, found.weights))
    if found.phase == "update" and weights:
        parts = [f"first {found.kind} {_place(found)}: {weights}"]
    else:
        parts = [f"first {found.kind} {_place(found)}{_num_values(found)}"]
    if found.phase == "forward" and weights:
        parts.append(f"because of its {weights}")
    source = _source(found)
    if source:
        parts.append(source)
    return f"{'; '.join(parts)}{_reasons(found)}{_inputs(found)}"


def _inputs(found: NonFinite) -> str:
    """Return the ranges of the inputs: of an operator outside the model, else of the module."""
    if not found.inputs:
        return ""
    taker = f"module {found.path}" if found.path else "the model"
    if found.phase == "loss":
        taker = found.operator or "the operator"
    return f"; {taker} was given {', '.join(map(str, found.inputs))}"


def _at(found: NonFinite) -> str:
    return "" if found.line is None else f" at {found.line}"


def _num_values(found: NonFinite) -> str:
    if not found.numel:
        return ""
    if found.nan and found.inf:
        return f": {' and '.join(_counts(found.nan, found.inf))} of {found.numel:,} values"
    number = found.nan or found.inf
    verb = "is" if number == 1 else "are"
    return f": {number:,} of {found.numel:,} values {verb} {found.kind}"


def _source(found: NonFinite) -> str:
    """Return the operator, or what else is the source, with its line; or "" if it is not known."""
    name = found.operator or ("" if found.origin is None else str(found.origin))
    if not name and found.line is None:
        return ""
    then = (
        ""
        if found.nan_operator is None
        else f" returned Inf, which became NaN in {found.nan_operator}"
    )
    mask = "" if found.mask is None else f", with infinities from {found.mask}"
    return f"source: {name or 'the code'}{_at(found)}{then}{mask}"


def _reasons(found: NonFinite) -> str:
    cause = "" if found.cause is None else f"; {found.cause}"
    unknown = "" if found.unknown is None else f"; the operator is unknown: {found.unknown}"
    unsure = "" if found.unsure is None else f"; not certain: {found.unsure}"
    return f"{cause}{unknown}{unsure}"


def _place(found: NonFinite) -> str:
    if found.phase == "input":
        return f"in the input of {'the model' if found.root is None else found.root}"
    if found.phase == "loss":
        return _place_after_model(found)
    name = _name(found)
    if found.phase == "update":
        return f"in {name} after the step"
    if found.phase == "backward":
        return f"in a gradient of {name}, backward pass"
    thread = " in another thread" if found.in_thread else ""
    return f"in the output of {name}, forward pass{thread}"


def _name(found: NonFinite) -> str:
    """Return ``layers.0 (Linear, call 2)``, with the root module if it is another one."""
    call = f", call {found.invocation + 1}" if found.invocation else ""
    if found.root is None:
        return f"{found.path or 'the model'} ({found.type_name}{call})"
    if not found.path:
        return found.root
    return f"{found.path} ({found.type_name}{call}) of {found.root}"


def _place_after_model(found: NonFinite) -> str:
    if found.is_user_gradient:
        return "in the gradient that was passed to backward()"
    if found.operator is None and found.unknown is None:
        return "in the gradient of the model's output, computed by code after the model"
    module = f" in {found.type_name}," if found.type_name else ""
    return f"produced{module} between the model's output and the loss"


def _around_update(found: NonFinite) -> str:
    """Return a sentence about parameters or gradients before or after the optimizer's step."""
    first = found.weights[0] if found.weights else None
    bad = first or Bad("parameter", found.nan, found.inf, found.numel)
    name = ".".join(filter(None, (found.path, bad.name)))
    of_root = "" if found.root is None else f" of {found.root}"
    counted = f" ({' and '.join(_counts(bad.nan, bad.inf))} of {bad.numel:,} values)"
    number = len(found.weights) - 1 + found.num_others
    more = f" and {number} more" if number > 0 else ""
    step = f"{found.operator or 'the optimizer'}{_at(found)}"
    parameter = f"{name}{of_root}{counted}{more}"
    if found.phase == "gradient":
        return f"the gradient of {parameter} was not finite before {step}"
    gradients = "their gradients are finite" if number > 0 else "its gradient is finite"
    return f"parameter {parameter} became {found.kind} in {step}, although {gradients}"


# -- checks and stragglers -------------------------------------------------------------------------


def checked_text(checked: CheckResult) -> str:
    """Return ``norm of layers.0, output: 12.5``."""
    kind = checked.kind.replace("_", " ")
    result = checked.message if checked.value is None else f"{checked.value:.6g}"
    return f"{checked.check} of {checked.path or 'the model'}, {kind}: {result}"


def straggler_text(straggler: Straggler) -> str:
    """Return how far a rank lags, where, and where the others wait for it."""
    lag = share(straggler.share)
    if straggler.is_of_steps:
        how = f"in each step ({lag})"
    else:
        how = f"each time ({lag} of the time between)"
    lost = ""
    if straggler.phase is not None:
        lost = f", {duration(straggler.lost)} of it {_lost_in(straggler)}"
    of_module = f" of {straggler.waits_in}" if straggler.waits_in else ""
    return (
        f"rank {straggler.rank} lags by {duration(straggler.seconds)} {how}{lost}; "
        f"the other ranks wait for it in the next {straggler.kind}{of_module}"
    )


def _lost_in(straggler: Straggler) -> str:
    if straggler.type_name:
        name = straggler.layer or "the model itself"
        return f"in {name} ({straggler.type_name}), {straggler.phase}"
    if straggler.phase == "backward":
        return "in the backward pass, outside modules (for example in a hook)"
    return "outside the model"


register_description(Range, range_text)
register_description(Bad, bad_text)
register_description(NonFinite, finding_text)
register_description(CheckResult, checked_text)
register_description(Straggler, straggler_text)
