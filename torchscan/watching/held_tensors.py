"""Small tensors of a step that are sampled together, by one operator at the end of a pass.

Sampled values of other tensors wait beside them, so that the rows keep their order.

A tensor that is written to before the end of the pass has lost its values: its row is left out, and
tensors of its size are sampled at once from then on. In the first step with a size, its tensors are
sampled at once and observed until the step ends, so a model that writes to its activations in each
step loses no values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from torchscan.torch_versions import join_values

#: values of a tensor that may be held: a copy of more takes longer than to sample it
MAX_HELD = 2**11
#: values of all tensors that are held at a time
_MAX_TOTAL = 2**19
#: combinations of sizes whose positions are remembered
_MAX_PLANS = 8


class HeldTensors:
    """Tensors that wait to be sampled, in the order of their rows."""

    def __init__(self, max_width: int, places_of: Callable[[int], Tensor]) -> None:
        """``places_of`` returns the positions to sample among a number of values."""
        self._max_width, self._places_of = max_width, places_of
        #: for each number of values whether tensors with so many can be held, once that is known
        self._can_hold: dict[int, bool] = {}
        #: tensors that show whether others of their size can be held, and their versions
        self._probation: list[tuple[Tensor, int]] = []
        #: positions to sample in joined values by the sizes of the tensors; None for all
        self._plans: dict[tuple[int, ...], Tensor | None] = {}
        #: row of the tensor that was held last; the others have the rows before it
        self._last_row = -1
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        for tensor, version in self._probation:
            numel = tensor.numel()
            is_unchanged = tensor._version == version
            self._can_hold[numel] = is_unchanged and self._can_hold.get(numel, True)
        self._probation.clear()
        self._forget()
        #: rows whose values are lost
        self.lost: set[int] = set()

    def _forget(self) -> None:
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._num_values = 0

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def add(
        self, row: int, tensor: Tensor, numel: int, places: Tensor, max_held: int
    ) -> Tensor | None:
        """Hold a tensor of up to ``max_held`` values, or sampled values of another one, for a row.

        Return its sampled values instead if they cannot be held, or if ``max_held`` is negative.
        """
        can_hold: bool | None = False
        if numel <= max_held and not tensor.is_inference():
            can_hold = self._can_hold.get(numel)
            if can_hold is None:
                self._probation.append((tensor, tensor._version))
        if not can_hold:
            tensor, numel = torch.take(tensor, places), len(places)
        total = self._num_values + numel
        if max_held < 0 or total > _MAX_TOTAL or tensor.is_inference():
            return torch.take(tensor, places) if can_hold else tensor
        self._tensors.append(tensor)
        self._versions.append(tensor._version)
        self._last_row = row
        self._num_values = total
        return None

    def observe(self, tensor: Tensor) -> None:
        """Find out whether tensors of this size can be held, from one that is sampled at once."""
        if tensor.numel() not in self._can_hold and not tensor.is_inference():
            self._probation.append((tensor, tensor._version))

    def take(self) -> Tensor:
        """Return the sampled values of all tensors, one behind the other, and release them."""
        tensors = self._tensors
        if [each._version for each in tensors] != self._versions:
            first_row = self._last_row + 1 - len(tensors)
            for row, tensor, version in zip(
                count(first_row), tensors, self._versions, strict=False
            ):
                if tensor._version != version:
                    self.lost.add(row)
                    self._can_hold[tensor.numel()] = False
        sizes = tuple(map(Tensor.numel, tensors))
        if sizes not in self._plans:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[sizes] = self._make_plan(sizes)
        places = self._plans[sizes]
        values = join_values(tensors)
        if places is not None:
            values = values.index_select(0, places)
        elif len(tensors) == 1:  # then it is a view, which training will write to
            values = values.clone()
        self._forget()
        return values

    def _make_plan(self, sizes: tuple[int, ...]) -> Tensor | None:
        if max(sizes) <= self._max_width:
            return None
        start, places = 0, []
        for numel in sizes:
            places.append(start + self._places_of(numel))
            start += numel
        return torch.cat(places)
