"""Costs of kernels beyond the necessary arithmetic and traffic: tiles, layouts, loops.

A rule is a function of a call's signature, its cost and the :class:`Machine` that runs it,
registered for the operators that it describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchscan.analyses.roofline.constants import MATRICES, STREAMING, VECTORS
from torchscan.ops import OpCost
from torchscan.torch_versions import aten
from torchscan.trace.events import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The parts of a device that the time of a kernel depends on."""

    multiprocessors: int
    #: cycles per second, or None if they are not known
    clock_hz: float | None = None
    #: operations of products that a multiprocessor issues in a cycle, in the format of the call, or
    #: None if not known
    flops_per_cycle: float | None = None
    #: threads of vector units in a multiprocessor
    vector_lanes: float = 128.0
    is_hopper: bool = False
    #: True if attention runs as FlashAttention 3, with the asynchronous instructions of Hopper
    has_async_attention: bool = False
    #: True if torch runs the backward pass of attention with asynchronous instructions
    has_async_backward: bool = False
    #: bytes of the second-level cache, or None if they are not known
    l2_bytes: int | None = None
    #: cycles for each element of pointwise kernels that load one at a time, beyond its traffic
    cycles_of_element: float = 0.0
    #: the share of the device's bandwidth that products of matrices reach
    product_traffic: float = STREAMING

    def seconds(self, cycles: float) -> float:
        """Return the seconds that one multiprocessor needs for these cycles."""
        return cycles / self.clock_hz if self.clock_hz else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The way in which a call runs."""

    #: the share of the device's bandwidth that it reaches
    traffic: float = STREAMING
    #: of that, what it reaches among compiled kernels
    among_compiled: float = 1.0
    #: the share of the matrix units' peak that its products reach
    matrices: float = MATRICES
    #: the share of the vector units' peak that all other arithmetic reaches
    vectors: float = VECTORS
    #: where its products run
    units: Literal["matrix", "vector", "faster"] = "matrix"
    #: bytes of memory traffic beyond the necessary ones
    more_bytes: float = 0.0
    #: cycles of all multiprocessors that these take at least in torch's kernels
    more_cycles: float = 0.0
    #: bytes that it reads again from the second-level cache
    cached_bytes: float = 0.0
    #: and those of adding a bias in a kernel of its own; compiled code adds it in the next
    bias_bytes: float = 0.0
    #: and those that pass because operands lie in another layout, which compiled code avoids
    turned_bytes: float = 0.0
    #: seconds that overlap with nothing else
    alone: float = 0.0
    #: the number of kernels launched
    launches: int = 1
    #: True if vector units compute while matrix units wait, so that it draws power all the time
    keeps_busy: bool = False
    #: cycles of all multiprocessors together
    cycles: float = 0.0
    #: of the products that it counts, the share that it has to compute, and that it does
    min_share: float = 1.0
    executed: float = 1.0
    #: the share that no algorithm can do without that transforms operands and results; on vector
    #: units only
    transformed: float = 1.0


Rule = Callable[[OpSignature, OpCost, Machine], Kernel]
rules: dict[str, Rule] = {}


#: memory without content, values that the host asks for, and rows that other kernels select
_NOT_LAUNCHED = (
    *("empty", "new_empty", "lift_fresh", "_local_scalar_dense"),
    *("torchscan.own_picks", "torchscan.all_rows"),
)


def is_launched(signature: OpSignature) -> bool:
    """Return whether a call launches a kernel."""
    if signature.is_view:
        return False
    return not signature.operator.removeprefix("aten.").startswith(_NOT_LAUNCHED)


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule for operators of torch, or ``"library::name"``.

    A name that torch does not have raises, and so does a second rule.
    """

    def register(made: Rule) -> Rule:
        for operator in operators:
            is_of_torch = "::" not in operator
            name = str(getattr(aten, operator)) if is_of_torch else operator.replace("::", ".")
            if name in rules:
                raise ValueError(f"{name} has a rule already")
            rules[name] = made
        return made

    return register
