"""Which pointers a Triton kernel reads and writes, found in its source.

Nothing is compiled: Triton compiles only where there is a GPU.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

#: functions of ``triton.language`` that compute with what they are given and touch no memory
_LANGUAGES = frozenset({"tl", "triton", "libdevice", "math", "gl", "ttgl"})
_BUILTINS = frozenset({"range", "min", "max", "abs", "len", "print", "float", "int", "bool"})
#: deeper than kernels call each other
_MAX_DEPTH = 8


class Access(NamedTuple):
    """The parameters of a kernel whose memory it reads, and those whose memory it writes."""

    read: frozenset[str]
    written: frozenset[str]


def find_access(kernel: Any, parameters: Collection[str]) -> Access:
    """Return what a kernel does to the memory behind its parameters.

    A parameter counts as read and written if the source is not at hand, or if it is given to a
    function whose source is not.
    """
    every = Access(frozenset(parameters), frozenset(parameters))
    function = _function_of(kernel)
    if function is None:
        return every
    walk = _Walk(function, getattr(kernel, "fn", kernel), depth=0)
    return Access(walk.read & every.read, walk.written & every.written)


def _function_of(kernel: Any) -> ast.FunctionDef | None:
    """Return the syntax tree of a kernel, or None without its source."""
    source = getattr(kernel, "src", None)
    try:
        if not isinstance(source, str):
            source = inspect.getsource(getattr(kernel, "fn", kernel))
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, SyntaxError, TypeError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)


class _Walk:
    """One function of a kernel, with the parameters that each of its variables points into."""

    def __init__(self, function: ast.FunctionDef, code: Any, depth: int) -> None:
        self.read: frozenset[str] = frozenset()
        self.written: frozenset[str] = frozenset()
        self._globals: Mapping[str, Any] = getattr(code, "__globals__", {})
        self._depth = depth
        arguments = function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        names += [each.arg for each in arguments.kwonlyargs]
        self._origins: dict[str, frozenset[str]] = {name: frozenset({name}) for name in names}
        self._follow_assignments(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                self._note_call(node)

    def _follow_assignments(self, function: ast.FunctionDef) -> None:
        """Find what variables point into, until nothing changes: loops carry pointers on."""
        is_changed = True
        while is_changed:
            before = dict(self._origins)
            for node in ast.walk(function):
                for target, value in _assignments_in(node):
                    self._assign(target, self._origins_of(value))
            is_changed = self._origins != before

    def _assign(self, target: ast.expr, origins: frozenset[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._origins[node.id] = self._origins.get(node.id, frozenset()) | origins

    def _origins_of(self, value: ast.expr) -> frozenset[str]:
        """Return the parameters that a value points into; what was loaded points nowhere."""
        if isinstance(value, ast.Call) and _name_of_call(value)[1] == "load":
            return frozenset()
        if isinstance(value, ast.Name):
            return self._origins.get(value.id, frozenset())
        parts = (each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr))
        keywords = value.keywords if isinstance(value, ast.Call) else []
        values = (*parts, *(each.value for each in keywords))
        return frozenset().union(*map(self._origins_of, values))

    def _note_call(self, call: ast.Call) -> None:
        owner, name = _name_of_call(call)
        if name in ("load", "store") or name.startswith("atomic_"):
            pointer = self._origins_of(_pointer_of(call, owner))
            if name != "store":
                self.read |= pointer
            if name != "load":
                self.written |= pointer
            return
        if owner in _LANGUAGES or (owner == "" and name in _BUILTINS):
            return
        called = self._globals.get(name) if owner == "" else None
        if owner == "" or owner in self._globals:
            self._note_function(call, called)

    def _note_function(self, call: ast.Call, called: Any) -> None:
        """Note what a function does that a kernel calls: anything, if it cannot be read."""
        function = None if called is None else _function_of(called)
        values = [*call.args, *(each.value for each in call.keywords)]
        if function is None or self._depth == _MAX_DEPTH:
            reached = frozenset().union(*map(self._origins_of, values))
            self.read |= reached
            self.written |= reached
            return
        walk = _Walk(function, getattr(called, "fn", called), self._depth + 1)
        for name, value in _given(function, call):
            origins = self._origins_of(value)
            if name in walk.read:
                self.read |= origins
            if name in walk.written:
                self.written |= origins


def _assignments_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the parts of ``a, b = x, y`` that belong together."""
    are_tuples = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if are_tuples and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _name_of_call(call: ast.Call) -> tuple[str, str]:
    """Return the owner and the name of a called function: ``("tl", "load")``."""
    function = call.func
    if isinstance(function, ast.Name):
        return "", function.id
    if not isinstance(function, ast.Attribute):
        return "", ""
    owner = function.value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return owner.id if isinstance(owner, ast.Name) else "", function.attr


def _pointer_of(call: ast.Call, owner: str) -> ast.expr:
    """Return the pointer of a load or a store; that of a descriptor is the descriptor itself."""
    if owner not in _LANGUAGES and isinstance(call.func, ast.Attribute):
        return call.func.value
    by_keyword = [each.value for each in call.keywords if each.arg in ("pointer", "desc")]
    return by_keyword[0] if by_keyword else call.args[0]


def _given(function: ast.FunctionDef, call: ast.Call) -> Sequence[tuple[str, ast.expr]]:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    by_position = list(zip(names, call.args, strict=False))
    return [*by_position, *((each.arg, each.value) for each in call.keywords if each.arg)]
