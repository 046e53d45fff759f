"""Reader of a run's file, also while the run is recorded."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.watching.graph_validation import graph_of_run
from torchscan.watching.run_database import (
    FIRST_WITH_CURVES,
    FIRST_WITH_NOTES,
    GRAPH_ENTRY,
    SELECT_COLUMNS,
    SELECT_CURVES,
    SELECT_SERIES,
    close_if_refused,
    connect,
    explain_errors,
    layer_column_of,
    require_version,
    version_of,
)
from torchscan.watching.schema import CurvePoint, Phase, RunEvent, SampledStep, Series
from torchscan.watching.validation import (
    MAX_INSTRUCTIONS,
    MAX_ROWS,
    MAX_VALUE,
    BrokenRunError,
    about_of_run,
    curve_point_of,
    event_of,
    integer_of,
    json_of,
    require_file,
    require_tables,
    series_of_row,
    time_of,
)

if TYPE_CHECKING:
    from torchscan.watching.layer_columns import ColumnOfLayers, Span

#: between two looks at how long a question takes, in steps of SQLite's virtual machine
_GLANCE = 1_000_000
#: entries of a database's list of tables, and columns of a table
_MAX_TABLES = 64
_SELECT_STEP = "SELECT step, number, time, data FROM steps"
#: the greatest whole number in a table
_MAX_INTEGER = 2**63 - 1


class Reader:
    """Reads a run, also while it is written. It checks all values: a file is not trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_errors(path):
            require_file(path)
        self._database = connect(path, mode="ro")
        with close_if_refused(self._database, path):
            self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._database.set_progress_handler(self._note_progress, _GLANCE)
            self._instructions = 0
            require_version(self._database, path)
            self._version = version_of(self._database)
            self._is_checked = False

    def about(self) -> dict[str, Any]:
        """Return the metadata of the run."""
        found = self._all("SELECT name, value FROM about WHERE name != ?", GRAPH_ENTRY)
        with self._closed_if_refused():
            return about_of_run({str(name): json_of(value) for name, value in found})

    def graph(self) -> dict[str, Any] | None:
        """Return the data of the model's page, or None if there are none or not yet."""
        found = self._all("SELECT value FROM about WHERE name = ?", GRAPH_ENTRY)
        if not found:
            return None
        (text,), *_ = found
        with self._closed_if_refused():
            return graph_of_run(json_of(text))

    def has_graph(self) -> bool:
        """Return whether the run has a graph."""
        return bool(self._all("SELECT 1 FROM about WHERE name = ?", GRAPH_ENTRY))

    def has_steps(self, phase: Phase) -> bool:
        """Return whether a step of this phase was written."""
        return bool(self._all("SELECT 1 FROM steps WHERE phase = ? LIMIT 1", phase))

    def series(self) -> dict[int, Series]:
        """Return the series by number."""
        found = self._all(SELECT_SERIES)
        with self._closed_if_refused():
            return dict(map(series_of_row, found))

    def steps(self, phase: Phase) -> Iterator[SampledStep]:
        """Yield the kept steps in the order of writing."""
        for written in sorted(self.written(phase)):
            step = self.step(phase, written)
            if step is not None:
                yield step

    def newest(self, phase: Phase) -> SampledStep | None:
        """Return the last step that was written, or None if there is none."""
        rows = self._all(f"{_SELECT_STEP} WHERE phase = ? ORDER BY written DESC LIMIT 1", phase)
        return next((self._watched(phase, row) for row in rows), None)

    def written(self, phase: Phase) -> dict[int, float]:
        """Return when the kept steps were written, by their numbers in the file."""
        rows = self._all("SELECT written, time FROM steps WHERE phase = ?", phase)
        with self._closed_if_refused():
            return {integer_of(number, "step number"): time_of(when) for number, when in rows}

    def step(self, phase: Phase, written: int, *, has_counts: bool = True) -> SampledStep | None:
        """Return a step by its number in the file, or None if it is no longer there.

        It has no counts if they are not needed.
        """
        rows = self._all(f"{_SELECT_STEP} WHERE phase = ? AND written = ?", phase, written)
        return next((self._watched(phase, row, has_counts=has_counts) for row in rows), None)

    def times(self, phase: Phase) -> list[tuple[int, float]]:
        """Return the kept steps, and when each was written, without what is in them."""
        rows = self._all("SELECT step, time FROM steps WHERE phase = ? ORDER BY written", phase)
        with self._closed_if_refused():
            return [(integer_of(step, "step"), time_of(when)) for step, when in rows]

    def last(self, phase: Phase, up_to: int | None = None) -> tuple[int, int] | None:
        """Return the last written step up to this one and its number in its phase, or None."""
        statement = "SELECT step, number FROM steps WHERE phase = ? AND step <= ?"
        limit = _MAX_INTEGER if up_to is None else up_to
        rows = self._all(f"{statement} ORDER BY written DESC LIMIT 1", phase, limit)
        with self._closed_if_refused():
            return next(map(_place_of, rows), None)

    def layer_spans(self, phase: Phase) -> list[Span]:
        """Return the steps of each column of layers, in order, as :meth:`layer_columns` does."""
        stored = self._stored_spans(phase)
        older = [(place, place, 1) for place, _ in self._older_places(phase, stored)]
        return [*older, *stored]

    def layer_columns(self, phase: Phase, skip: Collection[Span] = ()) -> list[ColumnOfLayers]:
        """Return the columns of layers in order, without those of the spans in ``skip``.

        Steps that an older version has written, without columns, have one each.
        """
        from torchscan.watching.layer_reader import LayerReader

        series, layers = self.series(), LayerReader()
        stored = self._stored_spans(phase)
        columns = []
        for place, written in self._older_places(phase, stored):
            step = None
            if (place, place, 1) not in skip:
                step = self.step(phase, written, has_counts=False)
            if step is not None:
                columns += layers.read([step], series)
        for span in stored:
            if span not in skip:
                rows = self._all(f"{SELECT_COLUMNS} AND first = ?", phase, span[0])
                with self._closed_if_refused():
                    columns += [layer_column_of(row) for row in rows]
        return columns

    def _stored_spans(self, phase: Phase) -> list[Span]:
        if self._version < FIRST_WITH_CURVES:
            return []
        select = "SELECT first, last, num_steps FROM layers WHERE phase = ? ORDER BY first"
        found = self._all(select, phase)
        spans = []
        with self._closed_if_refused():
            for row in found:
                first, last, num_steps = (integer_of(each, "column of layers") for each in row)
                spans.append((first, last, num_steps))
        return spans

    def _older_places(self, phase: Phase, stored: Sequence[Span]) -> list[tuple[int, int]]:
        """Return the steps before the first stored column, each with its number in the file."""
        rows = self._all("SELECT step, number, written FROM steps WHERE phase = ?", phase)
        end = _MAX_INTEGER
        if stored:
            end, _, _ = stored[0]
        places = []
        with self._closed_if_refused():
            for step, number, written in rows:
                place = step if phase == "train" else number
                places.append((integer_of(place, "step"), integer_of(written, "number")))
        return [(place, written) for place, written in sorted(places) if place < end]

    def last_pass(self, phase: Phase, up_to: int | None = None) -> tuple[int, int] | None:
        """Return the last step up to this one, sampled or not, and its number of its phase."""
        ends = [self.last(phase, up_to)]
        if self._version >= FIRST_WITH_CURVES:
            statement = "SELECT step, number FROM curves WHERE phase = ? AND step <= ?"
            limit = _MAX_INTEGER if up_to is None else up_to
            rows = self._all(f"{statement} ORDER BY number DESC LIMIT 1", phase, limit)
            with self._closed_if_refused():
                ends += map(_place_of, rows)
        return max((end for end in ends if end is not None), key=itemgetter(1), default=None)

    def curves(self, phase: Phase) -> list[CurvePoint]:
        """Return the points of the curves that are kept, in order; none in files of version 3."""
        if self._version < FIRST_WITH_CURVES:
            return []
        found = self._all(SELECT_CURVES, phase)
        with self._closed_if_refused():
            return [curve_point_of(row) for row in found]

    def events(self) -> list[RunEvent]:
        """Return what happened to the run, in the order in which it was written."""
        found = self._all("SELECT time, what FROM events ORDER BY rowid")
        with self._closed_if_refused():
            return [event_of(row, is_text=self._version < FIRST_WITH_NOTES) for row in found]

    def close(self) -> None:
        """Read no more."""
        self._database.close()

    def _closed_if_refused(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that explains errors, after which nothing can be read."""
        return close_if_refused(self._database, self.path)

    def _watched(self, phase: Phase, row: Sequence[Any], *, has_counts: bool = True) -> SampledStep:
        from torchscan.watching.unpacking import unpacked  # torch, which takes long to import

        step, number, when, data = row
        with self._closed_if_refused():
            return SampledStep(
                step=integer_of(step, "step"),
                phase=phase,
                number=integer_of(number, "step number"),
                time=time_of(when),
                distributions=unpacked(data, has_counts=has_counts),
            )

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of an answer, of which there may not be too many."""
        with self._closed_if_refused():
            self._require_tables()
            self._instructions = 0
            rows = self._database.execute(statement, values).fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                raise BrokenRunError(f"has more than {MAX_ROWS:,} rows in a table")
            return rows

    def _require_tables(self) -> None:
        """Check the tables once, when something is read: for a moment, a new run has none."""
        if self._is_checked:
            return
        found = self._database.execute("SELECT name, type, rootpage FROM sqlite_master")
        rows = found.fetchmany(_MAX_TABLES)
        if rows:
            kinds = {str(name): (str(kind), page or 0) for name, kind, page in rows}
            require_tables(kinds, self._columns_of, self._version)
            self._is_checked = True

    def _columns_of(self, table: str) -> list[tuple[str, int]]:
        found = self._database.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,))
        return [(name, hidden) for name, hidden in found.fetchmany(_MAX_TABLES)]

    def _note_progress(self) -> bool:
        """Return whether a question is to be given up."""
        self._instructions += _GLANCE
        return self._instructions > MAX_INSTRUCTIONS


def _place_of(row: tuple[Any, ...]) -> tuple[int, int]:
    """Return a step, and its number in its phase."""
    step, number = row
    return integer_of(step, "step"), integer_of(number, "step number")
