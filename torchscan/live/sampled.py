"""What the training process hands over of one step: some values of each tensor, side by side in memory that both see."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchscan.live.schema import Phase

_ALIGNED = 8


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
    #: the least and the greatest of all; the least above the greatest: not looked for
    extremes: Tensor
    #: rows of parameters before the step and after it
    pairs: Tensor
    samples: Tensor

    @property
    def header(self) -> dict[str, Any]:
        """All but the tensors, and their sizes."""
        times = {"step": self.step, "phase": self.phase, "number": self.number, "time": self.time}
        sizes = {"series": len(self.series), "pairs": len(self.pairs), "rows": len(self.samples)}
        return {**times, **sizes, "width": self.samples.shape[1]}

    @property
    def nbytes(self) -> int:
        """As many as it takes in memory."""
        return sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in self._tensors())

    def write(self, memory: mmap.mmap, at: int) -> None:
        """Into memory, from this byte on."""
        for tensor in self._tensors():
            if tensor.numel():
                _view(memory, at, tensor.shape, tensor.dtype).copy_(tensor)
            at += _aligned(tensor.numel() * tensor.element_size())

    def _tensors(self) -> tuple[Tensor, ...]:
        return (self.series, self.numels, self.sizes, self.extremes, self.pairs, self.samples)

    @classmethod
    def read(cls, memory: mmap.mmap, at: int, header: dict[str, Any]) -> Sampled:
        """What was written there. It is still the same memory."""
        rows, width = header["rows"], header["width"]
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "series": ((header["series"], 2), torch.int64),
            "numels": ((rows,), torch.int64),
            "sizes": ((rows,), torch.int64),
            "extremes": ((rows, 2), torch.float32),
            "pairs": ((header["pairs"], 2), torch.int64),
            "samples": ((rows, width), torch.float32),
        }
        tensors: dict[str, Any] = dict(_views(memory, at, shapes))
        return cls(**{name: header[name] for name in ("step", "phase", "number", "time")}, **tensors)


def _views(memory: mmap.mmap, at: int, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> Iterator[tuple[str, Tensor]]:
    for name, (shape, dtype) in shapes.items():
        yield name, _view(memory, at, shape, dtype)
        at += _aligned(prod(shape) * dtype.itemsize)


def _view(memory: mmap.mmap, at: int, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    if not prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=at).view(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
