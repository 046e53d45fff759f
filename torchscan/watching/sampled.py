"""The samples of a step in the worker, as tensors on the shared memory."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.schema import Phase, Series
from torchscan.watching.step_samples import EXACT, NOT_COMPUTED, AllValues, padded_size


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
            "values": ((header["values"],), torch.float32),
        }
        wholes = [(tuple(shape), torch.float32) for _, shape in header["wholes"]]
        tensors = list(_views(memory, at, [*shapes.values(), *wholes]))
        columns: Any = dict(zip(shapes, tensors, strict=False))
        values, places = columns.pop("values"), columns.pop("places")
        columns["exact"] = _exact_of(rows, places, values[: len(places)])
        columns["samples"] = values[len(places) :]
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
    is_nan = values.isnan()
    if is_nan.any():
        bad = places[is_nan & (places % len(EXACT) == EXACT.index("norm"))] // len(EXACT)
        for name in ("min", "max"):
            exact[bad, EXACT.index(name)] = math.nan
    return exact


class SampledValues(Mapping[Series, Tensor]):
    """Copies of the values of each series: all of them in their shape, or the sampled ones."""

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
        at += padded_size(size * dtype.itemsize)
