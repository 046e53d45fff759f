"""The ranks of a run as one: their steps, what they measured in the last one, and their files."""

from __future__ import annotations

import contextlib
import heapq
import math
import operator
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.errors import InputError
from torchscan.measured import Figure, Key, Measured
from torchscan.notes import Note
from torchscan.watching.curves import merge_points
from torchscan.watching.distributions import merge_distributions
from torchscan.watching.lost_steps import lost_in, settled_about
from torchscan.watching.missing_ranks import missing_in
from torchscan.watching.run_database import StoreError
from torchscan.watching.run_files import rank_of_file, ranks_in
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Distribution, Phase, SampledStep, Series
from torchscan.watching.sinks.sink import SinkData
from torchscan.watching.store import Store

if TYPE_CHECKING:
    from torchscan.watching.layer_columns import ColumnOfLayers

#: functions that combine the figures of several tensors of a call
_JOINED: Mapping[Figure, Callable[[float, float], float]] = {
    "gradient": math.hypot,
    "update": max,
    "std": max,
    "dead": max,
    "nonfinite": operator.add,
}


class RankStep(NamedTuple):
    """A step as one rank wrote it, and the rank's series by number."""

    watched: SampledStep
    series: Mapping[int, Series]

    @property
    def place(self) -> tuple[int, int]:
        """The step and the number of the pass, the same on all ranks."""
        return self.watched.step, self.watched.number


def merge_steps_of_ranks(readers: Iterable[Reader], phase: Phase) -> Iterator[SinkData]:
    """Yield the steps of all ranks in order, those of the same number as one."""
    ranks = [_steps_of_rank(reader, phase) for reader in readers]
    ordered = heapq.merge(*ranks, key=operator.attrgetter("place"))
    for _, same in groupby(ordered, key=operator.attrgetter("place")):
        parts = list(same)
        first, _series = parts[0]
        yield SinkData(
            step=first.step,
            phase=phase,
            number=first.number,
            time=min(part.watched.time for part in parts),
            distributions=merge_ranks_of_step(parts),
        )


def steps_of_ranks(files: Iterable[Path], phase: Phase) -> Iterator[SinkData]:
    """Yield the steps of all ranks together, as sinks get them; the files are open meanwhile."""
    with contextlib.ExitStack() as stack:
        readers = [Reader(file) for file in files]
        for reader in readers:
            stack.callback(reader.close)
        yield from merge_steps_of_ranks(readers, phase)


def _steps_of_rank(reader: Reader, phase: Phase) -> Iterator[RankStep]:
    series = reader.series()
    for watched in reader.steps(phase):
        yield RankStep(watched, series)


def merge_ranks_of_step(parts: Iterable[RankStep]) -> dict[Series, Distribution]:
    """Return the distributions of a step by series, each merged over the ranks that have it."""
    found: dict[Series, list[Distribution]] = defaultdict(list)
    for watched, series in parts:
        for number, distribution in watched.distributions.items():
            # a run that is written meanwhile may have series that were not there before
            if number in series:
                found[series[number]].append(distribution)
    return {series: merge_distributions(each, series.kind) for series, each in found.items()}


def merge(run: Path, output: Path) -> None:
    """Write what all ranks of a run have seen to one file. Counts and sums add up."""
    files = ranks_in(run)
    if not files:
        raise InputError(f"{str(run)!r} has no watched run: give a folder that watch() has written")
    if output.exists():
        raise InputError(f"{str(output)!r} already exists: give another name")
    beside = output.with_name(f".{output.name}.part")
    with _removed_unless_renamed(beside), contextlib.ExitStack() as stack:
        readers = [Reader(file) for file in files]
        for reader in readers:
            stack.callback(reader.close)
        _write(readers, beside, missing_in(files) if run.is_dir() else [])
        os.replace(beside, output)


