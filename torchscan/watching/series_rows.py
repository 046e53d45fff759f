"""Rows of the tensors that one step samples, by tensor and by series."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Sequence
from itertools import chain
from weakref import ref

import torch
from torch import Tensor

from torchscan.observing.steps import Pass
from torchscan.watching.call_sites import SeriesNumbers
from torchscan.watching.held_tensors import MAX_HELD
from torchscan.watching.rows import Rows
from torchscan.watching.step_samples import AllValues, StepSamples

_NO_CONTEXT = contextlib.nullcontext()
#: above every row
_MAX_ROW = 2**32


class SeriesRows:
    """The row of each series of a step. Several series share the row of a tensor."""

    def __init__(self, rows: Rows, numbers: SeriesNumbers) -> None:
        self._rows, self._numbers = rows, numbers
        #: the row of each series, by its number
        self.rows_by_series: dict[int, int] = {}
        #: tensors that were sampled, by identity, and their versions and rows as one number:
        #: thousands of tuples that live until the end of the step keep Python's collector busy
        self._known: dict[int, ref[Tensor]] = {}
        self._versions: dict[int, int] = {}

    def row_of(self, tensor: Tensor, unit_dim: int | None) -> int | None:
        """Return the row of a tensor, which is new unless the tensor was sampled as it is."""
        identity = id(tensor)
        known = self._known.get(identity)
        if known is not None and known() is tensor:
            version, row_known = divmod(self._versions[identity], _MAX_ROW)
            if version == tensor._version:
                return row_known
        # leaves and views may share memory that is filled again, or released, without a new version
        max_held = 0 if tensor.is_leaf or tensor._is_view() else MAX_HELD
        row = self._rows.add(tensor, unit_dim, max_held=max_held)
        if row is not None and not tensor.is_inference():
            self._known[identity] = ref(tensor)
            self._versions[identity] = tensor._version * _MAX_ROW + row
        return row

    def keep(self, number: int, row: int, tensor: Tensor) -> None:
        """Keep a row, and all values of its tensor if the user wants them, for a series."""
        self.rows_by_series[number] = row
        limits = self._numbers.wholes
        if limits and tensor.numel() <= limits.get(number, -1):
            self._rows.add_whole(number, tensor)

    def keep_all(
        self, numbers: Sequence[int], tensors: Sequence[Tensor], rows: Sequence[int | None]
    ) -> None:
        """Keep the rows of several series, except for those whose tensors have none."""
        if not self._numbers.wholes and None not in rows:
            self.rows_by_series.update(zip(numbers, rows, strict=True))  # type: ignore[arg-type]
            return
        for number, tensor, row in zip(numbers, tensors, rows, strict=True):
            if row is not None:
                self.keep(number, row, tensor)

    def collect(self, of: Pass, pairs: Sequence[int]) -> StepSamples:
        """Return the samples of the step, with pairs of rows of parameters before and after it."""
        rows, series = self._rows, self.rows_by_series
        is_inference = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if is_inference else _NO_CONTEXT:
            places, values = rows.join()
        if rows.lost:
            series = {number: row for number, row in series.items() if row not in rows.lost}
        integers = chain(chain.from_iterable(series.items()), rows.numels, rows.sizes)
        return StepSamples(
            step=of.step,
            phase=of.phase,
            number=of.number,
            time=time.time(),
            num_series=len(series),
            num_rows=len(rows),
            num_exact=len(places),
            num_pairs=len(pairs) // 2,
            integers=array("q", [*integers, *places, *pairs]),
            values=values,
            wholes=tuple(AllValues(number, values) for number, values in rows.wholes.items()),
        )

    def forget_tensors(self) -> None:
        """Forget which tensors were sampled, at the end of the step."""
        self._known.clear()
        self._versions.clear()
