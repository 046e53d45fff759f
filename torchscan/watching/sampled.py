"""The data of a step in shared memory: some values of each tensor, side by side."""

from __future__ import annotations

import ctypes
import math
import mmap
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.watching.schema import Phase, Series

_ALIGNED = 8
#: what is worked out from all values of a tensor
EXACT = ("min", "max", "dead", "sample_norm", "norm")
#: a minimum above the maximum: neither was computed, nor was anything else
NOT_COMPUTED = (math.inf, -math.inf, math.nan, math.nan, math.nan)


class AllValues(NamedTuple):
    """All values of a tensor, for the series with this number."""

    number: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """The samples of a step in the training process, on their way into the memory.

    Several series may share a row: what one module returns, another one takes.
    """

    step: int
    phase: Phase
    number: int
    time: float
    #: the number of a series, then its row
    series: array[int]
    #: values of each row, and how many of them were sampled
    numels: array[int]
    sizes: array[int]
    #: places of statistics of all values: row times ``len(EXACT)``, plus the column
    exact_places: array[int]
    exact_values: Tensor
    #: row of a parameter before the step, then its row after it
    pairs: array[int]
    #: sampled values, one row behind the other
    samples: Tensor
    wholes: tuple[AllValues, ...] = ()

    @property
    def header(self) -> dict[str, Any]:
        """All but the columns, and their lengths."""
        return {
            "step": self.step,
            "phase": self.phase,
            "number": self.number,
            "time": self.time,
            "series": len(self.series) // 2,
            "rows": len(self.sizes),
            "exact": len(self.exact_places),
            "pairs": len(self.pairs) // 2,
            "values": len(self.samples),
            "wholes": [(each.number, tuple(each.values.shape)) for each in self.wholes],
        }

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        arrays = sum(_aligned(len(each) * each.itemsize) for each in self._arrays())
        return arrays + sum(_aligned(each.nbytes) for each in self._tensors())

    def write(self, memory: mmap.mmap, at: int) -> None:
        """Write the columns into memory, from this byte on."""
        for column in self._arrays():
            size = len(column) * column.itemsize
            memory[at : at + size] = column.tobytes()
            at += _aligned(size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for tensor in self._tensors():
            size = tensor.nbytes
            if size:
                ctypes.memmove(start + at, tensor.data_ptr(), size)
            at += _aligned(size)

    def _arrays(self) -> tuple[array[int], ...]:
        return (self.series, self.numels, self.sizes, self.exact_places, self.pairs)

    def _tensors(self) -> tuple[Tensor, ...]:
        return (self.exact_values, self.samples, *(each.values for each in self.wholes))


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The samples of a step in the worker, as tensors."""

    step: int
    phase: Phase
    number: int
    time: float
    #: the number of a series, and its row
    series: Tensor
    #: values of each row, and how many of them were sampled
    numels: Tensor
    sizes: Tensor
    #: a column for each of ``EXACT``; a minimum above the maximum means that neither was computed
    exact: Tensor
    #: rows of parameters before the step and after it
    pairs: Tensor
    #: sampled values, one row behind the other
    samples: Tensor
    wholes: tuple[AllValues, ...] = ()

    @cached_property
    def matrix(self) -> Tensor:
        """The sampled values as a matrix, with zeros behind those of shorter rows."""
        width = int(self.sizes.max()) if len(self.sizes) else 0
        matrix = torch.zeros(len(self.sizes), width, dtype=torch.float32, device="cpu")
        is_sampled = torch.arange(width, device="cpu") < self.sizes[:, None]
        return matrix.masked_scatter_(is_sampled, self.samples)

    @classmethod
    def read(cls, memory: mmap.mmap, at: int, header: dict[str, Any]) -> Sampled:
        """Return the samples that were written to memory, as views of it."""
        rows = header["rows"]
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "series": ((header["series"], 2), torch.int64),
            "numels": ((rows,), torch.int64),
            "sizes": ((rows,), torch.int64),
            "places": ((header["exact"],), torch.int64),
            "pairs": ((header["pairs"], 2), torch.int64),
            "exact": ((header["exact"],), torch.float32),
            "samples": ((header["values"],), torch.float32),
        }
        wholes = [(tuple(shape), torch.float32) for _, shape in header["wholes"]]
        tensors = list(_views(memory, at, [*shapes.values(), *wholes]))
        columns: Any = dict(zip(shapes, tensors, strict=False))
        columns["exact"] = _exact_of(rows, columns.pop("places"), columns["exact"])
        rest = zip(header["wholes"], tensors[len(shapes) :], strict=True)
        times = {name: header[name] for name in ("step", "phase", "number", "time")}
        return cls(
            **times,
            **columns,
            wholes=tuple(AllValues(number, values) for (number, _), values in rest),
        )


def _exact_of(rows: int, places: Tensor, values: Tensor) -> Tensor:
    """Return the statistics of all values, by row and column of ``EXACT``.

    A norm that is NaN stands in the columns of minimum and maximum, too.
    """
    exact = torch.tensor(NOT_COMPUTED, dtype=torch.float32, device="cpu").repeat(rows, 1)
    exact.view(-1)[places] = values
    norm = EXACT.index("norm")
    bad = places[values.isnan() & (places % len(EXACT) == norm)] // len(EXACT)
    for name in ("min", "max"):
        exact[bad, EXACT.index(name)] = math.nan
    return exact


class SampledValues(Mapping[Series, Tensor]):
    """The values of each series: all of them, in their shape, if it is taken whole; else the sampled ones. They are copies."""

    def __init__(self, sampled: Sampled, series: Sequence[Series]) -> None:
        """``series``: in the order in which the step has them."""
        self._sampled, self._series = sampled, series
        self._wholes = {each.number: each.values for each in sampled.wholes}

    @cached_property
    def _places(self) -> dict[Series, tuple[int, int]]:
        return dict(zip(self._series, map(tuple, self._sampled.series.tolist()), strict=True))

    @cached_property
    def _rows(self) -> Sequence[Tensor]:
        rows: Sequence[Tensor] = torch.split(self._sampled.samples, self._sampled.sizes.tolist())
        return rows

    def __getitem__(self, series: Series) -> Tensor:
        number, row = self._places[series]
        whole = self._wholes.get(number)
        values = self._rows[row] if whole is None else whole
        return values.clone()

    def __iter__(self) -> Iterator[Series]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._series)


def _views(
    memory: mmap.mmap, at: int, shapes: Iterable[tuple[tuple[int, ...], torch.dtype]]
) -> Iterator[Tensor]:
    for shape, dtype in shapes:
        size = prod(shape)
        if size:
            yield torch.frombuffer(memory, dtype=dtype, count=size, offset=at).view(shape)
        else:
            yield torch.empty(shape, dtype=dtype, device="cpu")
        at += _aligned(size * dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
