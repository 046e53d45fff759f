"""Names of root modules, as the user's code has them, and the inspection of one of them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from torch import Tensor, nn

from torchscan.inspecting.finiteness import MAX_JOINED
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.root_call import ModuleSteps
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.run import CheckedModule
from torchscan.recording.places import is_of_user
from torchscan.torch_versions import place_in_group


class InspectionLink:
    """A weak reference to an inspection, as far as there is one."""

    def __init__(self) -> None:
        self._inspector: weakref.ref[Inspector] | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._is_guard_first = False

    def follow(self, inspector: Inspector, *, is_guard_first: bool) -> None:
        """Refer to this inspection from now on. A guard that is first does not rely on it."""
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

    def has_checked(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Return whether the inspection knows that a gradient is finite.

        Hooks and other ranks may write to a gradient after it is stored, and torch need not count
        that.
        """
        if self._is_guard_first or gradient.numel() <= MAX_JOINED or place_in_group() is not None:
            return False
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            return False
        inspector = self._running_inspector()
        return inspector is not None and inspector.has_checked(gradient)

    def as_overhead(self) -> AbstractContextManager[object]:
        """Return a context for what the guard does, so that it does not count in a step's times."""
        inspector = self._running_inspector()
        return nullcontext() if inspector is None else inspector.as_overhead()

    def _running_inspector(self) -> Inspector | None:
        inspector = None if self._inspector is None else self._inspector()
        if inspector is None or not inspector.is_started:
            return None
        return inspector


class RootNames:
    """The names of the modules that a script calls."""

    def __init__(self, calls: RootCalls, link: InspectionLink) -> None:
        self._calls = calls
        self._link = link

    def find_name(self, module: nn.Module | None) -> str | None:
        """Return the name of a root, or None for the one that is inspected."""
        if module is None or module is self._link.inspected():
            return None
        steps = self._calls.steps_of(module)
        steps.variable = steps.variable or _find_variable(module, _active_names())
        return self.format_name(steps)

    def format_name(self, steps: ModuleSteps) -> str:
        """Return a root's type, and its variable if it is known without reading functions."""
        module = steps.module()
        if module is not None and steps.variable is None:
            steps.variable = _find_variable(module, [vars(sys.modules["__main__"])])
        return (
            steps.type_name if steps.variable is None else f"{steps.variable} ({steps.type_name})"
        )

    def list_checked(
        self, trained: Iterable[ModuleSteps], main: ModuleSteps | None
    ) -> list[CheckedModule]:
        """Return the roots that train, with the number of steps in which each was checked."""
        modules = []
        for steps in trained:
            name, number = self.format_name(steps), steps.num_checked
            modules.append(CheckedModule(name=name, steps=number, is_timed=steps is main))
        return modules


def _find_variable(module: nn.Module, namespaces: Iterable[Mapping[str, Any]]) -> str | None:
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if value is module:
                return name
    return None


def _active_names() -> Iterator[Mapping[str, Any]]:
    """Yield the variables of the user's active functions.

    Asked for these, Python up to 3.12 keeps their values until the function returns, so it is done
    for a finding only.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back
