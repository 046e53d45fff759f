"""Fewer boxes that say the same: operators that follow each other in one, and equal modules in a row in one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torchscan.analyses.module_graph.graph_result import GraphEdge, GraphNode, ModuleGraph
from torchscan.analyses.repeats import from_to, is_next

#: names in one box
_MAX_NAMES = 3

#: the nodes of each box, the boxes in the order of their first nodes
Groups = Sequence[Sequence[int]]


def with_operators_folded(graph: ModuleGraph, is_view: Callable[[int], bool]) -> ModuleGraph:
    """An operator whose result only one other operator reads is in a box with it, unless that reads of others, too.

    ``relu(x) + other(x)`` would read as the relu of both.
    """
    targets, sources = defaultdict(set), defaultdict(set)
    for source, target, _ in graph.edges:
        targets[source].add(target)
        sources[target].add(source)
    head = list(range(len(graph.nodes)))
    for at in reversed(head):  # readers come after what they read
        into = {head[target] for target in targets[at]}
        beside = {each for target in targets[at] for each in sources[target]}
        is_operator = graph.nodes[at].kind == "operator"
        if (
            is_operator
            and len(into) == 1
            and all(_is_folded(graph, each, head, targets[each], into) for each in (at, *beside))
        ):
            (head[at],) = into
    groups = defaultdict(list)
    for at, each in enumerate(head):
        groups[each].append(at)
    return _merged(graph, list(groups.values()), lambda nodes: _operators(nodes, is_view))


def _is_folded(
    graph: ModuleGraph, at: int, head: Sequence[int], targets: set[int], into: set[int]
) -> bool:
    """Return whether a node is an operator with a single reader, or a parameter."""
    is_operator = graph.nodes[at].kind == "operator" and all(
        graph.nodes[each].kind == "operator" for each in into
    )
    return graph.nodes[at].kind == "tensor" or (
        is_operator and {head[target] for target in targets} == into
    )


def _operators(nodes: Sequence[GraphNode], is_view: Callable[[int], bool]) -> GraphNode:
    """Named by what computes; by views where nothing does."""
    computing = [each for each in nodes if not all(map(is_view, each.operators))] or nodes
    found = Counter(each.name for each in computing)
    said = [f"{name} ×{times}" if times > 1 else name for name, times in found.items()]
    rest = [f"{len(said) - _MAX_NAMES + 1} more"] if len(said) > _MAX_NAMES else []
    name = ", ".join([*said[: _MAX_NAMES - len(rest)], *rest])
    operators = tuple(op for each in nodes for op in each.operators)
    return replace(nodes[-1], name=name, operators=operators)


def with_repeats_folded(graph: ModuleGraph, kinds: Sequence[int]) -> ModuleGraph:
    """Modules of one kind that follow each other in a numbered list, each reading from the one before, are in one box.

    Where that would hide a way: what leaves them and comes back to them.
    """
    runs = [
        run for run in _runs(graph, kinds) if len(run) > 1 and not _is_left_and_entered(graph, run)
    ]
    of_runs = {at for run in runs for at in run}
    groups = [[at] for at in range(len(graph.nodes)) if at not in of_runs]
    return _merged(graph, sorted([*groups, *runs]), _repeated)


def _runs(graph: ModuleGraph, kinds: Sequence[int]) -> Iterator[list[int]]:
    joined = {(source, target) for source, target, _ in graph.edges}
    run: list[int] = []
    for at, node in enumerate(graph.nodes):
        if node.kind != "module":
            continue
        before = graph.nodes[run[-1]] if run else None
        if before is not None and (run[-1], at) in joined and _is_alike(before, node, kinds):
            run.append(at)
        else:
            yield run
            run = [at]
    yield run


def _is_alike(before: GraphNode, node: GraphNode, kinds: Sequence[int]) -> bool:
    one, other = before.calls[-1], node.calls[0]
    return (
        not (before.failed or node.failed)
        and kinds[one] == kinds[other]
        and is_next(before.name, node.name)
    )


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


def _repeated(nodes: Sequence[GraphNode]) -> GraphNode:
    first, last = nodes[0], nodes[-1]
    calls = tuple(call for each in nodes for call in each.calls)
    return replace(
        last, name=from_to(first.name, last.name), path=from_to(first.path, last.path), calls=calls
    )


def _merged(
    graph: ModuleGraph, groups: Groups, join: Callable[[Sequence[GraphNode]], GraphNode]
) -> ModuleGraph:
    """With one node for each group."""
    of = {at: number for number, group in enumerate(groups) for at in group}
    nodes = [
        graph.nodes[group[0]] if len(group) == 1 else join([graph.nodes[at] for at in group])
        for group in groups
    ]
    tensors: dict[tuple[int, int], dict[int, None]] = defaultdict(dict)
    for source, target, carried in graph.edges:
        if of[source] != of[target]:
            tensors[of[source], of[target]].update(dict.fromkeys(carried))
    edges = [
        GraphEdge(source, target, tuple(carried)) for (source, target), carried in tensors.items()
    ]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))
