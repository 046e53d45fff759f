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

from memory_runs import TABLES, MemoryRun, runs

from torchscan.analyses.memory_estimate import Verdict
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.errors import TorchscanError

ROOT = Path(__file__).resolve().parent.parent
TRUTH = ROOT.parent / "shared" / "truth"
TRACES = ROOT / "build" / "traces"
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


def compare_finetuning(truth: Path) -> int:
    """Print the comparison with all published values; return 1 if a table is missing."""
    missing = [name for name in TABLES if not (truth / name).exists()]
    if missing:
        print(f"nothing compared: {', '.join(missing)} not found in {truth}")
        return 1
    rows = list(compared(truth, TRACES, ""))
    print("\n".join([*list_rows(rows), "", *summarize(rows)]))
    return 0


def compared(truth: Path, traces: Path, only: str) -> Iterator[ComparedRow]:
    """Yield the rows of the runs whose source, kind and name contain a text."""
    traces.mkdir(parents=True, exist_ok=True)
    for run in runs(truth):
        if only in f"{run.source} {run.kind} {run.name}":
            try:
                trace = run.trace(traces)
            except TorchscanError as error:
                print(f"{run.source} {run.name}: {error.problem}", file=sys.stderr)
                continue
            timeline = MemoryTimeline(trace, compiled=run.compiled)
            yield from _rows(run, Placement(trace, timeline, run.device).verdict())


def _rows(run: MemoryRun, verdict: Verdict) -> Iterator[ComparedRow]:
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


def list_rows(rows: Sequence[ComparedRow]) -> Iterator[str]:
    """Yield a Markdown table of all rows."""
    yield "| source | kind | run | value | measured, GiB | estimated ÷ measured | range, GiB | fits |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        bounds = f"{row.lowest / _GIB:.2f} … {row.highest / _GIB:.2f}"
        fits = "yes" if row.fits else "no"
        mark = " (wrong)" if row.is_wrong else ""
        ratio = "–" if row.value == "ran out" else f"{row.ratio:.3f}"
        cells = (row.source, row.kind, row.name, row.value, f"{row.measured / _GIB:.2f}", ratio)
        yield f"| {' | '.join(cells)} | {bounds} | {fits}{mark} |"


def summarize(rows: Sequence[ComparedRow]) -> Iterator[str]:
    """Yield a Markdown table by source, kind and value."""
    groups: dict[tuple[str, str, str], list[ComparedRow]] = defaultdict(list)
    for row in rows:
        groups[row.source, row.kind, row.value].append(row)
        groups["all", "", row.value].append(row)
    yield "| source | kind | value | rows | bias | median error | largest | inside | wrong verdicts |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (source, kind, value), found in sorted(groups.items()):
        wrong = sum(row.is_wrong for row in found)
        if value == "ran out":
            yield f"| {source} | {kind} | {value} | {len(found)} | | | | | {wrong} |"
            continue
        errors = [abs(row.ratio - 1) for row in found]
        bias = statistics.geometric_mean([row.ratio for row in found])
        inside = statistics.mean([row.is_inside for row in found])
        figures = f"{bias:.3f} | {statistics.median(errors):.1%} | {max(errors):.1%} | {inside:.0%}"
        yield f"| {source} | {kind} | {value} | {len(found)} | {figures} | {wrong} |"


def main() -> None:
    """Compare, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, default=TRUTH, help="Folder of the published tables.")
    parser.add_argument("--traces", type=Path, default=TRACES, help="Folder of stored traces.")
    parser.add_argument("--only", default="", help="Text in the source, kind or name of a run.")
    parser.add_argument("--rows", type=Path, help="CSV file to write the rows to.")
    parser.add_argument("--table", action="store_true", help="Print the summary only.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    rows = list(compared(options.truth, options.traces, options.only))
    if options.rows is not None:
        with options.rows.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows([asdict(row) for row in rows])
    lines = [] if options.table else [*list_rows(rows), ""]
    print("\n".join([*lines, *summarize(rows)]))


if __name__ == "__main__":
    sys.exit(main())
