"""The style of the code does not get worse: counts of each subpackage may only go down."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import style

STORED = style.stored()
ADVICE = "; python -m tests.style prints all figures, CONTRIBUTING.md explains them"


def test_no_count_of_a_subpackage_rises() -> None:
    risen = {}
    for name, figures in style.figures_by_subpackage().items():
        if name in STORED["finished"]:
            limits = {}  # its files meet the gate, one by one
        else:
            limits = STORED["subpackages"].get(name, {})
        above = _above(figures, limits)
        if above:
            risen[name] = above
    assert not risen, f"{risen}{ADVICE}"


def test_new_files_and_finished_subpackages_meet_the_gate() -> None:
    wrong = {}
    for path in style.files():
        name = style.name_of_file(path)
        is_old = name in STORED["old files"]
        if is_old and style.subpackage_of(path) not in STORED["finished"]:
            continue
        above = _above(style.style_of_file(path).figures(), style.GATE_OF_FILE)
        if above:
            wrong[name] = above
    assert not wrong, f"{wrong}{ADVICE}"


def test_names_of_files_and_classes_are_not_used_twice() -> None:
    repeated = style.repeated_names()
    for kind, names in repeated.items():
        assert len(names) <= STORED["repeated"][kind], names


def test_no_function_is_more_complex_than_the_worst_was() -> None:
    assert style.style_of_package().most_branches <= STORED["most branches"]


def test_docstrings_and_messages_avoid_words_that_are_hard_to_read() -> None:
    found = []
    for path in style.files():
        counts = style.style_of_file(path).counts
        if counts["docstring starts"] or counts["avoided words"]:
            found += [(style.name_of_file(path), *each) for each in style.sentences_to_reword(path)]
    assert not found


def test_pages_avoid_words_that_are_hard_to_read() -> None:
    risen = _above(style.avoided_words_in_docs(), STORED["docs"], default=0)
    assert not risen, risen


def _above(
    values: Mapping[str, float], limits: Mapping[str, float], default: float | None = None
) -> dict[str, str]:
    """Return the values above their limits, as ``"3 > 2"``."""
    found = {}
    for name, value in values.items():
        limit = limits.get(name, default)
        if limit is not None and value > limit:
            found[name] = f"{value:g} > {limit:g}"
    return found


# -- how it is counted ---------------------------------------------------------------------------


def _figures(tmp_path: Path, code: str) -> dict[str, float]:
    path = tmp_path / f"code{len(list(tmp_path.iterdir()))}.py"  # the counts of a file are kept
    path.write_text(textwrap.dedent(code))
    return style.style_of_file(path).figures()


@pytest.mark.parametrize(
    ("statement", "num_nodes"),
    [
        ("return", 1),
        ("x = 1", 3),  # Assign, Name, Constant
        ("x.y = f(1)", 6),  # Assign, Attribute, Name, Call, Name, Constant
    ],
)
def test_nodes_of_a_statement(statement: str, num_nodes: int, tmp_path: Path) -> None:
    assert _figures(tmp_path, statement)["mean nodes"] == num_nodes


def test_statements_in_a_body_are_counted_by_themselves(tmp_path: Path) -> None:
    # If, Name; Expr, Call, Name
    assert _figures(tmp_path, "if a:\n    b()\n")["mean nodes"] == 2.5


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("x = [a for a in b]", 0),
        ("x = [a for a in b if (c if d else e)]", 1),
        ("x = f(a if b else c)\ny = {a: b for a, b in c}", 0),
    ],
)
def test_a_statement_with_two_comprehensions_or_conditions_is_crowded(
    code: str, number: int, tmp_path: Path
) -> None:
    assert _figures(tmp_path, code)["crowded"] == number


def test_a_short_helper_that_is_used_once_is_counted(tmp_path: Path) -> None:
    code = """
        def _used_once():
            return 1

        def _used_twice():
            return 1

        x = _used_once() + _used_twice() + _used_twice()
        """
    assert _figures(tmp_path, code)["tiny helpers"] == 1


def test_branches(tmp_path: Path) -> None:
    conditions = "\n".join(f"    if a == {number}: pass" for number in range(11))
    assert _figures(tmp_path, f"def f(a):\n{conditions}")["complex functions"] == 0
    code = f"def f(a):\n{conditions}\n    return a and a"
    assert _figures(tmp_path, code)["complex functions"] == 1


def test_lines_of_functions_and_files(tmp_path: Path) -> None:
    body = "    x = 1\n"
    assert _figures(tmp_path, f"def f():\n{40 * body}")["long functions"] == 0
    assert _figures(tmp_path, f"def f():\n{41 * body}")["long functions"] == 1
    docstring = '    """Return 1.\n\n    For a test.\n    """\n'
    assert _figures(tmp_path, f"def f():\n{docstring}{40 * body}")["long functions"] == 0
    assert _figures(tmp_path, 280 * "x = 1\n")["long files"] == 0
    assert _figures(tmp_path, 281 * "x = 1\n")["long files"] == 1


@pytest.mark.parametrize(
    ("docstring", "starts", "words"),
    [
        ("Return the layers.", 0, 0),
        ("Of the layers, those that are shared.", 1, 0),
        ("Whether it is shared.", 1, 0),
        ("Whoever calls it, is told of it.", 0, 2),
        ("Return a layer, say the first.", 0, 1),
        ("Return a layer that is no container.", 0, 1),
        ("There is no layer that is no longer used.", 0, 0),
        ("Offer layers. Asked for by name.", 0, 0),
    ],
)
def test_words_of_docstrings(docstring: str, starts: int, words: int, tmp_path: Path) -> None:
    figures = _figures(tmp_path, f'def f():\n    """{docstring}"""\n')
    assert (figures["docstring starts"], figures["avoided words"]) == (starts, words)


def test_words_of_messages(tmp_path: Path) -> None:
    code = 'raise ValueError(f"{x} is no shape: give (3, 4), say")\n'
    assert _figures(tmp_path, code)["avoided words"] == 2


def test_counts_are_lowered_and_never_raised() -> None:
    before = {
        "subpackages": {"report": {"crowded": 5, "long lines": 3}, "gone": {"crowded": 1}},
        "finished": ["trace"],
        "repeated": {"files": 2, "classes": 1},
        "most branches": 20,
        "docs": {"README.md": 1},
        "old files": ["torchscan/a.py", "torchscan/gone.py"],
    }
    now = {
        "subpackages": {"report": {"crowded": 7, "long lines": 1}, "new": {"crowded": 9}},
        "finished": [],
        "repeated": {"files": 1, "classes": 3},
        "most branches": 22,
        "docs": {"README.md": 0, "docs/new.md": 4},
        "old files": ["torchscan/a.py", "torchscan/new.py"],
    }
    assert style.lowered(before, now) == {
        "subpackages": {"report": {"crowded": 5, "long lines": 1}},
        "finished": ["trace"],
        "repeated": {"files": 1, "classes": 1},
        "most branches": 20,
        "docs": {"README.md": 0},
        "old files": ["torchscan/a.py"],
    }
