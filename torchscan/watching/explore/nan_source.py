"""The source of the first NaN of a run, and what was finite before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchscan.notes import Note
from torchscan.report.paging.training_record import NanData
from torchscan.watching.history import WatchedRun
from torchscan.watching.rank_readers import readers_of
from torchscan.watching.run_files import ranks_in
from torchscan.watching.schema import Distribution, RunEvent, Series
from torchscan.watching.series_history import History

#: values of a "nan-seen" note, with their types
NAN_VALUES = {"step": int, "series": str, "path": str, "invocation": int}
#: steps before the first NaN with which its input is compared
_STEPS_BEFORE = 8


def first_nan(events: tuple[RunEvent, ...]) -> RunEvent | None:
    """Return the first event about a NaN."""
    for event in events:
        values = event.note.values
        # a file may hold values of any type
        is_right = all(isinstance(values.get(name), kind) for name, kind in NAN_VALUES.items())
        if event.note.code == "nan-seen" and is_right:
            return event
    return None


def describe_nan(run: WatchedRun, note: Note) -> NanData:
    """Return the first value that is not finite, with its tensor and the input of its module.

    The event has the first tensor with a NaN. The module that produced it may have returned an
    infinity: then that is the first tensor of the same step with a value that is not finite.
    """
    step = note.values["step"]
    found = _not_finite_in(run, step)
    label = note.values["series"]
    tensor = next((each for each in found if each.label == label), None)
    if tensor is None or tensor.kind in ("input", "output"):
        tensor = next((each for each in found if each.kind == "output"), tensor)
    if tensor is None:
        return NanData(**{name: note.values[name] for name in NAN_VALUES})
    call = (tensor.path, tensor.invocation)
    known = run.find(kind="input")
    inputs = [each for each in known if (each.path, each.invocation) == call]
    history, *before = run.histories([tensor, *inputs])
    at_step = dict(zip(history.steps, history.distributions, strict=True))[step]
    about_call: dict[str, Any] = {}
    if tensor.kind == "output":
        about_call = _describe_input(before, step)
        about_call["were_weights_finite"] = _were_weights_finite(run, tensor.path, step)
    return NanData(
        step=step,
        path=tensor.path,
        invocation=tensor.invocation,
        series=tensor.label,
        count=_count_wrong(at_step),
        numel=at_step.numel,
        **about_call,
    )


def _not_finite_in(run: WatchedRun, step: int) -> list[Series]:
    """Return the tensors of a step that are not finite, as the first rank has them in order."""
    for reader in readers_of(ranks_in(run.path)):
        series = reader.series()
        steps = [each for each, _ in reader.times("train")]
        places = zip(sorted(reader.written("train")), steps, strict=False)
        number = next((number for number, each in places if each == step), None)
        watched = None if number is None else reader.step("train", number)
        known = {} if watched is None else watched.distributions
        wrong = [series[at] for at, found in known.items() if at in series and _count_wrong(found)]
        if wrong:
            return wrong
    return []


def _describe_input(inputs: Sequence[History], step: int) -> dict[str, Any]:
    """Return whether the input of a module is finite in a step, and how large it is and was."""
    by_step = [dict(zip(each.steps, each.distributions, strict=True)) for each in inputs]
    now = [found[step] for found in by_step if step in found]
    if not now:
        return {}
    about: dict[str, Any] = {
        "is_input_finite": not any(map(_count_wrong, now)),
        "input_largest": max(map(_largest, now)),
    }
    earlier = [each for each in inputs[0].steps if each <= step - _STEPS_BEFORE]
    if earlier:
        before_step = earlier[-1]
        before = [found[before_step] for found in by_step if before_step in found]
        about["before_step"] = before_step
        about["input_before"] = max(map(_largest, before))
    return about


def _were_weights_finite(run: WatchedRun, path: str, step: int) -> bool | None:
    """Return whether the weights inside a module were finite before a step, or None if unknown.

    Weights are recorded after a step. Those that are finite then were finite before. Otherwise the
    recorded step before decides, unless steps between the two were not recorded.
    """
    weights = run.find(kind="param")
    if not weights:
        return None
    prefix = f"{path}." if path else ""
    own = [each for each in weights if each.path == path or each.path.startswith(prefix)]
    earlier = [each for each in run.steps() if each < step]
    states = [_was_finite(each, step, max(earlier, default=-1)) for each in run.histories(own)]
    if False in states:
        return False
    return None if None in states else True


def _was_finite(weight: History, step: int, before_step: int) -> bool | None:
    """Return whether a weight was finite before a step. ``before_step``: last recorded before."""
    known = dict(zip(weight.steps, weight.distributions, strict=True))
    if step in known and not _count_wrong(known[step]):
        return True
    before = known.get(before_step)
    if before is not None and _count_wrong(before):
        return False
    return True if before is not None and before_step == step - 1 else None


def _count_wrong(found: Distribution) -> int:
    """Return the number of values that are not finite, estimated from the sampled ones."""
    return round((found.nan + found.inf) * found.numel / max(1, found.sampled))


def _largest(found: Distribution) -> float:
    largest = max(abs(found.min), abs(found.max))
    return largest if math.isfinite(largest) else math.nan
