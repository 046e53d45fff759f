"""A run in the forms of other tools: nested dicts, Inspector Gadgets, Chrome's traces, a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from torchscan import units
from torchscan.inspecting.call_run import CallRun
from torchscan.inspecting.facts import COUNTED
from torchscan.inspecting.run_device import RunProvenance
from torchscan.inspecting.step_timeline import Slice, Timeline
from torchscan.measured import Figure, Key, Measured, Verdict
from torchscan.notes import Note
from torchscan.plain import to_plain

#: ``RunFacts``, whose methods call this module
RunFacts = Any


# -- nested dicts --------------------------------------------------------------------------------


def nest_calls(
    calls: Sequence[CallRun], describe: Callable[[CallRun], dict[str, Any]]
) -> dict[str, Any]:
    """Return ``{name: {"info": describe(call), "children": {…}}}``, nested as the calls are.

    The second call of a module has a number behind its name.
    """
    entries: list[dict[str, Any]] = []
    top: dict[str, Any] = {}
    for call in calls:
        siblings = top if call.parent is None else entries[call.parent]["children"]
        entry = {"info": describe(call), "children": {}}
        name = call.name_in(calls)
        if name in siblings:
            numbered = (f"{name} ({number})" for number in count(call.invocation + 1))
            name = next(each for each in numbered if each not in siblings)
        siblings[name] = entry
        entries.append(entry)
    return top


def describe_call(call: CallRun) -> dict[str, Any]:
    """Return the fields of a call, with its latencies as dicts."""
    values = asdict(call)
    for name, value in values.items():
        if hasattr(value, "_asdict"):  # dataclasses leave named tuples as they are
            values[name] = value._asdict()
    return values


# -- Inspector Gadgets ---------------------------------------------------------------------------

_MEGABYTE, _MILLISECONDS = 1e6, 1e3
#: name in ``torch_inspector`` -> name here
_COUNTS = {
    "num_parameters": "num_parameters",
    "num_learnable_parameters": "num_learnable_parameters",
}
_SHAPES = {
    "input_shapes": "input_shapes",
    "output_shapes": "output_shapes",
    "grad_in_shape": "grad_in_shapes",
    "grad_out_shape": "grad_out_shapes",
}
_MEMORY = {
    "param_memory_usage": "param_memory",
    "gradient_memory_usage": "gradient_memory",
    "effective_additional_memory_fwd": "memory_delta_fwd",
    "effective_additional_memory_bwd": "memory_delta_bwd",
    "total_memory": "total_memory",
}
#: lists with one entry per tensor there, and with the sum here
_SUMS = {"input_memory_usage": "input_memory", "output_memory_usage": "output_memory"}
#: counts of NaN and Inf here
_CHECKS = {"forward_nan": "forward", "grad_in_nan": "grad_in", "grad_out_nan": "grad_out"}


def to_inspector_names(call: CallRun) -> dict[str, Any]:
    """Return the values of a call under the names, and in the units, of Inspector Gadgets.

    Memory is in megabytes and time in milliseconds. NaN and Inf are booleans.
    """
    forward = call.device_forward or call.forward
    backward = call.device_backward or call.backward
    values: dict[str, Any] = {"type": call.type_name}
    for name, own in _SHAPES.items():
        values[name] = [list(shape) for shape in getattr(call, own)]
    for name, own in _COUNTS.items():
        values[name] = getattr(call, own)
    for name, own in _MEMORY.items():
        values[name] = _to_megabytes(getattr(call, own))
    for name, own in _SUMS.items():
        values[name] = [_to_megabytes(getattr(call, own))]
    for name, own in _CHECKS.items():
        counts = getattr(call, f"{own}_nan"), getattr(call, f"{own}_inf")
        values[name] = None if None in counts else any(counts)
    values["forward_latency"] = forward.median * _MILLISECONDS
    values["backward_latency"] = backward.median * _MILLISECONDS
    return values


def _to_megabytes(size: int | None) -> float | None:
    return None if size is None else size / _MEGABYTE


# -- traces --------------------------------------------------------------------------------------

_FORWARD, _BACKWARD = "forward", "backward"
_PROCESS = 1
_MICROSECOND = 1000
#: fields of a call, and those of its forward pass alone
_FIELDS = ("path", "type_name", "invocation", "input_shapes", "output_shapes")
_FORWARD_FIELDS = (*_FIELDS, "macs", "flops", "flops_per_second")


def chrome_trace(
    calls: Sequence[CallRun], timeline: Timeline, provenance: RunProvenance
) -> dict[str, Any]:
    """Return a step in the trace event format of Chrome, for Perfetto and chrome://tracing.

    Calls are nested on a track "forward", and what their nodes ran on a track "backward".
    """
    tracks = [(_FORWARD, timeline.forward), *_split_tracks(timeline.backward)]
    events = [_name_event("process_name", 0, provenance.device)]
    for number, (name, slices) in enumerate(tracks, 1):
        events.append(_name_event("thread_name", number, name))
        for each in slices:
            call = None if each.call is None else calls[each.call]
            events.append(_slice_event(each, call, number, name))
    return {"displayTimeUnit": "ms", "otherData": to_plain(provenance), "traceEvents": events}


def _name_event(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _slice_event(each: Slice, call: CallRun | None, track: int, category: str) -> dict[str, Any]:
    """Return the event of a slice, with times in microseconds."""
    event: dict[str, Any] = {
        "name": "storing gradients",
        "cat": category,
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "ts": each.start / _MICROSECOND,
        "dur": (each.end - each.start) / _MICROSECOND,
        "args": {},
    }
    if call is None:
        return event
    number = f"({call.invocation + 1})" if call.invocation else ""  # layer1.0.conv1 (2) Conv2d
    event["name"] = " ".join(filter(None, (call.path, number, call.type_name)))
    for name in _FORWARD_FIELDS if category == _FORWARD else _FIELDS:
        value = getattr(call, name)
        if value is not None:
            event["args"][name] = to_plain(value)
    return event


def _split_tracks(slices: Sequence[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    """Yield the names and slices of tracks of the backward pass.

    There is one track, but slices of a track must nest: what several threads ran at the same time
    has a track for each of them.
    """
    tracks: list[list[Slice]] = [[]]
    #: ends of the open slices of each track
    ends: list[list[int]] = [[]]
    for each in slices:
        number = 0
        while number < len(tracks) and not _nests(each, ends[number]):
            number += 1
        if number == len(tracks):
            tracks.append([])
            ends.append([])
        tracks[number].append(each)
        ends[number].append(each.end)
    for number, track in enumerate(tracks, 1):
        yield _BACKWARD if number == 1 else f"{_BACKWARD} ({number})", track


def _nests(each: Slice, ends: list[int]) -> bool:
    """Return whether a slice fits into the open ones, whose past ``ends`` are removed."""
    while ends and ends[-1] <= each.start:
        ends.pop()
    return not ends or each.end <= ends[-1]


# -- a report of the model -----------------------------------------------------------------------


def measure_calls(run: RunFacts) -> Measured:
    """Return the values by call. Values of a recomputed call count for the call that it repeats."""
    originals = _find_originals(run.calls)
    figures: dict[Key, dict[Figure, float]] = {}
    for call in run.calls:
        key = call.path, call.invocation
        values = figures.setdefault(originals.get(key, key), {})
        values["latency"] = values.get("latency", 0) + call.time
        counts = [getattr(call, name) for name in COUNTED]
        if any(each is not None for each in counts):
            values["nonfinite"] = values.get("nonfinite", 0) + sum(each or 0 for each in counts)

    producer = None
    producers: dict[Key, str] = {}
    for first in run.nonfinite[:1]:
        key = first.path, first.invocation
        producer = originals.get(key, key)
        producers[producer] = first.description
    return Measured(
        source=f"{_format_number(run.steps, 'step')} measured on {run.provenance.device}",
        figures=figures,
        types={call.path: call.type_name for call in run.calls},
        verdicts=list(_list_verdicts(run, producer)),
        producers=producers,
    )


def _find_originals(calls: Sequence[CallRun]) -> dict[Key, Key]:
    """Return the original call of each call that a checkpoint repeated.

    The last call is repeated first.
    """
    first: dict[str, list[Key]] = {}
    again: dict[str, list[Key]] = {}
    for call in calls:
        keys = again if call.is_again else first
        keys.setdefault(call.path, []).append((call.path, call.invocation))

    originals = {}
    for path, repeated in again.items():
        if path in first:
            for index, key in enumerate(repeated):
                originals[key] = first[path][-1 - index % len(first[path])]
    return originals


def _list_verdicts(run: RunFacts, producer: Key | None) -> Iterator[Verdict]:
    """Yield the times of the run, its first source of a NaN, and the verdict if it is another."""
    if run.steps:
        passes = "forward and backward" if run.backward.median else "forward"
        remark = f"{passes}, the median of {_format_number(run.steps, 'step')}"
        yield "Measured", units.duration(run.step_time), remark, None
    if run.evaluation is not None:
        remark = f"forward only, the median of {_format_number(run.evaluation.timed, 'pass')}"
        yield "Evaluation", units.duration(run.evaluation.time), remark, None
    for first in run.nonfinite[:1]:
        yield f"First {first.kind}", first.path or first.type_name, str(first), producer

    verdict = run.verdict
    if verdict is None or verdict.code in ("verdict-too-few-steps", "verdict-nonfinite"):
        return
    name = str(Note.of("verdict-name", verdict=verdict.code))
    key = (verdict.values["path"], 0) if "path" in verdict.values else None
    yield "Verdict", name, str(verdict), key


def _format_number(number: int, noun: str) -> str:
    if number == 1:
        return f"{units.exact(number)} {noun}"
    return f"{units.exact(number)} {noun}{'es' if noun == 'pass' else 's'}"
