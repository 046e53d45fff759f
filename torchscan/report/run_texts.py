"""Sentences of notes about real runs: watched runs, their lost steps, and reasons of findings.

The training process imports this file for a warning, so it imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchscan.notes import Note, register_texts

#: maximum number of ranges of lost steps that a sentence names
_MAX_RANGES = 3


def to_remark(fact: object) -> str:
    """Return the text of a note or another fact as a separate sentence."""
    text = str(fact)
    return f"{text[:1].upper()}{text[1:]}."


# -- watched runs ----------------------------------------------------------------------------------


def describe_nan(
    step: int,
    series: str,
    others: int,
    path: str,  # noqa: ARG001 - the page links to the call
    invocation: int,  # noqa: ARG001
    loss_step: int | None = None,
    loss: str = "",
) -> str:
    """Return the step and the series of a NaN, the loss that was wrong before, and what to do."""
    where = repr(series)
    if others:
        where = f"{where} and {others} more {'tensors' if others > 1 else 'tensor'}"
    what = f"step {step} has NaN in {where}"
    if loss_step is not None:
        what = f"the loss is {loss} from step {loss_step} on, and {what}"
    return f"{what}: run torchscan.inspect(model) to find the operator"


def describe_first_nonfinite(
    step: int,
    series: str,
    path: str,  # noqa: ARG001 - the page links to the call
    invocation: int,  # noqa: ARG001
) -> str:
    """Return the step and the source of the first NaN or Inf, and what to do."""
    what = f"step {step} has the first NaN or Inf, in {series!r}"
    return f"{what}: run torchscan.inspect(model) to find the operator"


def describe_after_loss(step: int, loss_step: int, *, has_weights: bool) -> str:
    """Return the first recorded step with NaN or Inf, after the loss was not finite."""
    what = f"after step {loss_step}, step {step} is the first recorded step with NaN or Inf"
    if has_weights:
        what = f"{what}; the weights were not finite by then"
    return f"{what}: run torchscan.inspect(model) to find the operator"


def describe_write_error(error: str, reason: str | None) -> str:
    """Return the error of SQLite, with that of the system if there is one."""
    if reason is None:
        return error
    return f"{error} ({reason})"


def describe_lost_range(phase: str, first: int, last: int, count: int, why: Any) -> str:
    """Return ``3 steps, 4 to 9 (the disk is full)``."""
    where = f"{first}"
    if first != last:
        where = f"{first} to {last}"
    reason = Note.from_data(why)
    if count == 1:
        noun = "step" if phase == "train" else "evaluation at step"
        return f"{noun} {where} ({reason})"
    noun = "steps" if phase == "train" else "evaluations"
    return f"{count} {noun}, {where} ({reason})"


def describe_lost_steps(
    ranges: Sequence[Mapping[str, Any]], rank: int | None = None, num_ranks: int = 1
) -> str:
    """Return ``13 sampled steps are not in the run: 6 steps, 4 to 9 (the disk is full); …``."""
    count = sum(each["count"] for each in ranges)
    named = "; ".join(describe_lost_range(**each) for each in ranges[:_MAX_RANGES])
    num_more = len(ranges) - _MAX_RANGES
    if num_more > 0:
        named = f"{named}; and {num_more} more ranges"
    return f"{_name_steps(count, rank, num_ranks)} not in the run: {named}"


def describe_pending_steps(count: int, rank: int, num_ranks: int) -> str:
    """Return how many steps the worker still has to write."""
    steps = _name_steps(count, rank, num_ranks)
    return f"{steps} not written yet; the worker process is still running"


def _name_steps(count: int, rank: int | None, num_ranks: int) -> str:
    """Return ``rank 1 of 4: 13 sampled steps are``."""
    verb = "sampled step is" if count == 1 else "sampled steps are"
    if num_ranks == 1:
        return f"{count} {verb}"
    return f"rank {rank} of {num_ranks}: {count} {verb}"


def describe_absent_ranks(count: int, num_ranks: int) -> str:
    """Return how many ranks recorded nothing, besides those that are named."""
    if count == 1:
        return f"1 other rank of {num_ranks} recorded nothing"
    return f"{count} other ranks of {num_ranks} recorded nothing"


def describe_ended_ranks(num_ranks: int, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which rank ended first, when and how, and which ended after it."""
    first, *others = ranks
    name = "the training process"
    if num_ranks > 1:
        name = f"rank {first['rank']} of {num_ranks}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first["time"]))
    if first["raised"] is None:
        ended = f"was last active at {when} and did not close the run"
    elif first["has_lost_peer"]:
        ended = (
            f"ended at {when} because it lost its connection to another rank ({first['raised']})"
        )
    else:
        ended = f"ended at {when} by an exception, {first['raised']}"
    step = first["step"]
    last = "it recorded no step" if step is None else f"its last recorded step is {step}"
    then = ""
    if others:
        noun = "ranks" if len(others) > 1 else "rank"
        then = f"; then {noun} {', '.join(map(name_rank_and_step, others))}"
    return f"{name} {ended}; {last}{then}"


