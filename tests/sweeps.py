"""Cases that take long and are much like others: ``scripts/test -m sweep`` runs them, and nothing else does."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[str], swept: Collection[str]) -> list[Any]:
    """All of them, those that are ``swept`` with the mark."""
    found = list(cases)
    unknown = set(swept) - set(found)
    assert not unknown, f"there is no {', '.join(sorted(unknown))}"
    return [
        pytest.param(each, marks=pytest.mark.sweep) if each in swept else each for each in found
    ]
