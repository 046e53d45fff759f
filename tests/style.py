"""Figures of how the package reads: ``python -m tests.style [--write]`` prints them.

``python -m tests.style --list PATH…`` prints the docstrings and messages to reword.

``tests/test_style.py`` holds them against ``tests/style.json``, which has the count of each
subpackage on the day it was last lowered. ``--write`` lowers the stored counts to the present ones
and never raises one.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchscan"
STORED = Path(__file__).parent / "style.json"

MAX_COLUMNS = 100
MAX_BRANCHES = 12
MIN_HELPER_LINES = 6
MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 280

#: what a file must not exceed, if it is new or its subpackage is finished
GATE_OF_FILE: dict[str, float] = {
    "mean nodes": 10,
    "p95 nodes": 22,
    "crowded": 2,
    "long lines": 0,
    "tiny helpers": 2,
    "complex functions": 0,
    "long functions": 0,
    "long files": 0,
    "docstring starts": 0,
    "avoided words": 0,
}
#: the figures of a subpackage, in the order of the table
FIGURES = tuple(GATE_OF_FILE)

#: first words that no docstring has
_STARTS = re.compile(r"(Of|What|Whether|How|Those|As|The same|Where|Who|By|Which)\b")
#: words that docstrings, messages and docs avoid
_AVOIDED = re.compile(
    r"\b(whoever|nobody|somebody|is said|is told|of ours)\b"
    r"|, say\b"
    r"|(?<!there )\bis no\b(?! longer)",
    re.IGNORECASE,
)
_CODE_IN_DOCS = re.compile(r"^```.*?^```|`+[^`\n]*`+|<!--.*?-->", re.MULTILINE | re.DOTALL)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)
_NOT_COUNTED = (ast.Import, ast.ImportFrom, ast.ClassDef, *_FUNCTIONS)
_NOT_OF_STATEMENT = (ast.stmt, ast.ExceptHandler, ast.match_case, ast.expr_context)


@dataclass
class Style:
    """Counts of one or more files."""

    #: numbers of syntax nodes of each statement
    sizes: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    class_names: list[str] = field(default_factory=list)
    #: branches of the most complex function
    most_branches: int = 0

    def add(self, other: Style) -> None:
        """Add the counts of another file."""
        self.sizes += other.sizes
        self.counts += other.counts
        self.class_names += other.class_names
        self.most_branches = max(self.most_branches, other.most_branches)

    def figures(self) -> dict[str, float]:
        """Return the figures, rounded to a tenth."""
        sizes = sorted(self.sizes) or [0]
        mean = round(sum(sizes) / len(sizes), 1)
        p95 = sizes[len(sizes) * 95 // 100]
        return {"mean nodes": mean, "p95 nodes": p95} | {
            name: self.counts[name] for name in FIGURES[2:]
        }


# -- one file ------------------------------------------------------------------------------------


@cache
def style_of_file(path: Path) -> Style:
    """Return the counts of a Python file, which is read once."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    style = Style()
    for node in nodes:
        if _is_docstring(node) or not isinstance(node, ast.stmt) or isinstance(node, _NOT_COUNTED):
            continue
        own = _nodes_of_statement(node)
        style.sizes.append(len(own))
        num_inner = sum(isinstance(each, (*_COMPREHENSIONS, ast.IfExp)) for each in own)
        style.counts["crowded"] += num_inner > 1

    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    branches = [count_branches(each) for each in functions]
    style.most_branches = max(branches, default=0)
    style.counts["long functions"] = sum(_num_lines(f) > MAX_FUNCTION_LINES for f in functions)
    style.counts["long files"] = int(text.count("\n") > MAX_FILE_LINES)
    style.class_names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    style.counts["long lines"] = sum(len(line) > MAX_COLUMNS for line in text.splitlines())
    style.counts["tiny helpers"] = _count_tiny_helpers(nodes)
    style.counts["complex functions"] = sum(number > MAX_BRANCHES for number in branches)
    docstrings = [text for _, text in _docstrings(nodes)]
    style.counts["docstring starts"] = sum(_STARTS.match(each) is not None for each in docstrings)
    sentences = docstrings + [text for _, text in _messages(nodes)]
    style.counts["avoided words"] = sum(len(_AVOIDED.findall(each)) for each in sentences)
    return style


def meets_gate(path: Path) -> bool:
    """Return whether a file has no figure above the gate of new files."""
    figures = style_of_file(path).figures()
    return all(figures[name] <= limit for name, limit in GATE_OF_FILE.items())


def sentences_to_reword(path: Path) -> list[tuple[int, str]]:
    """Return the line and the text of each docstring and message with a word of the lists."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docstrings = list(_docstrings(nodes))
    found = [(line, text) for line, text in docstrings if _STARTS.match(text)]
    found += [(line, text) for line, text in _messages(nodes) if _AVOIDED.search(text)]
    found += [each for each in docstrings if _AVOIDED.search(each[1]) and each not in found]
    return sorted(found)


def count_branches(function: ast.AST) -> int:
    """Return McCabe's number; ``and``, ``or`` and comprehensions count as branches."""
    total = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
    return total


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _nodes_of_statement(statement: ast.stmt) -> list[ast.AST]:
    """Return the nodes of a statement without those of the statements in its body."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        found.append(node)
        children = ast.iter_child_nodes(node)
        waiting += [each for each in children if not isinstance(each, _NOT_OF_STATEMENT)]
    return found


def _count_tiny_helpers(nodes: list[ast.AST]) -> int:
    """Return the number of short private functions that their file uses once."""
    uses: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1

    number = 0
    for node in nodes:
        if not isinstance(node, _FUNCTIONS):
            continue
        is_private = node.name.startswith("_") and not node.name.startswith("__")
        if is_private and uses[node.name] == 1 and _num_lines(node) < MIN_HELPER_LINES:
            number += 1
    return number


def _num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body, without its docstring."""
    body = function.body[1:] if _is_docstring(function.body[0]) else function.body
    if not body:
        return 0
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring."""
    for node in nodes:
        if isinstance(node, _WITH_DOCSTRING):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def _messages(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string with three words or more, without docstrings."""
    in_docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in in_docstrings:
            continue
        if isinstance(node.value, str) and node.value.count(" ") > 1:
            yield node.lineno, node.value


