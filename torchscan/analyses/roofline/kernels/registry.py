"""What the kernel of a call does besides the arithmetic and the traffic that it has to: tiles, layouts, loops.

A rule is a function of the signature of a call, of its cost and of how many multiprocessors the device has, registered for the
operators that it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from torchscan.analyses.roofline.constants import MATRICES, STREAMING, VECTORS
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """How a call runs."""

    #: of the device's bandwidth, what it gets
    traffic: float = STREAMING
    #: of the peak of matrix units, what it gets of its products
    matrices: float = MATRICES
    #: of the peak of vector units, what it gets of all other arithmetic
    vectors: float = VECTORS
    #: where its products run
    units: Literal["matrix", "vector", "faster"] = "matrix"
    #: bytes that pass through memory besides those that have to
    more_bytes: float = 0.0
    #: and those that pass because operands lie in another layout, which compiled code avoids
    turned_bytes: float = 0.0
    #: seconds that nothing else hides
    alone: float = 0.0
    #: how many kernels are launched
    launches: int = 1
    #: cycles of all multiprocessors together
    cycles: float = 0.0
    #: of the products that it counts, the share that it has to compute, and that it does
    least: float = 1.0
    executed: float = 1.0


Rule = Callable[[OpSignature, OpCost, int], Kernel]
rules: dict[str, Rule] = {}


#: memory without content, and values that the host asks for
_NOT_LAUNCHED = ("empty", "new_empty", "lift_fresh", "_local_scalar_dense")


def is_launched(signature: OpSignature) -> bool:
    """Whether a call makes the device do anything."""
    return not signature.is_view and not signature.operator.removeprefix("aten.").startswith(_NOT_LAUNCHED)


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """For operators of torch's; a name that it does not have raises, and so does a second rule."""

    def register(made: Rule) -> Rule:
        for operator in operators:
            name = str(getattr(torch.ops.aten, operator))
            if name in rules:
                raise ValueError(f"{name} has a rule already")
            rules[name] = made
        return made

    return register
