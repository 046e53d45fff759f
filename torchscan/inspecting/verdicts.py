"""The verdict on a run: the one fact that limits it most, and the evidence for it.

Facts that make a run wrong come before those that make it slow. What holds only in some parts of a
run is not a verdict: a statement that is as likely to hold in a part as not holds in all five in
one of 32 runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchscan.inspecting.memory_trend import NUM_PARTS
from torchscan.notes import Note

#: ``RunFacts`` and ``GroupRun``, whose property ``verdict`` calls this module
RunFacts = Any
GroupRun = Any
#: share of the time between steps: without it, a run would take a fifth less
_MIN_BETWEEN = 0.2
#: the same on CUDA, where the optimizer's kernels, which have no events, run in that time
_MIN_BETWEEN_ON_DEVICE = 1 / 3
#: share of a step in which the device waits for the host, without which it would be a quarter
#: shorter
_MIN_WAITING = 0.25
#: seconds: on CPUs that we measured, dispatch and autograd took 5 to 10 µs per node
_MAX_NODE_TIME = 15e-6
#: share of forward and backward that these nodes take, so that they say something about the step
_MIN_IN_NODES = 0.25
#: steps in which memory that grows doubles: slower growth is not what limits a run
_MAX_STEPS_TO_DOUBLE = 10_000
#: compilations of a function that are usual: with the first shapes, with dynamic ones, and without
#: gradients
_USUAL_COMPILATIONS = 3
#: share of a module that stands out: everything else together takes less
_MIN_SLOW = 0.5
#: modules that a slowest one is compared with, at least
_MIN_MODULES = 3


# -- the verdict ---------------------------------------------------------------------------------


def find_verdict(run: RunFacts) -> Note | None:
    """Return the verdict on a run, or None if no step was measured."""
    if run.out_of_memory is not None:
        failure: Note = run.out_of_memory
        return failure
    for note in _find_broken_values(run):
        return note
    if not run.steps:
        return None
    if run.num_timed < NUM_PARTS:
        return Note.of("verdict-too-few-steps", steps=run.num_timed, needed=NUM_PARTS)
    for note in _slow(run):
        return note
    path, type_name, share = _slowest_module(run)
    between = min_between = None
    if run.evidence is not None and run.evidence.between is not None:
        between, min_between = run.evidence.between.value, run.evidence.between.min
    return Note.of(
        "verdict-balanced",
        path=path,
        type_name=type_name,
        share=share,
        trains=run.has_backward,
        between=between,
        min_between=min_between,
        model=_name_model(run),
    )


def find_group_verdict(group: GroupRun) -> Note | None:
    """Return the verdict on several ranks: that on the first one, if there is no straggler."""
    for run in group.runs:
        for note in _find_broken_values(run):
            return note
    for straggler in group.stragglers:
        return Note.of("verdict-straggler", rank=straggler.rank, share=straggler.share)
    return find_verdict(group.runs[0])


def _find_broken_values(run: RunFacts) -> Iterator[Note]:
    """Yield values that are not finite and growing memory."""
    for found in run.nonfinite:
        yield Note.of(
            "verdict-nonfinite",
            kind=found.kind,
            step=found.step,
            is_evaluation=found.is_evaluation,
            phase=found.phase,
            path=found.path,
            type_name=found.type_name,
            operator=found.operator,
            num_steps=max(run.nonfinite_steps, 1),
        )
    memory = None if run.evidence is None else run.evidence.memory
    if memory is not None and memory.growth * _MAX_STEPS_TO_DOUBLE >= memory.size:
        yield Note.of(
            "verdict-memory-growth", growth=memory.growth, size=memory.size, steps=memory.steps
        )


def _slow(run: RunFacts) -> Iterator[Note]:
    """Yield what takes time that it need not, the most certain first."""
    if run.compilation is not None:
        frame = max(run.compilation.frames, key=lambda each: each.times, default=None)
        if frame is not None and frame.times > _USUAL_COMPILATIONS:
            reason = frame.reasons[-1] if frame.reasons else None
            yield Note.of(
                "verdict-recompilation", place=frame.place, times=frame.times, reason=reason
            )
    yield from _waits(run)
    path, type_name, share = _slowest_module(run)
    num_modules = len({path for path, _ in _times_by_module(run)})
    if share >= _MIN_SLOW and num_modules >= _MIN_MODULES:
        yield Note.of(
            "verdict-slow-module",
            path=path,
            type_name=type_name,
            share=share,
            trains=run.has_backward,
            model=_name_model(run),
        )


def _waits(run: RunFacts) -> Iterator[Note]:
    """Yield what the computation waits for."""
    evidence = run.evidence
    if evidence is None:
        return
    between, waiting = evidence.between, evidence.waiting
    limit = _MIN_BETWEEN if run.device is None else _MIN_BETWEEN_ON_DEVICE
    # other modules that train have backward passes and optimizers, which are not timed
    if between is not None and between.min >= limit and not run.trained_modules:
        yield Note.of(
            "verdict-input-bound", share=between.value, min=between.min, steps=evidence.steps
        )
    if waiting is not None and waiting.min >= _MIN_WAITING:
        yield Note.of(
            "verdict-host-bound", share=waiting.value, min=waiting.min, steps=run.num_timed
        )
    is_small = evidence.node_time <= _MAX_NODE_TIME
    in_nodes = evidence.num_nodes * evidence.node_time
    if run.device is None and is_small and in_nodes > _MIN_IN_NODES * run.step_time:
        yield Note.of(
            "verdict-small-operators", num_nodes=evidence.num_nodes, time=evidence.node_time
        )


def _name_model(run: RunFacts) -> str | None:
    """Return the name of the timed module if several train, or None."""
    for each in run.trained_modules:
        if each.is_timed:
            name: str = each.name
            return name
    return None


def _slowest_module(run: RunFacts) -> tuple[str, str, float]:
    """Return path, type and share of the module without others that takes the most time."""
    times = _times_by_module(run)
    (path, type_name), time = max(times.items(), key=lambda each: each[1], default=(("", ""), 0.0))
    return path, type_name, min(1.0, time / run.step_time) if run.step_time else 0.0


def _times_by_module(run: RunFacts) -> dict[tuple[str, str], float]:
    """Return the seconds of the modules without others, by path and type."""
    outer = {call.parent for call in run.calls}
    times: dict[tuple[str, str], float] = {}
    for index, call in enumerate(run.calls):
        if index not in outer:
            key = call.path, call.type_name
            times[key] = times.get(key, 0.0) + call.time
    return times
