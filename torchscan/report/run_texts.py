"""Sentences of notes about real runs: watched runs, their lost steps, and reasons of findings.

The training process imports this file for a warning, so it imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchscan.notes import Note, register_texts

#: ranges of lost steps that are named one by one
_MAX_RANGES = 3


def to_remark(fact: object) -> str:
    """Return the text of a note or another fact as a sentence of its own."""
    text = str(fact)
    return f"{text[:1].upper()}{text[1:]}."


# -- watched runs ----------------------------------------------------------------------------------


def _nan_seen(step: int, series: str, others: int, **_: Any) -> str:
    more = f" and {others} more" if others else ""
    return (
        f"step {step} has NaN in {series}{more}: run torchscan.inspect(model) to find the operator"
    )


def _write_failed(error: str, reason: str | None) -> str:
    return error if reason is None else f"{error} ({reason})"


def _lost_range(phase: str, first: int, last: int, count: int, why: Any) -> str:
    """Return ``3 steps, 4 to 9 (the disk is full)``."""
    if phase == "train":
        noun = "step" if count == 1 else "steps"
    else:
        noun = "evaluation at step" if count == 1 else "evaluations"
    where = f"{first}" if first == last else f"{first} to {last}"
    reason = Note.from_data(why)
    return f"{noun} {where} ({reason})" if count == 1 else f"{count} {noun}, {where} ({reason})"


def _steps_lost(ranges: Sequence[Mapping[str, Any]], **of: Any) -> str:
    """Return ``13 sampled steps are not in the run: 6 steps, 4 to 9 (the disk is full); …``."""
    count = sum(each["count"] for each in ranges)
    named = "; ".join(_lost_range(**each) for each in ranges[:_MAX_RANGES])
    num_more = len(ranges) - _MAX_RANGES
    more = f"; and {num_more} more ranges" if num_more > 0 else ""
    verb = "sampled step is" if count == 1 else "sampled steps are"
    return f"{_whose(**of)}{count} {verb} not in the run: {named}{more}"


def _steps_pending(count: int, **of: Any) -> str:
    verb = "sampled step is" if count == 1 else "sampled steps are"
    return f"{_whose(**of)}{count} {verb} not written yet; the writer process is still running"


def _whose(rank: int | None = None, num_ranks: int = 1) -> str:
    return f"rank {rank} of {num_ranks}: " if num_ranks > 1 else ""


def _other_ranks_absent(count: int, num_ranks: int) -> str:
    if count == 1:
        return f"1 other rank of {num_ranks} recorded nothing"
    return f"{count} other ranks of {num_ranks} recorded nothing"


def _ranks_ended(num_ranks: int, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which rank ended first, when and how, and which ended after it."""
    first, *others = ranks
    name = f"rank {first['rank']} of {num_ranks}" if num_ranks > 1 else "the training process"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first["time"]))
    if first["raised"] is None:
        how = "without closing the run"
    elif first["has_lost_peer"]:
        how = f"because it lost its connection to another rank ({first['raised']})"
    else:
        how = f"by an exception, {first['raised']}"
    step = first["step"]
    last = "it recorded no step" if step is None else f"its last recorded step is {step}"
    then = ""
    if others:
        noun = "ranks" if len(others) > 1 else "rank"
        then = f"; then {noun} {', '.join(map(_rank_and_step, others))}"
    return f"{name} ended at {when} {how}; {last}{then}"


def _rank_and_step(rank: Mapping[str, Any]) -> str:
    step = rank["step"]
    return f"{rank['rank']}" if step is None else f"{rank['rank']} (last step {step})"


#: what happened to a watched run
_EVENTS: dict[str, Any] = {
    "nan-seen": _nan_seen,
    "run-continued": "the run continues at step {step}",
    "run-not-closed": "the training process ended without closing the run",
    "graph-not-drawn": "the graph of the model was not drawn: {error}",
    "sink-disabled": "sink {sink} is disabled: its {method}() raised {error}",
    "statistic-disabled": "statistic {name!r} is disabled: it raised {error}",
}
#: why steps are not in a watched run
_LOSSES: dict[str, Any] = {
    "writer-too-slow": "the writer process did not keep up",
    "training-ended": "in progress when the training process ended",
    "run-removed": "the folder of the run was removed",
    "writer-ended": "the writer process had ended",
    "internal-error": "torchscan hit an internal error",
    "disk-full": "the disk is full",
    "quota-exceeded": "the disk quota is used up",
    "read-only": "the file system is read-only",
    "not-permitted": "writing to the folder is not permitted",
    "file-too-large": "the file has reached the maximum size that is permitted",
    "write-failed": _write_failed,
    "exception": "{error}",
}
#: what a watched run lacks
_MISSING: dict[str, Any] = {
    "lost-range": _lost_range,
    "steps-lost": _steps_lost,
    "steps-pending": _steps_pending,
    "rank-absent": "rank {rank} of {num_ranks} recorded nothing",
    "ranks-absent": _other_ranks_absent,
    "ranks-ended": _ranks_ended,
}


