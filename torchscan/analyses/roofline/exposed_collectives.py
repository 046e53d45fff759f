"""The time of collectives that computation does not hide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchscan.analyses.roofline.collective_constants import BACKGROUND_COST
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace


class Waiting(NamedTuple):
    """Seconds of a phase: those that the device computes, and of collectives."""

    computing: float
    #: of those whose result is waited for, and of the first and the last of those in the background
    waited_for: float
    #: of the others, which go on while the device computes
    behind: float

    @property
    def left(self) -> float:
        """Seconds by which collectives in the background prolong a phase.

        They take multiprocessors and bandwidth from the computation, and go on if that has ended.
        """
        return max(BACKGROUND_COST * self.behind, self.behind - self.computing)


def waiting(
    trace: Trace, times: Mapping[int, float], computing: Mapping[Phase, float]
) -> dict[Phase, Waiting]:
    """Return by phase the time that computation waits for collectives.

    A function that is called for its result is waited for. FSDP and DDP communicate in the
    background.
    """
    found = {}
    phases = dict.fromkeys((*computing, *(trace.ops[index].phase for index in times)))
    for phase in phases:
        here = [index for index in times if trace.ops[index].phase == phase]
        inner = _inner_in_background(trace, here)
        rest = math.fsum(times[index] for index in here if index not in inner)
        behind = math.fsum(times[index] for index in inner)
        found[phase] = Waiting(computing.get(phase, 0.0), rest, behind)
    return found


def _inner_in_background(trace: Trace, collectives: Sequence[int]) -> frozenset[int]:
    """Return the collectives in the background, without the first and the last."""
    in_background = [index for index in collectives if is_in_background(trace, index)]
    return frozenset(in_background[1:-1])


def exposed(
    trace: Trace, times: Mapping[int, float], computing: Mapping[Phase, float]
) -> dict[int, float]:
    """Return the exposed time of each collective; those in the background share theirs."""
    waits = dict(times)
    for phase, each in waiting(trace, times, computing).items():
        here = [index for index in times if trace.ops[index].phase == phase]
        for index in _inner_in_background(trace, here):
            waits[index] = times[index] * each.left / each.behind if each.behind else 0.0
    return waits


def is_in_background(trace: Trace, index: int) -> bool:
    """Return whether a collective runs while the device computes.

    A function that is called in a backward pass is waited for if the next kernel reads its result.
    """
    op = trace.ops[index]
    name = op.signature.operator
    if name in ("c10d._allgather_base_", "c10d._reduce_scatter_base_"):  # as FSDP calls them
        return True
    if op.phase != "backward" or not name.startswith("c10d."):
        return False
    results = {trace.tensors[each].storage for each in (*op.inputs, *op.outputs)}
    for following in range(index + 1, len(trace.ops)):
        reader = trace.ops[following]
        is_collective = reader.signature.operator in COLLECTIVES
        if is_launched(reader.signature) and not is_collective:
            return results.isdisjoint([trace.tensors[each].storage for each in reader.inputs])
    return True


def hidden_share(times: Mapping[int, float], waits: Mapping[int, float]) -> float:
    """Return the share of communication time that is hidden behind computation."""
    whole = math.fsum(times.values())
    return 1 - math.fsum(waits.values()) / whole if whole else 0.0
