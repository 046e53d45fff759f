"""Comparison of two inspected runs: times of calls, and whether a change exceeds their range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from torchscan.inspecting.call_memory import Shapes
from torchscan.inspecting.call_run import CallRun, Latency
from torchscan.inspecting.run import RunFacts
from torchscan.plain import to_plain
from torchscan.report.alignment import align_nodes, merge_aligned
from torchscan.report.compared_trees import Node
from torchscan.report.layer_moves import Moves, find_moves
from torchscan.report.page_result import PageResult
from torchscan.report.time_changes import TimeChange, compare_times

Change = Literal["added", "removed", "changed"]

#: names of the passes that are compared of a call, and of the parts of a complete step
PASSES_OF_CALLS = {"forward": "Forward", "backward": "Backward"}
PARTS_OF_STEPS = {
    **PASSES_OF_CALLS,
    "storing_gradients": "of which storing gradients",
    "outside_modules": "of which outside modules",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """One call of a module in both runs, or in one of them. Times are those of everything in it."""

    #: the current path, or the old path if the call is gone
    path: str
    #: 0 for the first call of the module
    invocation: int
    type_name: str
    kind: Change
    #: time on the device, if there is one, else on the host
    forward: TimeChange
    backward: TimeChange

    @property
    def is_clear(self) -> bool:
        """True if one of the times changed clearly: by more than the variation between steps."""
        return self.forward.is_clear or self.backward.is_clear

    @property
    def difference(self) -> float:
        """Seconds after minus seconds before, forward and backward together."""
        return self.forward.difference + self.backward.difference


class PlacedCall(NamedTuple):
    """A call in the tree of one of the runs."""

    #: index of the call among those that are compared
    number: int
    #: the path and number in this run
    path: str
    invocation: int
    type_name: str
    #: the path relative to the enclosing call
    name: str
    #: index of the enclosing call, among the calls of this run, or None
    parent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(PageResult):
    """The difference between two inspected runs."""

    #: times of complete steps: "forward", "backward", and of the backward pass "storing_gradients"
    #: and "outside_modules"
    totals: Mapping[str, TimeChange]
    #: all calls, those whose time changed most first
    calls: tuple[CallChange, ...]
    #: measured steps, before and after
    steps: tuple[int, int]
    #: steps whose calls are compared, before and after; other steps have other calls
    num_compared: tuple[int, int]
    #: fields of the provenance that differ, with their values before and after
    provenance: Mapping[str, tuple[Any, Any]]
    #: number of calls with different input shapes
    num_reshaped: int
    #: True if the times of calls are the device's, before and after
    on_device: tuple[bool, bool]
    #: old path -> new path of modules that have moved, without the modules in them
    moved: Moves = field(default_factory=dict)
    #: the calls of each run in the order of its model, with their indices in ``calls``
    _orders: tuple[tuple[PlacedCall, ...], tuple[PlacedCall, ...]] = field(
        default=((), ()), repr=False, compare=False
    )

    @property
    def clear(self) -> tuple[CallChange, ...]:
        """The calls whose time has changed by more than the spread."""
        return tuple(call for call in self.calls if call.is_clear)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        content: dict[str, Any] = to_plain(self)
        del content["_orders"]
        if not self.moved:
            del content["moved"]
        return content

    def __repr__(self) -> str:
        """Return a short text, as there may be thousands of calls."""
        clear = f"{len(self.clear)} changed beyond the variation"
        return f"<RunComparison: {len(self.calls)} calls, {clear}>"


def compare_runs(before: RunFacts, after: RunFacts) -> RunComparison:
    """Return the changes between two runs, with the calls of both models aligned."""
    steps = (before.steps, after.steps)
    num_compared = (before.num_timed, after.num_timed)
    old_nodes, new_nodes = _nodes_of_calls(before.calls), _nodes_of_calls(after.calls)
    aligned = align_nodes(old_nodes, new_nodes)

    pairs = []
    num_reshaped = 0
    for one, other in merge_aligned(len(before.calls), len(after.calls), aligned):
        old = None if one is None else before.calls[one]
        new = None if other is None else after.calls[other]
        if old and new and old.input_shapes != new.input_shapes:
            num_reshaped += 1
        pairs.append(((one, other), _compare_calls(old, new, num_compared)))
    # Of equal differences, calls of the run after come first.
    pairs.sort(key=lambda pair: pair[1].kind == "removed")
    pairs.sort(key=lambda pair: -abs(pair[1].difference))

    old_places: dict[int | None, int] = {}
    new_places: dict[int | None, int] = {}
    for place, ((one, other), _) in enumerate(pairs):
        old_places[one], new_places[other] = place, place
    provenance = asdict(before.provenance)
    totals = {}
    for name in PARTS_OF_STEPS:
        totals[name] = compare_times(getattr(before, name), getattr(after, name), steps)
    return RunComparison(
        totals=totals,
        calls=tuple(change for _, change in pairs),
        steps=steps,
        num_compared=num_compared,
        provenance=find_differences(provenance, asdict(after.provenance), provenance),
        on_device=(before.device is not None, after.device is not None),
        num_reshaped=num_reshaped,
        moved=find_moves(old_nodes, new_nodes, aligned),
        _orders=(_place_calls(old_nodes, old_places), _place_calls(new_nodes, new_places)),
    )


def _nodes_of_calls(calls: Sequence[CallRun]) -> list[Node]:
    """Return the calls by their classes and shapes, without the batch, which runs may choose."""
    nodes = []
    for call in calls:
        shapes = (_without_batch(call.input_shapes), _without_batch(call.output_shapes))
        node = Node(
            path=call.path,
            call=call.invocation,
            name=call.name_in(calls),
            parent=call.parent,
            type_name=call.type_name,
            kind=call.type_name,
            content=(call.type_name, *shapes),
            has_parameters=False,  # runs do not say
        )
        nodes.append(node)
    return nodes


def _without_batch(shapes: Shapes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape[1:]) for shape in shapes)


def _place_calls(nodes: Sequence[Node], places: Mapping[int | None, int]) -> tuple[PlacedCall, ...]:
    calls = []
    for number, node in enumerate(nodes):
        own = (node.path, node.call, node.type_name, node.name, node.parent)
        calls.append(PlacedCall(places[number], *own))
    return tuple(calls)


def change_of(before: object | None, after: object | None) -> Change:
    """Return how a row changed that is missing before, or after, if it is None there."""
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def find_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of the names that differ."""
    differences = {}
    for name in names:
        old, new = before.get(name), after.get(name)
        if old != new:
            differences[name] = (old, new)
    return differences


def describe_differences(
    what: str, differences: Mapping[str, tuple[Any, Any]], text: Callable[[Any], str] = str
) -> list[str]:
    """Return a sentence for each value that differs between two reports or runs."""
    sentences = []
    for name, (before, after) in differences.items():
        values = f"{text(before)} before, {text(after)} now"
        sentences.append(f"The {what} differ in {name.replace('_', ' ')}: {values}.")
    return sentences


def _compare_calls(
    before: CallRun | None, after: CallRun | None, steps: tuple[int, int]
) -> CallChange:
    call = after or before
    assert call is not None  # noqa: S101 - one of them is there
    times = {
        name: compare_times(_latency_of(before, name), _latency_of(after, name), steps)
        for name in PASSES_OF_CALLS
    }
    return CallChange(
        path=call.path,
        invocation=call.invocation,
        type_name=call.type_name,
        kind=change_of(before, after),
        **times,
    )


def _latency_of(call: CallRun | None, name: str) -> Latency | None:
    if call is None:
        return None
    host: Latency = getattr(call, name)
    device: Latency | None = getattr(call, f"device_{name}")
    return host if device is None else device