# -- inspected runs --------------------------------------------------------------------------------


def _mask_written(
    path: str | None, type_name: str | None, operator: str | None, line: str | None
) -> str:
    """Return ``1 (Attention), by aten.masked_fill.Scalar at model.py:12 (in forward)``."""
    module = None if type_name is None else f"{path or 'the model'} ({type_name})"
    if operator is None:
        return module or "an unknown module"
    by = f"{operator}{_at(line)}"
    return by if module is None else f"{module}, by {by}"


def _written_after_backward(line: str | None) -> str:
    return f"backward(){_at(line)} stored finite values, so code after it wrote to them"


def _at(line: str | None) -> str:
    return "" if line is None else f" at {line}"


def _gradient(name: str | None, root: str | None) -> str:
    return f"the gradient of {_parameter(name, root)}"


def _parameter(name: str | None, root: str | None) -> str:
    of_root = "" if root is None else f" of {root}"
    return f"{'a parameter' if name is None else name}{of_root}"


#: values that are checked on a device and read later
_CHECKED: dict[str, Any] = {
    "loss": "the loss",
    "gradient": _gradient,
    "parameter": _parameter,
}
#: sources of values that are not finite which are not operators
_SOURCES: dict[str, Any] = {
    "mask-written": _mask_written,
    "gradient-hook-or-sum": "a hook on the gradient of {name}, or the sum of its gradients",
    "gradient-accumulated": "the sum that is accumulated in the gradient of {name}",
    "gradients-summed": "the sum of the gradients of several uses of a tensor",
}
#: what is known about the cause
_CAUSES: dict[str, Any] = {
    "written-since-update": (
        "it was finite after the last optimizer step, so code after that wrote to it"
    ),
    "written-after-backward": _written_after_backward,
    "not-stored-by-backward": "no completed backward() has stored it",
    "constant-operand": "an operand without a gradient, such as a target, was not finite",
    "option-not-finite": "its option {name} is {value}",
}
#: why the operator is not known
_UNKNOWN: dict[str, Any] = {
    "repeat-failed": "repeating the call raised {error}",
    "repeat-finite": "the repeated call produced finite values",
    "repeat-limit": "{limit} calls were repeated already, which is the limit",
    "other-thread": "it ran in another thread",
    "not-in-thread": "no operator in its thread produced it when the call was repeated",
    "other-ranks": "the other ranks would have to repeat the call too",
    "too-large": "the module is too large to copy",
    "not-copyable": "the call uses an object of type {type_name}, which cannot be copied",
    "writes-to-input": "the call writes to its inputs",
    "input-changed": "its inputs have been written to since",
    "input-gone": "its inputs were garbage-collected",
    "input-too-large": "its inputs were too large to keep",
    "input-in-container": "its inputs are results of other calls, in a container",
    "gradient-too-large": "its gradient was too large to keep",
    "module-gone": "the module was garbage-collected",
    "call-not-kept": "it was in a call before the last {limit} calls, and only those are kept",
    "nothing-saved": "no node of the loss's graph saves the values that would show it",
    "checked-after-step": (
        "values were checked after the step; from now on they are checked when they are produced"
    ),
    "read-after-step": "values on a GPU are read after the step",
}
#: why the source may be another one
_UNSURE: dict[str, Any] = {
    "result-gone": (
        "the result of this call was garbage-collected, so an earlier call or the code after it "
        "may be the source"
    ),
    "result-gone-repeat-finite": (
        "the result of the model was garbage-collected, and its repeated call was finite"
    ),
    "maybe-mask": "the infinities may be a mask; the next step checks where they are produced",
    "written-before-check": "it was written to before it was checked",
    "keyword-input": "inputs given by keyword are checked after the call",
    "other-random-numbers": "the repeated call drew other random numbers",
    "seen-in-sum": "it was first seen in the input of the next node, in a sum of gradients",
    "input-written": "its inputs are not finite now, and other code may have written to them",
}

register_texts(
    {**_EVENTS, **_LOSSES, **_MISSING, **_CHECKED, **_SOURCES, **_CAUSES, **_UNKNOWN, **_UNSURE}
)
