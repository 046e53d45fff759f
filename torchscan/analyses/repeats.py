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
        children: list[tuple[str, int]] = []
        for child in call.children:
            path = trace.modules[child].path.removeprefix(call.path)
            children.append((path, kinds[child]))
        ops = [trace.ops[index] for index in call.ops]
        run = tuple([id(op.signature) for op in ops if op.phase == "forward"])
        ends = tuple([id(trace.tensors[index].spec) for index in (*call.inputs, *call.outputs)])
        kind = (call.type_name, tuple(children), run, ends)
        kinds[call.index] = known.setdefault(kind, len(known))
    return kinds


def is_next(one: str, other: str) -> bool:
    """Return whether a name is the next one of a numbered list."""
    before, after = NUMBERED.fullmatch(one), NUMBERED.fullmatch(other)
    if not before or not after:
        return False
    prefix, number = before.groups()
    next_prefix, next_number = after.groups()
    return prefix == next_prefix and int(next_number.strip("()")) == int(number.strip("()")) + 1


def from_to(first: str, last: str) -> str:
    """Return the range of two names: ``layers.0 … 31``, ``cell … (8)``.

    Of the last name, it has only what is different.
    """
    if first == last:
        return first
    numbered = NUMBERED.fullmatch(first)
    common = numbered[1] if numbered else first
    return f"{first} … {last.removeprefix(common).strip()}"
