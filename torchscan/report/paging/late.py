"""Calls that a run has met and the graph of its model has not: rows without figures, in boxes without lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchscan.measured import Key
from torchscan.report.paging.layer_rows import key_of, truncate_text

Row = dict[str, Any]
Level = dict[str, Any]


def with_all_calls(
    rows: Sequence[Row], levels: Sequence[Level], calls: Iterable[Key], types: Mapping[str, str]
) -> dict[str, Any]:
    """Return the rows with one for each call, inside the nearest module that has a row."""
    tree = _Tree(rows, levels)
    for path, call in sorted(
        calls, key=lambda key: (key[1], f".{key[0]}".count(".") if key[0] else 0)
    ):
        tree.add(path, call, types.get(path, ""))
    return tree.flattened()


def _row(path: str, call: int, type_name: str) -> Row:
    name = path.rpartition(".")[2] or type_name
    said = f"{name} ({call + 1})" if call else name
    return {
        "name": truncate_text(said),
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


class _Tree:
    def __init__(self, rows: Sequence[Row], levels: Sequence[Level]) -> None:
        self._rows = [{**row} for row in rows]
        self._levels = [
            {"nodes": [{**node} for node in level["nodes"]], "edges": level["edges"]}
            for level in levels
        ]
        self._children: list[list[int]] = [[] for _ in rows]
        for number, row in enumerate(rows):
            if row["in"] is not None:
                self._children[row["in"]].append(number)
        self._numbers = {
            key: number for number, row in enumerate(rows) for key in row.get("calls", [row["key"]])
        }

    def add(self, path: str, call: int, type_name: str) -> None:
        if key_of(path, call) in self._numbers:
            return
        number, above = len(self._rows), self._enclosing_row(path)
        self._numbers[key_of(path, call)] = number
        self._rows.append({**_row(path, call, type_name), "in": above, "depth": 0})
        self._children.append([])
        if above is None:
            self._level_of(number)
            return
        self._children[above].append(number)
        node = {"kind": "module", "name": self._rows[number]["name"], "shape": "", "row": number}
        self._level_of(above)["nodes"].append(node)

    def _enclosing_row(self, path: str) -> int | None:
        """The row of the first call of the nearest module around it; that of a second call of the model is the model's."""
        while path:
            path = path.rpartition(".")[0]
            if (number := self._numbers.get(key_of(path, 0))) is not None:
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
        """Each row after the one that it is in, and what is in that one before the next."""
        order, waiting = [], [0]
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(self._children[order[-1]])
        new = {number: place for place, number in enumerate(order)}
        rows = [self._rows[number] for number in order]
        for row in rows:
            above = row["in"]
            row["in"] = None if above is None else new[above]
            row["depth"] = 0 if above is None else rows[row["in"]]["depth"] + 1
        for level in self._levels:
            for node in level["nodes"]:
                if "row" in node:
                    node["row"] = new[node["row"]]
        return {"rows": rows, "levels": self._levels}
