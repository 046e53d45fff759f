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
from torchscan.analyses.conventions.thop import thop
from torchscan.analyses.conventions.torchinfo import torchinfo
from torchscan.errors import InputError
from torchscan.ops import compute_cost
from torchscan.trace.trace import Trace

Convention = Literal["torchscan", "flop_counter", "fvcore", "thop", "ptflops", "torchinfo"]


def convention_macs(trace: Trace, convention: Convention) -> tuple[int, ...]:
    """For each of ``trace.ops``, a tool's number; their sum is what it would have reported for the whole pass."""
    tool = _TOOLS.get(convention)
    if tool is None:
        raise InputError.of_choice("convention", convention, get_args(Convention))
    figures = tool(trace)
    if convention in _SEE_GRADIENTS:
        return tuple(figures)
    return tuple(
        figure if op.phase == "forward" else 0
        for op, figure in zip(trace.ops, figures, strict=True)
    )


def _torchscan(trace: Trace) -> list[int]:
    distinct = {id(op.signature): op.signature for op in trace.ops}
    macs = {key: compute_cost(signature).cost.macs for key, signature in distinct.items()}
    return [macs[id(op.signature)] for op in trace.ops]


#: the others look at the forward pass only
_SEE_GRADIENTS = ("torchscan", "flop_counter")
_TOOLS: Mapping[str, Callable[[Trace], Sequence[int]]] = {
    "torchscan": _torchscan,
    "flop_counter": flop_counter,
    "fvcore": fvcore,
    "thop": thop,
    "ptflops": ptflops,
    "torchinfo": torchinfo,
}
