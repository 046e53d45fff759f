"""Memory that a Triton kernel reads and writes, found in its source.

Nothing is compiled: Triton compiles only where there is a GPU.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

#: modules of which only the functions below access memory
_LANGUAGES = frozenset({"tl", "triton", "libdevice", "math", "gl", "ttgl"})
_READS = frozenset({"load", "gather", "load_tensor_descriptor", "descriptor_load"})
_WRITES = frozenset({"store", "scatter", "store_tensor_descriptor", "descriptor_store"})
_BUILTINS = frozenset({"range", "min", "max", "abs", "len", "print", "float", "int", "bool"})
#: calls nested deeper than this count as without source
_MAX_DEPTH = 8
_NOWHERE: frozenset[str] = frozenset()
#: by kernel, which may be launched many times
_known_access: WeakKeyDictionary[Any, Access] = WeakKeyDictionary()


class Access(NamedTuple):
    """The parameters of a kernel whose memory it reads, and those whose memory it writes."""

    read: frozenset[str]
    written: frozenset[str]


def find_access(kernel: Any, parameters: Collection[str]) -> Access:
    """Return what a kernel does to the memory behind its parameters.

    A parameter counts as read and written if the source is not available, or if it is given to a
    function whose source is not.
    """
    every = frozenset(parameters)
    code = getattr(kernel, "fn", kernel)  # a kernel's own hash fixes the globals that it uses
    access = _known_access.get(code)
    if access is None:
        function = _syntax_tree_of(kernel)
        if function is None:
            return Access(every, every)
        access = _KernelFunction(function, kernel, depth=0).access()
        _known_access[code] = access
    return Access(access.read & every, access.written & every)


def _syntax_tree_of(kernel: Any) -> ast.FunctionDef | None:
    """Return the syntax tree of a kernel, or None without its source."""
    source = getattr(kernel, "src", None)
    try:
        if not isinstance(source, str):
            source = inspect.getsource(getattr(kernel, "fn", kernel))
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, SyntaxError, TypeError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)


class _KernelFunction:
    """One function of a kernel, with the parameters that each of its variables points into.

    Statements are followed in their order: a variable may point elsewhere later.
    """

    def __init__(self, function: ast.FunctionDef, kernel: Any, depth: int) -> None:
        self._body = function.body
        self._globals: Mapping[str, Any] = getattr(getattr(kernel, "fn", kernel), "__globals__", {})
        self._depth = depth
        parameters = _parameters_of(function)
        self._origins = {name: frozenset({name}) for name in parameters}
        #: what called functions do, as a loop is followed several times
        self._called: dict[Any, Access] = {}
        self._read: set[str] = set()
        self._written: set[str] = set()

    def access(self) -> Access:
        """Return the parameters that the function reads and writes through."""
        self._follow(self._body)
        return Access(frozenset(self._read), frozenset(self._written))

    def _follow(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._follow_expressions(statement)
            self._assign(statement)
            if isinstance(statement, ast.If):
                self._follow_branches(statement)
            elif isinstance(statement, ast.For | ast.While):
                self._follow_loop(statement)
            elif isinstance(statement, ast.With):
                self._follow(statement.body)

    def _follow_expressions(self, statement: ast.stmt) -> None:
        """Follow a statement's own expressions, not statements inside it."""
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                continue
            for node in ast.walk(child):
                if isinstance(node, ast.Call):
                    self._note_call(node)
                self._assign(node)

    def _assign(self, node: ast.AST) -> None:
        for target, value in _assignments_of(node):
            origins = self._origins_of(value)
            for each in ast.walk(target):
                if not isinstance(each, ast.Name):
                    continue
                before = self._origins.get(each.id, _NOWHERE)
                moves = isinstance(node, ast.AugAssign) or target is not each
                self._origins[each.id] = before | origins if moves else origins

    def _follow_branches(self, statement: ast.If) -> None:
        """Follow both branches: either may run."""
        before = dict(self._origins)
        self._follow(statement.body)
        after_body = self._origins
        self._origins = before
        self._follow(statement.orelse)
        self._merge(after_body)

    def _follow_loop(self, statement: ast.For | ast.While) -> None:
        """Follow the body until nothing changes: an iteration passes pointers to the next one."""
        is_changed = True
        while is_changed:
            before = dict(self._origins)
            self._follow(statement.body)
            self._merge(before)
            is_changed = self._origins != before
        self._follow(statement.orelse)

    def _merge(self, others: Mapping[str, frozenset[str]]) -> None:
        """Let variables also point to where they point on another way to the same place."""
        for name, origins in others.items():
            self._origins[name] = self._origins.get(name, _NOWHERE) | origins

    def _origins_of(self, value: ast.expr) -> frozenset[str]:
        """Return the parameters that a value points into; loaded values point nowhere."""
        if isinstance(value, ast.Name):
            return self._origins.get(value.id, _NOWHERE)
        parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
        if isinstance(value, ast.Call):
            if _called_name(value)[1] in _READS:
                return _NOWHERE
            parts += [each.value for each in value.keywords]
        return _NOWHERE.union(*map(self._origins_of, parts))

    def _note_call(self, call: ast.Call) -> None:
        owner, name = _called_name(call)
        reads, writes = name in _READS, name in _WRITES
        if name.startswith("atomic_"):
            reads = writes = True
        if reads or writes:
            pointers = self._origins_of(_pointer_of(call, is_language=self._is_language(owner)))
            if reads:
                self._read |= pointers
            if writes:
                self._written |= pointers
        elif owner == "" and name not in _BUILTINS:
            self._note_function(call, self._globals.get(name))
        elif owner in self._globals and not self._is_language(owner):
            self._note_function(call, None)

    def _is_language(self, owner: str) -> bool:
        """Return whether a name stands for a module of Triton's language, or for Python's math."""
        module = getattr(self._globals.get(owner), "__name__", "")
        return owner in _LANGUAGES or module.partition(".")[0] == "triton"

    def _note_function(self, call: ast.Call, called: Any) -> None:
        """Note accesses by a function of the kernel; assume reads and writes without its source."""
        function = None if called is None else _syntax_tree_of(called)
        if function is None or self._depth == _MAX_DEPTH:
            values = [*call.args, *(each.value for each in call.keywords)]
            reached = _NOWHERE.union(*map(self._origins_of, values))
            self._read |= reached
            self._written |= reached
            return
        code = getattr(called, "fn", called)
        access = self._called.get(code)
        if access is None:
            access = _KernelFunction(function, called, self._depth + 1).access()
            self._called[code] = access
        given = dict(zip(_parameters_of(function), call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
        for name, value in given.items():
            origins = self._origins_of(value)
            if name in access.read:
                self._read |= origins
            if name in access.written:
                self._written |= origins


def _parameters_of(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [argument.arg for argument in every]


def _assignments_of(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return targets and values of an assignment; the parts of ``a, b = x, y`` separately."""
    if isinstance(node, ast.For):
        return [(node.target, node.iter)]
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
        return [] if node.value is None else [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        targets, values = _parts_of(target), _parts_of(node.value)
        if len(targets) == len(values):
            found += zip(targets, values, strict=True)
        else:
            found.append((target, node.value))
    return found


def _parts_of(expression: ast.expr) -> list[ast.expr]:
    return expression.elts if isinstance(expression, ast.Tuple) else [expression]


def _called_name(call: ast.Call) -> tuple[str, str]:
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


def _pointer_of(call: ast.Call, *, is_language: bool) -> ast.expr:
    """Return the pointer of a load or a store; for a descriptor's method, the descriptor."""
    if not is_language and isinstance(call.func, ast.Attribute):
        return call.func.value
    for keyword in call.keywords:
        if keyword.arg in ("pointer", "desc"):
            return keyword.value
    return call.args[0]
