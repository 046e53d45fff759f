"""Consecutive parts of a run, in each of which a statement about the run must hold.

If a statement were as likely to hold in a part as not, it would hold in all five in one of 32 runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

#: parts of a run, and so the steps that are needed at least
NUM_PARTS = 5
_T = TypeVar("_T")


def split_into_parts(values: Sequence[_T]) -> list[Sequence[_T]]:
    """Return five consecutive parts of about equal length."""
    parts = []
    for number in range(NUM_PARTS):
        start = len(values) * number // NUM_PARTS
        end = len(values) * (number + 1) // NUM_PARTS
        parts.append(values[start:end])
    return parts
