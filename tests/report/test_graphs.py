"""Graphs as pictures and in other languages: every box once, no box on another, no line through a box."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import RecordError, record
from torchscan.analyses.module_graph import module_graph
from torchscan.report.graphs.layout import Layout, Size, lay_out
from torchscan.types import ModuleGraph


def block() -> ModuleGraph:
    inner = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
    model = Calls(lambda self, x: self.inner(x) + x, inner=inner)
    return module_graph(record(model, (3, 8, 8)))


# -- layout --------------------------------------------------------------------------------------------------------------


def lay_out_graph(number: int, edges: list[tuple[int, int]]) -> tuple[Layout, list[Size]]:
    sizes = [Size(40.0 + 13 * (at % 5), 36.0 if at % 3 else 22.0) for at in range(number)]
    return lay_out(sizes, edges), sizes


def a_graph(seed: int, number: int) -> list[tuple[int, int]]:
    chosen = random.Random(seed)  # noqa: S311 - not for secrets
    pairs = [sorted(chosen.sample(range(number), 2)) for _ in range(2 * number)]
    return sorted({(one, other) for one, other in pairs})


@pytest.mark.parametrize("seed", range(20))
def test_boxes_are_apart_and_below_what_they_read(seed: int) -> None:
    number = 3 + 4 * seed
    edges = a_graph(seed, number)
    layout, sizes = lay_out_graph(number, edges)
    boxes = [
        (x - size.wide / 2, y - size.tall / 2, x + size.wide / 2, y + size.tall / 2)
        for (x, y), size in zip(layout.places, sizes, strict=True)
    ]
    for one, other in itertools.combinations(boxes, 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    assert min(box[0] for box in boxes) >= 0
    assert max(box[2] for box in boxes) <= layout.size.wide + 1e-6
    assert all(boxes[source][3] < boxes[target][1] for source, target in edges)


@pytest.mark.parametrize("seed", range(20))
def test_lines_go_from_box_to_box_and_bend_between_the_others(seed: int) -> None:
    """At each layer that a line crosses, it is beside the boxes there."""
    edges = a_graph(seed, 30)
    layout, sizes = lay_out_graph(30, edges)
    for (source, target), way in zip(edges, layout.ways, strict=True):
        assert way[0] == (
            layout.places[source][0],
            layout.places[source][1] + sizes[source].tall / 2,
        )
        assert way[-1] == (
            layout.places[target][0],
            layout.places[target][1] - sizes[target].tall / 2,
        )
        for (x, y), ((left, top), size) in itertools.product(
            way[1:-1], zip(layout.places, sizes, strict=True)
        ):
            assert abs(x - left) > size.wide / 2 or abs(y - top) > size.tall / 2


def test_a_chain_is_straight_and_a_shortcut_is_beside_it() -> None:
    edges = [*itertools.pairwise(range(6)), (0, 4)]
    layout, _ = lay_out_graph(6, edges)
    assert len({round(x, 3) for x, _ in layout.places[1:4]}) == 1
    assert len({round(x, 3) for x, _ in layout.ways[-1][2:-2]}) == 1, "straight all along"


def test_lines_that_need_not_cross_do_not() -> None:
    """Two chains side by side, whose boxes are called in turn."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 7)]
    layout, _ = lay_out_graph(8, edges)
    sides = [layout.places[at][0] - layout.places[0][0] for at in (1, 3, 5)]
    assert len({side > 0 for side in sides}) == 1


def test_nothing_is_laid_out_and_so_is_one() -> None:
    assert lay_out([], []).size == Size(0.0, 0.0)
    assert lay_out([Size(10, 20)], []).places == [(5.0, 10.0)]


# -- pictures ------------------------------------------------------------------------------------------------------------


