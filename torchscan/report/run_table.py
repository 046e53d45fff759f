"""Table of an inspected run."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchscan import units
from torchscan.inspecting.call_run import CallRun, Latency
from torchscan.inspecting.run import Inspected, RunFacts
from torchscan.inspecting.run_device import Expected
from torchscan.report import verdict_texts  # noqa: F401 - registers sentences of verdicts
from torchscan.report.make_table import (
    ColumnOf,
    counts,
    durations,
    make_table,
    number,
    share_text,
    sizes,
    total,
    totals_table,
    words,
)
from torchscan.report.run_remarks import remarks_of
from torchscan.report.table import Conclusion, Table
from torchscan.report.table_rows import NONE, Cell
from torchscan.wrong_arguments import explain_wrong_types

#: a call that takes a smaller share of the step is not worth a mark
_MIN_SHARE = 0.01
_SLOW = "* "
#: how soon text that is too narrow leaves a column out
_HOST, _EVALUATION, _MEMORY, _RATE, _EXPECTED, _TYPE = 6, 5, 4, 3, 2, 1
#: counts of values that are not finite, and how they are called
_COUNTS = {"forward": "", "grad_out": "grad ", "grad_in": "grad in "}


@explain_wrong_types
def run_table(run: Inspected, *, max_depth: int | None = 3, has_verdict: bool = True) -> Table:
    """Return one row per call, with everything in it, down to ``max_depth`` (None: all).

    The totals include times outside modules. The last line is the verdict, unless the table of
    all ranks follows with its own (``has_verdict=False``).

    CSV and JSON always have all columns.
    """
    run = run.facts
    shown = [call for call in run.calls if max_depth is None or call.depth <= max_depth]
    remarks = remarks_of(run)
    num_deeper = len(run.calls) - len(shown)
    if num_deeper:
        calls = f"call below depth {max_depth} is"
        if num_deeper > 1:
            calls = f"calls below depth {max_depth} are"
        remarks.append(f"{num_deeper} {calls} included in the rows above.")
    if has_verdict and run.verdict is not None:
        remarks.append(Conclusion(f"Verdict: {run.verdict}."))
    return make_table(
        "Measured steps",
        [*_names(run), *_times(run), *_others(run)],
        shown,
        [{"depth": call.depth, "full_name": call.path} for call in shown],
        totals=_totals(run),
        remarks=remarks,
        noun="calls",
    )


# -- columns -------------------------------------------------------------------------------------


def _names(run: RunFacts) -> list[ColumnOf[CallRun]]:
    def name(call: CallRun) -> Cell:
        marks = [str(call.invocation + 1)] if call.invocation else []
        if call.is_again:
            marks.append("again")
        text = call.name_in(run.calls)
        if marks:
            text += f" ({', '.join(marks)})"
        return Cell(call.path, text)

    return [
        words("path", "Layer", name, min_width=16, truncate="head"),
        number("invocation", "invocation", is_shown=False),
        number("is_again", "is_again", is_shown=False),
        words("type", "Type", "type_name", min_width=10, priority=_TYPE),
    ]


def _times(run: RunFacts) -> list[ColumnOf[CallRun]]:
    """Return the columns of times, those of the device first if there is one."""
    is_on_device, has_backward = run.device is not None, bool(run.backward.median)
    host, priority = (" on host", _HOST) if is_on_device else ("", 0)
    # times of the same calls in forward passes without a backward pass
    evaluated: dict[tuple[str, int], float] = {}
    if run.evaluation is not None:
        for each in run.evaluation.calls:
            latency = each.device_forward or each.forward
            evaluated[each.path, each.invocation] = latency.median

    def evaluation(call: CallRun) -> float | None:
        return evaluated.get((call.path, call.invocation))

    def share(call: CallRun) -> float:
        return _share(call, run)

    options: Any = {"is_shown": bool(evaluated), "priority": _EVALUATION}
    return [
        _time("device_forward", "Forward", is_shown=is_on_device),
        _time("device_backward", "Backward", is_shown=is_on_device and has_backward),
        _time("forward", f"Forward{host}", priority=priority),
        _time("backward", f"Backward{host}", is_shown=has_backward, priority=priority),
        durations("evaluation", "Evaluation", evaluation, **options),
        number("share", "of time", share, share_text, bars="memory"),
    ]


def _time(key: str, heading: str, **options: Any) -> ColumnOf[CallRun]:

    def median(call: CallRun) -> float | None:
        latency: Latency | None = getattr(call, key)
        return None if latency is None else latency.median

    return durations(key, heading, median, **options)


def _share(call: CallRun, run: RunFacts) -> float:
    """Return the share of a step, forward and backward."""
    return call.time / run.step_time if run.step_time else 0.0


def _ratio(call: CallRun, run: RunFacts) -> Cell:
    """Return the measured time divided by the expected one."""
    if not call.expected_time or not call.time:
        return Cell(None, NONE)
    ratio = call.time / call.expected_time
    text = f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"
    if run.expected is not None:
        is_beyond_margin = ratio > 1 + run.expected.error_share
        if is_beyond_margin and _share(call, run) >= _MIN_SHARE:
            text = f"{_SLOW}{text}"
    return Cell(ratio, text)


def _others(run: RunFacts) -> list[ColumnOf[CallRun]]:
    """Return the columns of expected times, rates, memory, and values that are not finite."""
    is_expected = run.expected is not None
    has_rates = any(call.flops_per_second for call in run.calls)
    options: Any = {"is_shown": is_expected, "priority": _EXPECTED}
    columns = [
        durations("expected", "Expected", "expected_time", **options),
        number("ratio", "×", lambda call: _ratio(call, run), is_shown=is_expected),
        counts("flops_per_second", "FLOP/s", is_shown=has_rates, priority=_RATE),
        sizes("total_memory", "Memory", priority=_MEMORY),
    ]
    for where, prefix in _COUNTS.items():
        columns.append(_count(f"{where}_nan", f"{prefix}NaN", run))
        columns.append(_count(f"{where}_inf", f"{prefix}Inf", run))
    return columns


def _count(key: str, heading: str, run: RunFacts) -> ColumnOf[CallRun]:
    """Return a column that is shown if it counts any.

    Counts of gradients with regard to inputs are left to programs.
    """
    is_shown = not key.startswith("grad_in") and any(getattr(call, key) for call in run.calls)
    return number(
        key,
        heading[0].upper() + heading[1:],
        text=lambda count: units.exact(count) if count else NONE,
        is_shown=is_shown,
    )


# -- totals --------------------------------------------------------------------------------------


def _totals(run: RunFacts) -> list[Table]:
    """Return the times of complete steps and, if rates of the device are known, the MFU."""
    if not run.steps:
        return []
    headings = ["", "median", "min … max"]
    if run.expected:
        headings.append("expected")
    rows = [_phase_row(phase, run.expected) for phase in _phases(run)]
    totals = [totals_table(rows, headings)]
    if run.expected is not None and run.mfu is not None:
        totals.append(_utilization(run.expected, run.mfu))
    return totals


class _Phase(NamedTuple):
    """A part of a step with its times."""

    key: str
    name: str
    latency: Latency


def _phases(run: RunFacts) -> list[_Phase]:
    """Return the parts of a step, on the device if there is one."""
    passes = run.device or run
    phases = [_Phase("forward", "Forward", passes.forward)]
    if run.backward.median:
        storing, outside = passes.storing_gradients, passes.outside_modules
        phases.append(_Phase("backward", "Backward", passes.backward))
        phases.append(_Phase("storing_gradients", "of which storing gradients", storing))
        phases.append(_Phase("outside_modules", "of which outside modules", outside))
    if run.optimizer.median:
        name, count = "Optimizer", run.optimizer_steps
        if count is not None and count < run.num_timed:
            name = f"Optimizer, in {count} of {run.num_timed} steps"
        phases.append(_Phase("optimizer", name, run.optimizer))
    if run.period.median:
        # A device works on while the host does something else.
        if run.device is None and run.rest is not None:
            phases.append(_Phase("rest", "Rest of the step", run.rest))
        phases.append(_Phase("between", "Between steps", run.between))
        phases.append(_Phase("period", "Step to step", run.period))
    if run.evaluation is not None:
        latency = run.evaluation.device_forward or run.evaluation.forward
        phases.append(_Phase("evaluation", "Evaluation, forward only", latency))
    return phases


def _phase_row(phase: _Phase, expected: Expected | None) -> list[Cell]:
    """Return the cells of a part of a step: name, median, range and expected time."""
    latency = phase.latency
    median = units.duration(latency.median) if latency.median else NONE
    ends = f"{units.duration(latency.min)} … {units.duration(latency.max)}"
    row = total(phase.key, phase.name, latency.median, median)
    row.append(Cell((latency.min, latency.max), ends))
    if expected is not None:
        time = {"forward": expected.forward, "backward": expected.backward}.get(phase.key)
        row.append(Cell(time, units.duration(time) if time else ""))
    return row


def _utilization(expected: Expected, mfu: float) -> Table:
    """Return the attained share of the device's rate."""
    peaks = []
    for form, peak in expected.peaks.items():
        peaks.append(f"{units.count(peak, 'FLOP/s', 1)} {form}")
    rate = f"on {expected.device}"
    if peaks:
        rate = f"of {', '.join(peaks)}, dense, {rate}"
    digits = 1 if mfu >= _MIN_SHARE else 3
    rows = [total("mfu", "MFU", mfu, f"{100 * mfu:.{digits}f} %", rate)]
    return totals_table(rows, ("", "", ""), words_key="of")
