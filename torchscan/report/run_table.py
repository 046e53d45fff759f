"""Table of an inspected run."""

from __future__ import annotations

from typing import Any

from torchscan import units
from torchscan.inspecting.run import CallRun, Expected, Inspected, Latency, RunFacts
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
from torchscan.report.table import NONE, Cell, Conclusion, Table
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
    verdict = []
    if has_verdict and run.verdict is not None:
        verdict.append(Conclusion(f"Verdict: {run.verdict}."))
    shown = [call for call in run.calls if max_depth is None or call.depth <= max_depth]
    return make_table(
        "Measured steps",
        [*_names(run), *_times(run), *_others(run)],
        shown,
        [{"depth": call.depth, "full_name": call.path} for call in shown],
        totals=_totals(run),
        remarks=[*remarks_of(run), *_deeper(run, max_depth), *verdict],
        noun="calls",
    )


def _deeper(run: RunFacts, max_depth: int | None) -> list[str]:
    hidden = sum(max_depth is not None and call.depth > max_depth for call in run.calls)
    if not hidden:
        return []
    verb = "call below depth {} is" if hidden == 1 else "calls below depth {} are"
    return [f"{hidden} {verb.format(max_depth)} included in the rows above."]


# -- columns -------------------------------------------------------------------------------------------------------------


def _names(run: RunFacts) -> list[ColumnOf[CallRun]]:
    def name(call: CallRun) -> Cell:
        marks = [str(call.invocation + 1)] if call.invocation else []
        if call.is_again:
            marks.append("again")
        suffix = f" ({', '.join(marks)})" if marks else ""
        return Cell(call.path, f"{call.name_in(run.calls)}{suffix}")

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
    evaluated = _evaluation_times(run)

    def evaluation(call: CallRun) -> float | None:
        return evaluated.get((call.path, call.invocation))

    return [
        _time("device_forward", "Forward", is_shown=is_on_device),
        _time("device_backward", "Backward", is_shown=is_on_device and has_backward),
        _time("forward", f"Forward{host}", priority=priority),
        _time("backward", f"Backward{host}", is_shown=has_backward, priority=priority),
        durations(
            "evaluation", "Evaluation", evaluation, is_shown=bool(evaluated), priority=_EVALUATION
        ),
        number("share", "of time", lambda call: _share(call, run), share_text, bars="memory"),
    ]


def _evaluation_times(run: RunFacts) -> dict[tuple[str, int], float | None]:
    """Return the times of the same calls in forward passes without a backward pass."""
    calls = () if run.evaluation is None else run.evaluation.calls
    return {
        (call.path, call.invocation): _median(call.device_forward or call.forward) for call in calls
    }


def _time(key: str, heading: str, **options: Any) -> ColumnOf[CallRun]:
    return durations(key, heading, lambda call: _median(getattr(call, key)), **options)


def _median(latency: Latency | None) -> float | None:
    return None if latency is None else latency.median


def _share(call: CallRun, run: RunFacts) -> float:
    """Return the share of a step, forward and backward."""
    return call.time / run.step_time if run.step_time else 0.0


def _ratio(call: CallRun, run: RunFacts) -> Cell:
    """Return the measured time divided by the expected one."""
    if not call.expected_time or not call.time:
        return Cell(None, NONE)
    ratio = call.time / call.expected_time
    is_slow = (
        run.expected is not None
        and ratio > 1 + run.expected.error_share
        and _share(call, run) >= _MIN_SHARE
    )
    return Cell(ratio, f"{_SLOW if is_slow else ''}{ratio:.{1 if ratio < 100 else 0}f}")


def _others(run: RunFacts) -> list[ColumnOf[CallRun]]:
    is_expected = run.expected is not None
    has_rates = any(call.flops_per_second for call in run.calls)
    return [
        durations(
            "expected", "Expected", "expected_time", is_shown=is_expected, priority=_EXPECTED
        ),
        number("ratio", "×", lambda call: _ratio(call, run), is_shown=is_expected),
        counts("flops_per_second", "FLOP/s", is_shown=has_rates, priority=_RATE),
        sizes("total_memory", "Memory", priority=_MEMORY),
        *(
            _count(f"{where}_{what.lower()}", f"{prefix}{what}", run)
            for where, prefix in _COUNTS.items()
            for what in ("NaN", "Inf")
        ),
    ]


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


# -- totals --------------------------------------------------------------------------------------------------------------


def _totals(run: RunFacts) -> list[Table]:
    attained = [] if run.expected is None or run.mfu is None else [_attained(run.expected, run.mfu)]
    return [_phases(run), *attained] if run.steps else []


def _phases(run: RunFacts) -> Table:
    """Return the times of the complete step, on the device if there is one."""
    passes = run.device or run
    rows = [("Forward", passes.forward, "forward")]
    if run.backward.median:
        rows += [
            ("Backward", passes.backward, "backward"),
            ("of which storing gradients", passes.storing_gradients, "storing_gradients"),
        ]
        rows += [("of which outside modules", passes.outside_modules, "outside_modules")]
    rows += _rows_outside_passes(run)
    if run.evaluation is not None:
        evaluation = run.evaluation.device_forward or run.evaluation.forward
        rows += [("Evaluation, forward only", evaluation, "evaluation")]
    cells = [
        [
            *total(key, name, each.median, units.duration(each.median) if each.median else NONE),
            _range(each),
            *_expected(key, run.expected),
        ]
        for name, each, key in rows
    ]
    headings = ("", "median", "min … max", *(["expected"] if run.expected else []))
    return totals_table(cells, headings)


def _rows_outside_passes(run: RunFacts) -> list[tuple[str, Latency, str]]:
    """Return the names, times and keys of the rows after those of forward and backward."""
    rows = []
    if run.optimizer.median:
        name, count = "Optimizer", run.optimizer_steps
        if count is not None and count < run.num_timed:
            name = f"Optimizer, in {count} of {run.num_timed} steps"
        rows.append((name, run.optimizer, "optimizer"))
    if run.period.median:
        # a device works on while the host does something else
        if run.device is None and run.rest is not None:
            rows.append(("Rest of the step", run.rest, "rest"))
        rows += [("Between steps", run.between, "between"), ("Step to step", run.period, "period")]
    return rows


def _range(latency: Latency) -> Cell:
    return Cell(
        (latency.min, latency.max),
        f"{units.duration(latency.min)} … {units.duration(latency.max)}",
    )


def _expected(key: str, expected: Expected | None) -> list[Cell]:
    if expected is None:
        return []
    time = {"forward": expected.forward, "backward": expected.backward}.get(key)
    return [Cell(time, units.duration(time) if time else "")]


def _attained(expected: Expected, attained: float) -> Table:
    peaks = ", ".join(
        f"{units.count(peak, 'FLOP/s', 1)} {form}" for form, peak in expected.peaks.items()
    )
    said = f"of {peaks}, dense, on {expected.device}" if peaks else f"on {expected.device}"
    percent = f"{100 * attained:.{1 if attained >= _MIN_SHARE else 3}f} %"
    rows = [total("mfu", "MFU", attained, percent, said)]
    return totals_table(rows, ("", "", ""), words_key="of")
