"""The budget file: ``torchscan.toml``, or ``[tool.torchscan]`` in ``pyproject.toml``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchscan.budgets.budget_definition import Budget
from torchscan.budgets.budget_reader import BudgetReader
from torchscan.errors import InputError
from torchscan.files import read_text

_NAMES = ("torchscan.toml", "pyproject.toml")


def find_budget_file(start: Path) -> Path:
    """Return the ``torchscan.toml``, or a ``pyproject.toml`` with budgets.

    It is in this folder or the nearest one above that has either.
    """
    for folder in (start, *start.parents):
        for name in _NAMES:
            path = folder / name
            if path.is_file() and (name == "torchscan.toml" or _has_budgets(path)):
                return path
    raise InputError(
        f"there is no torchscan.toml, and no pyproject.toml with [tool.torchscan], in {start} or "
        'above: create one with [budgets.my-model], target = "package.module:callable" and '
        'max_params = "25M"'
    )


def read_budgets(path: Path) -> dict[str, Budget]:
    """Return the budgets of a file by name. Errors say where in the file they are."""
    settings = _settings(path, _content(path))
    budgets = settings.get("budgets")
    unknown = [key for key in settings if key != "budgets"]
    if unknown:
        raise InputError.about(
            path, f"{unknown[0]!r} is not a key: give each budget a table, [budgets.my-model]"
        )
    if not isinstance(budgets, dict):
        budgets = {}
    if not budgets or not all(isinstance(table, dict) for table in budgets.values()):
        raise InputError.about(path, "it has no budgets: give each a table, [budgets.my-model]")
    return {name: BudgetReader(path, name, table).budget() for name, table in budgets.items()}


def require_budget(budgets: Mapping[str, Budget], name: str) -> Budget:
    """Return the budget with this name."""
    if name in budgets:
        return budgets[name]
    near = difflib.get_close_matches(name, budgets, 1)
    advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(budgets)}"
    raise InputError(f"there is no budget {name!r}: {advice}")


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, "the budget file"))
    except (ValueError, RecursionError) as error:  # invalid, or a number with thousands of digits
        raise InputError(f"{path} is not valid TOML: {str(error)[:200]}") from error


def _has_budgets(path: Path) -> bool:
    """Return whether a file has budgets.

    An invalid ``pyproject.toml`` in a parent folder is skipped, unless it mentions torchscan.
    """
    try:
        tool = _content(path).get("tool")
    except InputError:
        if "tool.torchscan" in read_text(path, "the budget file"):
            raise
        return False
    return isinstance(tool, dict) and "torchscan" in tool


def _settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    if path.name != "pyproject.toml":
        return content
    tool = content.get("tool", {})
    settings = tool.get("torchscan", {}) if isinstance(tool, dict) else {}
    if not isinstance(settings, dict):
        raise InputError.about(
            path,
            "tool.torchscan is not a table: give each budget one, "
            "[tool.torchscan.budgets.my-model]",
        )
    return settings
