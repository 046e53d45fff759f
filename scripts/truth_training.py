"""Estimated beside published times of training steps of language models."""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from training_records import STORED, Priced, price, recorded
from training_rows import FINETUNING, FOUNDRY, TITAN, TrainingRow, rows_of, unseen_rows
from truth_section import Section, percent

from tests.marked import table
from torchscan.errors import TorchscanError

TRUTH = Path(__file__).parents[2] / "shared" / "truth"
TABLES = (FOUNDRY, TITAN, FINETUNING)
#: models, and longest sequences, whose steps constants were set on. So are all steps with
#: asynchronous tensor parallelism; all others are held out
FITTED = {"mpt-7b": 2048, "mpt-13b": 2048, "mpt-30b": 2048, "santacoder": 2048, "powerlm-3b": 4096}
#: tokens from which on llm-foundry's attention takes most of the time: a kernel that torch does not
#: have, whose time relative to torch's is published (``_TRITON`` in ``training_records.py``)
OTHER_ATTENTION = 2048
#: a margin is at least this share, over the square root of the number of sources
_FLOOR = 0.2
HEADINGS = (
    "source",
    "steps",
    "rows",
    "median error",
    "bias",
    "estimate ÷ measured",
    "Spearman",
    "inside the margin",
)


class Compared(NamedTuple):
    """A published step beside its estimate."""

    row: TrainingRow
    priced: Priced

    @property
    def ratio(self) -> float:
        """Estimated by measured."""
        return self.priced.seconds / self.row.seconds

    @property
    def error(self) -> float:
        """The distance of the measured time from the estimate, as a share of the estimate."""
        return abs(1 / self.ratio - 1)

    @property
    def is_fitted(self) -> bool:
        """True if constants were set on it."""
        if self.row.async_tp:
            return True
        is_known = self.row.length <= FITTED.get(self.row.model, 0)
        return is_known and not self.row.lora and self.row.dp in (1, 8, 128)

    @property
    def has_other_attention(self) -> bool:
        """True if FlashAttention 1 of Triton takes a large part of it, which no option asks for."""
        return self.row.source == "llm-foundry" and self.row.length > OTHER_ATTENTION


def compare(rows: Iterable[TrainingRow], only: str = "", *, makes: bool = True) -> list[Compared]:
    """Return the rows that can be recorded, beside their estimates. Missing passes are recorded."""
    found = []
    for row in rows:
        # context parallelism has no recorded pass
        if only not in row.name or row.cp > 1:
            continue
        traces = recorded(row, STORED, makes=makes)
        if traces is None:
            continue
        found.append(Compared(row, price(row, traces)))
    return found