def test_a_picture_has_each_box_and_line_once() -> None:
    graph = block()
    root = ET.fromstring(graph.to_svg())  # noqa: S314 - our own
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        "args[0]",
        "3×8×8",
        "inner",
        "Sequential · 3×8×8",
        "add",
        "3×8×8",
        "output",
        "3×8×8",
    ]
    paths = [
        each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("marker-end")
    ]
    assert len(paths) == len(graph.edges) == 4
    assert graph.to_svg() in graph._repr_html_()


def test_equal_modules_and_operators_in_a_row_are_one_box() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x * 2 + 1).flatten(1)

    model = Calls(forward, layers=nn.ModuleList(nn.Linear(4, 4) for _ in range(5)))
    trace = record(model, (4,))
    folded = module_graph(trace, fold=True)
    assert [node.name for node in folded.nodes][1:-1] == ["layers.0 … 4", "mul, add"]
    assert len(folded.nodes[1].calls) == 5
    assert "layers.0 … 4 ×5" in folded.to_svg()
    assert len(module_graph(trace).nodes) == 10


def test_operators_are_apart_where_one_would_seem_to_be_of_all() -> None:
    """``relu(x) + other(x)`` is not the relu of a sum; what reads of operators alone is one with them."""
    model = Calls(
        lambda self, x: (torch.relu(x) + self.other(x)).tanh().exp() * (x.cos() + x.sin()),
        other=nn.Linear(4, 4),
    )
    graph = module_graph(record(model, (4,)), fold=True)
    assert next(node.name for node in graph.nodes if node.kind == "operator") == "relu"
    assert len([node for node in graph.nodes if node.kind == "operator"]) == 2


def test_what_a_repeated_module_leaves_to_others_keeps_it_apart() -> None:
    """Each result is also read by something that the next one reads."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + self.side(x)
        return x

    model = Calls(
        forward, layers=nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), side=nn.Linear(4, 4)
    )
    names = [node.name for node in module_graph(record(model, (4,)), fold=True).nodes]
    assert {"layers.0", "layers.1", "layers.2"} <= set(names)


def test_layers_that_differ_in_their_settings_alone_are_not_equal() -> None:
    model = nn.Sequential(*(nn.Conv1d(4, 4, 3, padding=wide, dilation=wide) for wide in (1, 2, 3)))
    assert len(module_graph(record(model, (4, 8)), fold=True).nodes) == 5


def test_in_other_languages() -> None:
    graph = block()
    assert graph.to_mermaid().splitlines()[0] == "flowchart TD"
    assert len(re.findall(r"n\d+ --> n\d+", graph.to_mermaid())) == 4
    assert graph.to_dot().startswith("digraph {")
    assert len(re.findall(r"n\d+ -> n\d+;", graph.to_dot())) == 4


def test_as_a_table() -> None:
    rows = {row.cells[0].text: row.cells[3].text for row in block().table().rows}
    assert set(rows["add"].split(", ")) == {"inner", "args[0]"}


def test_a_failure_is_marked() -> None:
    with pytest.raises(RecordError) as caught:
        record(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5)), (4,))
    graph = module_graph(caught.value)
    assert "1 (failed)" in graph.to_svg()
    assert "1 (failed)" in graph.to_mermaid()
    assert "1 (failed)" in graph.to_dot()


EVIL = '"]</title><script>alert(1)</script>\u202e\n%%{init}%%' + "x" * 10_000


def test_hostile_names_are_text() -> None:
    model = Calls(lambda self, x: self._modules[EVIL](x))
    model._modules[EVIL] = nn.Linear(4, 4)
    graph = module_graph(record(model, (4,)))
    assert "<script" not in graph.to_svg() + graph.to_mermaid()
    assert "\u202e" not in graph.to_svg() + graph.to_mermaid() + graph.to_dot()
    ET.fromstring(graph.to_svg())  # noqa: S314 - our own
    assert "]<" not in graph.to_mermaid()
    assert all(line.startswith(("flowchart", "  n")) for line in graph.to_mermaid().splitlines())
