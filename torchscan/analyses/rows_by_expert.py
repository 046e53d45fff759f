"""The rows that each expert gets in a model that loops over its experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchscan.ops import OpCost
from torchscan.ops.routing import Routing

#: the rows that picked one expert: the router's call, and the mask that selects them
Rows = tuple[int, int]


@dataclass(slots=True)
class ExpertRows:
    """The rows by expert, and the calls that compute on them."""

    #: by expert, how many rows picked it
    count: dict[Rows, int] = field(default_factory=dict)
    #: by call, the rows that it computes on
    rows_of_call: dict[int, Rows] = field(default_factory=dict)
    #: by call that looks for the true places of a mask, the rows that these are
    told_by: dict[int, Rows] = field(default_factory=dict)

    def with_avoidable_bytes(
        self, costs: tuple[OpCost, ...], weights: Mapping[int, int], routers: Mapping[int, Routing]
    ) -> tuple[OpCost, ...]:
        """Return the costs with the weights of experts as avoidable, as far as possible.

        If m experts got rows, and a row picks k, then of all their weights ``1 − k/m`` are
        avoidable, and of their masks. ``weights`` are bytes by call.
        """
        hit = {self.rows_of_call[index] for index, size in weights.items() if size}
        rows_of_call = self.rows_of_call | self.told_by
        sizes = dict(weights)
        for index, rows in self.told_by.items():
            if rows in hit:
                sizes[index] = costs[index].bytes_read

        changed = list(costs)
        num_experts = self._count_experts(hit, routers)
        for index, size in sizes.items():
            if not size:
                continue
            router, _ = rows_of_call[index]
            needed, num_hit = num_experts[router]
            cost = costs[index]
            avoidable = cost.avoidable_bytes_read + size - size * needed // num_hit
            changed[index] = replace(cost, avoidable_bytes_read=min(avoidable, cost.bytes_read))
        return tuple(changed)

    def _count_experts(
        self, hit: set[Rows], routers: Mapping[int, Routing]
    ) -> dict[int, tuple[int, int]]:
        """Return by router the number of experts that are needed, and of those that got rows.

        If not all picks are found, it is only certain that each row picked an expert.
        """
        counts: dict[int, list[int]] = defaultdict(list)
        for router, mask in hit:
            counts[router].append(self.count[router, mask])
        num_experts: dict[int, tuple[int, int]] = {}
        for router, num_rows in counts.items():
            routing = routers[router]
            picks = routing.of(routing.choices, sum(num_rows)).picks
            num_experts[router] = min(picks, len(num_rows)), len(num_rows)
        return num_experts
