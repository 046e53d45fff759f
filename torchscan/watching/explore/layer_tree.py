"""The rows of the heat map of a run: a tree of its modules, and the values inside each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchscan.watching.layer_columns import QUANTITIES, ColumnOfLayers
from torchscan.watching.layer_reader import IN_GRADIENTS, IN_OUTPUTS, IN_WEIGHTS
from torchscan.watching.schema import Series

#: children of a row that are shown one by one, at most; more are folded into ranges
MAX_CHILDREN = 48
_MAX_RANGES = 32
_RANGE_SIZES = (5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000)


@dataclass(slots=True, kw_only=True)
class LayerRow:
    """A row: a module, or a range of children of one."""

    #: path of the module; of a range, that of its first child
    path: str
    name: str
    type_name: str
    #: number of the row around it; None for the model itself
    parent: int | None
    depth: int
    #: number of modules in a range; 0 for a module
    num_folded: int = 0


@dataclass(slots=True, kw_only=True)
class _Node:
    path: str
    type_name: str = ""
    #: position of its first output, or of its first other series behind all outputs
    place: int = 0
    is_recorded: bool = False
    children: list[_Node] = field(default_factory=list)


class LayerTree:
    """Rows in the order of execution, each before the rows inside it."""

    def __init__(self, series: Iterable[Series]) -> None:
        """``series``: in the order in which the run has them."""
        nodes = _nodes_of(list(series))
        self.rows: list[LayerRow] = []
        #: number of the row of each module
        self.row_by_path: dict[str, int] = {}
        self._add(nodes[""], parent=None, above="")

    def __len__(self) -> int:
        return len(self.rows)

    def _add(self, root: _Node, *, parent: int | None, above: str) -> None:
        """Add a module and all inside it, without recursion: models may be deep."""
        waiting: list[tuple[_Node | list[_Node], int | None, str]] = [(root, parent, above)]
        while waiting:
            node, around, prefix = waiting.pop()
            number = len(self.rows)
            if isinstance(node, list):
                self._put_range(node, around, prefix)
                inside: Sequence[_Node | list[_Node]] = node
            else:
                name = node.path.removeprefix(f"{prefix}.") if prefix else node.path
                kind, depth = node.type_name, self._depth(around)
                self.row_by_path[node.path] = number
                row = LayerRow(
                    path=node.path, name=name or kind, type_name=kind, parent=around, depth=depth
                )
                self.rows.append(row)
                inside = _fold(_visible_children(node))
                prefix = node.path
            waiting += [(each, number, prefix) for each in reversed(inside)]

    def _put_range(self, nodes: Sequence[_Node], parent: int | None, above: str) -> None:
        prefix = f"{above}." if above else ""
        first, last = nodes[0].path.removeprefix(prefix), nodes[-1].path.rpartition(".")[2]
        name = f"{first} … {last}"
        self.rows.append(
            LayerRow(
                path=nodes[0].path,
                name=name,
                type_name=f"{len(nodes)} modules",
                parent=parent,
                depth=self._depth(parent),
                num_folded=len(nodes),
            )
        )

    def _depth(self, parent: int | None) -> int:
        return 0 if parent is None else self.rows[parent].depth + 1

    def ancestors(self, row: int) -> list[int]:
        """Return a row and all rows around it."""
        found: list[int] = []
        at: int | None = row
        while at is not None:
            found.append(at)
            at = self.rows[at].parent
        return found


def _nodes_of(series: Sequence[Series]) -> dict[str, _Node]:
    """Return the modules that have series, and those around them, by path."""
    outputs = [each for each in series if each.kind == "output"]
    others = [each for each in series if each.kind != "output"]
    nodes: dict[str, _Node] = {"": _Node(path="")}
    for place, each in enumerate([*outputs, *others]):
        node = _node_at(nodes, each.path, place)
        node.is_recorded = True
        node.type_name = node.type_name or each.type_name
    for node in nodes.values():
        node.children.sort(key=lambda child: child.place)
    return nodes


def _node_at(nodes: dict[str, _Node], path: str, place: int) -> _Node:
    """Return the node of a path; add those around it that are missing."""
    inner: _Node | None = None
    wanted = path
    while path not in nodes:
        node = nodes[path] = _Node(path=path, place=place)
        if inner is not None:
            node.children.append(inner)
        inner = node
        path = path.rpartition(".")[0]
    if inner is not None:
        nodes[path].children.append(inner)
    return nodes[wanted]


def _visible_children(node: _Node) -> list[_Node]:
    """Return the children; for containers that are not called, such as lists, their children."""
    found: list[_Node] = []
    waiting = list(reversed(node.children))
    while waiting:
        child = waiting.pop()
        if child.is_recorded or not child.children:
            found.append(child)
        else:
            waiting += reversed(child.children)
    return found


def _fold(children: Sequence[_Node]) -> list[_Node | list[_Node]]:
    """Return the children, or ranges of as many of them as make few rows."""
    if len(children) <= MAX_CHILDREN:
        return list(children)
    sizes = (each for each in _RANGE_SIZES if len(children) <= each * _MAX_RANGES)
    size = next(sizes, len(children) // _MAX_RANGES + 1)
    ranges: list[_Node | list[_Node]] = []
    for at in range(0, len(children), size):
        part = list(children[at : at + size])
        ranges.append(part if len(part) > 1 else part[0])
    return ranges


class RowFolder:
    """Conversion of columns of modules into columns of rows, which hold all that is inside them."""

    def __init__(self, tree: LayerTree) -> None:
        self._num_rows = len(tree)
        inner_and_outer = []
        children_and_ranges = []
        for number, row in enumerate(tree.rows):
            inner_and_outer += [(number, outer) for outer in tree.ancestors(number)]
            if row.parent is not None and tree.rows[row.parent].num_folded:
                children_and_ranges.append((number, row.parent))
        self._inner, self._outer = _indices_of(inner_and_outer)
        self._children, self._ranges = _indices_of(children_and_ranges)

    def fold(self, column: ColumnOfLayers) -> ColumnOfLayers:
        """Return a column of all rows, of one whose modules are numbered by their rows.

        A row has the norm of all gradients inside it, the update of all its weights and the share
        of all its units. It has the standard deviation of its own output, and a range the largest.
        """
        own = torch.full((len(QUANTITIES), self._num_rows), torch.nan, dtype=torch.float64)
        own[:, column.modules] = column.values.double()
        gradient, update, weight, std, num_stds, dead, units, nonfinite, places = own

        # older columns have neither norms of weights nor numbers of units: all modules are equal
        weight = weight.where(~weight.isnan(), 1.0).where(~update.isnan(), torch.nan)
        units = units.where(~units.isnan(), 1.0).where(~dead.isnan(), torch.nan)
        weights = self._add_up(weight.square())
        changes = self._add_up((update * weight).square())
        all_units = self._add_up(units)
        stds, numbers = self._spreads(std.nan_to_num(0), num_stds.nan_to_num(0))
        values = [
            self._add_up(gradient.square()).sqrt(),
            (changes / weights).sqrt(),
            weights.sqrt(),
            stds,
            numbers,
            self._add_up(dead * units) / all_units,
            all_units,
            self._add_up(nonfinite).nan_to_num(0),
            self._unite(places.nan_to_num(0).long()),
        ]
        return replace(
            column, modules=torch.arange(self._num_rows), values=torch.stack(values).float()
        )

    def _add_up(self, values: Tensor) -> Tensor:
        """Return the sum of the finite values inside each row; NaN where there is none."""
        inner = values[self._inner]
        is_known = inner.isfinite()
        rows = self._outer[is_known]
        sums = torch.full_like(values, torch.nan)
        sums[rows] = 0.0
        return sums.index_add_(0, rows, inner[is_known])

    def _spreads(self, std: Tensor, num_stds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of standard deviations and their numbers, of ranges of the largest."""
        means = (std / num_stds)[self._children]
        is_known = means.isfinite()
        ranges = self._ranges[is_known]
        largest = torch.zeros_like(std).scatter_reduce_(0, ranges, means[is_known], "amax")
        number = torch.zeros_like(std)
        number.scatter_reduce_(0, ranges, num_stds[self._children][is_known], "amax")
        return std + largest * number, num_stds + number

    def _unite(self, places: Tensor) -> Tensor:
        """Return where values are not finite inside each row."""
        found = torch.zeros_like(places)
        for place in (IN_OUTPUTS, IN_GRADIENTS, IN_WEIGHTS):
            is_wrong = (places & place) > 0
            found[self._outer[is_wrong[self._inner]]] |= place
        return found.double()


def _indices_of(pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return table[:, 0], table[:, 1]