def _write(readers: list[Reader], path: Path, missing: list[Note]) -> None:
    store = Store(path, _merge_abouts(readers, missing))
    graph = next((each.graph() for each in readers), None)
    if graph is not None:
        store.keep_graph(graph)
    try:
        for phase in ("train", "eval"):
            points = merge_points([reader.curves(phase) for reader in readers])
            store.write_curves({phase: points}, thins_out=False)
            store.write_columns(phase, _merge_columns(readers, phase, store))
            for merged in merge_steps_of_ranks(readers, phase):
                store.write(_to_stored(merged, store), thins_out=False)
        for reader in readers:
            own = rank_of_file(reader.path)
            for event in reader.events():
                # Events of a run that was merged before have their ranks.
                rank = own if event.rank is None else event.rank
                store.note(event.note, event.time, rank=rank)
    finally:
        store.close()


def _merge_abouts(readers: Sequence[Reader], missing: Sequence[Note]) -> dict[str, Any]:
    """Return the metadata of the first rank, with the steps that any of them has lost."""
    abouts = [settled_about(reader.path, reader.about()) for reader in readers]
    lost = [each.to_data() for about in abouts for each in lost_in(about)]
    about = dict(abouts[0])
    about.pop("session", None)
    absent = [note.to_data() for note in missing]
    return {**about, "ranks": len(readers), "missing": absent, "lost": lost}


def _to_stored(merged: SinkData, store: Store) -> SampledStep:
    """Return a step with the numbers that its series have in the store."""
    distributions = {store.number_of(series): each for series, each in merged.distributions.items()}
    return SampledStep(
        step=merged.step,
        phase=merged.phase,
        number=merged.number,
        time=merged.time,
        distributions=distributions,
    )


def _merge_columns(readers: list[Reader], phase: Phase, store: Store) -> list[ColumnOfLayers]:
    """Return the columns of layers of all ranks; most have the same steps."""
    from torchscan.watching.layer_columns import merge_ranks, renumber

    by_first: dict[int, list[ColumnOfLayers]] = defaultdict(list)
    for reader in readers:
        numbers = {number: store.number_of(each) for number, each in reader.series().items()}
        for column in renumber(reader.layer_columns(phase), numbers):
            by_first[column.first].append(column)
    return [merge_ranks(by_first[first]) for first in sorted(by_first)]


@contextlib.contextmanager
def _removed_unless_renamed(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    try:
        yield
    except (StoreError, OSError) as error:
        raise InputError(f"the run cannot be merged: {error}") from error
    finally:
        path.unlink(missing_ok=True)


def last_measured(path: Path, readers: Iterable[Reader], phase: Phase) -> Measured:
    """Return what all ranks of a run measured in the last step of a phase."""
    newest = []
    for reader in readers:
        watched = reader.newest(phase)
        if watched is not None:
            newest.append(RankStep(watched, reader.series()))
    last = max((each.watched.place for each in newest), default=None)
    found = merge_ranks_of_step(each for each in newest if each.watched.place == last)
    figures: dict[Key, dict[Figure, float]] = defaultdict(dict)
    for series, distribution in found.items():
        of_call = figures[series.path, series.invocation]
        for name, value in _figures(series, distribution):
            of_call[name] = _JOINED[name](of_call.get(name, 0.0), value)
    phases = {each.watched.phase for each in newest}
    noun = "evaluation pass" if "eval" in phases else "step"
    place = f"no {noun}" if last is None else f"{noun} {last}"
    return Measured(
        source=f"{path.name}: {place}",
        figures=figures,
        types={each.path: each.type_name for each in found},
    )


def _figures(series: Series, found: Distribution) -> Iterator[tuple[Figure, float]]:
    if series.kind == "output_grad" and math.isfinite(found.norm):
        yield "gradient", found.norm
    if series.kind == "param" and math.isfinite(found.update):
        yield "update", found.update
    if series.kind == "output" and math.isfinite(found.std):
        yield "std", found.std
    if series.kind == "output" and math.isfinite(found.dead):
        yield "dead", found.dead
    if found.sampled:
        share = (found.nan + found.inf) / found.sampled
        yield "nonfinite", round(share * found.numel)
