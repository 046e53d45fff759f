"""Steps of optimizers that a ``GradScaler`` runs, or skips because gradients overflowed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import torch
from torch.optim.optimizer import Optimizer

from torchscan.observing.wrapped_functions import wrap_function


class NoteStep(Protocol):
    """Notes a step of a ``GradScaler``."""

    def __call__(self, optimizer: Optimizer, *, has_stepped: bool) -> object:
        """Note whether the optimizer has stepped."""


class ScalerWatch:
    """A wrapper of ``GradScaler.step`` that notes whether the optimizer has stepped."""

    def __init__(
        self,
        is_off: Callable[[], bool],
        check_safely: Callable[[], AbstractContextManager[object]],
        note_step: NoteStep,
    ) -> None:
        """Call ``note_step`` in a context of ``check_safely``, unless ``is_off``."""
        self._is_off = is_off
        self._check_safely = check_safely
        self._note_step = note_step
        #: the optimizer whose step a scaler runs or skips
        self.optimizer: Optimizer | None = None
        #: True once an optimizer has stepped since then
        self.has_stepped = False
        self._unwrap: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Take the place of the method."""
        scaler: Any = torch.amp.GradScaler
        assign_method = partial(setattr, scaler)
        self._unwrap = wrap_function(vars(scaler), "step", self._run_step, assign_method)

    def close(self) -> None:
        """Restore the method."""
        self._unwrap()

    def _run_step(
        self,
        step: Callable[..., Any],
        scaler: Any,
        optimizer: Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run an optimizer's step in place of the scaler's method; note whether it is skipped."""
        if self._is_off():
            return step(scaler, optimizer, *args, **kwargs)
        self.has_stepped, self.optimizer = False, optimizer
        try:
            result = step(scaler, optimizer, *args, **kwargs)
        finally:
            self.optimizer = None
        with self._check_safely():
            self._note_step(optimizer, has_stepped=self.has_stepped)
        return result
