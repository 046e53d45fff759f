"""Differences that are torch's own, each with its reason, so that new ones stand out."""

from __future__ import annotations

from collections.abc import Callable

from tests.random_modules.comparing import Difference

#: why, for the differences for which it holds
KNOWN: dict[str, Callable[[Difference], bool]] = {}


def reason_for(difference: Difference) -> str | None:
    """Why this difference is to be expected, if it is."""
    return next((reason for reason, holds in KNOWN.items() if holds(difference)), None)
