"""Consecutive parts of a run, in each of which a statement about the run must hold.

If a statement were as likely to hold in a part as not, it would hold in all five in one of 32 runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

#: parts of a run, and so the steps that are needed at least
NUM_PARTS = 5
_T = TypeVar("_T")


def split_into_parts(values: Sequence[_T]) -> list[Sequence[_T]]:
    """Return five consecutive parts of about equal length."""
    edges = [len(values) * part // NUM_PARTS for part in range(NUM_PARTS + 1)]
    return [values[start:end] for start, end in pairwise(edges)]
