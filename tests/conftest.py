"""What all tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: runs of pytest of their own, for the tests of the plugin
pytest_plugins = ["pytester"]

TRUTH = Path(__file__).parent.parent.parent / "shared" / "truth"


@pytest.fixture
def truth() -> Callable[[str], Path]:
    """The path of a file of published figures; the test is skipped where there is none."""

    def path(name: str) -> Path:
        if not (TRUTH / name).exists():
            pytest.skip(f"no published figures here ({name})")
        return TRUTH / name

    return path


@pytest.fixture
def as_json() -> Callable[[Any], Any]:
    """What survives a trip through JSON."""
    return lambda value: json.loads(json.dumps(value))
