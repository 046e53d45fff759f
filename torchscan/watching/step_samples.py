"""The samples of a step in the training process, and the header of their record.

The worker reads headers before it has imported torch, so this file does not import it.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.watching.schema import Phase

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 8
#: the header of a step: a mark that no JSON begins with, whether it is an evaluation, step, number,
#: time, and the numbers of series, rows, statistics, pairs and values
_HEADER, STEP_MARK = struct.Struct("<BBxxxxxxqqdqqqqq"), 1
#: the numbers of the header
_NUMBERS = ("step", "number", "time", "series", "rows", "exact", "pairs", "values")
#: what is worked out from all values of a tensor
EXACT = ("min", "max", "dead", "sample_norm", "norm")
#: a minimum above the maximum: neither was computed, nor was anything else
NOT_COMPUTED = (math.inf, -math.inf, math.nan, math.nan, math.nan)


class AllValues(NamedTuple):
    """All values of a tensor, for the series with this number."""

    number: int
    values: Tensor


@dataclass(slots=True, kw_only=True)
class StepSamples:
    """The samples of a step in the training process, on their way into the memory.

    Several series may share a row: what one module returns, another one takes.
    """

    step: int
    phase: Phase
    number: int
    time: float
    #: how many series, rows, statistics of all values, and pairs there are
    num_series: int
    num_rows: int
    num_exact: int
    num_pairs: int
    #: the number of each series and its row; values of each row; how many of them were sampled;
    #: places of statistics of all values: row times ``len(EXACT)``, plus the column; and the row of
    #: a parameter before the step with its row after it
    integers: array[int]
    #: statistics of all values, then sampled values, one row behind the other
    values: Tensor
    wholes: tuple[AllValues, ...] = ()

    def header(self) -> bytes:
        """Return all but the columns, and their lengths."""
        head = _HEADER.pack(
            STEP_MARK,
            self.phase == "eval",
            self.step,
            self.number,
            self.time,
            self.num_series,
            self.num_rows,
            self.num_exact,
            self.num_pairs,
            len(self.values),
        )
        if not self.wholes:
            return head
        wholes = [(each.number, tuple(each.values.shape)) for each in self.wholes]
        return head + json.dumps(wholes).encode()

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        size = 8 * len(self.integers) + padded_size(self.values.nbytes)
        return size + sum(padded_size(each.values.nbytes) for each in self.wholes)

    def write(self, memory: mmap.mmap, at: int) -> None:
        """Write the columns into memory, from this byte on."""
        end = at + 8 * len(self.integers)
        memory[at:end] = self.integers
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for tensor in (self.values, *(each.values for each in self.wholes)):
            if tensor.numel():
                ctypes.memmove(start + end, tensor.data_ptr(), tensor.nbytes)
            end += padded_size(tensor.nbytes)


def read_header(data: bytes) -> dict[str, Any]:
    """Return the header of a step as a message of the worker's line."""
    _, is_evaluation, *numbers = _HEADER.unpack_from(data)
    wholes = data[_HEADER.size :]
    header: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
    header["is"] = "step"
    header["phase"] = "eval" if is_evaluation else "train"
    header["wholes"] = json.loads(wholes) if wholes else []
    return header


def padded_size(size: int) -> int:
    """Return the next multiple of the alignment of columns and records."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
