"""Keyword arguments of calls, before the calls run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torchscan.recording.module_calls import Call
from torchscan.torch_versions import keyword_arguments

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


class KeywordInputs:
    """Record of the modules that are called with keyword arguments, over all steps.

    Torch passes these arguments only to hooks after a call, which may have changed them in place;
    searching for them before every call is slow. So each inspection has one record.
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
