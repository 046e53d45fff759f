"""Fewer nodes with the same content: chains of operators in one, and equal modules in a row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from torchscan.analyses.module_graph.graph_result import GraphEdge, GraphNode, ModuleGraph
from torchscan.analyses.repeats import from_to, is_next

#: names in one box
_MAX_NAMES = 3

#: the nodes of each box, the boxes in the order of their first nodes
Groups = Sequence[Sequence[int]]


def with_operators_folded(graph: ModuleGraph, is_view: Callable[[int], bool]) -> ModuleGraph:
    """Return the graph with chains of operators in one node each.

    An operator whose result only one other operator reads is in a node with it, unless that reads
    results of others, too: ``relu(x) + other(x)`` would read as the relu of both.
    """
    targets: dict[int, set[int]] = defaultdict(set)
    sources: dict[int, set[int]] = defaultdict(set)
    for source, target, _ in graph.edges:
        targets[source].add(target)
        sources[target].add(source)

    head = list(range(len(graph.nodes)))
    for index in reversed(head):  # readers come after what they read
        readers = {head[target] for target in targets[index]}
        if graph.nodes[index].kind != "operator" or len(readers) != 1:
            continue
        (reader,) = readers
        beside = {each for target in targets[index] for each in sources[target]}
        read = (index, *beside)
        if all(_is_read_only_by(graph, each, reader, head, targets[each]) for each in read):
            head[index] = reader

    groups: dict[int, list[int]] = defaultdict(list)
    for index, reader in enumerate(head):
        groups[reader].append(index)
    return _merge(graph, list(groups.values()), lambda nodes: _join_operators(nodes, is_view))


def _is_read_only_by(
    graph: ModuleGraph, index: int, reader: int, head: Sequence[int], targets: set[int]
) -> bool:
    """Return whether a node is a parameter, or an operator that only another operator reads."""
    if graph.nodes[index].kind == "tensor":
        return True
    if graph.nodes[index].kind != "operator" or graph.nodes[reader].kind != "operator":
        return False
    return {head[target] for target in targets} == {reader}


def _join_operators(nodes: Sequence[GraphNode], is_view: Callable[[int], bool]) -> GraphNode:
    """Return one node, named by what computes, or by views if nothing does."""
    computing = [each for each in nodes if not all(map(is_view, each.operators))] or nodes
    names: list[str] = []
    for name, times in Counter(each.name for each in computing).items():
        names.append(f"{name} ×{times}" if times > 1 else name)
    if len(names) > _MAX_NAMES:
        num_more = len(names) - _MAX_NAMES + 1
        names[_MAX_NAMES - 1 :] = [f"{num_more} more"]
    operators = tuple(op for each in nodes for op in each.operators)
    return replace(nodes[-1], name=", ".join(names), operators=operators)


def with_repeats_folded(
    graph: ModuleGraph, kinds: Sequence[int], starts: Collection[int] = ()
) -> ModuleGraph:
    """Return the graph with equal modules of a numbered list in one node.

    Each reads from the one before. Runs with results that leave them and come back to them are
    unchanged, because a node would hide that. A run ends before each of the calls ``starts``.
    """
    runs = [run for run in _find_runs(graph, kinds, starts) if len(run) > 1]
    runs = [run for run in runs if not _is_left_and_entered(graph, run)]
    in_runs = {index for run in runs for index in run}
    groups = [[index] for index in range(len(graph.nodes)) if index not in in_runs]
    return _merge(graph, sorted([*groups, *runs]), _join_repeats)


def _find_runs(
    graph: ModuleGraph, kinds: Sequence[int], starts: Collection[int]
) -> Iterator[list[int]]:
    """Yield the runs of equal modules, of which each reads from the one before."""
    joined = {(source, target) for source, target, _ in graph.edges}
    run: list[int] = []
    for at, node in enumerate(graph.nodes):
        if node.kind != "module":
            continue
        if run and (run[-1], at) in joined and node.calls[0] not in starts:
            before = graph.nodes[run[-1]]
            is_equal = kinds[before.calls[-1]] == kinds[node.calls[0]]
            has_failed = before.failed or node.failed
            if is_equal and not has_failed and is_next(before.name, node.name):
                run.append(at)
                continue
        yield run
        run = [at]
    yield run


def _is_left_and_entered(graph: ModuleGraph, run: Sequence[int]) -> bool:
    """Return whether a result of one node reaches another of the run through a third outside it."""
    inside = set(run)
    reached = set[int]()
    for source, target, _ in sorted(graph.edges):
        if source in reached and target in inside:
            return True
        if (source in inside or source in reached) and target not in inside:
            reached.add(target)
    return False


def _join_repeats(nodes: Sequence[GraphNode]) -> GraphNode:
    first, last = nodes[0], nodes[-1]
    name, path = from_to(first.name, last.name), from_to(first.path, last.path)
    calls = tuple(call for each in nodes for call in each.calls)
    return replace(last, name=name, path=path, calls=calls)


def _merge(
    graph: ModuleGraph, groups: Groups, join: Callable[[Sequence[GraphNode]], GraphNode]
) -> ModuleGraph:
    """Return the graph with one node for each group."""
    nodes: list[GraphNode] = []
    group_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        members = [graph.nodes[index] for index in group]
        if len(members) == 1:
            nodes += members
        else:
            nodes.append(join(members))
        group_of.update(dict.fromkeys(group, number))

    tensors: dict[tuple[int, int], dict[int, None]] = defaultdict(dict)
    for source, target, carried in graph.edges:
        ends = (group_of[source], group_of[target])
        if ends[0] != ends[1]:
            tensors[ends].update(dict.fromkeys(carried))
    edges = [GraphEdge(*ends, tuple(carried)) for ends, carried in tensors.items()]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))
