"""Layers whose path has changed: an index or a prefix has moved, or the model was wrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchscan.escapes import printable
from torchscan.report.compared_trees import Node

#: old path -> new path
Moves = Mapping[str, str]

#: moves that a sentence lists
_MAX_SHOWN = 4


def find_moves(
    before: Sequence[Node], after: Sequence[Node], aligned: Mapping[int, int]
) -> dict[str, str]:
    """Return the old and new paths of aligned layers whose path has changed.

    Layers that moved together with their enclosing layer are left out.
    """
    paths: dict[str, str] = {}
    moves: dict[str, str] = {}
    for one in sorted(aligned):
        old, new = before[one].path, after[aligned[one]].path
        if old in paths:
            continue
        if new != _follow(old, paths):
            moves[old] = new
        paths[old] = new
    return moves


def _follow(path: str, paths: Moves) -> str:
    """Return the new path of a layer if it moved with its nearest enclosing layer."""
    outer = path
    while outer:
        outer = outer.rpartition(".")[0]
        if outer in paths:
            inner = path.removeprefix(outer).removeprefix(".")
            return f"{paths[outer]}.{inner}".removeprefix(".")
    return path


def describe_moves(moves: Moves) -> list[str]:
    """Return a sentence that names the layers that have moved, if there are any."""
    if not moves:
        return []
    groups = _group_moves(moves)
    shown = []
    for group in groups[:_MAX_SHOWN]:
        sides = []
        for paths in zip(*group, strict=True):
            end = f" … {paths[-1].rpartition('.')[2]}" if len(group) > 1 else ""
            sides.append(f"{printable(paths[0]) or 'the model'}{end}")
        shown.append(" → ".join(sides))
    num_hidden = sum(map(len, groups[_MAX_SHOWN:]))
    more = f" and {num_hidden} more" if num_hidden else ""
    return [f"Layers that moved: {', '.join(shown)}{more}."]


def _group_moves(moves: Moves) -> list[list[tuple[str, str]]]:
    """Return the moves in groups: the paths of a group end in consecutive numbers."""
    groups: list[list[tuple[str, str]]] = []
    expected: tuple[str | None, ...] = ()
    for move in moves.items():
        if move == expected:
            groups[-1].append(move)
        else:
            groups.append([move])
        following = []
        for path in move:
            prefix, dot, index = path.rpartition(".")
            following.append(f"{prefix}{dot}{int(index) + 1}" if index.isdecimal() else None)
        expected = tuple(following)
    return groups
