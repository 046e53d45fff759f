"""Values of tensors that one step collects: a row for each tensor, one behind the other.

Training runs ahead of what is collected here, so a tensor is sampled by one gather at once, and
everything else waits for the end of the step: all rows are joined there by one operator.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from torchscan.torch_versions import (
    count_dispatch_modes,
    count_function_modes,
    join_values,
    without_dispatch,
    without_torch_function,
)
from torchscan.watching.exact_statistics import ExactStatistics
from torchscan.watching.held_tensors import HeldTensors
from torchscan.watching.row_groups import BareOperators, RowGroup
from torchscan.watching.sampling import ValueSampler, values_of
from torchscan.watching.sampling_plans import BARE_TYPES, SamplingPlan, SamplingPlans, kind_of


class Rows:
    """The rows of one step."""

    def __init__(self, max_width: int, device: torch.device) -> None:
        """Sample up to ``max_width`` values of a tensor, and join them on ``device``."""
        self._max_width = max_width
        self._sampler = ValueSampler(max_width, device)
        self._plans = SamplingPlans(self._sampler)
        self._ready_places = self._sampler.ready_places
        #: the kind of tensors that are sampled in the fastest way
        self._usual_kind = torch.float32, torch.strided, False, device
        self._lock = threading.Lock()
        #: statistics of all values are computed for one row in ``period``, from ``turn`` on
        self.turn, self.period = 0, 1
        self.statistics = ExactStatistics(device)
        self._held = HeldTensors(max_width, self._sampler.places_among)
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        self._held.clear()
        self.statistics.clear()
        self._pieces: list[Tensor] = []
        self.numels: list[int] = []
        #: all values of a tensor, by the number of its series
        self.wholes: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.numels)

    @property
    def sizes(self) -> list[int]:
        """Numbers of sampled values, by row."""
        return list(map(min, self.numels, repeat(self._max_width)))

    @property
    def lost(self) -> set[int]:
        """Rows without values: their tensors were written to before they were sampled."""
        return self._held.lost

    # -- one tensor ------------------------------------------------------------------------------

    def add(self, tensor: Tensor, unit_dim: int | None = None, *, max_held: int = -1) -> int | None:
        """Sample a tensor and return its row, or None if it has no values that can be read.

        ``unit_dim`` is the dimension of its units, if dead ones are counted. A tensor of up to
        ``max_held`` values may be sampled by :meth:`flush`. If it is negative, nothing is joined
        with the row before the end of the step.
        """
        # torch waits for this at each module and each gradient: the usual case makes few calls
        numel = tensor.numel()
        places = self._ready_places.get(numel)
        if (
            places is not None
            and type(tensor) in BARE_TYPES
            and kind_of(tensor) == self._usual_kind
            and not (count_dispatch_modes() or count_function_modes())
        ):
            values = tensor.detach() if tensor.requires_grad else tensor
            with self._lock:  # autograd has a thread for each device
                row = len(self.numels)
                piece = self._held.add(row, values, numel, places, max_held)
                if piece is not None:
                    self._append(piece)
                self.numels.append(numel)
            if (row + self.turn) % self.period == 0 and (
                unit_dim is not None or numel > self._max_width
            ):
                self.statistics.add_extremes(row, values, unit_dim)
            return row
        with without_dispatch(), without_torch_function():
            return self._add(tensor, unit_dim, max_held)

    def _add(self, tensor: Tensor, unit_dim: int | None, max_held: int) -> int | None:
        is_in_turn = (len(self.numels) + self.turn) % self.period == 0
        try:
            values = values_of(tensor)
            piece = None if values is None else self._sampler.sample(values)
        except RuntimeError:  # values that no kernel reads, such as quantized ones
            return None
        if values is None or piece is None:
            return None

        with self._lock:
            row = len(self.numels)
            self._append(piece)
            self.numels.append(values.numel())
        if values.numel() <= max_held:
            self._held.observe(values)
        has_all = values.numel() <= self._max_width
        if is_in_turn and not (has_all and unit_dim is None):
            with contextlib.suppress(RuntimeError):  # eight-bit floats have no kernel for it
                self.statistics.add_extremes(row, values, unit_dim)
        return row

    def _append(self, piece: Tensor) -> None:
        """Append the values of rows that come behind those of held tensors."""
        if self._held:
            with BareOperators():
                self._pieces.append(self._held.take())
        self._pieces.append(piece)

    def flush(self) -> None:
        """Sample the tensors that wait: they may be written to from now on."""
        with self._lock:
            if self._held:
                with BareOperators():
                    self._pieces.append(self._held.take())

    # -- many tensors ----------------------------------------------------------------------------

    def add_all(self, tensors: Sequence[Tensor]) -> tuple[list[int | None], RowGroup]:
        """Sample tensors, and return their rows and a group that another step can take over."""
        self.flush()
        start, first_piece = len(self), len(self._pieces)
        joined = None
        with BareOperators():
            plan = self._plans.plan_of(tensors)
            indices = plan.indices
            if plan.numels:
                joined = self._add_joined(plan, tensors)
            if plan.others:
                indices = list(indices)
            for index in plan.others:
                row = self.add(tensors[index])
                indices[index] = None if row is None else row - start
        group = RowGroup(
            pieces=self._pieces[first_piece:],
            numels=self.numels[start:],
            indices=indices,
            joined=joined,
            wide=plan.wide,
            others=plan.others,
        )
        return _rows_from(start, indices), group

    def _add_joined(self, plan: SamplingPlan, tensors: Sequence[Tensor]) -> Tensor:
        """Sample tensors together, and return all their values."""
        values = join_values([tensors[index] for index in plan.joined])
        if len(plan.joined) == 1:  # then it is a view, which training will write to
            values = values.clone()
        piece = values if plan.places is None else values.index_select(0, plan.places)
        with self._lock:
            first = len(self.numels)
            self._append(piece)
            self.numels += plan.numels
        turn, period = first + self.turn, self.period
        for index in plan.wide:
            row = plan.indices[index]
            if row is not None and (row + turn) % period == 0:
                self.statistics.add_extremes(first + row, tensors[index].detach(), None)
        return values

    def add_group(self, group: RowGroup) -> list[int | None]:
        """Add the rows of an earlier step, and return the row of each tensor."""
        self.flush()
        with self._lock:
            start = len(self.numels)
            self._pieces += group.pieces
            self.numels += group.numels
        return _rows_from(start, group.indices)

    # -- all values ------------------------------------------------------------------------------

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
            piece = self._sampler.sample(values)
            if piece is not None:
                self.flush()
                index = self._piece_of(row)
                self._pieces[index] = self._pieces[index].float() + piece.float()
            if number in self.wholes:
                self.wholes[number] += values.to("cpu", torch.float32)

    def _piece_of(self, row: int) -> int:
        """Return the index of the piece that is a row."""
        offset = sum(self.sizes[:row])
        for index, piece in enumerate(self._pieces):
            if not offset:
                return index
            offset -= piece.numel()
        raise IndexError(row)

    # -- the end of the step ---------------------------------------------------------------------

    def join(self) -> tuple[list[int], Tensor]:
        """Return the places of statistics of all values, and one tensor on the host.

        The tensor has these statistics, then the values of all rows, one row behind the other. A
        place is the row times the number of columns of ``EXACT``, plus the column.
        """
        self.flush()
        with BareOperators():
            places, pieces = self.statistics.collect()
            pieces += self._pieces
            if not pieces:
                return places, torch.zeros(0, dtype=torch.float32, device="cpu")
            return places, torch.cat(pieces).to("cpu", torch.float32)


def _rows_from(start: int, indices: Sequence[int | None]) -> list[int | None]:
    """Return the rows at indices behind a first row."""
    return [None if index is None else start + index for index in indices]
