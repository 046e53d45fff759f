"""Rows of sampled values, as one step collects them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from torchscan.live.sampled import EXACT
from torchscan.live.sampling import places_in, values_of
from torchscan.torch_versions import (
    count_dispatch_modes,
    count_function_modes,
    without_dispatch,
    without_torch_function,
)

_FIRST = 256
_FIRST_WIDTH = 512
#: the least above the greatest
_NOT_LOOKED_FOR = (math.inf, -math.inf, math.nan, math.nan, math.nan)
_BARE = frozenset({Tensor, torch.nn.Parameter})


class Rows:
    """One for each tensor that was looked at. They are used again in the next step."""

    def __init__(self, max_width: int, device: torch.device) -> None:
        """Sample up to ``max_width`` values of a tensor. Rows are as wide as tensors have needed so far."""
        self._max_width = max_width
        self.width = min(max_width, _FIRST_WIDTH)
        self._device = device
        self._lock = threading.Lock()
        self._blocks: list[Tensor] = []
        #: views of all rows that there are
        self._slots: list[Tensor] = []
        self.numels: list[int] = []
        self.sizes: list[int] = []
        self.clear()

    def clear(self, kept: Sequence[int] = ()) -> None:
        """A new step, of which these rows of the one before are the first."""
        with without_dispatch(), without_torch_function():
            self._keep(kept)

    def _keep(self, kept: Sequence[int]) -> None:
        samples = self._whole()[list(kept)] if kept else None
        numels, sizes = ([figures[row] for row in kept] for figures in (self.numels, self.sizes))
        if len(self._blocks) > 1:  # so that nothing need be put together the next time
            size, self._blocks, self._slots = len(self._slots), [], []
            self._grow(size)
        if samples is not None:
            self._blocks[0][: len(kept)] = samples
        self.numels, self.sizes = numels, sizes
        #: what was worked out from all values of a row, by its place in ``EXACT``
        self._exact: list[tuple[int, int, Tensor]] = []
        #: all values of a tensor, by the number of its series
        self.wholes: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.numels)

    def add(self, tensor: Tensor, *, is_exact: bool, unit_dim: int | None = None) -> int | None:
        """The row of a tensor; None: it has no values. ``unit_dim``: along which its units lie, if dead ones are counted."""
        if type(tensor) in _BARE and not (count_dispatch_modes() or count_function_modes()):
            return self._add(
                tensor, is_exact=is_exact, unit_dim=unit_dim
            )  # three microseconds less
        with without_dispatch(), without_torch_function():
            return self._add(tensor, is_exact=is_exact, unit_dim=unit_dim)

    def add_all(
        self, tensors: Iterable[Tensor], is_exact: Callable[[int], bool]
    ) -> list[int | None]:
        """The rows of many tensors."""
        return [self.add(tensor, is_exact=is_exact(len(self.numels))) for tensor in tensors]

    def _add(self, tensor: Tensor, *, is_exact: bool, unit_dim: int | None) -> int | None:
        try:
            values = values_of(tensor)
            numel = 0 if values is None else values.numel()
            row = self._placed(values, numel) if values is not None and numel else None
        except RuntimeError:  # values that nothing reads: quantized ones, or those of four bits
            return None
        if is_exact and values is not None and row is not None:
            with contextlib.suppress(RuntimeError):  # eight-bit floats have no kernels for it
                self._add_exact(row, values, unit_dim)
        return row

    def _placed(self, values: Tensor, numel: int) -> int:
        with self._lock:  # autograd has a thread for each device
            row = len(self.numels)
            self._widen(numel)
            size = self._sample(values, numel, self._slot(row))
            self.numels.append(numel)
            self.sizes.append(size)
        return row

    def _sample(self, values: Tensor, numel: int, slot: Tensor) -> int:
        """Copy some of the values into a row."""
        if numel <= self.width:
            slot[:numel].copy_(values.reshape(-1), non_blocking=True)
            return numel
        places = places_in(numel, self.width, values.device)
        if values.dtype is torch.float32 and values.device == self._device:
            torch.take(values, places, out=slot)
        else:
            slot.copy_(torch.take(values, places), non_blocking=True)
        return self.width

    def _add_exact(self, row: int, values: Tensor, unit_dim: int | None) -> None:
        if unit_dim is None:
            least, most = torch.aminmax(values)
        else:
            others = [dim for dim in range(values.dim()) if dim != unit_dim % values.dim()]
            lows, highs = values.amin(others), values.amax(others)
            self._exact.append(
                (row, EXACT.index("dead"), ((lows == 0) & (highs == 0)).float().mean())
            )
            least, most = lows.amin(), highs.amax()
        self._exact += (row, 0, least), (row, 1, most)

    def note_sample_norm(self, row: int, tensor: Tensor) -> None:
        """The mean over a batch of what its elements' values are long."""
        with without_dispatch(), without_torch_function():
            values = values_of(tensor)
            if values is not None and values.is_floating_point() and values.dim():
                norms = (
                    values.float().flatten(1).norm(dim=1)
                    if values.dim() > 1
                    else values.float().abs()
                )
                self._exact.append((row, EXACT.index("sample_norm"), norms.mean()))

    def add_whole(self, number: int, tensor: Tensor) -> None:
        """All values of a tensor, for a series."""
        with without_dispatch(), without_torch_function(), torch.inference_mode(False):
            values = values_of(tensor)
            if values is not None:
                self.wholes[number] = values.to("cpu", torch.float32, copy=True).contiguous()

    def add_to(self, row: int, number: int, tensor: Tensor) -> None:
        """Add the values of another tensor of the same size to a row, and to all values of its series."""
        with without_dispatch(), without_torch_function(), torch.no_grad():
            values = values_of(tensor)
            if values is None or values.numel() != self.numels[row]:
                return
            with torch.inference_mode(False):
                sample = torch.zeros(self.width, dtype=torch.float32, device=self._device)
            size = self._sample(values, self.numels[row], sample)
            self._slot(row)[:size] += sample[:size]
            if number in self.wholes:
                self.wholes[number] += values.to("cpu", torch.float32)

    def _widen(self, numel: int) -> None:
        """Make rows wide enough for ``numel`` values, or for all that are sampled."""
        if numel <= self.width or self.width == self._max_width:
            return
        width = min(self._max_width, 1 << (numel - 1).bit_length())
        try:
            with torch.inference_mode(False):
                blocks = [
                    torch.nn.functional.pad(each, (0, width - self.width)) for each in self._blocks
                ]
        except RuntimeError as error:
            raise MemoryError(
                f"sample_n is {self._max_width}, which needs more memory than is available: give a "
                "smaller number"
            ) from error
        self.width, self._blocks = width, blocks
        self._slots = [slot for block in blocks for slot in block.unbind()]

    def _slot(self, row: int) -> Tensor:
        if row >= len(self._slots):
            self._grow(max(_FIRST, len(self._slots)))
        return self._slots[row]

    def _grow(self, more: int) -> None:
        with torch.inference_mode(False):  # else it could not be written to outside
            block = torch.zeros(more, self.width, dtype=torch.float32, device=self._device)
        self._blocks.append(block)
        self._slots += block.unbind()

    def samples(self) -> Tensor:
        """All rows, on the host. They stay as they are until the next step."""
        with without_dispatch(), without_torch_function():
            return self._whole()[: len(self)].cpu()

    def _whole(self) -> Tensor:
        if not self._blocks:
            return torch.zeros(0, self.width, dtype=torch.float32, device="cpu")
        return self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks)

    def exact(self) -> Tensor:
        """The statistics of all values of each row, on the host.

        If the minimum is above the maximum, neither was computed.
        """
        with without_dispatch(), without_torch_function():
            found = torch.tensor(_NOT_LOOKED_FOR, dtype=torch.float32, device="cpu").repeat(
                len(self), 1
            )
            if self._exact:
                rows, columns, figures = zip(*self._exact, strict=True)
                found[rows, columns] = torch.stack([each.float() for each in figures]).cpu()
            return found
