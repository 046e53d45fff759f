"""Distributions over the steps of a run, in columns that become wider as steps are written."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.watching.bands import Cells
from torchscan.watching.distribution_columns import Distributions, entries_of, side_by_side
from torchscan.watching.distributions import BINS
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Distribution, Phase, Series

#: columns of a series, at most
MAX_COLUMNS = 160
#: parts of a column after which they are added up, so that memory does not grow with the run
_MAX_PARTS = 16
#: distributions whose columns are in memory at once
_AT_ONCE = 2048 * 160


class _ColumnPart(NamedTuple):
    """Sums over some steps of a column, of the series that were seen in them."""

    series: Tensor
    #: bin + ``BINS`` · series, each once, and the estimated number of values
    keys: Tensor
    counts: Tensor
    min: Tensor
    max: Tensor
    #: NaN and Inf among the sampled values
    nan: Tensor
    inf: Tensor
    #: sums of the steps' shares of dead units and relative updates, and how many are known
    dead: Tensor
    num_dead: Tensor
    update: Tensor
    num_update: Tensor


_FIGURES = _ColumnPart._fields[3:]
#: statistics of a step that go into columns
_USED = ("numel", "sampled", "nan", "inf", "min", "max", "dead", "update")


class OverSteps:
    """Distributions over steps. Steps whose numbers lie close together share a column.

    Columns become wider as more steps come. Each value counts equally: if ``s`` of ``n`` values
    were sampled, each of them counts ``n / s`` times.
    """

    def __init__(self, phase: Phase = "train") -> None:
        """Begin without steps."""
        self._phase = phase
        self._width = 1
        self._indices: dict[Series, int] = {}
        #: parts of each column, by its number
        self._columns: dict[int, list[_ColumnPart]] = {}
        #: the first and the last step of each column
        self._steps: dict[int, tuple[int, int]] = {}
        #: of the last step, which most others resemble: its numbers, the series that were asked
        #: for, their places in the step and their indices here
        self._numbers: Sequence[int] = ()
        self._series: Mapping[int, Series] = {}
        self._places: list[int] = []
        self._indices_of_places = torch.empty(0, dtype=torch.int64)

    def add(self, step: int, distributions: Mapping[Series, Distribution]) -> None:
        """Add a step of one rank, also if there is nothing in it, since that is to be seen."""
        series = dict(enumerate(distributions))
        found = dict(zip(series, distributions.values(), strict=True))
        self.add_sampled(step, side_by_side(found), series)

    def add_sampled(self, step: int, found: Distributions, series: Mapping[int, Series]) -> None:
        """Add a step of one rank: those of its distributions that are in ``series``."""
        if found.numbers != self._numbers or series is not self._series:
            self._numbers, self._series = found.numbers, series
            known = [place for place, each in enumerate(found.numbers) if each in series]
            indices = []
            for place in known:
                each = series[found.numbers[place]]
                indices.append(self._indices.setdefault(each, len(self._indices)))
            self._places = known
            self._indices_of_places = torch.tensor(indices, dtype=torch.int64)
        part = _part_of(found, self._places, self._indices_of_places)
        parts = [part] if self._places else []
        self._put(step // self._width, (step, step), parts)
        while max(self._steps) - min(self._steps) >= MAX_COLUMNS:
            columns, steps = self._columns, self._steps
            self._columns, self._steps = {}, {}
            self._width *= 2
            for column, span in steps.items():
                self._put(column // 2, span, columns[column])

    def read(self, readers: Iterable[Reader], series: Collection[Series]) -> None:
        """Add the kept steps of all ranks: those of their distributions that are in ``series``."""
        for reader in readers:
            numbers = {number: each for number, each in reader.series().items() if each in series}
            for watched in reader.steps(self._phase):
                found = side_by_side(watched.distributions)
                self.add_sampled(watched.place, found, numbers)

    def _put(self, column: int, span: tuple[int, int], parts: Sequence[_ColumnPart]) -> None:
        first, last = self._steps.get(column, span)
        self._steps[column] = min(first, span[0]), max(last, span[1])
        known = self._columns.setdefault(column, [])
        known += parts
        if len(known) > _MAX_PARTS:
            self._columns[column] = [_add_up(known)]

    def columns_by_series(self) -> list[tuple[Series, dict[str, Any]]]:
        """Return the columns in which each series was seen, and the step that each reaches.

        They are plain data for a page.
        """
        places = [place for place in sorted(self._columns) if self._columns[place]]
        if not places:
            return []
        parts = [_add_up(self._columns[place]) for place in places]
        is_seen, cells = self._cells(parts)
        pages = cells.to_page_data()
        ordered = sorted(self._steps)
        firsts = [self._steps[place][0] for place in ordered]
        _, last = self._steps[ordered[-1]]
        until = dict(zip(ordered, ends_of_columns(firsts, last), strict=True))
        found = []
        # most series were seen in the same columns
        spans: dict[bytes, dict[str, list[int]]] = {}
        for series, seen, bands in zip(self._indices, is_seen.tolist(), pages, strict=True):
            key = bytes(seen)
            if key not in spans:
                known = [place for place, is_there in zip(places, seen, strict=True) if is_there]
                spans[key] = self._span_of(known, until)
            found.append((series, {"phase": self._phase, **spans[key], **bands}))
        return found

    def _span_of(self, places: Sequence[int], until: Mapping[int, int]) -> dict[str, list[int]]:
        """Return the first and last step of some columns, and where they end."""
        steps = [self._steps[place] for place in places]
        firsts = [first for first, _ in steps]
        lasts = [last for _, last in steps]
        return {"first": firsts, "last": lasts, "until": [until[place] for place in places]}

    def _cells(self, parts: Sequence[_ColumnPart]) -> tuple[Tensor, Cells]:
        """Return which series were seen in which columns, and what was seen there."""
        num_series = len(self._indices)
        figures = torch.full((len(_FIGURES), num_series, len(parts)), torch.nan).double()
        for at, part in enumerate(parts):
            figures[:, part.series, at] = torch.stack(part[-len(_FIGURES) :])
        is_seen = ~figures[_FIGURES.index("nan")].isnan()
        numbers = (is_seen.flatten().cumsum(0) - 1).view_as(is_seen)
        bins = torch.cat([part.keys % BINS for part in parts])
        counts = torch.cat([part.counts for part in parts])
        cells = []
        for at, part in enumerate(parts):
            series = part.keys.div(BINS, rounding_mode="floor")
            cells.append(numbers[series, at])
        least, most, nan, inf, dead, num_dead, update, num_update = figures[:, is_seen]
        return is_seen, Cells(
            sizes=is_seen.sum(1).tolist(),
            cells=torch.cat(cells),
            bins=bins,
            counts=counts,
            min=least,
            max=most,
            nan=nan,
            inf=inf,
            dead=dead / num_dead,
            update=update / num_update,
        )


def ends_of_columns(firsts: Sequence[int], last: int) -> list[int]:
    """Return where each column ends: where the next recorded one begins.

    The last one, of which ``last`` is the last step, is as wide as most of the others.
    """
    if not firsts:
        return []
    widths = [after - before for before, after in pairwise(firsts)] or [1]
    end = max(last + 1, firsts[-1] + statistics.median_low(widths))
    return [*firsts[1:], end]


def read_columns(
    open_readers: Callable[[], Iterable[Reader]],
    series: Sequence[Series],
    phase: Phase,
    num_steps: int,
) -> Iterator[tuple[Series, dict[str, Any]]]:
    """Yield the columns of each series of a run with so many steps.

    The run is read once for as many series as fit into memory at once.
    """
    size = max(1, _AT_ONCE // min(max(1, num_steps), MAX_COLUMNS))
    for at in range(0, len(series), size):
        over = OverSteps(phase)
        over.read(open_readers(), frozenset(series[at : at + size]))
        yield from over.columns_by_series()


def _part_of(found: Distributions, places: Sequence[int], series: Tensor) -> _ColumnPart:
    """Return the series at some places of a step, under these indices."""
    columns = found.columns
    rows = torch.tensor([found.rows[place] for place in places], dtype=torch.int64)
    figures = {name: columns.figures[name][rows].double() for name in _USED}
    entries, owners = entries_of(columns, rows)
    times = figures["numel"] / figures["sampled"].clamp(min=1)
    bins = columns.bins[entries]
    keys = BINS * series[owners] + bins
    can_die = [bool(found.can_die[place]) for place in places]
    is_known = torch.tensor(can_die, dtype=torch.bool)
    dead = figures["dead"].where(is_known, torch.nan)
    update = figures["update"]
    return _ColumnPart(
        series=series,
        keys=keys,
        counts=times[owners] * columns.counts[entries],
        min=figures["min"],
        max=figures["max"],
        nan=figures["nan"],
        inf=figures["inf"],
        dead=dead.nan_to_num(0.0),
        num_dead=(~dead.isnan()).double(),
        update=update.nan_to_num(0.0),
        num_update=(~update.isnan()).double(),
    )


def _add_up(parts: Sequence[_ColumnPart]) -> _ColumnPart:
    """Return one part."""
    if len(parts) == 1:
        return parts[0]
    joined = _ColumnPart(*map(torch.cat, zip(*parts, strict=True)))
    counts = torch.bincount(joined.keys, joined.counts)
    keys = counts.nonzero().flatten()
    series, places = joined.series.unique(return_inverse=True)
    nothing = torch.zeros(len(series), dtype=torch.float64)

    def add(values: Tensor) -> Tensor:
        return nothing.index_add(0, places, values)

    return _ColumnPart(
        series=series,
        keys=keys,
        counts=counts[keys],
        min=nothing.scatter_reduce(0, places, joined.min, "amin", include_self=False),
        max=nothing.scatter_reduce(0, places, joined.max, "amax", include_self=False),
        nan=add(joined.nan),
        inf=add(joined.inf),
        dead=add(joined.dead),
        num_dead=add(joined.num_dead),
        update=add(joined.update),
        num_update=add(joined.num_update),
    )
