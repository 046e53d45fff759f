"""Memory of a process over the steps of a run."""

from __future__ import annotations

import os
import statistics
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

_T = TypeVar("_T")
#: parts of a run, and so the steps that are needed at least
NUM_PARTS = 5
#: readings of memory that are kept: of longer runs every second, every fourth, …
_MAX_READINGS = 512
_STATM = "/proc/self/statm"
#: memory that grows in a part by less than this share of the average is only warming up
_MIN_STEADY = 0.5
#: readings from which memory is judged: a part has four, as allocators of a CPU grow in jumps
_MIN_READINGS = 20


def split_into_parts(values: Sequence[_T]) -> list[Sequence[_T]]:
    """Return five consecutive parts of about equal length."""
    parts = []
    for number in range(NUM_PARTS):
        start = len(values) * number // NUM_PARTS
        end = len(values) * (number + 1) // NUM_PARTS
        parts.append(values[start:end])
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrend:
    """Memory after optimizer steps: of CUDA's allocator, or the resident memory of the process."""

    #: number of optimizer steps after which memory was read or could have been
    steps: int
    #: bytes in the last fifth of the steps, in the median
    size: int
    #: bytes by which memory grows per step if it grows in each part of the run, else 0
    growth: float

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> MemoryTrend | None:
        """Return the trend of ``(step, bytes)``, or None if there are too few."""
        if len(sizes) < _MIN_READINGS:
            return None
        parts = split_into_parts(sizes)
        medians = [_median_of(part, 1) for part in parts]
        num_steps = _median_of(parts[-1], 0) - _median_of(parts[0], 0)
        growth = (medians[-1] - medians[0]) / num_steps
        by_part = [after - before for before, after in pairwise(medians)]
        is_steady = min(by_part) > 0 and min(by_part) >= _MIN_STEADY * statistics.mean(by_part)
        return cls(
            steps=sizes[-1][0] + 1, size=round(medians[-1]), growth=growth if is_steady else 0.0
        )


def _median_of(readings: Sequence[tuple[int, int]], column: int) -> float:
    return statistics.median(reading[column] for reading in readings)


class MemoryLog:
    """Memory after the steps of the first optimizer that takes one."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._num_steps = 0
        #: steps from one reading to the next
        self._every = 1
        #: number of the step, and bytes
        self.sizes: list[tuple[int, int]] = []

    def note(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step."""
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        step, self._num_steps = self._num_steps, self._num_steps + 1
        if step % self._every:
            return
        size = _memory_in_use(optimizer.param_groups[0]["params"])
        if size is None:
            return
        self.sizes.append((step, size))
        if len(self.sizes) > _MAX_READINGS:
            del self.sizes[1::2]
            self._every *= 2


def _memory_in_use(parameters: list[Tensor]) -> int | None:
    """Return the bytes of the allocator of the parameters' device or, on a CPU, of the process."""
    device = parameters[0].device if parameters else torch.device("cpu")
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        with open(_STATM, "rb", buffering=0) as file:
            resident = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # only Linux has this file
        return None
    return resident * os.sysconf("SC_PAGE_SIZE")