def training(truth: Path) -> Section:
    """Return the comparison of all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, unseen = compare(rows_of(truth)), compare(unseen_rows())
    kept = [each for each in found if not each.has_other_attention]
    apart = [each for each in kept if not each.is_fitted]
    result = f"median error {percent(_median(kept))} (held out {percent(_median(apart))})"
    result += f"; with {len(found) - len(kept)} of FlashAttention 1 {percent(_median(found))}"
    source = "llm-foundry, torchtitan, torchao, fms-acceleration"
    summary = [("training steps of language models", source, f"{len(kept)}", result)]
    return Section(summary, {"training": f"\n{training_table(found, unseen)}\n"})


def group_of(row: TrainingRow) -> tuple[str, str]:
    """Return the names of the source and of the rows that a row is counted with."""
    if row.source == "llm-foundry":
        length = (
            "up to 2k tokens" if row.length <= OTHER_ATTENTION else "above 2k, FlashAttention 1"
        )
        return "llm-foundry, H100", f"MPT, FSDP, {length}"
    if row.source == "transformers":
        kind = "adapters" if row.lora else "full"
        return "fms-acceleration, A100", f"{kind}, {'one GPU' if row.dp == 1 else 'FSDP'}"
    return f"{row.source}, H100 with 500 W", kind_of(row)


def kind_of(row: TrainingRow) -> str:
    """Return what sets a step of Llama apart from others."""
    kind = f"float8 {row.float8}" if row.float8 else "bf16"
    kind += ", compiled" if row.compiled else ", eager"
    if row.tp > 1:
        kind += f", asynchronous TP {row.tp}" if row.async_tp else f", TP {row.tp}"
    return kind


def training_table(found: Sequence[Compared], unseen: Sequence[Compared]) -> str:
    """Return the table of errors by source, in Markdown."""
    margins = {source: margin_without(found, source) for source in {_source(e) for e in found}}
    groups: dict[tuple[str, str], list[Compared]] = {}
    for each in found:
        groups.setdefault(group_of(each.row), []).append(each)
    rows = [(*name, *_cells(group, margins)) for name, group in groups.items()]
    kept = [each for each in found if not each.has_other_attention]
    rows.append(("all but FlashAttention 1", "", *_cells(kept, margins)))
    rows.append(("held out", "", *_cells([e for e in kept if not e.is_fitted], margins)))
    rows.append(("all", "", *_cells(found, margins)))
    for each in unseen:
        name = f"{each.row.source} on {each.row.gpus} {each.row.device}, unseen"
        rows.append((name, kind_of(each.row), *_cells([each], margins)))
    return table(HEADINGS, rows)


def _source(each: Compared) -> str:
    return each.row.source


def _cells(group: Sequence[Compared], margins: dict[str, Callable[[Compared], bool]]) -> list[str]:
    ratios = [each.ratio for each in group]
    bias = math.exp(statistics.fmean(map(math.log, ratios)))
    inside = sum(margins[each.row.source](each) for each in group)
    span = f"{min(ratios):.2f} … {max(ratios):.2f}" if len(group) > 1 else f"{ratios[0]:.2f}"
    return [
        f"{len(group)}",
        percent(_median(group)),
        f"{bias:.2f}",
        span,
        f"{_spearman(group):.3f}" if len(group) > 3 else "–",
        f"{inside} of {len(group)}",
    ]


def _median(group: Sequence[Compared]) -> float:
    return statistics.median(abs(each.ratio - 1) for each in group)


def _spearman(group: Sequence[Compared]) -> float:
    estimated = _ranks([each.priced.seconds for each in group])
    return statistics.correlation(estimated, _ranks([each.row.seconds for each in group]))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


# -- margins --------------------------------------------------------------------------------------


def derived_margin(group: Sequence[Compared]) -> tuple[int, int, float]:
    """Return sources, steps and the margin that contains four of five steps of each source."""
    by_source: dict[str, list[float]] = {}
    for each in group:
        by_source.setdefault(each.row.source, []).append(each.error)
    shares = [_four_of_five(each) for each in by_source.values()]
    share = max(_FLOOR / math.sqrt(len(shares)), *shares) if shares else math.inf
    return len(shares), len(group), math.ceil(100 * share) / 100


def _four_of_five(errors: Sequence[float]) -> float:
    return sorted(errors)[max(0, math.ceil(0.8 * len(errors)) - 1)]


def margin_without(found: Sequence[Compared], source: str) -> Callable[[Compared], bool]:
    """Return whether a step lies inside the margin that the other sources give."""
    others = [each for each in found if each.row.source != source and not each.has_other_attention]
    shares = {
        is_float8: derived_margin([e for e in others if bool(e.row.float8) == is_float8])[2]
        for is_float8 in (False, True)
    }
    return lambda each: each.error <= shares[bool(each.row.float8)]


def print_margins(found: Sequence[Compared]) -> None:
    """Print the table of ``error_margin.py``, and the shares inside with one source left out."""
    kept = [each for each in found if not each.has_other_attention]
    for is_float8 in (False, True):
        group = [each for each in kept if bool(each.row.float8) == is_float8]
        sources, steps, share = derived_margin(group)
        print(f"{'8' if is_float8 else '16'} bits: {sources} sources, {steps} steps, {share:.2f}")
        for source in dict.fromkeys(map(_source, group)):
            own = [each for each in group if each.row.source == source]
            is_inside = margin_without(found, source)
            print(f"  without {source}: {sum(map(is_inside, own))} of {len(own)} inside")


# -- as a program ---------------------------------------------------------------------------------


def _main() -> None:
    """Record steps that are missing, and print errors."""
    parser = argparse.ArgumentParser(description=_main.__doc__)
    parser.add_argument("--record", action="store_true", help="Only record what is missing")
    parser.add_argument("--only", default="", help="Rows whose name contains this text")
    parser.add_argument("--rows", action="store_true", help="Print each row")
    parser.add_argument("--kinds", type=int, default=0, help="Print so many operators of each row")
    parser.add_argument("--margins", action="store_true", help="Print margins, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.record:
        _record(options.only)
        return
    found = compare(rows_of(TRUTH), options.only, makes=False)
    unseen = compare(unseen_rows(), options.only, makes=False)
    for each in [*found, *unseen] if options.rows or options.kinds else ():
        _print_row(each, options.kinds)
    if options.margins:
        print_margins(found)
    if found:
        print(training_table(found, unseen))


def _record(only: str) -> None:
    for row in (*rows_of(TRUTH), *unseen_rows()):
        if only not in row.name or row.cp > 1:
            continue
        start = time.perf_counter()
        try:
            recorded(row, STORED, makes=True)
        except TorchscanError as error:
            print(f"{row.name}: {error}")
            continue
        print(f"{row.name}: {time.perf_counter() - start:.1f} s", flush=True)


def _print_row(each: Compared, kinds: int) -> None:
    row, priced = each.row, each.priced
    waits = priced.waits / priced.seconds
    times = f"{priced.seconds:8.3f} s, {row.seconds:8.3f} measured, {each.ratio:.3f}"
    print(f"{row.name:70} {times}, waits {waits:.3f}")
    largest = sorted(priced.by_kind.items(), key=lambda pair: -pair[1])[:kinds]
    for kind, seconds in largest:
        print(f"      {kind:60} {seconds * 1e3:9.2f} ms {seconds / priced.seconds:6.3f}")


if __name__ == "__main__":
    _main()
