"""Writer of a watched run: one SQLite file per rank, whose content survives killed processes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.notes import Note
from torchscan.watching.curves import THINNING_INTERVAL, points_to_drop
from torchscan.watching.run_database import (
    CREATE_TABLES,
    GRAPH_ENTRY,
    PATIENCE,
    SELECT_COLUMNS,
    SELECT_CURVES,
    StoreError,
    close_if_refused,
    connect,
    explain_errors,
    is_remote,
    layer_column_of,
    read_series,
    require_version,
    upgrade_events,
)
from torchscan.watching.schema import CurvePoint, Phase, SampledStep, Series
from torchscan.watching.validation import NOT_A_NUMBER, curve_point_of

if TYPE_CHECKING:
    from torchscan.watching.layer_columns import ColumnOfLayers
    from torchscan.watching.layer_reader import LayerReader

#: the newest steps of a phase, which are all kept; twice as old ones are thinned out to half, and
#: so on. As many as a picture has columns. What layers did in the others stays in their columns
KEPT = 320
_INSERT_SERIES = (
    "INSERT OR IGNORE INTO series (path, type_name, kind, name, invocation) VALUES (?, ?, ?, ?, ?)"
)
_SELECT_NUMBER = (
    "SELECT number FROM series WHERE path = ? AND kind = ? AND name = ? AND invocation = ?"
)


class Store:
    """Writes a run. Each step is written whole or not at all."""

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        *,
        can_create: bool = True,
        patience: float = PATIENCE,
    ) -> None:
        """Open a store, or create it unless ``can_create`` is False.

        Wait up to ``patience`` seconds for another writer.
        """
        self._path = path
        if can_create:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._database = connect(path, "rwc" if can_create else "rw", patience=patience)
        with close_if_refused(self._database, path):
            require_version(self._database, path)
            mode = "delete" if is_remote(path) else "wal"
            (present_mode,) = self._database.execute("PRAGMA journal_mode").fetchone()
            if present_mode != mode:
                self._database.execute(f"PRAGMA journal_mode = {mode}")
            self._database.execute("PRAGMA synchronous = NORMAL")
            upgrade_events(self._database)
            self._database.executescript(CREATE_TABLES)
            self.write_metadata(about)
        self._numbers = {each: number for number, each in self._known().items()}
        self._series: dict[int, Series] = {}
        self._layers: LayerReader | None = None

    def write_metadata(self, about: Mapping[str, Any]) -> None:
        """Write metadata of the run."""
        with explain_errors(self._path), self._database:
            self._write_about(about)

    def _write_about(self, about: Mapping[str, Any]) -> None:
        rows = [(name, json.dumps(each)) for name, each in about.items()]
        self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def keep_graph(self, graph: Mapping[str, Any]) -> None:
        """Write the data of the model's page."""
        self.write_metadata({GRAPH_ENTRY: graph})

    def number_of(self, series: Series) -> int:
        """Return the number of a series. A new one is written with the next step."""
        if series not in self._numbers:
            values = (series.path, series.type_name, series.kind, series.name, series.invocation)
            key = (series.path, series.kind, series.name, series.invocation)
            with explain_errors(self._path):
                self._database.execute(_INSERT_SERIES, values)
                (number,) = self._database.execute(_SELECT_NUMBER, key).fetchone()
            self._numbers[series] = int(number)
        return self._numbers[series]

    def write(
        self,
        watched: SampledStep,
        *,
        thins_out: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one step, and metadata of the run in the same transaction; thin out old steps."""
        self.write_steps([watched], thins_out=thins_out, about=about)

    def write_steps(
        self,
        steps: Sequence[SampledStep],
        *,
        thins_out: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write steps and metadata of the run in one transaction; old steps are thinned out."""
        try:
            with explain_errors(self._path), self._database:
                places = self._write_distributions(steps)
                self._write_about(about or {})
                if thins_out:
                    old = [(phase, row) for phase, place in places for row in thinned_out(place)]
                    delete = "DELETE FROM steps WHERE phase = ? AND written = ?"
                    self._database.executemany(delete, old)
                    self._write_columns_of_steps(steps, places)
        except StoreError:
            with contextlib.suppress(StoreError):
                self._numbers = {each: number for number, each in self._known().items()}
            self._series = {}
            self._layers = None
            raise

    def _write_columns_of_steps(
        self, steps: Sequence[SampledStep], places: Sequence[tuple[Phase, int]]
    ) -> None:
        from torchscan.watching.layer_columns import MERGING_INTERVAL
        from torchscan.watching.layer_reader import LayerReader

        self._layers = self._layers or LayerReader()
        if len(self._series) != len(self._numbers):
            self._series = {number: each for each, number in self._numbers.items()}
        columns = self._layers.read(steps, self._series)
        for column, (phase, written) in zip(columns, places, strict=True):
            self._write_columns(phase, [column])
            if not (written + 1) % MERGING_INTERVAL:
                self._merge_columns(phase)

    def _write_columns(self, phase: Phase, columns: Sequence[ColumnOfLayers]) -> None:
        from torchscan.watching.layer_columns import pack_column

        insert = "INSERT OR REPLACE INTO layers VALUES (?, ?, ?, ?, ?, ?)"
        for each in columns:
            place = phase, each.first, each.last, each.step, each.num_steps
            self._database.execute(insert, (*place, pack_column(each)))

    def _merge_columns(self, phase: Phase) -> None:
        from torchscan.watching.layer_columns import merge_steps, spans_to_merge

        select = "SELECT first FROM layers WHERE phase = ? ORDER BY first"
        firsts = [first for (first,) in self._database.execute(select, (phase,))]
        for first, *others in spans_to_merge(firsts):
            span = phase, first, others[-1]
            select = f"{SELECT_COLUMNS} AND first BETWEEN ? AND ? ORDER BY first"
            rows = self._database.execute(select, span)
            merged = merge_steps([layer_column_of(row) for row in rows])
            delete = "DELETE FROM layers WHERE phase = ? AND first BETWEEN ? AND ?"
            self._database.execute(delete, span)
            self._write_columns(phase, [merged])

    def write_columns(self, phase: Phase, columns: Sequence[ColumnOfLayers]) -> None:
        """Write columns of layers, as of a run whose files are merged."""
        with explain_errors(self._path), self._database:
            self._write_columns(phase, columns)

    def write_curves(
        self, points: Mapping[Phase, Sequence[CurvePoint]], *, thins_out: bool = True
    ) -> None:
        """Write points of the curves in one transaction; older points are thinned out.

        A point that is there already is replaced.
        """
        with explain_errors(self._path), self._database:
            for phase, found in points.items():
                rows = []
                for point in found:
                    values: list[Any] = list(point)
                    for place, value in enumerate(point):
                        if value != value:  # SQLite would make NULL of NaN
                            values[place] = NOT_A_NUMBER
                    rows.append((phase, *values))
                insert = "INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?, ?, ?, ?)"
                self._database.executemany(insert, rows)
                if thins_out and any(not point.number % THINNING_INTERVAL for point in found):
                    kept = self._database.execute(SELECT_CURVES, (phase,))
                    numbers = points_to_drop(list(map(curve_point_of, kept)))
                    dropped = [(phase, number) for number in numbers]
                    delete = "DELETE FROM curves WHERE phase = ? AND number = ?"
                    self._database.executemany(delete, dropped)

    def _known(self) -> dict[int, Series]:
        with explain_errors(self._path):
            return read_series(self._database)

    def _write_distributions(self, steps: Sequence[SampledStep]) -> list[tuple[Phase, int]]:
        """Write the rows of steps, and return the phase and the number of each row."""
        from torchscan.watching.packing import pack_steps  # torch, which takes long to import

        ends: dict[Phase, int] = {}
        places, rows = [], []
        packed = pack_steps([each.distributions for each in steps])
        for each, data in zip(steps, packed, strict=True):
            if each.phase not in ends:
                select = "SELECT max(written) FROM steps WHERE phase = ?"
                (last,) = self._database.execute(select, (each.phase,)).fetchone()
                ends[each.phase] = 0 if last is None else last + 1
            place = each.phase, ends[each.phase]
            ends[each.phase] += 1
            places.append(place)
            rows.append((*place, each.step, each.number, each.time, data))
        self._database.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", rows)
        return places

    def forget_from(self, step: int) -> None:
        """Remove what comes again, as training goes on from a checkpoint of an earlier step.

        An evaluation that stands at this step ran before it, and stays.
        """
        with explain_errors(self._path), self._database:
            for table in ("steps", "curves", "layers"):
                delete = f"DELETE FROM {table} WHERE step >= ?"  # noqa: S608
                statement = f"{delete} AND (phase = 'train' OR step > ?)"
                self._database.execute(statement, (step, step))
        self.write_metadata({"reached": step})

    def note(self, note: Note, when: float | None = None, *, rank: int | None = None) -> None:
        """Write an event of the run, now or ``when``; a merged file has the rank, too."""
        data = note.to_data()
        if rank is not None:
            data = {**data, "rank": rank}
        values = (time.time() if when is None else when, json.dumps(data))
        with explain_errors(self._path), self._database:
            self._database.execute("INSERT INTO events VALUES (?, ?)", values)

    def close(self) -> None:
        """Close the store and merge its log into the file.

        The file can then be read in read-only folders.
        """
        with contextlib.suppress(sqlite3.Error):
            self._database.commit()
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.execute(
                "PRAGMA journal_mode = DELETE"
            )  # not if another process reads it
        self._database.close()


def thinned_out(written: int) -> Iterator[int]:
    """Yield the rows that are no longer needed: the older rows are, the fewer are kept.

    Of rows older than ``KEPT · 2^k``, those stay whose number is divisible by ``2^(k + 1)``. Of
    ``n`` rows, some ``KEPT · (1 + log2(n / KEPT) / 2)`` are kept.
    """
    span, spacing = KEPT, 1
    while span <= written:
        row = written - span
        if row % spacing == 0 and row % (2 * spacing):
            yield row
        span, spacing = 2 * span, 2 * spacing
