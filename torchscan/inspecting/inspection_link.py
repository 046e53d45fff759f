"""The connection from the guard of a run to the inspection of one model that goes on beside it."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from torchscan.inspecting.inspector import Inspector


class InspectionLink:
    """A weak reference to an inspection, as far as there is one."""

    def __init__(self) -> None:
        self._inspector: weakref.ref[Inspector] | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._is_guard_first = False

    def follow(self, inspector: Inspector, *, is_guard_first: bool) -> None:
        """Refer to this inspection from now on. If the guard is first, it does not rely on what the inspection finds."""
        self._is_guard_first = is_guard_first
        self._inspector = weakref.ref(inspector)
        self._model = weakref.ref(inspector.model)

    def inspected(self) -> nn.Module | None:
        """Return the module that is or was inspected closely, or None."""
        return None if self._model is None else self._model()

    def is_beside(self, module: nn.Module) -> bool:
        """Return whether a running inspection is of another module than this one."""
        return self._running_inspector() is not None and self.inspected() is not module

    def has_found(self) -> bool:
        """Return whether the inspection has reported something in its current step."""
        if self._is_guard_first:
            return False
        inspector = self._running_inspector()
        return inspector is not None and inspector.has_found

    def as_overhead(self) -> AbstractContextManager[object]:
        """Return a context for what the guard does, so that it does not count in a step's times."""
        inspector = self._running_inspector()
        return nullcontext() if inspector is None else inspector.as_overhead()

    def _running_inspector(self) -> Inspector | None:
        inspector = None if self._inspector is None else self._inspector()
        if inspector is None or not inspector.is_started:
            return None
        return inspector
