"""Trees of calls of modules, by which two models or runs are aligned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchscan.plain import to_plain
from torchscan.report.info_data import PARAMETER_SUMS, SUMS, Layer

#: settings of modules (``extra_repr``) by path
Settings = Mapping[str, str]
#: a name among siblings, and the number of earlier siblings with the same name
Name = tuple[str, int]


class Node(NamedTuple):
    """A module call in the tree of calls, with the properties by which it is aligned."""

    path: str
    #: 0 for the first call of the module
    call: int
    #: the path relative to the enclosing call
    name: str
    #: index of the enclosing call, which precedes it, or None
    parent: int | None
    type_name: str
    #: its properties without and with shapes and costs, apart from inner calls
    kind: Hashable
    content: Hashable
    has_parameters: bool


def nodes_of_layers(layers: Sequence[Layer], settings: Settings) -> list[Node]:
    """Return the layers of an info, with the settings of modules as far as they are known."""
    nodes = []
    parents = parents_of([layer["depth"] for layer in layers])
    for layer, parent in zip(layers, parents, strict=True):
        own = (layer["type"], settings.get(layer["path"], ""))
        shapes = (str(to_plain(layer["input_shape"])), str(to_plain(layer["output_shape"])))
        parameters = [layer[key] for key in PARAMETER_SUMS]
        sums = [layer[key] for key in SUMS]
        node = Node(
            path=layer["path"],
            call=layer["call"],
            name=layer["name"],
            parent=parent,
            type_name=layer["type"],
            kind=(*own, *parameters),
            content=(*own, *shapes, *sums),
            has_parameters=bool(layer["grad_params"] or layer["nograd_params"]),
        )
        nodes.append(node)
    return nodes


@dataclass(slots=True, kw_only=True)
class ComparedTree:
    """A tree of nodes, with a number for each content.

    Both sides share the numbers, so equal contents have equal numbers.
    """

    nodes: Sequence[Node]
    known: dict[Hashable, int]
    children: list[list[int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    #: by node: the number of its content with shapes and costs, and without them
    exact: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    #: by node: False if others of its class look the same, such as a ReLU
    distinct: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            self.children.append([])
            siblings = self.roots if node.parent is None else self.children[node.parent]
            siblings.append(index)
        self.exact = [0] * len(self.nodes)
        self.kinds = [0] * len(self.nodes)
        self.distinct = [node.has_parameters for node in self.nodes]
        for index in reversed(range(len(self.nodes))):  # children come after their parents
            node, inner = self.nodes[index], self.children[index]
            kinds = [self.kinds[each] for each in inner]
            contents = [self.exact[each] for each in inner]
            if len(inner) > 1 or any(self.distinct[each] for each in inner):
                self.distinct[index] = True
            self.kinds[index] = self._number(("kind", node.kind, *kinds))
            self.exact[index] = self._number(("exact", node.content, *contents))

    def _number(self, content: Hashable) -> int:
        return self.known.setdefault(content, len(self.known))

    def names(self, indices: Sequence[int]) -> list[Name]:
        """Return the names of siblings, each with its number among calls of the same name."""
        seen: Counter[str] = Counter()
        names = []
        for index in indices:
            name = self.nodes[index].name
            names.append((name, seen[name]))
            seen[name] += 1
        return names


def parents_of(depths: Sequence[int]) -> list[int | None]:
    """Return the index of each layer's enclosing layer, from the depths in tree order."""
    parents: list[int | None] = []
    way: list[int] = []
    for index, depth in enumerate(depths):
        del way[depth:]
        parents.append(way[-1] if way else None)
        way.append(index)
    return parents
