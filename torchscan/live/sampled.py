"""The data of a step in shared memory: some values of each tensor, side by side."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.live.schema import Phase, Series

_ALIGNED = 8
#: what is worked out from all values of a tensor
EXACT = ("min", "max", "dead", "sample_norm", "norm")


class AllValues(NamedTuple):
    """All values of a tensor, for the series with this number."""

    number: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One step. Several series may have the same row: what one module returns another one is given."""

    step: int
    phase: Phase
    number: int
    time: float
    #: the number of a series, and its row
    series: Tensor
    #: how many values there are, and how many of them were sampled
    numels: Tensor
    sizes: Tensor
    #: a column for each of ``EXACT``. The least above the greatest: they were not looked for; NaN: the others were not
    exact: Tensor
    #: rows of parameters before the step and after it
    pairs: Tensor
    samples: Tensor
    wholes: tuple[AllValues, ...] = ()

    @property
    def header(self) -> dict[str, Any]:
        """All but the tensors, and their sizes."""
        times = {"step": self.step, "phase": self.phase, "number": self.number, "time": self.time}
        sizes = {"series": len(self.series), "pairs": len(self.pairs), "rows": len(self.samples)}
        wholes = [(each.number, tuple(each.values.shape)) for each in self.wholes]
        return {**times, **sizes, "width": self.samples.shape[1], "wholes": wholes}

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in self._tensors())

    def write(self, memory: mmap.mmap, at: int) -> None:
        """Into memory, from this byte on."""
        for tensor in self._tensors():
            if tensor.numel():
                _view(memory, at, tensor.shape, tensor.dtype).copy_(tensor)
            at += _aligned(tensor.numel() * tensor.element_size())

    def _tensors(self) -> tuple[Tensor, ...]:
        fixed = (self.series, self.numels, self.sizes, self.exact, self.pairs, self.samples)
        return (*fixed, *(each.values for each in self.wholes))

    @classmethod
    def read(cls, memory: mmap.mmap, at: int, header: dict[str, Any]) -> Sampled:
        """Return the samples that were written to memory, as views of it."""
        rows, width = header["rows"], header["width"]
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "series": ((header["series"], 2), torch.int64),
            "numels": ((rows,), torch.int64),
            "sizes": ((rows,), torch.int64),
            "exact": ((rows, len(EXACT)), torch.float32),
            "pairs": ((header["pairs"], 2), torch.int64),
            "samples": ((rows, width), torch.float32),
        }
        wholes = [(tuple(shape), torch.float32) for _, shape in header["wholes"]]
        tensors = list(_views(memory, at, [*shapes.values(), *wholes]))
        fixed: Any = dict(zip(shapes, tensors, strict=False))
        rest = zip(header["wholes"], tensors[len(shapes) :], strict=True)
        times = {name: header[name] for name in ("step", "phase", "number", "time")}
        return cls(
            **times,
            **fixed,
            wholes=tuple(AllValues(number, values) for (number, _), values in rest),
        )


class SampledValues(Mapping[Series, Tensor]):
    """The values of each series: all of them, in their shape, if it is taken whole; else the sampled ones. They are copies."""

    def __init__(self, sampled: Sampled, series: Sequence[Series]) -> None:
        """``series``: in the order in which the step has them."""
        self._sampled, self._series = sampled, series
        self._wholes = {each.number: each.values for each in sampled.wholes}

    @cached_property
    def _places(self) -> dict[Series, tuple[int, int]]:
        return dict(zip(self._series, map(tuple, self._sampled.series.tolist()), strict=True))

    def __getitem__(self, series: Series) -> Tensor:
        number, row = self._places[series]
        whole = self._wholes.get(number)
        return (
            self._sampled.samples[row][: int(self._sampled.sizes[row])] if whole is None else whole
        ).clone()

    def __iter__(self) -> Iterator[Series]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._series)


def _views(
    memory: mmap.mmap, at: int, shapes: Iterable[tuple[tuple[int, ...], torch.dtype]]
) -> Iterator[Tensor]:
    for shape, dtype in shapes:
        yield _view(memory, at, shape, dtype)
        at += _aligned(prod(shape) * dtype.itemsize)


def _view(
    memory: mmap.mmap, at: int, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype
) -> Tensor:
    if not prod(shape):
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=at).view(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
