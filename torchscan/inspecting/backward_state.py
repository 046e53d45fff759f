"""Knowledge about the gradients of the backward pass that goes on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor

from torchscan.inspecting.finiteness import check_values, version_of

#: parameters with their gradients
GradientPairs = Sequence[tuple[Tensor, Tensor]]


class BackwardState:
    """Knowledge about the gradients that the last backward pass has stored."""

    def __init__(self) -> None:
        #: None until they are checked, and for those that a device checks
        self.has_finite_gradients: bool | None = None
        #: the scale of a GradScaler, or None if the loss is not scaled
        self.scale: float | None = None
        #: the user's line that has started it
        self.line: str | None = None
        #: gradients that were read, with the number of times they had been written to
        self._versions: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        #: gradients that were not finite after an earlier backward pass
        self._spoiled: dict[int, weakref.ref[Tensor]] = {}

    def note_stored(self, pairs: GradientPairs) -> None:
        """Remember the gradients that a backward pass has stored, all of which are read."""
        self._versions = {}
        self.note_read(pairs)

    def note_read(self, pairs: GradientPairs) -> None:
        """Remember how often these gradients have been written to."""
        for parameter, gradient in pairs:
            self._versions[id(parameter)] = weakref.ref(gradient), version_of(gradient)

    def find_unread(self, parameters: Iterable[Tensor]) -> GradientPairs:
        """Return the parameters whose gradients were written to or replaced since the last read."""
        unread = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            known = self._versions.get(id(parameter))
            if known is None or known[0]() is not gradient or known[1] != version_of(gradient):
                unread.append((parameter, gradient))
        return unread

    def note_spoiled(self, pairs: GradientPairs) -> None:
        """Remember gradients that stay as they are while others are added to them."""
        bad = [gradient for _, gradient in pairs if not check_values(gradient).is_fine]
        self._spoiled = {id(each): weakref.ref(each) for each in bad}

    def has_spoiled(self, pairs: GradientPairs) -> bool:
        """Return whether one of these gradients was not finite before this backward pass."""
        return any(self.is_spoiled(gradient) for _, gradient in pairs)

    def is_spoiled(self, gradient: Tensor) -> bool:
        """Return whether a gradient was not finite before this backward pass added to it."""
        known = self._spoiled.get(id(gradient))
        return known is not None and known() is gradient and not check_values(gradient).is_fine
