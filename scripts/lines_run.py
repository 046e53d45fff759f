"""A plugin of pytest that notes which tests run which lines of the package, how long each takes, and which pass.

One file for each process of xdist: ``$LINES_RUN`` with the name of the process. What runs while tests are collected, such as
a function that makes a table at the import of its file, belongs to no test and is stored separately.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = str(Path(__file__).parent.parent) + os.sep
PACKAGE = ROOT + "torchscan" + os.sep

tests: list[str] = []
passed: dict[str, float] = {}
#: for each line of each file, the tests that run it, as places in the list of tests
runners: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
#: for each file, the lines that ran before the first test
before_tests: dict[str, list[int]] = {}
#: of the test that runs, or of what comes before: the lines of each code object that it has not run yet
_missing: dict[CodeType, set[int]] = {}


def _on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE):
        return None
    if code not in _missing:
        _missing[code] = {line for _, _, line in code.co_lines() if line}
    return _on_line if _missing[code] else None


def _on_line(frame: FrameType, _event: str, _argument: Any) -> Any:
    _missing[frame.f_code].discard(frame.f_lineno)
    return _on_line


def _lines() -> Iterator[tuple[str, set[int]]]:
    """Yield the file of each code object, with its lines that have run."""
    for code, missing in _missing.items():
        run = {line for _, _, line in code.co_lines() if line} - missing
        yield code.co_filename.removeprefix(ROOT), run | {code.co_firstlineno}


sys.settrace(_on_call)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Store the lines that ran during collection."""
    sys.settrace(None)
    for file, lines in _lines():
        before_tests.setdefault(file, []).extend(sorted(lines))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Traces one test, with what it sets up and tears down."""
    _missing.clear()
    tests.append(item.nodeid)
    threading.settrace(_on_call)
    sys.settrace(_on_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        for file, lines in _lines():
            for line in lines:
                runners[file][line].append(len(tests) - 1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the time of what passes."""
    if report.when == "call" and report.passed:
        passed[report.nodeid] = report.duration


def pytest_sessionfinish() -> None:
    """Writes what was noted, in the processes that run tests."""
    if tests:
        name = os.environ["LINES_RUN"] + os.environ.get("PYTEST_XDIST_WORKER", "")
        noted = {"tests": tests, "passed": passed, "runners": runners, "before_tests": before_tests}
        Path(name + ".json").write_text(json.dumps(noted))
