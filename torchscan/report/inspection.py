"""What an inspection found, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.report.table import Cell, Column, Row, Table, totals_table
from torchscan.runtime.run import CallRun, Inspected, Latency, RunFacts


def run_table(run: Inspected, *, max_depth: int = 3) -> Table:
    """Each call with everything in it, down to ``max_depth``; the totals have what belongs to no module."""
    run = run.facts
    return Table(
        title="Measured steps",
        columns=[
            Column(key="path", heading="Layer", is_number=False, narrowest=12, cut="head"),
            Column(key="type", heading="Type", is_number=False, narrowest=6),
            Column(key="forward", heading="Forward", unit="s"),
            Column(key="backward", heading="Backward", unit="s"),
            Column(key="share", heading="%"),
            Column(key="flops_per_second", heading="FLOP/s"),
        ],
        rows=[_row(call, run) for call in run.calls if call.depth <= max_depth],
        totals=[_totals(run)],
        remarks=_remarks(run),
        noun="calls",
    )


def _row(call: CallRun, run: RunFacts) -> Row:
    name = call.path.rpartition(".")[2] or call.type_name
    name += f" ({call.invocation + 1})" if call.invocation else ""
    whole = run.forward.median + run.backward.median
    share = (call.forward.median + call.backward.median) / whole if whole else 0.0
    cells = [
        Cell(call.path, f"{name} (again)" if call.is_again else name),
        Cell(call.type_name, call.type_name),
        _time(call.forward),
        _time(call.backward),
        Cell(share, f"{100 * share:.1f}"),
        Cell(rate := call.flops_per_second, units.count(rate, "", 1).rstrip() if rate else "–"),
    ]
    return Row(cells=cells, depth=call.depth, full_name=call.path)


def _time(latency: Latency) -> Cell:
    return Cell(latency.median, units.duration(latency.median) if latency.median else "–")


def _totals(run: RunFacts) -> Table:
    rows = [("Forward", run.forward, "forward")]
    if run.backward.median:
        rows += [("Backward", run.backward, "backward"), ("of which storing gradients", run.storing, "storing")]
        rows += [("of which no module's", run.unowned, "unowned")]
    rows += [("Optimizer", run.optimizer, "optimizer")] if run.optimizer.median else []
    if run.period.median:
        rows += [("Between steps", run.between, "between"), ("Step to step", run.period, "period")]
    spread = [
        [
            Cell(key, name),
            _time(each),
            Cell((each.least, each.most), f"{units.duration(each.least)} … {units.duration(each.most)}"),
        ]
        for name, each, key in rows
    ]
    return totals_table(spread, ("", "", ""))


def _remarks(run: RunFacts) -> list[str]:
    before = f" after {run.warm_up} to warm up" if run.warm_up else ""
    said = [f"Medians of {run.steps} {'step' if run.steps == 1 else 'steps'}{before}; times of the host."]
    return [*said, f"{run.differing} steps had other calls and are left out."] if run.differing else said