# -- the package and the docs --------------------------------------------------------------------


def files() -> list[Path]:
    """Return the Python files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of_file(path: Path) -> str:
    """Return the path of a file as the stored list has it."""
    return path.relative_to(ROOT).as_posix()


def subpackage_of(path: Path) -> str:
    """Return the name of the subpackage of a file: its folder in the package, or ``torchscan``."""
    folder = path.relative_to(PACKAGE).parts[:-1]
    return folder[0] if folder else PACKAGE.name


@cache
def figures_by_subpackage() -> dict[str, dict[str, float]]:
    """Return the figures of each subpackage."""
    styles: dict[str, Style] = {}
    for path in files():
        styles.setdefault(subpackage_of(path), Style()).add(style_of_file(path))
    return {name: style.figures() for name, style in sorted(styles.items())}


def style_of_package() -> Style:
    """Return the counts of all files together."""
    whole = Style()
    for path in files():
        whole.add(style_of_file(path))
    return whole


def repeated_names() -> dict[str, list[str]]:
    """Return the base names of files, and the names of classes, that the package has twice."""
    file_names = [path.name for path in files() if path.name != "__init__.py"]
    class_names = style_of_package().class_names
    return {"files": _names_used_twice(file_names), "classes": _names_used_twice(class_names)}


def _names_used_twice(names: list[str]) -> list[str]:
    return sorted(name for name, number in Counter(names).items() if number > 1)


def avoided_words_in_docs() -> dict[str, int]:
    """Return the number of avoided words in each page, without those in code."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    in_docs = [path for suffix in ("md", "rst") for path in (ROOT / "docs").rglob(f"*.{suffix}")]
    found = {}
    for page in [*(ROOT / name for name in names), *sorted(in_docs)]:
        prose = _CODE_IN_DOCS.sub("", page.read_text(encoding="utf-8"))
        found[page.relative_to(ROOT).as_posix()] = len(_AVOIDED.findall(prose))
    return found


# -- what is stored ------------------------------------------------------------------------------


def present() -> dict[str, Any]:
    """Return everything that ``style.json`` has, as it is now."""
    return {
        "subpackages": figures_by_subpackage(),
        "finished": [],
        "repeated": {kind: len(names) for kind, names in repeated_names().items()},
        "most branches": style_of_package().most_branches,
        "docs": avoided_words_in_docs(),
        "old files": [name_of_file(path) for path in files() if not meets_gate(path)],
    }


def stored() -> dict[str, Any]:
    """Return what ``style.json`` has."""
    content: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return content


def lowered(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the stored figures with those that are lower now, without what is gone.

    A file that meets the gate is no longer old.
    """
    subpackages = {
        name: _lower_of(figures, now["subpackages"][name])
        for name, figures in before["subpackages"].items()
        if name in now["subpackages"]
    }
    return {
        "subpackages": subpackages,
        "finished": before["finished"],
        "repeated": _lower_of(before["repeated"], now["repeated"]),
        "most branches": min(before["most branches"], now["most branches"]),
        "docs": _lower_of(before["docs"], now["docs"]),
        "old files": sorted(set(before["old files"]) & set(now["old files"])),
    }


def _lower_of(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    return {name: min(value, now[name]) for name, value in before.items() if name in now}


def format_figures(figures: dict[str, dict[str, float]]) -> str:
    """Return a table of the figures of subpackages."""
    width = max(map(len, figures)) + 2
    lines = [" " * width + "  ".join(FIGURES)]
    for name, values in figures.items():
        cells = [f"{values[figure]:>{len(figure)}g}" for figure in FIGURES]
        lines.append(f"{name:{width}}" + "  ".join(cells))
    return "\n".join(lines)


def print_sentences(paths: list[Path]) -> None:
    """Print the docstrings and messages to reword in these files and folders."""
    number = 0
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, text in sentences_to_reword(file):
                first, *_ = text.splitlines()
                print(f"{file}:{line}: {first[:120]}")
                number += 1
    print(f"{number} sentences to reword")


def main() -> None:
    """Print the figures, and write them if that was asked for."""
    if "--list" in sys.argv:
        print_sentences([Path(each) for each in sys.argv[2:]] or [PACKAGE])
        return
    now = present()
    whole = style_of_package().figures()
    print(format_figures({**now["subpackages"], "whole package": whole}))
    print(f"file names used twice: {now['repeated']['files']}")
    print(f"class names used twice: {now['repeated']['classes']}")
    print(f"most branches in a function: {now['most branches']}")
    print(f"avoided words in docs: {sum(now['docs'].values())}")
    if "--write" in sys.argv:
        content = lowered(stored(), now) if STORED.exists() else now
        STORED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
