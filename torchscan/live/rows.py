"""Rows of sampled values, as one step collects them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from torchscan.live.sampling import sample_of, values_of
from torchscan.torch_versions import copy_all, without_dispatch, without_torch_function

_FIRST = 256


class Rows:
    """One for each tensor that was looked at. They are used again in the next step."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self._device = device
        self._blocks: list[Tensor] = []
        #: views of all rows that there are
        self._slots: list[Tensor] = []
        self.clear()

    def clear(self) -> None:
        """A new step."""
        self.numels: list[int] = []
        self.sizes: list[int] = []
        #: of rows whose least and greatest value were looked for, both
        self._extremes: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.numels)

    def add(self, tensor: Tensor, *, is_exact: bool) -> int | None:
        """The row of a tensor; None: it has no values."""
        with without_dispatch(), without_torch_function():
            found = self._place(tensor, is_exact=is_exact)
            if found is None:
                return None
            row, slot, sample = found
            slot.copy_(sample, non_blocking=True)
        return row

    def add_all(self, tensors: Iterable[Tensor], is_exact: Callable[[int], bool]) -> list[int | None]:
        """The rows of many tensors, which are there already."""
        with without_dispatch(), without_torch_function():
            found = [self._place(tensor, is_exact=is_exact(len(self.numels))) for tensor in tensors]
            slots, samples = [each[1] for each in found if each], [each[2] for each in found if each]
            if slots:
                copy_all(slots, samples)
        return [each and each[0] for each in found]

    def _place(self, tensor: Tensor, *, is_exact: bool) -> tuple[int, Tensor, Tensor] | None:
        """A row, its memory, and what is to be copied there."""
        values = values_of(tensor)
        numel = 0 if values is None else values.numel()
        if values is None or not numel:
            return None
        sample = sample_of(values, numel, self.width)
        row = len(self.numels)
        size = self.width if numel >= self.width else numel
        self.numels.append(numel)
        self.sizes.append(size)
        if is_exact:
            with contextlib.suppress(RuntimeError):  # eight-bit floats have no kernel for it
                self._extremes[row] = torch.aminmax(values)
        slot = self._slot(row)
        return row, slot if size == self.width else slot[:size], sample

    def _slot(self, row: int) -> Tensor:
        if row >= len(self._slots):
            with torch.inference_mode(False):  # else it could not be written to outside
                block = torch.zeros(max(_FIRST, len(self._slots)), self.width, device=self._device)
            self._blocks.append(block)
            self._slots += block.unbind()
        return self._slots[row]

    def samples(self) -> Tensor:
        """All rows, on the host."""
        with without_dispatch(), without_torch_function():
            return torch.cat(self._blocks)[: len(self)].cpu() if self._blocks else torch.zeros(0, self.width)

    def extremes(self) -> Tensor:
        """The least and the greatest value of each row, on the host; where they were not looked for, the greater one first."""
        with without_dispatch(), without_torch_function():
            found = torch.tensor([math.inf, -math.inf]).repeat(len(self), 1)
            if self._extremes:
                pairs = [each.float() for pair in self._extremes.values() for each in pair]
                found[list(self._extremes)] = torch.stack(pairs).view(-1, 2).cpu()
            return found
