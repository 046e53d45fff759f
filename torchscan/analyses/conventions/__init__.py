"""Counts that other tools would report for a recorded pass, by their rules.

Rules are applied if they can be stated over operators and modules. Tools that count modules know
them by their class; a trace has the name of the class. docs/coming-from.md states what each tool
counts, and where a trace does not have what a rule needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from torchscan.analyses.conventions.flop_counter import flop_counter
from torchscan.analyses.conventions.fvcore import fvcore
from torchscan.analyses.conventions.ptflops import ptflops
from torchscan.analyses.conventions.rules import by_signature
from torchscan.analyses.conventions.thop import thop
from torchscan.analyses.conventions.torchinfo import torchinfo
from torchscan.errors import InputError
from torchscan.ops import compute_cost
from torchscan.trace.trace import Trace

Convention = Literal["torchscan", "flop_counter", "fvcore", "thop", "ptflops", "torchinfo"]
#: returns a number for each operator call
_Tool = Callable[[Trace], Sequence[int]]


def convention_macs(trace: Trace, convention: Convention) -> tuple[int, ...]:
    """Return a tool's number for each of ``trace.ops``; it reports their sum for the pass."""
    tool = _TOOLS.get(convention)
    if tool is None:
        raise InputError.of_choice("convention", convention, get_args(Convention))
    figures = tool(trace)
    if convention in _COUNT_BACKWARD:
        return tuple(figures)
    in_forward: list[int] = []
    for op, figure in zip(trace.ops, figures, strict=True):
        in_forward.append(figure if op.phase == "forward" else 0)
    return tuple(in_forward)


def _torchscan(trace: Trace) -> list[int]:
    return by_signature(trace, lambda signature: compute_cost(signature).cost.macs)


#: the others count the forward pass only
_COUNT_BACKWARD = ("torchscan", "flop_counter")
_TOOLS: Mapping[str, _Tool] = {
    "torchscan": _torchscan,
    "flop_counter": flop_counter,
    "fvcore": fvcore,
    "thop": thop,
    "ptflops": ptflops,
    "torchinfo": torchinfo,
}
