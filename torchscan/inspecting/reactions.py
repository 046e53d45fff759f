"""Reactions to values that are not finite and to alarms of checks: record, warn or raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torchscan.errors import AlarmError, InputError, NonFiniteError, TorchscanError
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.values import Listener
from torchscan.user_warnings import warn_user

Reaction = Literal["record", "warn", "raise"]


def finding_listener(reaction: Reaction) -> Listener:
    """Return the function that gets each finding, which is in the results in any case."""
    if reaction not in get_args(Reaction):
        raise InputError.of_choice("on_nonfinite", reaction, get_args(Reaction))
    if reaction == "raise":
        return _raising(NonFiniteError)
    if reaction == "warn":
        return _warn_once()
    return lambda _: None


def alarm_listener(reaction: Reaction) -> Callable[[CheckResult], None]:
    """Return the function that gets each alarm of a check."""
    if reaction == "raise":
        return _raising(AlarmError)
    if reaction == "warn":
        return lambda found: warn_user(str(found))
    return lambda _: None


def _warn_once() -> Listener:
    """Return a function that warns once per source."""
    reported: set[tuple[str, str]] = set()

    def warn(found: NonFinite) -> None:
        source = found.phase, found.path
        if source not in reported:
            reported.add(source)
            warn_user(str(found))

    return warn


def _raising(kind: type[TorchscanError]) -> Callable[[object], None]:
    """Return a function that raises an error with the text of a finding."""

    def raise_error(found: object) -> None:
        raise kind(str(found))

    return raise_error
