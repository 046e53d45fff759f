"""Rows without values for calls that a run has met and the graph of its model has not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchscan.measured import Key
from torchscan.report.paging.row_values import key_of, label_of, truncate_text
from torchscan.report.sentence_formats import name_call

Row = dict[str, Any]
Level = dict[str, Any]


def with_all_calls(
    rows: Sequence[Row], levels: Sequence[Level], calls: Iterable[Key], types: Mapping[str, str]
) -> dict[str, Any]:
    """Return the rows with one for each call, inside the nearest module that has a row."""
    tree = _Tree(rows, levels)

    def place(key: Key) -> tuple[int, int]:
        path, call = key
        depth = path.count(".") + 1 if path else 0
        return call, depth

    for path, call in sorted(calls, key=place):
        tree.add(path, call, types.get(path, ""))
    return tree.flattened()


def _row(path: str, call: int, type_name: str) -> Row:
    _, _, name = path.rpartition(".")
    row = {
        "name": truncate_text(name_call(name or type_name, call)),
        "path": truncate_text(path),
        "key": key_of(path, call),
        "type": truncate_text(type_name),
        "repeats": 1,
        "input": [],
        "output": [],
        "rf": "",
        "rfSides": [],
        "complete": True,
        "params": 0,
        "macs": 0,
        "flops": 0,
        "bytes": 0,
    }
    if call:
        row["labels"] = [label_of(path, call)]
    return row


class _Tree:
    def __init__(self, rows: Sequence[Row], levels: Sequence[Level]) -> None:
        self._rows = [{**row} for row in rows]
        self._levels = []
        for level in levels:
            nodes = [{**node} for node in level["nodes"]]
            self._levels.append({"nodes": nodes, "edges": level["edges"]})
        self._children: list[list[int]] = [[] for _ in rows]
        self._numbers: dict[str, int] = {}
        for number, row in enumerate(rows):
            if row["in"] is not None:
                self._children[row["in"]].append(number)
            for key in row.get("calls", [row["key"]]):
                self._numbers[key] = number

    def add(self, path: str, call: int, type_name: str) -> None:
        key = key_of(path, call)
        if key in self._numbers:
            return
        above = self._enclosing_row(path)
        number = len(self._rows)
        self._numbers[key] = number
        row = {**_row(path, call, type_name), "in": above, "depth": 0}
        self._rows.append(row)
        self._children.append([])
        if above is None:
            self._level_of(number)
            return
        self._children[above].append(number)
        node = {"kind": "module", "name": row["name"], "shape": "", "row": number}
        self._level_of(above)["nodes"].append(node)

    def _enclosing_row(self, path: str) -> int | None:
        """Return the row of the first call of the nearest module around a path.

        A second call of the model is in the model's row.
        """
        while path:
            path, _, _ = path.rpartition(".")
            number = self._numbers.get(key_of(path, 0))
            if number is not None:
                return number
        return self._numbers.get("")

    def _level_of(self, number: int) -> Level:
        row = self._rows[number]
        if "level" not in row:
            row["level"] = len(self._levels)
            self._levels.append({"nodes": [], "edges": []})
        level: Level = self._levels[row["level"]]
        return level

    def flattened(self) -> dict[str, Any]:
        """Return each row after the one that it is in, and what is in that one before the next."""
        order, waiting = [], [0]
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(self._children[order[-1]])
        new = {number: place for place, number in enumerate(order)}
        rows = [self._rows[number] for number in order]
        for row in rows:
            row["depth"] = 0
            if row["in"] is not None:
                row["in"] = new[row["in"]]
                row["depth"] = rows[row["in"]]["depth"] + 1
        for level in self._levels:
            for node in level["nodes"]:
                if "row" in node:
                    node["row"] = new[node["row"]]
        return {"rows": rows, "levels": self._levels}
