"""Memory of training steps, compared with what was published: ``--help`` lists the options.

Recording the steps takes some seconds each, so traces are stored.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from memory_runs import runs
from published_runs import PublishedRun
from truth_section import Section, of, percent

from tests.marked import table
from torchscan.analyses.memory_estimate import Verdict
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.errors import TorchscanError

ROOT = Path(__file__).resolve().parent.parent
TRUTH = ROOT.parent / "shared" / "truth"
TRACES = ROOT / "build" / "traces"
HEADINGS = (
    *("source", "kind", "value", "rows", "bias"),
    *("median error", "largest", "inside the range", "wrong verdicts"),
)
ROW_HEADINGS = (
    *("source", "kind", "run", "value", "measured, GiB"),
    *("estimated ÷ measured", "range, GiB", "fits"),
)
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One published value beside its estimate, in bytes."""

    source: str
    kind: str
    name: str
    #: "allocated", "reserved", "in use" (of all processes, with the context), or "ran out"
    value: str
    measured: int
    estimated: int
    lowest: int
    highest: int
    fits: bool

    @property
    def ratio(self) -> float:
        """Estimated ÷ measured."""
        return self.estimated / self.measured

    @property
    def is_inside(self) -> bool:
        """True if the range contains the measured value."""
        return self.lowest <= self.measured <= self.highest

    @property
    def is_wrong(self) -> bool:
        """True if the verdict is not what happened."""
        return self.fits == (self.value == "ran out")


def _print(rows: Sequence[ComparedRow], *, only_groups: bool) -> None:
    if not only_groups:
        print(table(ROW_HEADINGS, [_cells(row) for row in rows]) + "\n")
    print(table(HEADINGS, list(_groups(rows))))


def compared(truth: Path, traces: Path, only: str, *, makes: bool = True) -> Iterator[ComparedRow]:
    """Yield the rows of the runs whose source, kind and name contain a text.

    Runs without a stored trace are left out unless it is to be made.
    """
    traces.mkdir(parents=True, exist_ok=True)
    for run in runs(truth):
        if only in f"{run.source} {run.kind} {run.name}":
            try:
                trace = run.trace(traces, makes=makes)
            except (TorchscanError, NotImplementedError) as error:
                print(f"{run.source} {run.name}: {error.problem}", file=sys.stderr)
                continue
            if trace is None:
                continue
            timeline = MemoryTimeline(trace, compiled=run.compiled)
            yield from _rows(run, Placement(trace, timeline, run.device).verdict())


def _rows(run: PublishedRun, verdict: Verdict) -> Iterator[ComparedRow]:
    measured = run.measured
    low, high = verdict.reserved_range
    context, (least, most) = verdict.cuda_context_bytes, verdict.cuda_context_range
    allocated, reserved = verdict.allocated_bytes, verdict.reserved_bytes
    values = (
        (
            "allocated",
            measured.allocated,
            allocated,
            round(0.98 * allocated),
            round(1.02 * allocated),
        ),
        ("reserved", measured.reserved, reserved, low, high),
        ("in use", measured.in_use, reserved + context, low + least, high + most),
        ("ran out", run.device.memory_bytes if measured.ran_out else None, reserved, low, high),
    )
    for value, found, estimated, lowest, highest in values:
        if found is not None:
            yield ComparedRow(
                source=run.source,
                kind=run.kind,
                name=run.name,
                value=value,
                measured=found,
                estimated=estimated,
                lowest=lowest,
                highest=highest,
                fits=verdict.fits,
            )


def training_memory(truth: Path) -> Section:
    """Return the comparison of all runs whose traces are stored."""
    rows = list(compared(truth, TRACES, "", makes=False))
    summary = [_summary_of(rows, value) for value in ("allocated", "reserved", "in use")]
    ran_out = [row for row in rows if row.value == "ran out"]
    wrong = sum(row.is_wrong for row in rows)
    verdicts = f"{len(ran_out)} of them ran out of memory; {wrong} verdicts wrong"
    summary.append(("fits, training steps", "the same", f"{len(rows)}", verdicts))
    return Section(summary, {"training-memory": f"\n{table(HEADINGS, list(_groups(rows)))}\n"})


def _summary_of(rows: Sequence[ComparedRow], value: str) -> tuple[str, str, str, str]:
    found = [row for row in rows if row.value == value]
    errors = [abs(row.ratio - 1) for row in found]
    inside = sum(row.is_inside for row in found)
    result = f"median error {percent(statistics.median(errors))}, inside the range {of(inside, len(found))}"
    return f"memory {value}, training steps", "four tables", f"{len(found)}", result


def _groups(rows: Sequence[ComparedRow]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each source, kind and value."""
    groups: dict[tuple[str, str, str], list[ComparedRow]] = defaultdict(list)
    for row in rows:
        groups[row.source, row.kind, row.value].append(row)
    for (source, kind, value), found in sorted(groups.items()):
        wrong = f"{sum(row.is_wrong for row in found)}"
        if value == "ran out":
            yield source, kind, value, f"{len(found)}", "–", "–", "–", "–", wrong
            continue
        errors = [abs(row.ratio - 1) for row in found]
        bias = f"{statistics.geometric_mean([row.ratio for row in found]):.3f}"
        inside = of(sum(row.is_inside for row in found), len(found))
        shares = percent(statistics.median(errors)), percent(max(errors))
        yield source, kind, value, f"{len(found)}", bias, *shares, inside, wrong


def _cells(row: ComparedRow) -> tuple[str, ...]:
    bounds = f"{row.lowest / _GIB:.2f} … {row.highest / _GIB:.2f}"
    ratio = "–" if row.value == "ran out" else f"{row.ratio:.3f}"
    fits = ("yes" if row.fits else "no") + (" (wrong)" if row.is_wrong else "")
    measured = f"{row.measured / _GIB:.2f}"
    return row.source, row.kind, row.name, row.value, measured, ratio, bounds, fits


def main() -> None:
    """Compare, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, default=TRUTH, help="Folder of the published tables.")
    parser.add_argument("--traces", type=Path, default=TRACES, help="Folder of stored traces.")
    parser.add_argument("--only", default="", help="Text in the source, kind or name of a run.")
    parser.add_argument("--rows", type=Path, help="CSV file to write the rows to.")
    parser.add_argument("--stored", action="store_true", help="Leave out runs without a trace.")
    parser.add_argument("--table", action="store_true", help="Print the summary only.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    makes = not options.stored
    rows = list(compared(options.truth, options.traces, options.only, makes=makes))
    if options.rows is not None:
        with options.rows.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows([asdict(row) for row in rows])
    _print(rows, only_groups=options.table)


if __name__ == "__main__":
    sys.exit(main())
