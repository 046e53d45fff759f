"""A step as events for Perfetto and chrome://tracing, in the trace event format of Chrome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torchscan.inspecting.provenance import RunProvenance
from torchscan.inspecting.timeline import Slice, Timeline
from torchscan.plain import to_plain

_FORWARD, _BACKWARD = "forward", "backward"
_PROCESS = 1
_STORING = "storing gradients"
#: what is said of a call where it is known, and what of its forward pass alone
_SAID = ("path", "type_name", "invocation", "input_shapes", "output_shapes")
_SAID_OF_FORWARD = ("macs", "flops", "flops_per_second")


class _Call(Protocol):
    """The description of a call."""

    @property
    def path(self) -> str: ...
    @property
    def type_name(self) -> str: ...
    @property
    def invocation(self) -> int: ...


def chrome_trace(
    calls: Sequence[_Call], timeline: Timeline, provenance: RunProvenance
) -> dict[str, Any]:
    """The events of one step: its calls, nested on a track "forward", and the nodes' on a track "backward"."""
    tracks = [(_FORWARD, timeline.forward), *_tracks(_BACKWARD, timeline.backward)]
    events = [_naming("process_name", 0, provenance.device)]
    for number, (name, slices) in enumerate(tracks, 1):
        events += [
            _naming("thread_name", number, name),
            *(_event(each, calls, number, name) for each in slices),
        ]
    return {"displayTimeUnit": "ms", "otherData": to_plain(provenance), "traceEvents": events}


def _naming(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _event(each: Slice, calls: Sequence[_Call], track: int, category: str) -> dict[str, Any]:
    """Times are in microseconds."""
    call = None if each.call is None else calls[each.call]
    times = {"ts": each.start / 1000, "dur": (each.end - each.start) / 1000}
    place = {"cat": category, "ph": "X", "pid": _PROCESS, "tid": track}
    return {
        "name": _STORING if call is None else _name_of(call),
        **place,
        **times,
        "args": _args_of(call, category),
    }


def _name_of(call: _Call) -> str:
    """``layer1.0.conv1 (2) Conv2d``: the second call of that module."""
    number = f"({call.invocation + 1})" if call.invocation else ""
    return " ".join(filter(None, (call.path, number, call.type_name)))


def _args_of(call: _Call | None, track: str) -> dict[str, Any]:
    names = () if call is None else (*_SAID, *_SAID_OF_FORWARD) if track == _FORWARD else _SAID
    return {name: to_plain(value) for name in names if (value := getattr(call, name)) is not None}


def _tracks(name: str, slices: Sequence[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    """One track. What several threads ran at the same time has one for each, because slices of a track must nest."""
    tracks: list[list[Slice]] = [[]]
    open_at: list[list[int]] = [[]]
    for each in slices:
        number = next(
            (number for number, ends in enumerate(open_at) if _nests(each, ends)), len(tracks)
        )
        if number == len(tracks):
            tracks.append([])
            open_at.append([])
        open_at[number].append(each.end)
        tracks[number].append(each)
    for number, track in enumerate(tracks, 1):
        yield name if number == 1 else f"{name} ({number})", track


def _nests(each: Slice, ends: list[int]) -> bool:
    """Return whether a slice fits into the open ones.

    ``ends`` are their ends, without past ones.
    """
    while ends and ends[-1] <= each.start:
        ends.pop()
    return not ends or each.end <= ends[-1]
