"""Modules that are like others: equal blocks of a numbered list."""

from __future__ import annotations

import re
from typing import Any

from torchscan.trace.trace import Trace

#: the number at the end of a name, or that of a call
NUMBERED = re.compile(r"(.*?)(\d+|\(\d+\))")


def kinds_of(trace: Trace) -> list[int]:
    """Number the kinds of calls.

    Calls are of one kind if they run the same operators on the same shapes in the same modules.
    """
    known: dict[tuple[Any, ...], int] = {}
    kinds = [0] * len(trace.modules)
    for call in reversed(trace.modules):  # children come after their parents
        below = tuple(
            (trace.modules[child].path.removeprefix(call.path), kinds[child])
            for child in call.children
        )
        run = tuple(
            id(trace.ops[op].signature) for op in call.ops if trace.ops[op].phase == "forward"
        )
        ends = tuple(id(trace.tensors[tensor].spec) for tensor in (*call.inputs, *call.outputs))
        kinds[call.index] = known.setdefault((call.type_name, below, run, ends), len(known))
    return kinds


def is_next(one: str, other: str) -> bool:
    """Return whether a name is the next one of a numbered list."""
    before, after = map(NUMBERED.fullmatch, (one, other))
    return bool(
        before
        and after
        and before[1] == after[1]
        and int(after[2].strip("()")) == int(before[2].strip("()")) + 1
    )


def from_to(first: str, last: str) -> str:
    """``layers.0 … 31``, ``cell … (8)``: of the last what is different."""
    if first == last:
        return first
    numbered = NUMBERED.fullmatch(first)
    return f"{first} … {last.removeprefix(numbered[1] if numbered else first).strip()}"
