"""The minimum cut of a network, with Dinic's algorithm."""

from __future__ import annotations

from collections import deque


class FlowNetwork:
    """Nodes and edges with capacities."""

    def __init__(self, num_nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(num_nodes)]
        self._heads: list[int] = []
        #: what each edge can still carry; the one after an even edge is its reverse
        self._left: list[float] = []

    def connect(self, tail: int, head: int, capacity: int | None) -> None:
        """Add an edge; one without a capacity can't be cut."""
        for begin, end, room in (
            (tail, head, float("inf") if capacity is None else capacity),
            (head, tail, 0),
        ):
            self._edges[begin].append(len(self._heads))
            self._heads.append(end)
            self._left.append(room)

    def reached_after_cut(self, source: int, sink: int) -> set[int]:
        """Return the nodes on the source's side of a minimum cut."""
        while True:
            levels = self._levels(source)
            if sink not in levels:
                return set(levels)
            positions = [0] * len(self._edges)
            while self._push(source, sink, levels, positions):
                pass

    def _levels(self, source: int) -> dict[int, int]:
        levels, waiting = {source: 0}, deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                head = self._heads[edge]
                if self._left[edge] > 0 and head not in levels:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def _push(self, source: int, sink: int, levels: dict[int, int], positions: list[int]) -> bool:
        """Send what fits along one shortest path, and return whether there was one."""
        path: list[int] = []
        node = source
        while node != sink:
            edge = self._next_edge(node, levels, positions)
            if edge is not None:
                path.append(edge)
                node = self._heads[edge]
            elif not path:
                return False
            else:
                node = self._heads[path.pop() ^ 1]
                positions[node] += 1
        room = min(self._left[edge] for edge in path)
        if room == float("inf"):
            raise ValueError("the network has a path of edges that can't be cut")
        for edge in path:
            self._left[edge] -= room
            self._left[edge ^ 1] += room
        return True

    def _next_edge(self, node: int, levels: dict[int, int], positions: list[int]) -> int | None:
        edges = self._edges[node]
        while positions[node] < len(edges):
            edge = edges[positions[node]]
            head = self._heads[edge]
            if self._left[edge] > 0 and levels.get(head, -1) == levels[node] + 1:
                return edge
            positions[node] += 1
        return None
