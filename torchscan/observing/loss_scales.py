"""Losses that a ``GradScaler`` has scaled: an overflow of the scaled value is intended."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

#: scaled losses that are remembered at once
_MAX_LOSSES = 8


class ScaledLoss(NamedTuple):
    """A loss as it was before it was scaled."""

    scaled: weakref.ref[Tensor]
    loss: Tensor
    #: NaN on a CUDA device, where reading it would wait
    scale: float


class LossScales:
    """The last losses that were scaled."""

    def __init__(self) -> None:
        self._losses: deque[ScaledLoss] = deque(maxlen=_MAX_LOSSES)

    def note(self, scaled: Tensor, loss: Tensor, scaler: object) -> None:
        """Remember the loss that a scaler has scaled."""
        of_scaler: Any = scaler
        scale = math.nan if scaled.is_cuda else float(of_scaler.get_scale())
        self._losses.append(ScaledLoss(weakref.ref(scaled), loss.detach(), scale))

    def unscale(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Return the losses before they were scaled, and their scale, or None if there is none."""
        losses, scale = [], None
        for tensor in tensors:
            known = next((each for each in self._losses if each.scaled() is tensor), None)
            if known is None:
                losses.append(tensor)
            else:
                losses.append(known.loss)
                scale = known.scale
        return losses, scale
