"""Every small change of the package that a test should notice: which text of which file becomes which other text.

Left out are words, annotations, and guards that a correct program never triggers: frozen and slotted classes, strict zips. So
are changes without effect: None for a False that is returned (True is tried), and another order of names that decorators
register.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARISONS |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
#: of the same precedence, so that the rest of an expression stays as it is
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "//", "&": "|", "**": "*"}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPERATOR = re.compile(rb"<=|>=|==|!=|\*\*|//|[-+*/%&<>]|\b(?:is\s+not|not\s+in|is|in|and|or)\b")


@dataclass(frozen=True)
class Place:
    """A node that can be changed, in one of several ways; the texts are those of its file."""

    file: str
    kind: str
    start: int
    end: int
    texts: tuple[str, ...]
    #: of the statement that it stands in: whoever runs one of its lines can notice
    lines: tuple[int, int]
    #: run when the file is imported, so by every test
    on_import: bool


#: a kind, the span of a text, and what may stand there instead
Change = tuple[str, int, int, tuple[str, ...]]


class Places(ast.NodeVisitor):
    """Collects the places of one file; words, annotations and what only type checkers read are left out."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.found: list[Place] = []
        starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._offset: Callable[[int, int], int] = lambda line, column: starts[line - 1] + column
        self._lines = (1, 1)
        self._depth = 0
        self.decorators: set[ast.AST] = set()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where the text of a node begins and ends."""
        return self._offset(node.lineno, node.col_offset), self._offset(
            node.end_lineno, node.end_col_offset
        )  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.source[start:end].decode()

    def visit(self, node: ast.AST) -> None:
        """Notes what can change here, then goes on inside."""
        if _for_types_only(node):
            return
        if isinstance(node, ast.stmt):
            self._lines = _own_lines(node)
        self.decorators.update(getattr(node, "decorator_list", ()))
        for kind, start, end, texts in self._changes(node):
            self.found.append(
                Place(self.file, kind, start, end, texts, self._lines, self._depth == 0)
            )
        for child in _what_runs(node):
            inside = isinstance(node, ast.FunctionDef | ast.Lambda) and child in _body(node)
            self._depth += inside
            lines = self._lines
            self.visit(child)
            self._lines = lines
            self._depth -= inside

    def _changes(self, node: ast.AST) -> Iterator[Change]:
        for rule in (
            _operators,
            _constants,
            _conditions,
            _statements,
            _names,
            _members,
            _arguments,
            _slices,
        ):
            yield from rule(node, self)


def _own_lines(node: ast.stmt) -> tuple[int, int]:
    """Those of a statement; of one that holds others, those of its head."""
    body: list[ast.stmt] = getattr(node, "body", [])
    last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
    return node.lineno, last


def _body(node: ast.FunctionDef | ast.Lambda) -> list[ast.AST]:
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)


def _for_types_only(node: ast.AST) -> bool:
    """Also what holds words alone: the places of nodes in f-strings are unknown to Python 3.11."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom) or _calls(
        node, "dataclass", "dataclasses.dataclass"
    ):
        return True
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.FunctionDef):
        return any(
            ast.unparse(decorator) in ("overload", "typing.overload")
            for decorator in node.decorator_list
        )
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__" or _calls(
            node.value, "TypeVar", "ParamSpec"
        )
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _calls(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node, without annotations and the parameters of types."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        yield node.value
        yield from node.slice.elts
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_comment"):
            yield from (
                child
                for child in (value if isinstance(value, list) else [value])
                if isinstance(child, ast.AST)
            )


def _gap(
    left: ast.AST, right: ast.AST, places: Places, new: dict[str, str]
) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The operator between two operands, and what takes its place."""
    start, end = places.span(left)[1], places.span(right)[0]
    if found := OPERATOR.search(places.source, start, end):
        old = " ".join(found[0].decode().split())
        if old in new:
            yield found.start(), found.end(), (new[old],)


def _operators(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for left, right in pairwise([node.left, *node.comparators]):
            yield from (("comparison", *gap) for gap in _gap(left, right, places, COMPARISONS))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield (
            "operand dropped",
            *places.span(node),
            (places.text(node.left), places.text(node.right)),
        )
    elif isinstance(node, ast.BinOp):
        yield from (("arithmetic", *gap) for gap in _gap(node.left, node.right, places, ARITHMETIC))
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from (
            ("and, or", *gap) for gap in _gap(*node.values, places, {"and": "or", "or": "and"})
        )
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield (
            "and, or",
            *places.span(node),
            (word.join(f"({places.text(value)})" for value in node.values),),
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "not, minus", *places.span(node), (places.text(node.operand),)


def _constants(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "True, False", *places.span(node), (str(not node.value),)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "integer", *places.span(node), (str(node.value + 1), f"({node.value - 1})")


def _conditions(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp):
        yield (
            "condition",
            *places.span(node.test),
            (f"(not ({places.text(node.test)}))", "True", "False"),
        )
    elif isinstance(node, ast.While):
        yield "condition", *places.span(node.test), ("False",)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield "condition", *places.span(test), (f"(not ({places.text(test)}))", "True")


def _statements(node: ast.AST, places: Places) -> Iterator[Change]:
    """Deleted: calls, assignments inside functions, what is returned, and what is done where a condition holds."""
    if (
        isinstance(node, ast.Return)
        and node.value is not None
        and ast.unparse(node.value) not in ("None", "False")
    ):
        yield "return", *places.span(node), (_padded("return None", places.text(node)),)
    elif isinstance(node, ast.If):
        start, end = places.span(node.body[0])[0], places.span(node.body[-1])[1]
        yield "body of an if", start, end, (_padded("pass", places.source[start:end].decode()),)
    elif _acts(node):
        yield "statement", *places.span(node), (_padded("pass", places.text(node)),)


def _acts(node: ast.AST) -> bool:
    """Calls, and assignments to more than a local name alone: without that, what follows fails by itself."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue)


def _padded(new: str, old: str) -> str:
    """With as many lines as before."""
    return new + "\n" * (old.count("\n"))


def _names(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in OPPOSITES:
        yield "min, max, any, all", *places.span(node), (OPPOSITES[node.id],)


def _members(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Set | ast.List | ast.Tuple) and len(node.elts) > 1 and _is_made(node):
        spans = [places.span(member) for member in node.elts]
        lone = "," if isinstance(node, ast.Tuple) and len(spans) == 2 else ""
        yield from (("member dropped", *one) for one in _dropped(spans, lone))
    elif isinstance(node, ast.Dict) and len(node.values) > 1 and all(node.keys):
        entries = [
            (places.span(key)[0], places.span(value)[1])
            for key, value in zip(node.keys, node.values, strict=True)
            if key
        ]
        yield from (("member dropped", *one) for one in _dropped(entries))


def _is_made(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Store)


def _dropped(
    spans: list[tuple[int, int]], lone: str = ""
) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Each of them with the comma that goes with it."""
    for index, (start, _) in enumerate(spans[:-1]):
        yield start, spans[index + 1][0], ("",)
    yield spans[-2][1], spans[-1][1], (lone,)


def _arguments(node: ast.AST, places: Places) -> Iterator[Change]:
    """A keyword argument left out, two arguments the other way round."""
    if not isinstance(node, ast.Call):
        return
    if (
        node.keywords
        and node.keywords[-1].arg not in (None, "strict")
        and (before := [*node.args, *node.keywords[:-1]])
    ):
        yield (
            "argument dropped",
            places.span(before[-1])[1],
            places.span(node.keywords[-1])[1],
            ("",),
        )
    if (
        len(node.args) == 2
        and node not in places.decorators
        and not any(isinstance(each, ast.Starred | ast.GeneratorExp) for each in node.args)
    ):
        (start, middle), (then, end) = map(places.span, node.args)
        between = places.source[middle:then].decode()
        yield (
            "arguments swapped",
            start,
            end,
            (places.text(node.args[1]) + between + places.text(node.args[0]),),
        )


def _slices(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Slice):
        for limit in filter(None, (node.lower, node.upper)):
            yield "slice", *places.span(limit), ("",)


def places_of(path: Path) -> list[Place]:
    """Every place of a file, in its order."""
    source = path.read_bytes()
    visitor = Places(str(path.relative_to(ROOT)), source)
    visitor.visit(ast.parse(source))
    return sorted(visitor.found, key=lambda place: (place.start, place.end, place.kind))


def changed(place: Place, text: str) -> bytes | None:
    """The file with that text at that place; None if it is the same program, or none at all."""
    source = (ROOT / place.file).read_bytes()
    new = source[: place.start] + text.encode() + source[place.end :]
    try:
        return new if ast.dump(ast.parse(new)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None
