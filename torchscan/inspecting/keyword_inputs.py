"""Keyword arguments of calls, before the calls run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torchscan.recording.module_calls import Call
from torchscan.torch_versions import keyword_arguments

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


class KeywordInputs:
    """Knows which modules are called with keyword arguments, in all steps of an inspection.

    Torch passes them only to hooks after a call, which may have changed them in place, and to look
    for them before each call takes time.
    """

    def __init__(self) -> None:
        #: by path: False if no call of the module had any
        self._has_any: dict[str, bool] = {}

    def find_at_start(self, call: Call) -> Mapping[str, Any]:
        """Return the keyword arguments of a call that starts, for a global forward pre-hook."""
        if self._has_any.get(call.path) is False:
            return _NO_ARGUMENTS
        return keyword_arguments(call.module)

    def note_end(self, call: Call, kwargs: Mapping[str, Any]) -> None:
        """Note the keyword arguments of a call that has ended."""
        if kwargs or call.path not in self._has_any:
            self._has_any[call.path] = bool(kwargs)
