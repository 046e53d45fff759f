"""Values of tensors that one step collects: a row for each tensor, one behind the other.

Training runs ahead of what is collected here, so a tensor is sampled by one gather at once, and
everything else waits for the end of the step: all rows are joined there by one operator.
"""

from __future__ import annotations

import contextlib
import math
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.live.sampled import EXACT
from torchscan.live.sampling import places_in, values_of
from torchscan.runtime.finiteness import is_plain
from torchscan.torch_versions import (
    count_dispatch_modes,
    count_function_modes,
    without_dispatch,
    without_torch_function,
)

#: minimum above maximum: neither was computed
_NOT_COMPUTED = (math.inf, -math.inf, *[math.nan] * (len(EXACT) - 2))
_MIN, _MAX, _DEAD, _SAMPLE_NORM, _NORM = range(len(EXACT))
_BARE = frozenset({Tensor, torch.nn.Parameter})


class RowGroup(NamedTuple):
    """Rows of several tensors, which can be added to another step again."""

    #: values of one row or of several adjacent rows
    pieces: Sequence[Tensor]
    numels: Sequence[int]
    sizes: Sequence[int]
    #: for each tensor the index of its row in the group, or None if it cannot be read
    indices: Sequence[int | None]


class Rows:
    """The rows of one step."""

    def __init__(self, max_width: int, device: torch.device) -> None:
        """Sample up to ``max_width`` values of a tensor, and join them on ``device``."""
        self._max_width = max_width
        self._device = device
        self._lock = threading.Lock()
        #: positions to sample, by the number of values and the device; None on devices without data
        self._places: dict[tuple[int, torch.device], Tensor | None] = {}
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        self._pieces: list[Tensor] = []
        self.numels: list[int] = []
        self.sizes: list[int] = []
        #: row, column of ``EXACT`` and value
        self._exact: list[tuple[int, int, Tensor]] = []
        #: rows and their norms
        self._norms: list[tuple[Sequence[int], Sequence[Tensor]]] = []
        #: all values of a tensor, by the number of its series
        self.wholes: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.numels)

    # -- one tensor ------------------------------------------------------------------------------

    def add(self, tensor: Tensor, *, is_exact: bool, unit_dim: int | None = None) -> int | None:
        """Sample a tensor and return its row, or None if it has no values that can be read.

        ``unit_dim`` is the dimension of its units, if dead ones are counted.
        """
        if (
            not is_exact
            and type(tensor) in _BARE
            and tensor.dtype is torch.float32
            and tensor.layout is torch.strided
            and not (count_dispatch_modes() or count_function_modes())
        ):
            numel = tensor.numel()
            device = tensor.device
            places = self._places.get((numel, device))
            if places is not None and device == self._device:
                try:
                    piece = torch.take(tensor.detach(), places)
                except RuntimeError:  # a nested tensor
                    return None
                return self._append(piece, numel)
        with without_dispatch(), without_torch_function():
            return self._add(tensor, is_exact=is_exact, unit_dim=unit_dim)

    def _add(self, tensor: Tensor, *, is_exact: bool, unit_dim: int | None) -> int | None:
        try:
            values = values_of(tensor)
            piece = None if values is None else self._sample(values)
        except RuntimeError:  # values that no kernel reads, such as quantized ones
            return None
        if values is None or piece is None:
            return None

        row = self._append(piece, values.numel())
        if is_exact:
            with contextlib.suppress(RuntimeError):  # eight-bit floats have no kernel for it
                self._add_extremes(row, values, unit_dim)
        return row

    def _append(self, piece: Tensor, numel: int) -> int:
        with self._lock:  # autograd has a thread for each device
            row = len(self.numels)
            self._pieces.append(piece)
            self.numels.append(numel)
            self.sizes.append(piece.numel())
        return row

    def _sample(self, values: Tensor) -> Tensor | None:
        """Return some of the values, or None if there are none."""
        places = self._places_of(values)
        if places is None:
            return None
        piece = torch.take(values, places)
        if piece.dtype.itemsize < 2 and piece.is_floating_point():  # cannot be joined with others
            piece = piece.float()
        return piece if piece.device == self._device else piece.to(self._device, non_blocking=True)

    def _places_of(self, values: Tensor) -> Tensor | None:
        key = values.numel(), values.device
        if key not in self._places:
            numel, device = key
            has_values = bool(numel) and device.type != "meta"
            self._places[key] = places_in(numel, self._max_width, device) if has_values else None
        return self._places[key]

    def _add_extremes(self, row: int, values: Tensor, unit_dim: int | None) -> None:
        if unit_dim is None:
            minimum, maximum = torch.aminmax(values)
        else:
            others = [dim for dim in range(values.dim()) if dim != unit_dim % values.dim()]
            lows, highs = values.amin(others), values.amax(others)
            is_dead = (lows == 0) & (highs == 0)
            self._exact.append((row, _DEAD, is_dead.float().mean()))
            minimum, maximum = lows.amin(), highs.amax()
        self._exact.append((row, _MIN, minimum))
        self._exact.append((row, _MAX, maximum))

    # -- many tensors ----------------------------------------------------------------------------

    def add_all(
        self, tensors: Sequence[Tensor], is_exact: Callable[[int], bool]
    ) -> tuple[list[int | None], RowGroup]:
        """Sample tensors, and return their rows and a group that another step can take over."""
        start = len(self)
        small: list[int] = []
        rest: list[int] = []
        for index, tensor in enumerate(tensors):
            (small if self._is_small(tensor) else rest).append(index)
        first_piece = len(self._pieces)
        rows: list[int | None] = [None] * len(tensors)
        with torch.no_grad(), without_dispatch(), without_torch_function():
            self._add_small(tensors, small, rows, is_exact)
            for index in rest:
                rows[index] = self._add(tensors[index], is_exact=is_exact(len(self)), unit_dim=None)
        group = RowGroup(
            pieces=self._pieces[first_piece:],
            numels=self.numels[start:],
            sizes=self.sizes[start:],
            indices=[None if row is None else row - start for row in rows],
        )
        return rows, group

    def _is_small(self, tensor: Tensor) -> bool:
        """Return whether all values of a tensor are taken, by one operator for all such tensors."""
        return (
            type(tensor) in _BARE
            and tensor.dtype is torch.float32
            and 0 < tensor.numel() <= self._max_width
            and tensor.layout is torch.strided
            and tensor.device == self._device
            and not tensor.is_nested
        )

    def _add_small(
        self,
        tensors: Sequence[Tensor],
        indices: Sequence[int],
        rows: list[int | None],
        is_exact: Callable[[int], bool],
    ) -> None:
        if not indices or self._device.type == "meta":
            return
        chosen = [tensors[index].detach() for index in indices]
        sizes = [tensor.numel() for tensor in chosen]
        piece = torch._C._nn.flatten_dense_tensors(chosen)
        if len(chosen) == 1:  # then it is a view, which training will write to
            piece = piece.clone()
        with self._lock:
            start = len(self.numels)
            self._pieces.append(piece)
            self.numels += sizes
            self.sizes += sizes
        for row, (index, tensor) in enumerate(zip(indices, chosen, strict=True), start):
            rows[index] = row
            if is_exact(row):
                self._add_extremes(row, tensor, None)

    def add_group(self, group: RowGroup) -> list[int | None]:
        """Add the rows of an earlier step, and return the row of each tensor."""
        with self._lock:
            start = len(self.numels)
            self._pieces += group.pieces
            self.numels += group.numels
            self.sizes += group.sizes
        return [None if index is None else start + index for index in group.indices]

    # -- other statistics ------------------------------------------------------------------------

    def note_norms(self, rows: Sequence[int | None], tensors: Iterable[Tensor]) -> Tensor | None:
        """Compute the L2 norms of tensors, by one operator for all of a type.

        Return the norm of all of them, or None if there are none.
        """
        every: list[Tensor] = []
        by_dtype: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
        for row, tensor in zip(rows, tensors, strict=True):
            if row is not None and is_plain(tensor):
                by_dtype.setdefault(tensor.dtype, []).append((row, tensor.detach()))
        with torch.no_grad(), without_dispatch(), without_torch_function():
            for dtype, pairs in by_dtype.items():
                tensors_of_type = [tensor for _, tensor in pairs]
                # squares of float16 overflow, and sums of bfloat16 have three digits
                wide = None if dtype.itemsize > 2 else torch.float32
                norms = torch._foreach_norm(tensors_of_type, 2.0, wide)
                self._norms.append(([row for row, _ in pairs], norms))
                every.append(torch.stack(tuple(norms)).to(self._device, torch.float32))
                if self._device.type == "cpu":
                    self._explain_infinite(pairs, norms)
            return torch.cat(every).norm() if every else None

    def _explain_infinite(
        self, pairs: Sequence[tuple[int, Tensor]], norms: Sequence[Tensor]
    ) -> None:
        """Compute the extremes of tensors whose norm is infinite: it may have overflowed."""
        if math.isfinite(torch.stack(tuple(norms)).sum().item()):
            return
        for (row, tensor), norm in zip(pairs, norms, strict=True):
            if not norm.isfinite():
                self._add_extremes(row, tensor, None)

    def note_sample_norm(self, row: int, tensor: Tensor) -> None:
        """Compute the mean over a batch of the L2 norms of its elements."""
        with without_dispatch(), without_torch_function():
            values = values_of(tensor)
            if values is None or not values.is_floating_point() or not values.dim():
                return
            values = values.float()
            norms = values.flatten(1).norm(dim=1) if values.dim() > 1 else values.abs()
            self._exact.append((row, _SAMPLE_NORM, norms.mean()))

    def add_whole(self, number: int, tensor: Tensor) -> None:
        """Copy all values of a tensor, for a series."""
        with without_dispatch(), without_torch_function(), torch.inference_mode(False):
            values = values_of(tensor)
            if values is not None:
                self.wholes[number] = values.to("cpu", torch.float32, copy=True).contiguous()

    def add_to(self, row: int, number: int, tensor: Tensor) -> None:
        """Add the values of another tensor of the same size to a row and to its series.

        The row must have been added alone, and not as one of many.
        """
        with without_dispatch(), without_torch_function(), torch.no_grad():
            values = values_of(tensor)
            if values is None or values.numel() != self.numels[row]:
                return
            piece = self._sample(values)
            if piece is not None:
                index = self._piece_of(row)
                self._pieces[index] = self._pieces[index].float() + piece.float()
            if number in self.wholes:
                self.wholes[number] += values.to("cpu", torch.float32)

    def _piece_of(self, row: int) -> int:
        """Return the index of the piece that holds a row."""
        offset = sum(self.sizes[:row])
        for index, piece in enumerate(self._pieces):
            if not offset:
                return index
            offset -= piece.numel()
        raise IndexError(row)

    # -- the end of the step ---------------------------------------------------------------------

    def samples(self) -> Tensor:
        """Return the values of all rows, one row behind the other, on the host."""
        with torch.no_grad(), without_dispatch(), without_torch_function():
            if not self._pieces:
                return torch.zeros(0, dtype=torch.float32, device="cpu")
            return torch.cat(self._pieces).to("cpu", torch.float32)

    def exact(self) -> Tensor:
        """Return the statistics of all values of each row, on the host.

        A minimum above the maximum means that neither was computed. A norm that is NaN stands in
        the columns of both, as some value of the row is NaN.
        """
        with torch.no_grad(), without_dispatch(), without_torch_function():
            found = torch.tensor(_NOT_COMPUTED, dtype=torch.float32, device="cpu")
            found = found.repeat(len(self), 1)
            if self._exact:
                places, columns, values = zip(*self._exact, strict=True)
                found[places, columns] = torch.stack([each.float() for each in values]).cpu()
            for rows, norms in self._norms:
                self._add_norms(found, rows, norms)
            return found

    def _add_norms(self, found: Tensor, rows: Sequence[int], norms: Sequence[Tensor]) -> None:
        places = torch.frombuffer(array("q", rows), dtype=torch.int64)
        values = torch.stack([each.to(self._device) for each in norms]).to("cpu", torch.float32)
        found[places, _NORM] = values
        bad = places[values.isnan()]
        found[bad, _MIN] = found[bad, _MAX] = math.nan