def name_rank_and_step(rank: Mapping[str, Any]) -> str:
    """Return ``3 (last step 19)``."""
    step = rank["step"]
    if step is None:
        return str(rank["rank"])
    return f"{rank['rank']} (last step {step})"


_OF_WATCHED_RUNS: dict[str, Any] = {
    # what happened to the run
    "nan-seen": describe_nan,
    "first-nonfinite": describe_first_nonfinite,
    "nonfinite-after-loss": describe_after_loss,
    "run-continued": "the run continues at step {step}",
    "run-not-closed": "the training process ended without closing the run",
    "graph-not-drawn": "the graph of the model was not drawn: {error}",
    "user-note": "note at step {step}: {text}",
    "paused": "watching was paused at step {step}",
    "resumed": "watching was resumed at step {step}",
    "sink-disabled": "sink {sink} is disabled: its {method}() raised {error}",
    "statistic-disabled": "statistic {name!r} is disabled: it raised {error}",
    # why steps are not in the run
    "writer-too-slow": "the worker process did not keep up: sample less often",
    "training-ended": "in progress when the training process ended",
    "run-removed": "the folder of the run was removed",
    "writer-ended": "the worker process had ended",
    "internal-error": "torchscan hit an internal error",
    "disk-full": "the disk is full",
    "quota-exceeded": "the disk quota is exceeded",
    "read-only-folder": "the file system is read-only",
    "not-permitted": "writing to the folder is not permitted",
    "file-too-large": "the file has reached the maximum permitted size",
    "write-failed": describe_write_error,
    "unexpected-error": "{error}",
    # what the run lacks
    "lost-range": describe_lost_range,
    "steps-lost": describe_lost_steps,
    "steps-pending": describe_pending_steps,
    "rank-absent": "rank {rank} of {num_ranks} recorded nothing",
    "ranks-absent": describe_absent_ranks,
    "ranks-ended": describe_ended_ranks,
}


# -- inspected runs --------------------------------------------------------------------------------


def describe_mask(
    path: str | None, type_name: str | None, operator: str | None, line: str | None
) -> str:
    """Return ``1 (Attention), by aten.masked_fill.Scalar at model.py:12 (in forward)``."""
    by = f"{operator}{_at(line)}"
    if type_name is None:
        return by
    module = f"{path or 'the model'} ({type_name})"
    if operator is None:
        return module
    return f"{module}, by {by}"


def describe_write_after_backward(line: str | None) -> str:
    """Return the backward pass after which code wrote to gradients."""
    return f"backward(){_at(line)} stored finite values, so code after it wrote to them"


def _at(line: str | None) -> str:
    return "" if line is None else f" at {line}"


def name_gradient(name: str | None, root: str | None) -> str:
    """Return ``the gradient of 0.weight of critic (Net)``."""
    return f"the gradient of {name_parameter(name, root)}"


def name_parameter(name: str | None, root: str | None) -> str:
    """Return ``0.weight of critic (Net)``."""
    name = "a parameter" if name is None else name
    return name if root is None else f"{name} of {root}"


_OF_FINDINGS: dict[str, Any] = {
    # values that are checked on a device and read later
    "checked-loss": "the loss",
    "checked-gradient": name_gradient,
    "checked-parameter": name_parameter,
    # sources of values that are not finite which are not operators
    "mask-written": describe_mask,
    "gradient-hook-or-sum": "a hook on the gradient of {name}, or the sum of its gradients",
    "gradient-accumulated": "the sum that is accumulated in the gradient of {name}",
    "gradients-summed": "the sum of the gradients of several uses of a tensor",
    # what is known about the cause
    "written-since-update": (
        "it was finite after the last optimizer step, so code after that wrote to it"
    ),
    "written-after-backward": describe_write_after_backward,
    "not-stored-by-backward": "no completed backward() has stored it",
    "constant-operand": "an operand without a gradient, such as a target, was not finite",
    "option-not-finite": "its argument {name} is {value}",
    # why the operator is not known
    "repeat-failed": "repeating the call raised {error}",
    "repeat-finite": "the repeated call produced finite values",
    "repeat-limit": "{limit} calls were repeated already, which is the limit",
    "other-thread": "it ran in another thread",
    "not-in-thread": "no operator in its thread produced it when the call was repeated",
    "other-ranks": "the other ranks would have to repeat the call too",
    "module-too-large": "the module is too large to copy",
    "not-copyable": "the call uses an object of type {type_name}, which cannot be copied",
    "writes-to-input": "the call writes to its inputs",
    "input-changed": "its inputs have been written to since",
    "input-gone": "its inputs were garbage-collected",
    "input-too-large": "its inputs were too large to keep",
    "input-in-container": "its inputs are results of other calls, in a container",
    "gradient-too-large": "its gradient was too large to keep",
    "module-gone": "the module was garbage-collected",
    "call-not-kept": "the call is older than the last {limit} calls, and only those are kept",
    "nothing-saved": "no node of the loss's graph saves the values that would show it",
    "checked-after-step": (
        "values were checked after the step; from now on they are checked when they are produced"
    ),
    "read-after-step": "values on a GPU are read after the step",
    # why the source may be another one
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

register_texts(_OF_WATCHED_RUNS)
register_texts(_OF_FINDINGS)
