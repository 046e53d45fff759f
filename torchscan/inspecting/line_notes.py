"""Notes of the user's lines in the nodes of a graph: torch's anomaly mode, with one line instead of a stack.

The mode is one for the process. While it is on for notes, torch's functions report it as off, and what sets it ends the notes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from torchscan.observing.wrapped_functions import wrap_function
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import FORMATS_STACK, anomaly_flags, set_anomaly_flags

#: what undoes the notes, while they are on
_undo: Callable[[], None] | None = None
#: whether the mode, were it on, would look for NaN; notes do not
_checks_nan = True
_ends_in_children = False


class LineNotes:
    """The switch of the notes. It leaves an anomaly mode of the user's alone."""

    def __init__(self) -> None:
        self._wrapped: list[Callable[[], None]] = []

    def start(self) -> None:
        """Hide the notes from functions that tell or set the mode."""
        global _ends_in_children
        if not _ends_in_children:
            _ends_in_children = True
            os.register_at_fork(after_in_child=_end_notes)
        names = vars(torch)
        self._wrapped = [
            wrap_function(names, "set_anomaly_enabled", _set_mode, names.__setitem__),
            wrap_function(names, "is_anomaly_enabled", _get_mode, names.__setitem__),
            wrap_function(names, "is_anomaly_check_nan_enabled", _get_check, names.__setitem__),
        ]

    def finish(self) -> None:
        """End the notes, and hide nothing any more."""
        _end_notes()
        for undo in self._wrapped:
            undo()
        self._wrapped.clear()

    def switch_on(self) -> None:
        """Have torch note the line that creates each node."""
        global _undo, _checks_nan
        is_on, checks_nan = anomaly_flags()
        if _undo is None and self._wrapped and not is_on:
            names, name = FORMATS_STACK
            _undo = wrap_function(names, name, _format_stack, names.__setitem__)
            _checks_nan = checks_nan
            set_anomaly_flags(True, False)

    def switch_off(self) -> None:
        """Restore torch's formatter and mode."""
        _end_notes()


def _end_notes() -> None:
    global _undo
    undo, _undo = _undo, None
    if undo is not None:
        set_anomaly_flags(False, _checks_nan)
        undo()


def _set_mode(set_mode: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    _end_notes()
    set_mode(*args, **kwargs)


def _get_mode(is_enabled: Callable[[], bool]) -> bool:
    return _undo is None and is_enabled()


def _get_check(is_enabled: Callable[[], bool]) -> bool:
    """Return what was set before the notes, which do not check."""
    return is_enabled() if _undo is None else _checks_nan


def _format_stack(_format: Callable[[], list[str]]) -> list[str]:
    """Return the user's line, in place of torch's list of all frames."""
    place = place_of_user()
    return [] if place is None else [place]
