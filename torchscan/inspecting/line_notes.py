"""Lines of the user's program that create the nodes of a graph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import torch
from torch.autograd.graph import Node

from torchscan.observing.wrapped_functions import wrap_function
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import FORMATS_STACK, anomaly_flags, set_anomaly_flags

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_TORCH = str(PurePath(torch.__file__).parent)
_OURS = str(PurePath(__file__).parent.parent)
#: undoes the notes of lines, while they are on
_undo_notes: Callable[[], None] | None = None
#: True if the anomaly mode, were it on, would check for NaN; notes do not
_checks_nan = True
_ends_in_children = False


def line_of(node: Node) -> str | None:
    """Return ``train.py:12 (in loss)``, as :class:`LineNotes` noted it.

    If the user has anomaly mode on, torch has noted the stack, of which it is the innermost line.
    """
    metadata: Any = node.metadata
    for entry in reversed(metadata.get("traceback_") or []):
        frame = _FRAME.search(entry)
        if frame is None:
            return str(entry)
        if not frame["file"].startswith((_TORCH, _OURS)):
            return f"{PurePath(frame['file']).name}:{frame['line']} (in {frame['function']})"
    return None


class LineNotes:
    """Notes of the user's lines in the nodes of a graph: anomaly mode, with one line for a stack.

    The mode is one for the process. While it is on for notes, torch's functions report it as off,
    and setting it ends the notes. An anomaly mode of the user's is left alone.
    """

    def __init__(self) -> None:
        self._wrapped: list[Callable[[], None]] = []

    def start(self) -> None:
        """Hide the notes from functions that return or set the mode."""
        global _ends_in_children
        if not _ends_in_children:
            _ends_in_children = True
            os.register_at_fork(after_in_child=_end_notes)

        def set_mode(set_mode: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            _end_notes()
            set_mode(*args, **kwargs)

        def is_mode_on(is_enabled: Callable[[], bool]) -> bool:
            return _undo_notes is None and is_enabled()

        def is_nan_checked(is_enabled: Callable[[], bool]) -> bool:
            return is_enabled() if _undo_notes is None else _checks_nan

        names = vars(torch)
        replacements: dict[str, Callable[..., Any]] = {
            "set_anomaly_enabled": set_mode,
            "is_anomaly_enabled": is_mode_on,
            "is_anomaly_check_nan_enabled": is_nan_checked,
        }
        self._wrapped = [
            wrap_function(names, name, function, names.__setitem__)
            for name, function in replacements.items()
        ]

    def finish(self) -> None:
        """End the notes, and restore torch's functions."""
        _end_notes()
        for undo in self._wrapped:
            undo()
        self._wrapped.clear()

    def switch_on(self) -> None:
        """Have torch note the line that creates each node."""
        global _undo_notes, _checks_nan
        is_on, checks_nan = anomaly_flags()
        if _undo_notes is None and self._wrapped and not is_on:
            names, name = FORMATS_STACK
            _undo_notes = wrap_function(names, name, _format_stack, names.__setitem__)
            _checks_nan = checks_nan
            set_anomaly_flags(True, False)

    def switch_off(self) -> None:
        """Restore torch's formatter and mode."""
        _end_notes()


def _end_notes() -> None:
    global _undo_notes
    undo, _undo_notes = _undo_notes, None
    if undo is not None:
        set_anomaly_flags(False, _checks_nan)
        undo()


def _format_stack(_format: Callable[[], list[str]]) -> list[str]:
    """Return the user's line, in place of torch's list of all frames."""
    place = place_of_user()
    return [] if place is None else [place]
