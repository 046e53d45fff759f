"""Check of the module graph in a run's file, as far as a page depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from torchscan.watching.validation import BrokenRunError, are_texts, is_count


def graph_of_run(graph: Any) -> dict[str, Any]:
    """Return the data of the model's page, checked as far as a page counts on it."""
    if not isinstance(graph, dict) or not _is_graph(graph):
        raise BrokenRunError("has a graph of the model that cannot be drawn")
    return graph


def _is_graph(graph: Mapping[str, Any]) -> bool:
    rows, levels = graph.get("rows"), graph.get("levels")
    if not _has_texts(graph, "title", "error", "version"):
        return False
    if not _has_lists(graph, "question", "remarks"):
        return False
    if not all(isinstance(graph.get(name), dict | None) for name in ("memory", "roofline")):
        return False
    if not _are_dicts(graph.get("verdicts")):
        return False
    if not _are_dicts(rows) or not _are_dicts(levels):
        return False
    are_rows = all(_is_row(each, number, len(levels)) for number, each in enumerate(rows))
    return are_rows and all(_is_level(each, len(rows)) for each in levels)


def _is_row(row: Mapping[str, Any], number: int, num_levels: int) -> bool:
    """Return whether a row of the page is in an earlier one, the first in none."""
    if not _has_texts(row, "name", "path", "key", "type", "rf"):
        return False
    if not _has_lists(row, "input", "output"):
        return False
    above = row.get("in")
    is_placed = above is None if number == 0 else is_count(above, number - 1)
    if not isinstance(row.get("rfSides", []), list):
        return False
    has_level = "level" not in row or is_count(row["level"], num_levels - 1)
    are_named = are_texts(row.get("calls", [])) and are_texts(row.get("labels", []))
    return is_placed and has_level and are_named


def _is_level(level: Mapping[str, Any], num_rows: int) -> bool:
    """Return whether nodes belong to rows of the page, and edges join nodes."""
    nodes, edges = level.get("nodes"), level.get("edges")
    if not _are_dicts(nodes) or not isinstance(edges, list):
        return False
    for node in nodes:
        has_row = "row" not in node or is_count(node["row"], num_rows - 1)
        if not has_row or not _has_texts(node, "kind", "name", "shape"):
            return False
    for edge in edges:
        if not isinstance(edge, list) or len(edge) < 2:
            return False
        if not all(is_count(each, len(nodes) - 1) for each in edge[:2]):
            return False
    return True


def _has_texts(mapping: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(mapping.get(name), str) for name in names)


def _has_lists(mapping: Mapping[str, Any], *names: str) -> bool:
    return all(are_texts(mapping.get(name)) for name in names)


def _are_dicts(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)
