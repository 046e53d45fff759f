"""Moments at which the memory of a pipeline's rank can be largest.

They follow from the schedule alone, so they are worked out once for steps with other stages.

Results stay until their backward pass. In schedules with several stages on each rank, torch waits
for what it sent at the end of the step only, so results and gradients of inputs stay until then.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torchscan.analyses.mesh_derivation import StageCosts
from torchscan.analyses.pipeline_schedule import Direction, Schedule, Task
from torchscan.analyses.pipeline_times import rank_orders

#: numbers of microbatches, by stage of a rank
_Counts = tuple[int, ...]


class PassMoment(NamedTuple):
    """A pass of a rank, with the microbatches that the rank keeps beside that of the pass."""

    #: place of the stage that runs, among those of the rank
    place: int
    direction: Direction
    #: numbers of microbatches, by stage: whose activations are kept, whose gradients of parameters
    #: are computed later, whose result is kept, and whose gradient of the input is
    counts: _Counts

    @property
    def _num_stages(self) -> int:
        return len(self.counts) // 4

    @property
    def kept(self) -> _Counts:
        """Microbatches whose activations are kept, by stage."""
        return self.counts[: self._num_stages]

    @property
    def pending(self) -> _Counts:
        """Microbatches whose gradients of parameters are computed later, by stage."""
        return self.counts[self._num_stages : 2 * self._num_stages]

    @property
    def results(self) -> _Counts:
        """Microbatches whose result is kept, by stage."""
        return self.counts[2 * self._num_stages : 3 * self._num_stages]

    @property
    def gradients(self) -> _Counts:
        """Microbatches whose gradient of the input is kept, by stage."""
        return self.counts[3 * self._num_stages :]


@lru_cache(maxsize=512)
def rank_moments(
    schedule: Schedule, processes: int, microbatches: int, stages: int
) -> tuple[tuple[PassMoment, ...], ...]:
    """Return the moments of each rank at which its memory can be largest."""
    orders = rank_orders(schedule, processes, microbatches, stages)
    keeps_sent = schedule.startswith("Interleaved")
    return tuple(
        _largest(set(_moments(order, processes, stages, keeps_sent=keeps_sent))) for order in orders
    )


def peak_of(stages: Sequence[StageCosts], moments: Sequence[PassMoment]) -> int:
    """Return the peak bytes of a rank with these stages."""
    sizes = [each.saved_bytes for each in stages]
    for name in ("pending_bytes", "result_bytes", "received_bytes"):
        sizes += [getattr(each, name) for each in stages]
    peak = max(each.optimizer_bytes for each in stages)
    for moment in moments:
        stage = stages[moment.place]
        is_forward = moment.direction == "forward"
        own = stage.forward_bytes if is_forward else stage.backward_bytes
        peak = max(peak, own + sum(map(operator.mul, moment.counts, sizes)))
    return sum(each.resident_bytes for each in stages) + peak


def _moments(
    order: Sequence[Task], processes: int, stages: int, *, keeps_sent: bool
) -> Iterator[PassMoment]:
    """Yield the passes of a rank. Microbatches are kept until their gradients are computed.

    If those of parameters are computed later, autograd retains the graph until then.
    """
    is_split = any(task.direction == "weight" for task in order)
    kept, pending, results, gradients = ([0] * (stages // processes) for _ in range(4))
    for stage, direction, _ in order:
        place = stage // processes
        if direction == "weight":
            kept[place] -= 1
            pending[place] -= 1
            continue
        if direction == "backward":
            kept[place] -= 1
            pending[place] += int(is_split)
        yield PassMoment(place, direction, (*kept, *pending, *results, *gradients))
        if direction == "forward" or is_split:
            kept[place] += 1
        if direction == "forward":
            results[place] += 1
        elif keeps_sent:
            gradients[place] += 1
        else:
            results[place] -= 1


def _largest(moments: set[PassMoment]) -> tuple[PassMoment, ...]:
    """Return the moments of which no other one keeps as many microbatches of each stage."""
    found: list[PassMoment] = []
    counts_by_pass: dict[tuple[int, Direction], list[_Counts]] = {}
    for moment in sorted(moments, key=lambda each: -sum(each.counts)):
        larger = counts_by_pass.setdefault((moment.place, moment.direction), [])
        for counts in larger:
            if all(map(operator.ge, counts, moment.counts)):
                break
        else:
            larger.append(moment.counts)
            found.append(moment)
    return tuple(found)
