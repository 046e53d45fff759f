"""Published fine-tuning runs beside estimates of memory and time: ``--help`` lists the options.

Recording a step takes seconds, so traces are stored; a run that was interrupted goes on. Nothing is
fitted to these tables.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetuning_runs import READERS
from published_runs import PublishedRun
from truth_section import Section, of, percent

from tests.marked import table
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.errors import TorchscanError

ROOT = Path(__file__).resolve().parent.parent
TRUTH = ROOT.parent / "shared" / "truth"
TRACES = ROOT / "build" / "traces"
FIGURES = ROOT / "build" / "finetuning.jsonl"
HEADINGS = (
    *("source", "runs", "rows", "memory: median error", "bias", "largest"),
    *("ran out, called so", "time: rows", "median error", "bias", "estimate ÷ measured"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A published run beside its estimates; a ratio is estimated ÷ measured, None if not published."""

    run: PublishedRun
    memory: float | None
    time: float | None
    fits: bool

    @property
    def is_right(self) -> bool:
        """True if the verdict is what happened."""
        return self.fits != self.run.measured.ran_out


class StoredFigures:
    """Figures of runs in a file, a line for each, so that an interrupted comparison goes on."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, dict[str, float | None]] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                name, figures = json.loads(line)
                self._known[name] = figures

    def find(self, run: PublishedRun) -> ComparedRun | None:
        """Return the stored comparison, or None if there is none."""
        figures = self._known.get(f"{run.source} {run.kind} {run.name}")
        if figures is None:
            return None
        memory, seconds = figures["memory"], figures["time"]
        return ComparedRun(run=run, memory=memory, time=seconds, fits=bool(figures["fits"]))

    def add(self, found: ComparedRun) -> None:
        """Store a comparison."""
        if self._file is None:
            return
        run = found.run
        figures = {"memory": found.memory, "time": found.time, "fits": found.fits}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([f"{run.source} {run.kind} {run.name}", figures]) + "\n")


def compare_run(run: PublishedRun, folder: Path, *, makes: bool) -> ComparedRun | None:
    """Return the comparison, or None if the trace is missing and not to be made."""
    trace = run.trace(folder, makes=makes)
    if trace is None:
        return None
    timeline = MemoryTimeline(trace, compiled=run.compiled)
    verdict = Placement(trace, timeline, run.device).verdict()
    measured = run.measured
    memory = None
    if measured.allocated is not None:
        memory = verdict.allocated_bytes / measured.allocated
    elif measured.reserved is not None:
        memory = verdict.reserved_bytes / measured.reserved
    ratio = None
    if measured.tokens_per_second is not None:
        ratio = run.seconds(trace) * measured.tokens_per_second / run.tokens
    return ComparedRun(run=run, memory=memory, time=ratio, fits=verdict.fits)


def runs_of(truth: Path, only: Sequence[str] = ()) -> Iterator[tuple[str, PublishedRun | None]]:
    """Yield each row's table with its run, or None if it cannot be asked.

    Of ``only``, one text must be in the run's source, kind and name; a row that cannot be asked
    counts always.
    """
    for name, read in READERS.items():
        with gzip.open(truth / name, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for run in list(read(row)) or [None]:
                    label = "" if run is None else f"{run.source} {run.kind} {run.name}"
                    if run is None or not only or any(each in label for each in only):
                        yield name, run


def finetuning(truth: Path) -> Section:
    """Return the comparison of all runs whose traces are stored."""
    found = list(compare_runs(truth, TRACES, StoredFigures(None), makes=False))
    num_runs = sum(run is not None for _, run in runs_of(truth))
    print(f"{num_runs - len(found)} fine-tuning runs without a stored trace are left out")
    memory = [each.memory for each in found if each.memory is not None]
    times = [each.time for each in found if each.time is not None]
    sources = "fms-acceleration, LitGPT, peft"
    result = f"median error {_median(memory)}"
    summary = [("memory, fine-tuning steps", sources, f"{len(memory)}", result)]
    result = f"median error {_median(times)}"
    summary.append(("time, fine-tuning steps", "fms-acceleration", f"{len(times)}", result))
    return Section(summary, {"finetuning": f"\n{finetuning_table(found)}\n"})


def finetuning_table(found: Sequence[ComparedRun]) -> str:
    """Return the table of errors by source and kind, in Markdown."""
    groups: dict[tuple[str, str], list[ComparedRun]] = {}
    for each in found:
        groups.setdefault((each.run.source, each.run.kind), []).append(each)
    rows = [(*name, *_cells(group)) for name, group in groups.items()]
    for source in dict.fromkeys(each.run.source for each in found):
        own = [each for each in found if each.run.source == source]
        rows.append((source, "all", *_cells(own)))
    return table(HEADINGS, rows)


def _cells(group: Sequence[ComparedRun]) -> list[str]:
    memory = [each.memory for each in group if each.memory is not None]
    times = [each.time for each in group if each.time is not None]
    ran_out = [each for each in group if each.run.measured.ran_out]
    cells = [f"{len(group)}", "–", "–", "–"]
    if memory:
        bias = f"{statistics.geometric_mean(memory):.3f}"
        largest = max(abs(each - 1) for each in memory)
        cells = [f"{len(group)}", _median(memory), bias, percent(largest)]
    cells.append(of(sum(each.is_right for each in ran_out), len(ran_out)) if ran_out else "–")
    if not times:
        return [*cells, "0", "–", "–", "–"]
    bias = f"{statistics.geometric_mean(times):.2f}"
    return [*cells, f"{len(times)}", _median(times), bias, f"{min(times):.2f} … {max(times):.2f}"]


def _median(ratios: Sequence[float]) -> str:
    return percent(statistics.median(abs(each - 1) for each in ratios))


def compare_runs(
    truth: Path, folder: Path, stored: StoredFigures, only: Sequence[str] = (), *, makes: bool
) -> Iterator[ComparedRun]:
    """Yield a comparison for each run that can be asked, and whose trace exists or is made.

    Those whose figures are stored need no trace.
    """
    for _, run in runs_of(truth, only):
        if run is None:
            continue
        found = stored.find(run)
        if found is None:
            try:
                found = compare_run(run, folder, makes=makes)
            except (TorchscanError, NotImplementedError) as error:
                print(f"{run.source} {run.kind} {run.name}: {error.problem}", file=sys.stderr)
            if found is not None:
                stored.add(found)
        if found is not None:
            yield found


def _row_text(found: ComparedRun) -> str:
    run = found.run
    memory = "–" if found.memory is None else f"{found.memory:.3f}"
    ratio = "–" if found.time is None else f"{found.time:.2f}"
    verdict = "" if found.is_right else " (wrong verdict)"
    return f"{run.source} | {run.kind} | {run.name} | memory {memory} | time {ratio}{verdict}"


def print_finetuning(
    truth: Path,
    folder: Path,
    stored: StoredFigures,
    only: Sequence[str] = (),
    *,
    makes: bool = True,
    rows: bool = False,
) -> int:
    """Print how many rows can be asked, and the errors; return 1 if a table is missing."""
    missing = [name for name in READERS if not (truth / name).exists()]
    if missing:
        print(f"nothing compared: {missing[0]} not found in {truth}")
        return 1
    counts: Mapping[str, list[bool]] = {name: [] for name in READERS}
    for name, run in runs_of(truth):
        counts[name].append(run is not None)
    found = []
    for each in compare_runs(truth, folder, stored, only, makes=makes):
        found.append(each)
        if rows:
            print(_row_text(each), flush=True)
    for name, can_ask in counts.items():
        print(f"{name}: {sum(can_ask)} of {len(can_ask)} rows can be asked")
    print(f"{len(found)} compared\n\n{finetuning_table(found)}")
    return 0


def main() -> int:
    """Compare, and print the tables; return 1 if a table of published values is missing."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--truth", type=Path, default=TRUTH, help="Folder of the published tables.")
    parser.add_argument("--traces", type=Path, default=TRACES, help="Folder of stored traces.")
    parser.add_argument(
        "--figures", type=Path, default=FIGURES, help="File of figures that need no trace."
    )
    parser.add_argument(
        "--only", nargs="*", default=(), help="Texts in the source, kind and name of a run."
    )
    parser.add_argument("--stored", action="store_true", help="Leave out runs without a trace.")
    parser.add_argument("--rows", action="store_true", help="Print each run.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return print_finetuning(
        options.truth,
        options.traces,
        StoredFigures(options.figures),
        options.only,
        makes=not options.stored,
        rows=options.rows,
    )


if __name__ == "__main__":
    sys.exit(main())
