"""The files of a run's processes, as one."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.watching.curves import merge_points
from torchscan.watching.history import ranks_in
from torchscan.watching.layer_columns import ColumnOfLayers, merge_ranks, renumber
from torchscan.watching.layers_over_steps import columns_of_reader
from torchscan.watching.missing import missing_in, rank_of_file
from torchscan.watching.schema import Distribution, Phase, SampledStep, Series
from torchscan.watching.settling import lost_in, settled_about
from torchscan.watching.store import Reader, Store, StoreError
from torchscan.watching.uniting import merge_distributions


class _RankStep(NamedTuple):
    """A step of one process."""

    watched: SampledStep
    series: dict[int, Series]


def merge(run: Path, output: Path) -> None:
    """Write what all processes of a run have seen to one file, each step and series once. Counts and sums add up."""
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
    abouts = [settled_about(reader.path, reader.about()) for reader in readers]
    lost = [each.to_data() for about in abouts for each in lost_in(about)]
    first = {name: value for name, value in abouts[0].items() if name != "session"}
    absent = [note.to_data() for note in missing]
    store = Store(path, {**first, "ranks": len(readers), "missing": absent, "lost": lost})
    if (graph := next((each.graph() for each in readers), None)) is not None:
        store.keep_graph(graph)
    try:
        for phase in ("train", "eval"):
            points = merge_points([reader.curves(phase) for reader in readers])
            store.write_curves({phase: points}, thins_out=False)
            store.write_columns(phase, _united_columns(readers, phase, store))
            for watched in _united(readers, phase, store):
                store.write(watched, thins_out=False)
        for reader in readers:
            _copy_events(reader, store)
    finally:
        store.close()


def _copy_events(reader: Reader, store: Store) -> None:
    """Write the events of a rank with its number, which the file's name has.

    Events of a run that was merged before have theirs.
    """
    own = rank_of_file(reader.path)
    for event in reader.events():
        rank = own if event.rank is None else event.rank
        store.note(event.note, event.time, rank=rank)


def _united(readers: Iterable[Reader], phase: Phase, store: Store) -> Iterator[SampledStep]:
    """Steps in their order, those of the same number together."""
    parts = [_parts(reader, phase) for reader in readers]
    for _, same in groupby(heapq.merge(*parts, key=_place), key=_place):
        yield _one(list(same), store)


def _united_columns(readers: list[Reader], phase: Phase, store: Store) -> list[ColumnOfLayers]:
    """Return the columns of layers of all ranks; most have the same steps."""
    by_first: dict[int, list[ColumnOfLayers]] = defaultdict(list)
    for reader in readers:
        numbers = {number: store.number_of(each) for number, each in reader.series().items()}
        for column in renumber(columns_of_reader(reader, phase), numbers):
            by_first[column.first].append(column)
    return [merge_ranks(by_first[first]) for first in sorted(by_first)]


def _parts(reader: Reader, phase: Phase) -> Iterator[_RankStep]:
    series = reader.series()
    for watched in reader.steps(phase):
        yield _RankStep(watched, series)


def _place(part: _RankStep) -> tuple[int, int]:
    return part.watched.step, part.watched.number


def _one(parts: list[_RankStep], store: Store) -> SampledStep:
    found: dict[Series, list[Distribution]] = defaultdict(list)
    for watched, series in parts:
        for number, distribution in watched.distributions.items():
            if number in series:
                found[series[number]].append(distribution)
    first = parts[0].watched
    distributions = {
        store.number_of(series): merge_distributions(each) for series, each in found.items()
    }
    return SampledStep(
        step=first.step,
        phase=first.phase,
        number=first.number,
        time=first.time,
        distributions=distributions,
    )


@contextlib.contextmanager
def _removed_unless_renamed(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    try:
        yield
    except (StoreError, OSError) as error:
        raise InputError(f"the run cannot be merged: {error}") from error
    finally:
        path.unlink(missing_ok=True)
