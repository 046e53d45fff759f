"""Compilations by torch.compile, and hooks that are not compiled in.

Hooks that exist while a frame is compiled are compiled into it, with graph breaks that stay. So
they are removed when compilation starts and restored when it ends. A compiled call is observed from
outside.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType
from typing import Any

from torch import nn

from torchscan.torch_versions import (
    compile_callbacks,
    compile_records,
    graph_breaks,
    has_compiler,
    recompile_reason,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFrame:
    """A function, or its part after a graph break, and how often it was compiled."""

    #: for example ``Block.forward, model.py:42``
    place: str
    #: path of the first module with this function, or None if no module has it
    path: str | None
    times: int
    #: reasons of recompilations
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """The compiled frames and graph breaks. torch keeps the last 64 frames."""

    frames: tuple[CompiledFrame, ...]
    #: reasons of graph breaks, each with its number of breaks
    breaks: tuple[tuple[str, int], ...]

    @property
    def recompiled(self) -> int:
        """Number of recompilations."""
        return sum(frame.times - 1 for frame in self.frames)


class CompileWatch:
    """Observer of the compiler: calls functions when compilation begins and ends."""

    def __init__(
        self,
        at_start: Callable[[], object],
        at_end: Callable[[], object],
        *,
        keep_out: Callable[[], object] = lambda: None,
    ) -> None:
        """``keep_out`` replaces hooks by hooks that the compiler does not trace."""
        self._hooks = (lambda *_: at_start(), lambda *_: at_end())
        self._keep_out = keep_out
        self._has_compiler = False
        self._ignored: Any = None
        self._records = {id(record): record for record in compile_records()}
        self._breaks = Counter(graph_breaks())

    def adapt(self) -> None:
        """Register again: the compiler may be loaded or reset at any time."""
        self.listen()
        self.ignore_hooks()
        if not self._has_compiler and has_compiler():
            self._has_compiler = True
            self._keep_out()

    def listen(self) -> None:
        """Register the callbacks, which the compiler forgets when it is reset."""
        every_heard = compile_callbacks()
        for heard, hook in zip(every_heard, self._hooks, strict=False) if every_heard else ():
            if hook not in heard:
                heard.append(hook)

    def ignore_hooks(self) -> None:
        """Suppress the warning about global hooks that each call of a compiled module gives."""
        if self._ignored is not None:
            return
        warnings.filterwarnings(
            "ignore", r"Using `torch.compile\(module\)` when there are global hooks"
        )
        self._ignored = warnings.filters[0]

    def close(self) -> None:
        """Remove the callbacks and the warning filter."""
        if self._ignored in warnings.filters:
            warnings.filters.remove(self._ignored)  # type: ignore[attr-defined] # it is a list
        for heard, hook in zip(compile_callbacks(), self._hooks, strict=False):
            if hook in heard:
                heard.remove(hook)

    def compiled(self, modules: Iterable[tuple[str, nn.Module]]) -> Compilation | None:
        """Return the compilations and graph breaks since the start, or None if there are none."""
        new = [record for record in compile_records() if id(record) not in self._records]
        breaks = Counter(graph_breaks())
        breaks.subtract(self._breaks)
        if not new and not +breaks:
            return None
        records: dict[tuple[str, int], list[Any]] = {}
        for record in new:
            if record.co_filename is not None:  # else it is a backward pass
                place = record.co_filename, record.co_firstlineno
                records.setdefault(place, []).append(record)
        places = _places(modules)
        frames = [_frame(place, each, places.get(place)) for place, each in records.items()]
        by_line = []
        for reason, times in (+breaks).most_common():
            first_line, *_ = str(reason).strip().split("\n")
            by_line.append((first_line, times))
        return Compilation(frames=tuple(frames), breaks=tuple(by_line))


#: file and line of a function -> the path and type of the first module that has it
_Places = Mapping[tuple[str, int], tuple[str, str]]


def _places(modules: Iterable[tuple[str, nn.Module]]) -> _Places:
    places: dict[tuple[str, int], tuple[str, str]] = {}
    for path, module in modules:
        code = getattr(type(module).forward, "__code__", None)
        if isinstance(code, CodeType):
            lines = {line for _, _, line in code.co_lines() if line is not None}
            for line in lines | {code.co_firstlineno}:
                places.setdefault((code.co_filename, line), (path, type(module).__name__))
    return places


def _frame(
    place: tuple[str, int], records: list[Any], module: tuple[str, str] | None
) -> CompiledFrame:
    name, path = records[0].co_name, None
    if module is not None:
        path, type_name = module
        name = f"{type_name}.forward"
    reasons = tuple(dict.fromkeys(filter(None, map(recompile_reason, records))))
    file, line = place
    where = f"{name}, {PurePath(file).name}:{line}"
    return CompiledFrame(place=where, path=path, times=len(records), reasons=reasons)
