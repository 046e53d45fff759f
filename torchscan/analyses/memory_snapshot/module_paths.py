"""Paths of modules whose forward pass a stack goes through.

A stack has the file, the line and the name of each function. These are compared with the code of
the model's classes, from the outermost frame inwards. Several equal blocks run the same code, so
the result is then all of them.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from types import CodeType
from typing import NamedTuple

from torch import nn

from torchscan.analyses.memory_snapshot.snapshot_data import Frame
from torchscan.analyses.parameters import enclosing_modules

#: the number of a block in its list, as a part of a path
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


class _ForwardCode(NamedTuple):
    """Place of the function ``forward`` of a class, or of several that inherit it."""

    filename: str
    first_line: int
    last_line: int
    types: set[type[nn.Module]]


class ModulePaths:
    """The modules of a model by the code of their forward passes."""

    def __init__(self, model: nn.Module) -> None:
        self._paths_by_type: dict[type[nn.Module], list[str]] = defaultdict(list)
        #: by the name of the file, without folders, which differ between machines
        self._code_by_file: dict[str, list[_ForwardCode]] = defaultdict(list)
        self._known: dict[tuple[tuple[int, int], ...], tuple[str, ...]] = {}
        self._root_type = type(model)
        #: True if a stack goes through code of the model: its own class, or one outside of torch
        self.is_recognized = False
        #: True if a stack goes through modules that the model lacks, or through torch's alone
        self.has_others = False
        for path, module in model.named_modules():
            self._paths_by_type[type(module)].append(path)
        by_code: dict[CodeType, set[type[nn.Module]]] = defaultdict(set)
        for kind in self._paths_by_type:
            code = getattr(inspect.unwrap(kind.forward), "__code__", None)
            if isinstance(code, CodeType):
                by_code[code].add(kind)
        for code, types in by_code.items():
            lines = [line for _, _, line in code.co_lines() if line is not None]
            found = _ForwardCode(code.co_filename, code.co_firstlineno, max(lines), types)
            self._code_by_file[PurePath(code.co_filename).name].append(found)

    def find(self, frames: Sequence[Frame]) -> tuple[str, ...]:
        """Return the possible paths of the innermost module of a stack, or no paths."""
        calls = []
        for frame in reversed(frames):
            code = self._code_of(frame)
            if code is None:
                is_of_torch = "torch" in PurePath(frame.filename).parts
                self.has_others |= frame.name == "forward" and not is_of_torch
                continue
            calls.append((code, frame.line))
            own = [kind for kind in code.types if not f"{kind.__module__}.".startswith("torch.")]
            is_own = bool(own) or self._root_type in code.types
            self.is_recognized |= is_own
            self.has_others |= not is_own
        return self._paths_of(calls)

    def _code_of(self, frame: Frame) -> _ForwardCode | None:
        if frame.name != "forward":
            return None
        for code in self._code_by_file.get(PurePath(frame.filename).name, ()):
            if code.first_line <= frame.line <= code.last_line:
                return code
        return None

    def _paths_of(self, calls: Sequence[tuple[_ForwardCode, int]]) -> tuple[str, ...]:
        """Return the paths of modules whose calls are nested."""
        paths: tuple[str, ...] = ()
        key: tuple[tuple[int, int], ...] = ()
        for index, (code, line) in enumerate(calls):
            key = (*key, (id(code.types), line))
            known = self._known.get(key)
            if known is None:
                caller = calls[index - 1] if index else None
                known = self._known[key] = self._paths_within(paths, code, caller)
            paths = known
        return paths

    def _paths_within(
        self,
        outer: Iterable[str],
        code: _ForwardCode,
        caller: tuple[_ForwardCode, int] | None,
    ) -> tuple[str, ...]:
        """Return the modules with this code inside others, by the line that calls them."""
        candidates = [path for kind in code.types for path in self._paths_by_type[kind]]
        if caller is None:
            return tuple(sorted(candidates))
        outer = set(outer)
        inner = [
            path
            for path in candidates
            if path and outer.intersection(("", *enclosing_modules(path)))
        ]
        calling_code, line = caller
        names = re.findall(r"\w+", linecache.getline(calling_code.filename, line))
        named = [path for path in inner if path.rpartition(".")[2] in names]
        return tuple(sorted(named or inner))


def star_numbers(path: str) -> str:
    """Return a path with stars for the numbers of blocks."""
    return _INDEX.sub("*", path)


def path_pattern(paths: Sequence[str]) -> str:
    """Return one path for several: with stars for numbers, and cut where the paths differ."""
    patterns = set(map(star_numbers, paths)) if len(paths) > 1 else set(paths)
    if len(patterns) == 1:
        return patterns.pop()
    common = []
    for parts in zip(*(pattern.split(".") for pattern in sorted(patterns)), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
