"""Sentences of findings about training: gradients, dead layers, slow layers, and the loss."""

from __future__ import annotations

from typing import Any

from torchscan import units
from torchscan.notes import register_texts

#: learning rate below which it is the reason that a network does not learn
_MIN_RATE = 1e-6


def write_value(value: float) -> str:
    """Return a value with three significant digits: ``0.2``, ``1.3e−9``."""
    size = abs(value)
    text = f"{value:.3g}"
    if value != 0 and not 1e-3 <= size < 1e4:
        digits, _, exponent = f"{value:.1e}".partition("e")
        text = f"{digits.removesuffix('.0')}e{int(exponent)}"
    return text.replace("-", "−")


def describe_vanishing(
    late: str,
    late_norm: float,
    early: str,
    early_norm: float,
    path: str,  # noqa: ARG001 - the page links to the module
) -> str:
    """Return from where to where the gradient norm falls, and what helps."""
    before, after = write_value(late_norm), write_value(early_norm)
    fall = f"falls from {before} in {late} to {after} in {early}"
    advice = "try residual connections, normalization or another activation function"
    return f"vanishing gradients: the gradient norm {fall}; {advice}"


def describe_exploding(
    late: str,
    late_norm: float,
    early: str,
    early_norm: float,
    path: str,  # noqa: ARG001
) -> str:
    """Return from where to where the gradient norm rises toward the input, and what helps."""
    before, after = write_value(late_norm), write_value(early_norm)
    rise = f"rises from {before} in {late} to {after} in {early}"
    advice = "try a smaller initialization, normalization or gradient clipping"
    return f"exploding gradients: the gradient norm {rise}; {advice}"


def describe_growth(start: float, end: float, step: int) -> str:
    """Return how far the gradient norm has grown over the run."""
    growth = f"has grown from {write_value(start)} to {write_value(end)} by step {step:,}"
    advice = "try gradient clipping or a smaller learning rate"
    return f"exploding gradients: the gradient norm {growth}; {advice}"


def describe_dead(
    layer: str,
    path: str,  # noqa: ARG001
    share: float,
    step: int,
    others: int,
) -> str:
    """Return which layer is dead, since which step, and what that means for training."""
    how_many = "all" if share >= 1 else units.share(share)
    more = ""
    if others:
        more = f", as in {others} other {'layers' if others > 1 else 'layer'}"
    since = f"since step {step:,}" if step else "from the first count on"
    dead = f"{how_many} units of {layer} have been zero for every input {since}{more}"
    return f"dead layer: {dead}; no gradient passes through them"


def describe_slow(
    layer: str,
    path: str,  # noqa: ARG001
    update: float,
    typical: float,
    others: int,
) -> str:
    """Return which layer does not learn, with its update ÷ weight and that of the median layer."""
    where = layer
    if others:
        where = f"{layer} and {others} more {'layers' if others > 1 else 'layer'}"
    verb = "do" if others else "does"
    ratio = f"update ÷ weight is {write_value(update)} in {layer}"
    median = f"{write_value(typical)} in the median layer"
    return f"slow layer: {where} {verb} not learn; {ratio}, {median}"


def describe_stuck(
    layers: int, update: float, gradient: float, rate: float | None, step: int | None
) -> str:
    """Return since when no layer has learned, and what the gradients and the rate tell of it."""
    where = {1: "the only layer", 2: "both layers"}.get(layers, f"all {layers} layers")
    since = "from the first recorded step on" if step is None else f"since step {step:,}"
    if gradient == 0:
        advice = "look for dead units, saturated activations, or a loss without these weights"
        return f"stuck network: the gradients of {where} have been 0 {since}; {advice}"
    size = f"at most {write_value(update)}" if update else "0"
    ratio = f"update ÷ weight has been {size} in {where} {since}"
    norms = f"with gradient norms of up to {write_value(gradient)}"
    if rate is None:
        advice = "check that an optimizer has these weights and makes steps"
    elif rate < _MIN_RATE:
        advice = f"the learning rate is {write_value(rate)}: try a larger one"
    else:
        advice = f"the learning rate is {write_value(rate)}: look for saturated activations"
    return f"stuck network: {ratio}, {norms}; 32-bit weights hardly change below 1e−7; {advice}"


def describe_loss(step: int, value: str, before: int | None) -> str:
    """Return the first step with such a loss, and the last one with a finite loss."""
    last = "" if before is None else f"; it was last finite in step {before:,}"
    return f"the loss is {value} from step {step:,} on{last}"


def describe_divergence(start: float, end: float, step: int, limit: float) -> str:
    """Return how far the loss has risen, since when it is high, and what helps."""
    rise = f"has risen from {write_value(start)} to {write_value(end)}"
    since = f"and has been above {write_value(limit)} since step {step:,}"
    advice = "try a smaller learning rate, a longer warm-up or gradient clipping"
    return f"diverging loss: it {rise}, {since}; {advice}"


def describe_spike(step: int, loss: float, before: float) -> str:
    """Return the step and the height of a spike, and the median loss before it."""
    height = f"{write_value(loss)}, median before it {write_value(before)}"
    return f"the loss spikes at step {step:,}: {height}"


def describe_overfitting(step: int, best: float, last: float, count: int) -> str:
    """Return the best evaluation, and how far its loss has risen since."""
    rise = f"was lowest, {write_value(best)}, at step {step:,}, {count} evaluations ago"
    advice = "keep the weights of that step, or try more data or regularization"
    return (
        f"overfitting: the evaluation loss {rise}, and is {write_value(last)} now, while the "
        f"training loss fell; {advice}"
    )


TEXTS: dict[str, Any] = {
    "gradients-vanish": describe_vanishing,
    "gradients-explode": describe_exploding,
    "gradients-grow": describe_growth,
    "layer-dead": describe_dead,
    "layer-does-not-learn": describe_slow,
    "network-stuck": describe_stuck,
    "loss-not-finite": describe_loss,
    "loss-diverges": describe_divergence,
    "loss-spike": describe_spike,
    "overfitting": describe_overfitting,
}
register_texts(TEXTS)
