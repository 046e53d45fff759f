"""Operators that draw random numbers."""

from __future__ import annotations

from typing import Any

from torchscan.recording.execution.calls import About, OpRequest
from torchscan.torch_versions import aten

#: arguments that are false, or zero, where nothing is drawn
_SWITCHES = frozenset({"p", "dropout", "dropout_p", "train", "training"})
_FRACTIONS = frozenset({aten.rand, aten.rand_like})


def drawn_by(request: OpRequest) -> About | None:
    """Return the kind of the random numbers in a call's results, or None if it draws none.

    Dropout that is switched off draws none.
    """
    if not request.traits.may_draw or _is_switched_off(request):
        return None
    return About.FRACTIONS if request.op.overloadpacket in _FRACTIONS else About.DRAWN


def _is_switched_off(request: OpRequest) -> bool:
    switches = [value for name, value in _arguments(request).items() if name in _SWITCHES]
    return any(isinstance(value, int | float) and not value for value in switches)


def _arguments(request: OpRequest) -> dict[str, Any]:
    schema = request.op._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema}
    return {**defaults, **dict(zip(defaults, request.args, strict=False)), **request.kwargs}


def after_fractions(request: OpRequest) -> About:
    """No fraction is below zero: a layer that is never dropped is not a matter of chance."""
    is_certain = request.op is aten.lt.Scalar and request.args[1] <= 0
    return About.IDS if is_certain else About.DRAWN
