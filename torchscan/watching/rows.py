"""Values of tensors that one step collects: a row for each tensor, one behind the other.

Training runs ahead of what is collected here, so a tensor is sampled by one gather at once, and
everything else waits for the end of the step: all rows are joined there by one operator.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from itertools import accumulate, compress, repeat
from operator import attrgetter

import torch
from torch import Tensor

from torchscan.observing.readable_tensors import is_plain
from torchscan.torch_versions import (
    count_dispatch_modes,
    count_function_modes,
    join_values,
    norms_of,
    without_dispatch,
    without_torch_function,
)
from torchscan.watching.held_tensors import HeldTensors
from torchscan.watching.row_groups import BareOperators, NumberedTensors, RowGroup, SamplingPlan
from torchscan.watching.sampling import places_in, values_of
from torchscan.watching.step_samples import EXACT

_MIN, _MAX, _DEAD, _SAMPLE_NORM, _NORM = range(len(EXACT))
_BARE = frozenset({Tensor, torch.nn.Parameter})
#: values of a tensor that is joined with others before it is sampled, and of all such tensors: a
#: copy of so few values takes less time than another operator
_MAX_JOINED, _MAX_TOTAL = 2**14, 2**22
#: all that decides how a tensor is sampled, besides its type and its number of values
_KIND_OF = attrgetter("dtype", "layout", "is_nested", "device")
#: plans that are remembered
_MAX_PLANS = 16


class Rows:
    """The rows of one step."""

    def __init__(self, max_width: int, device: torch.device) -> None:
        """Sample up to ``max_width`` values of a tensor, and join them on ``device``."""
        self._max_width = max_width
        self._device = device
        #: the kind of tensors that are sampled in the fastest way
        self._usual_kind = torch.float32, torch.strided, False, device
        self._lock = threading.Lock()
        #: positions to sample, by the number of values and the device
        self._places: dict[tuple[int, torch.device], Tensor] = {}
        #: those on the device of the rows, by the number of values
        self._ready_places: dict[int, Tensor] = {}
        #: plans for many tensors, by their types and sizes
        self._plans: dict[tuple[object, ...], SamplingPlan] = {}
        #: statistics of all values are computed for one row in ``period``, from ``turn`` on
        self.turn, self.period = 0, 1
        self._held = HeldTensors(max_width, self._places_among)
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        self._held.clear()
        self._pieces: list[Tensor] = []
        self.numels: list[int] = []
        #: row, column of ``EXACT`` and value
        self._exact: list[tuple[int, int, Tensor]] = []
        #: rows and their norms
        self._norms: list[tuple[Sequence[int], Tensor]] = []
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
            and type(tensor) in _BARE
            and _KIND_OF(tensor) == self._usual_kind
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
                self._add_extremes(row, values, unit_dim)
            return row
        with without_dispatch(), without_torch_function():
            return self._add(tensor, unit_dim, max_held)

    def _add(self, tensor: Tensor, unit_dim: int | None, max_held: int) -> int | None:
        is_in_turn = (len(self.numels) + self.turn) % self.period == 0
        try:
            values = values_of(tensor)
            piece = None if values is None else self._sample(values)
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
                self._add_extremes(row, values, unit_dim)
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

    def _sample(self, values: Tensor) -> Tensor | None:
        """Return some of the values, or None if there are none."""
        numel, device = values.numel(), values.device
        if not numel or device.type == "meta":
            return None
        places = self._places.get((numel, device))
        if places is None:
            places = self._places[numel, device] = self._places_among(numel, device)
            if device == self._device:
                self._ready_places[numel] = places
        piece = torch.take(values, places)
        if piece.dtype.itemsize < 2 and piece.is_floating_point():  # cannot be joined with others
            piece = piece.float()
        return piece if piece.device == self._device else piece.to(self._device, non_blocking=True)

    def _places_among(self, numel: int, device: torch.device | None = None) -> Tensor:
        """Return the positions to sample among this number of values."""
        device = device or self._device
        if numel <= self._max_width:
            return torch.arange(numel, device=device)
        return places_in(numel, self._max_width, device)

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

    def add_all(self, tensors: Sequence[Tensor]) -> tuple[list[int | None], RowGroup]:
        """Sample tensors, and return their rows and a group that another step can take over."""
        self.flush()
        start, first_piece = len(self), len(self._pieces)
        joined = None
        with BareOperators():
            plan = self._plan_of(tensors)
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

    def _plan_of(self, tensors: Sequence[Tensor]) -> SamplingPlan:
        """Return the plan for tensors, which is known if such tensors were sampled before."""
        key = *map(type, tensors), *map(_KIND_OF, tensors), *map(Tensor.numel, tensors)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(tensors)
        return plan

    def _make_plan(self, tensors: Sequence[Tensor]) -> SamplingPlan:
        width = self._max_width
        is_joined = self._choose_joined(tensors)
        joined = list(compress(range(len(tensors)), is_joined))
        numels = [tensors[index].numel() for index in joined]
        indices: list[int | None] = [None] * len(tensors)
        for number, index in enumerate(joined):
            indices[index] = number
        places: Tensor | None = None
        wide = [index for index in joined if tensors[index].numel() > width]
        if wide:
            starts = accumulate(numels, initial=0)
            sampled = [self._places_among(numel) for numel in numels]
            places = torch.cat([start + each for start, each in zip(starts, sampled, strict=False)])
        others = [index for index, each in enumerate(is_joined) if not each]
        return SamplingPlan(
            joined=joined,
            numels=numels,
            places=places,
            indices=indices,
            wide=wide,
            others=others,
        )

    def _choose_joined(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return for each tensor whether it is sampled by one operator for all such tensors."""
        device = self._device
        if device.type == "meta":
            return [False] * len(tensors)
        chosen = [
            0 < tensor.numel() <= _MAX_JOINED
            and type(tensor) in _BARE
            and tensor.dtype is torch.float32
            and tensor.layout is torch.strided
            and tensor.device == device
            and not tensor.is_nested
            for tensor in tensors
        ]
        total = sum(tensor.numel() for tensor in compress(tensors, chosen))
        if total > _MAX_TOTAL:
            width = self._max_width
            chosen = [
                is_chosen and tensor.numel() <= width
                for is_chosen, tensor in zip(chosen, tensors, strict=True)
            ]
        return chosen

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
                self._add_extremes(first + row, tensors[index].detach(), None)
        return values

    def add_group(self, group: RowGroup) -> list[int | None]:
        """Add the rows of an earlier step, and return the row of each tensor."""
        self.flush()
        with self._lock:
            start = len(self.numels)
            self._pieces += group.pieces
            self.numels += group.numels
        return _rows_from(start, group.indices)

    # -- other statistics ------------------------------------------------------------------------

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
        width = len(EXACT)
        places = [row * width + column for row, column, _ in self._exact]
        values = [each for *_, each in self._exact]
        with BareOperators():
            if values and (self._device.type != "cpu" or not all(each.is_cpu for each in values)):
                values = [each.to(self._device) for each in values]
            pieces = [torch.stack(values)] if values else []
            for rows, norms in self._norms:
                places += [row * width + _NORM for row in rows]
                pieces.append(norms.to(self._device))
            pieces += self._pieces
            if not pieces:
                return places, torch.zeros(0, dtype=torch.float32, device="cpu")
            return places, torch.cat(pieces).to("cpu", torch.float32)


def _rows_from(start: int, indices: Sequence[int | None]) -> list[int | None]:
    """Return the rows at indices behind a first row."""
    return [None if index is None else start + index for index in indices]
