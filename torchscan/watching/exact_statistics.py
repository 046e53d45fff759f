"""Statistics of all values of tensors, which are computed beside the samples of some values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchscan.observing.readable_tensors import is_plain
from torchscan.torch_versions import norms_of, without_dispatch, without_torch_function
from torchscan.watching.row_groups import BareOperators, NumberedTensors, RowGroup
from torchscan.watching.sampling import values_of
from torchscan.watching.step_samples import EXACT

_MIN, _MAX, _DEAD, _SAMPLE_NORM, _NORM = range(len(EXACT))


class ExactStatistics:
    """The statistics of the rows of one step, on the device until they are collected."""

    def __init__(self, device: torch.device) -> None:
        """``device`` is that of the rows."""
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        #: row, column of ``EXACT`` and value
        self._values: list[tuple[int, int, Tensor]] = []
        #: rows and their norms
        self._norms: list[tuple[Sequence[int], Tensor]] = []

    def add_extremes(self, row: int, values: Tensor, unit_dim: int | None) -> None:
        """Compute the extremes of a tensor, and the share of its dead units if they are counted.

        ``unit_dim`` is the dimension of the units, or None.
        """
        if unit_dim is None:
            minimum, maximum = torch.aminmax(values)
        else:
            others = [dim for dim in range(values.dim()) if dim != unit_dim % values.dim()]
            lows, highs = values.amin(others), values.amax(others)
            is_dead = (lows == 0) & (highs == 0)
            self._values.append((row, _DEAD, is_dead.float().mean()))
            minimum, maximum = lows.amin(), highs.amax()
        self._values.append((row, _MIN, minimum))
        self._values.append((row, _MAX, maximum))

    def note_norms(
        self, group: RowGroup, rows: Sequence[int | None], tensors: Sequence[Tensor]
    ) -> Tensor | None:
        """Compute the L2 norms of tensors of which not all values are sampled.

        Return the norm of all tensors of the group, or None if there are none.
        """
        wide = NumberedTensors([], [])
        for index in group.wide:
            wide.add(rows[index], tensors[index])
        others: dict[torch.dtype, NumberedTensors] = {}
        for index in group.others:
            tensor = tensors[index]
            if rows[index] is not None and is_plain(tensor):
                others.setdefault(tensor.dtype, NumberedTensors([], [])).add(rows[index], tensor)
        with BareOperators():
            totals: list[Tensor] = []
            if group.joined is not None:
                norms_of_all = norms_of([group.joined, *wide.tensors])
                totals.append(norms_of_all[0])
                self._norms.append((wide.rows, torch.stack(norms_of_all)[1:]))
            for dtype, (numbers, values) in others.items():
                # squares of float16 overflow, and sums of bfloat16 have three digits
                precise = None if dtype.itemsize > 2 else torch.float32
                norms = torch.stack(norms_of(values, 2.0, precise)).to(self._device)
                self._norms.append((numbers, norms))
                totals.append(norms.to(torch.float32).norm())
            if not totals:
                return None
            total: Tensor = torch.stack(totals).norm() if len(totals) > 1 else totals[0]
            if self._device.type == "cpu" and not math.isfinite(total.item()):
                self._explain_infinite([wide, *others.values()])
            return total

    def _explain_infinite(self, groups: Sequence[NumberedTensors]) -> None:
        """Compute the extremes of tensors whose norm is not finite: it may have overflowed."""
        for numbered in groups:
            for row, tensor in zip(*numbered, strict=True):
                if not tensor.norm().isfinite():
                    self.add_extremes(row, tensor, None)

    def note_sample_norm(self, row: int, tensor: Tensor) -> None:
        """Compute the mean over a batch of the L2 norms of its elements."""
        with without_dispatch(), without_torch_function():
            values = values_of(tensor)
            if values is None or not values.is_floating_point() or not values.dim():
                return
            values = values.float()
            norms = values.flatten(1).norm(dim=1) if values.dim() > 1 else values.abs()
            self._values.append((row, _SAMPLE_NORM, norms.mean()))

    def collect(self) -> tuple[list[int], list[Tensor]]:
        """Return the places of the statistics, and tensors with these, one behind the other.

        A place is the row times the number of columns of ``EXACT``, plus the column.
        """
        device, width = self._device, len(EXACT)
        places = [row * width + column for row, column, _ in self._values]
        values = [each for *_, each in self._values]
        if values and (device.type != "cpu" or not all(each.is_cpu for each in values)):
            values = [each.to(device) for each in values]
        pieces = [torch.stack(values)] if values else []
        for rows, norms in self._norms:
            places += [row * width + _NORM for row in rows]
            pieces.append(norms.to(device))
        return places, pieces
