"""Names of root modules, as the user's code has them: ``critic (Sequential)``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn

from torchscan.inspecting.inspection_link import InspectionLink
from torchscan.inspecting.root_calls import ModuleSteps, RootCalls
from torchscan.recording.places import is_of_user


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
        """Return a root's variable, as far as it is known without a look at active functions, and its type."""
        module = steps.module()
        if module is not None and steps.variable is None:
            steps.variable = _find_variable(module, [vars(sys.modules["__main__"])])
        return (
            steps.type_name if steps.variable is None else f"{steps.variable} ({steps.type_name})"
        )


def _find_variable(module: nn.Module, namespaces: Iterable[Mapping[str, Any]]) -> str | None:
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if value is module:
                return name
    return None


def _active_names() -> Iterator[Mapping[str, Any]]:
    """Yield the variables of the user's active functions.

    Asked for these, Python up to 3.12 keeps their values until the function returns, so it is done for a finding only.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back
