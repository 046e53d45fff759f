"""A run that is watched, in one SQLite file per process that trains: what was written stays when processes are killed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.watching.curves import THINNING_INTERVAL, points_to_drop
from torchscan.watching.graph_validation import graph_of_run
from torchscan.watching.schema import CurvePoint, Phase, RunEvent, SampledStep, Series
from torchscan.watching.validation import (
    MAX_INSTRUCTIONS,
    MAX_ROWS,
    MAX_VALUE,
    NOT_A_NUMBER,
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
    from torchscan.watching.layers_over_steps import ColumnOfLayers, LayerReader, Span

#: of the tables; it grows where a reader of the one before would misread them.
#: Events and reasons are notes from 3 on; before, they were sentences, which still open.
#: From 4 on there are curves, and steps have norms
VERSION = 4
_OLDEST_VERSION, _FIRST_WITH_NOTES, _FIRST_WITH_CURVES = 2, 3, 4
#: file systems over a network, on which SQLite's log in shared memory does not work
_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "fuse.",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "afs",
    "ncpfs",
    "davfs",
)
#: the newest steps of a phase, which are all kept; twice as old ones are thinned out to half, and
#: so on. As many as a picture has columns. What layers did in the others stays in their columns
KEPT = 320
#: under which name what is said of the run has the data of the model's page, which is long
_GRAPH = "graph"
#: between two looks at how long a question takes, in steps of SQLite's virtual machine
_GLANCE = 1_000_000
#: entries of a database's list of tables, and columns of a table
_MAX_TABLES = 64
#: seconds for which another process that writes is waited for
_PATIENCE = 5.0
#: the same in the worker and in the process that draws the graph: the training does not wait
PATIENCE_OF_WRITERS = 120.0
_SELECT_SERIES = "SELECT number, path, type_name, kind, name, invocation FROM series"
_SELECT_STEP = "SELECT step, number, time, data FROM steps"
_SELECT_COLUMNS = "SELECT first, last, step, num_steps, data FROM layers WHERE phase = ?"
_SELECT_CURVES = (
    "SELECT step, number, time, loss, learning_rate, gradient_norm FROM curves "
    "WHERE phase = ? ORDER BY number"
)
#: the greatest whole number in a table
_MAX_INTEGER = 2**63 - 1

_TABLES = f"""
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS series (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, type_name TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    invocation INTEGER NOT NULL, UNIQUE (path, kind, name, invocation)
);
CREATE TABLE IF NOT EXISTS steps (
    phase TEXT NOT NULL, written INTEGER NOT NULL, step INTEGER NOT NULL, number INTEGER NOT NULL, time REAL NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (phase, written)
);
CREATE TABLE IF NOT EXISTS events (time REAL NOT NULL, what TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS curves (
    phase TEXT NOT NULL, step INTEGER NOT NULL, number INTEGER NOT NULL, time REAL NOT NULL,
    loss REAL, learning_rate REAL, gradient_norm REAL, PRIMARY KEY (phase, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS layers (
    phase TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, step INTEGER NOT NULL,
    num_steps INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (phase, first)
);
PRAGMA user_version = {VERSION};
"""


class StoreError(InputError):
    """A file that is not a store, or that cannot be written. The text has the reason."""

    def __init__(self, text: str, reason: str | None = None) -> None:
        """``reason``: the error of SQLite or the system, without the file."""
        super().__init__(text)
        self.reason = text if reason is None else reason


class Store:
    """Writes a run. Each step is written whole or not at all."""

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        *,
        can_create: bool = True,
        patience: float = _PATIENCE,
    ) -> None:
        """Open a store, or create it unless ``can_create`` is False.

        Wait up to ``patience`` seconds for another writer.
        """
        self._path = path
        if can_create:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._database = _connected(path, "rwc" if can_create else "rw", patience=patience)
        with _closed_if_refused(self._database, path):
            _require_version(self._database, path)
            mode = "delete" if is_remote(path) else "wal"
            if self._database.execute("PRAGMA journal_mode").fetchone()[0] != mode:
                self._database.execute(f"PRAGMA journal_mode = {mode}")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._upgrade()
            self._database.executescript(_TABLES)
            self.write_metadata(about)
        self._numbers = {each: number for number, each in self._known().items()}
        self._series: dict[int, Series] = {}
        self._layers: LayerReader | None = None

    def _upgrade(self) -> None:
        """Turn the events of a file of version 2, which are sentences, into notes."""
        if _version_of(self._database) != _OLDEST_VERSION:
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            if _version_of(self._database) != _OLDEST_VERSION:  # another process was faster
                return
            found = self._database.execute("SELECT rowid, what FROM events").fetchall()
            rows = [
                (json.dumps(Note.from_text(str(what)).to_data()), number) for number, what in found
            ]
            self._database.executemany("UPDATE events SET what = ? WHERE rowid = ?", rows)
            self._database.execute(f"PRAGMA user_version = {_FIRST_WITH_NOTES}")

    def write_metadata(self, about: Mapping[str, Any]) -> None:
        """Write metadata of the run."""
        with _explain_errors(self._path), self._database:
            self._write_about(about)

    def _write_about(self, about: Mapping[str, Any]) -> None:
        rows = [(name, json.dumps(each)) for name, each in about.items()]
        self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def keep_graph(self, graph: Mapping[str, Any]) -> None:
        """The data of the model's page."""
        self.write_metadata({_GRAPH: graph})

    def number_of(self, series: Series) -> int:
        """Return the number of a series. A new one is written with the next step."""
        if series not in self._numbers:
            values = (series.path, series.type_name, series.kind, series.name, series.invocation)
            insert = "INSERT OR IGNORE INTO series (path, type_name, kind, name, invocation) VALUES (?, ?, ?, ?, ?)"
            select = "SELECT number FROM series WHERE path = ? AND kind = ? AND name = ? AND invocation = ?"
            with _explain_errors(self._path):
                self._database.execute(insert, values)
                found = self._database.execute(select, (series.path, *values[2:])).fetchone()
            self._numbers[series] = int(found[0])
        return self._numbers[series]

    def write(
        self,
        watched: SampledStep,
        *,
        thins_out: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one step, with metadata of the run in the same transaction; old steps are thinned out."""
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
            with _explain_errors(self._path), self._database:
                places = self._write_distributions(steps)
                self._write_about(about or {})
                if thins_out:
                    old = [
                        (phase, number) for phase, place in places for number in thinned_out(place)
                    ]
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
        from torchscan.watching.layers_over_steps import MERGING_INTERVAL, LayerReader

        self._layers = self._layers or LayerReader()
        if len(self._series) != len(self._numbers):
            self._series = {number: each for each, number in self._numbers.items()}
        columns = self._layers.read(steps, self._series)
        for column, (phase, written) in zip(columns, places, strict=True):
            self._write_columns(phase, [column])
            if not (written + 1) % MERGING_INTERVAL:
                self._merge_columns(phase)

    def _write_columns(self, phase: Phase, columns: Sequence[ColumnOfLayers]) -> None:
        from torchscan.watching.layers_over_steps import pack_column

        insert = "INSERT OR REPLACE INTO layers VALUES (?, ?, ?, ?, ?, ?)"
        for each in columns:
            place = phase, each.first, each.last, each.step, each.num_steps
            self._database.execute(insert, (*place, pack_column(each)))

    def _merge_columns(self, phase: Phase) -> None:
        from torchscan.watching.layers_over_steps import merge_steps, spans_to_merge

        select = "SELECT first FROM layers WHERE phase = ? ORDER BY first"
        firsts = [first for (first,) in self._database.execute(select, (phase,))]
        for first, *others in spans_to_merge(firsts):
            span = phase, first, others[-1]
            select = f"{_SELECT_COLUMNS} AND first BETWEEN ? AND ? ORDER BY first"
            rows = self._database.execute(select, span)
            merged = merge_steps([layer_column_of(row) for row in rows])
            delete = "DELETE FROM layers WHERE phase = ? AND first BETWEEN ? AND ?"
            self._database.execute(delete, span)
            self._write_columns(phase, [merged])

    def write_columns(self, phase: Phase, columns: Sequence[ColumnOfLayers]) -> None:
        """Write columns of layers, as of a run whose files are merged."""
        with _explain_errors(self._path), self._database:
            self._write_columns(phase, columns)

    def write_curves(
        self, points: Mapping[Phase, Sequence[CurvePoint]], *, thins_out: bool = True
    ) -> None:
        """Write points of the curves in one transaction; older points are thinned out.

        A point that is there already is replaced.
        """
        with _explain_errors(self._path), self._database:
            for phase, found in points.items():
                rows = []
                for point in found:
                    # SQLite would make NULL of NaN
                    values = [NOT_A_NUMBER if value != value else value for value in point]
                    rows.append((phase, *values))
                insert = "INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?, ?, ?, ?)"
                self._database.executemany(insert, rows)
                if thins_out and any(not point.number % THINNING_INTERVAL for point in found):
                    kept = self._database.execute(_SELECT_CURVES, (phase,))
                    numbers = points_to_drop(list(map(curve_point_of, kept)))
                    dropped = [(phase, number) for number in numbers]
                    delete = "DELETE FROM curves WHERE phase = ? AND number = ?"
                    self._database.executemany(delete, dropped)

    def _known(self) -> dict[int, Series]:
        with _explain_errors(self._path):
            return _series(self._database)

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
        """Training goes on from a checkpoint of an earlier step: what came after it comes again.

        An evaluation that stands at this step ran before it, and stays.
        """
        with _explain_errors(self._path), self._database:
            for table in ("steps", "curves", "layers"):
                delete = f"DELETE FROM {table} WHERE step >= ? AND (phase = 'train' OR step > ?)"  # noqa: S608
                self._database.execute(delete, (step, step))
        self.write_metadata({"reached": step})

    def note(self, note: Note, when: float | None = None, *, rank: int | None = None) -> None:
        """Write something that happened to the run, now or ``when``; a merged file says to which rank."""
        data = note.to_data() if rank is None else {**note.to_data(), "rank": rank}
        values = (time.time() if when is None else when, json.dumps(data))
        with _explain_errors(self._path), self._database:
            self._database.execute("INSERT INTO events VALUES (?, ?)", values)

    def close(self) -> None:
        """Close the store and merge its log into the file.

        The file can then be read in read-only folders.
        """
        with contextlib.suppress(sqlite3.Error):
            self._database.commit()
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.execute("PRAGMA journal_mode = DELETE")  # not if somebody reads it now
        self._database.close()


class Reader:
    """Reads a run, also while it is written. Everything that it returns was checked: nothing in a file is trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explain_errors(path):
            require_file(path)
        self._database = _connected(path, mode="ro")
        with _closed_if_refused(self._database, path):
            self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._database.set_progress_handler(self._note_progress, _GLANCE)
            self._instructions = 0
            _require_version(self._database, path)
            self._version = _version_of(self._database)
            self._is_checked = False

    def about(self) -> dict[str, Any]:
        """Return the metadata of the run."""
        found = self._all("SELECT name, value FROM about WHERE name != ?", _GRAPH)
        with _explain_errors(self.path):
            return about_of_run({str(name): json_of(value) for name, value in found})

    def graph(self) -> dict[str, Any] | None:
        """The data of the model's page; None: it is not there, or not yet."""
        found = self._all("SELECT value FROM about WHERE name = ?", _GRAPH)
        with _explain_errors(self.path):
            return graph_of_run(json_of(found[0][0])) if found else None

    def has_graph(self) -> bool:
        """Return whether the run has a graph."""
        return bool(self._all("SELECT 1 FROM about WHERE name = ?", _GRAPH))

    def has_steps(self, phase: Phase) -> bool:
        """Return whether a step of this phase was written."""
        return bool(self._all("SELECT 1 FROM steps WHERE phase = ? LIMIT 1", phase))

    def series(self) -> dict[int, Series]:
        """Return the series by number."""
        found = self._all(_SELECT_SERIES)
        with _explain_errors(self.path):
            return dict(series_of_row(row) for row in found)

    def steps(self, phase: Phase) -> Iterator[SampledStep]:
        """Yield the kept steps in the order of writing."""
        for written in sorted(self.written(phase)):
            if (step := self.step(phase, written)) is not None:
                yield step

    def newest(self, phase: Phase) -> SampledStep | None:
        """The last step that was written; None: there is none."""
        rows = self._all(f"{_SELECT_STEP} WHERE phase = ? ORDER BY written DESC LIMIT 1", phase)
        return next((self._watched(phase, row) for row in rows), None)

    def written(self, phase: Phase) -> dict[int, float]:
        """When the steps were written that are kept, by their numbers in the file."""
        rows = self._all("SELECT written, time FROM steps WHERE phase = ?", phase)
        with _explain_errors(self.path):
            return {integer_of(number, "step number"): time_of(when) for number, when in rows}

    def step(self, phase: Phase, written: int, *, has_counts: bool = True) -> SampledStep | None:
        """One of them, without counts if they are not needed; None: it is not there any more."""
        rows = self._all(f"{_SELECT_STEP} WHERE phase = ? AND written = ?", phase, written)
        return next((self._watched(phase, row, has_counts=has_counts) for row in rows), None)

    def times(self, phase: Phase) -> list[tuple[int, float]]:
        """The steps that are kept, and when each was written, without what is in them."""
        rows = self._all("SELECT step, time FROM steps WHERE phase = ? ORDER BY written", phase)
        with _explain_errors(self.path):
            return [(integer_of(step, "step"), time_of(when)) for step, when in rows]

    def last(self, phase: Phase, up_to: int | None = None) -> tuple[int, int] | None:
        """The last step that was written, of those up to this one, and which of its phase it was; None: there is none."""
        statement = "SELECT step, number FROM steps WHERE phase = ? AND step <= ? ORDER BY written DESC LIMIT 1"
        rows = self._all(statement, phase, _MAX_INTEGER if up_to is None else up_to)
        with _explain_errors(self.path):
            return next(
                (
                    (integer_of(step, "step"), integer_of(number, "step number"))
                    for step, number in rows
                ),
                None,
            )

    def layer_spans(self, phase: Phase) -> list[Span]:
        """Return the steps of each column of layers, in order, as :meth:`layer_columns` does."""
        stored = self._stored_spans(phase)
        older = [(place, place, 1) for place, _ in self._older_places(phase, stored)]
        return [*older, *stored]

    def layer_columns(self, phase: Phase, skip: Collection[Span] = ()) -> list[ColumnOfLayers]:
        """Return the columns of layers in order, without those of the spans in ``skip``.

        Steps that an older version has written, without columns, have one each.
        """
        from torchscan.watching.layers_over_steps import LayerReader

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
                rows = self._all(f"{_SELECT_COLUMNS} AND first = ?", phase, span[0])
                with _explain_errors(self.path):
                    columns += [layer_column_of(row) for row in rows]
        return columns

    def _stored_spans(self, phase: Phase) -> list[Span]:
        if self._version < _FIRST_WITH_CURVES:
            return []
        select = "SELECT first, last, num_steps FROM layers WHERE phase = ? ORDER BY first"
        found = self._all(select, phase)
        with _explain_errors(self.path):
            rows = [[integer_of(each, "column of layers") for each in row] for row in found]
        return [(first, last, num_steps) for first, last, num_steps in rows]

    def _older_places(self, phase: Phase, stored: Sequence[Span]) -> list[tuple[int, int]]:
        """Return the steps before the first stored column, each with its number in the file."""
        rows = self._all("SELECT step, number, written FROM steps WHERE phase = ?", phase)
        at = 0 if phase == "train" else 1
        end = stored[0][0] if stored else _MAX_INTEGER
        with _explain_errors(self.path):
            places = [(integer_of(row[at], "step"), integer_of(row[2], "number")) for row in rows]
        return [each for each in sorted(places) if each[0] < end]

    def last_pass(self, phase: Phase, up_to: int | None = None) -> tuple[int, int] | None:
        """Return the last step up to this one, sampled or not, and its number of its phase."""
        ends = [self.last(phase, up_to)]
        if self._version >= _FIRST_WITH_CURVES:
            statement = "SELECT step, number FROM curves WHERE phase = ? AND step <= ?"
            limit = _MAX_INTEGER if up_to is None else up_to
            rows = self._all(f"{statement} ORDER BY number DESC LIMIT 1", phase, limit)
            with _explain_errors(self.path):
                ends += [
                    (integer_of(step, "step"), integer_of(number, "step number"))
                    for step, number in rows
                ]
        return max((end for end in ends if end is not None), key=itemgetter(1), default=None)

    def curves(self, phase: Phase) -> list[CurvePoint]:
        """Return the points of the curves that are kept, in order; none in files of version 3."""
        if self._version < _FIRST_WITH_CURVES:
            return []
        found = self._all(_SELECT_CURVES, phase)
        with _explain_errors(self.path):
            return [curve_point_of(row) for row in found]

    def events(self) -> list[RunEvent]:
        """Return what happened to the run, in the order in which it was written."""
        found = self._all("SELECT time, what FROM events ORDER BY rowid")
        with _explain_errors(self.path):
            return [event_of(row, is_text=self._version < _FIRST_WITH_NOTES) for row in found]

    def close(self) -> None:
        """Read no more."""
        self._database.close()

    def _watched(self, phase: Phase, row: Sequence[Any], *, has_counts: bool = True) -> SampledStep:
        from torchscan.watching.packing import unpacked  # torch, which takes long to import

        step, number, when, data = row
        with _explain_errors(self.path):
            return SampledStep(
                step=integer_of(step, "step"),
                phase=phase,
                number=integer_of(number, "step number"),
                time=time_of(when),
                distributions=unpacked(data, has_counts=has_counts),
            )

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of an answer, of which there may not be too many."""
        with _explain_errors(self.path):
            self._require_tables()
            self._instructions = 0
            rows = self._database.execute(statement, values).fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                raise BrokenRunError(f"has more than {MAX_ROWS:,} rows in a table")
            return rows

    def _require_tables(self) -> None:
        """Check the tables once, when something is read: a run that has just begun has none for a moment."""
        if self._is_checked:
            return
        rows = self._database.execute("SELECT name, type, rootpage FROM sqlite_master").fetchmany(
            _MAX_TABLES
        )
        if rows:
            require_tables(
                {str(name): (str(kind), page or 0) for name, kind, page in rows},
                self._columns_of,
                self._version,
            )
            self._is_checked = True

    def _columns_of(self, table: str) -> list[tuple[str, int]]:
        found = self._database.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,))
        return [(name, hidden) for name, hidden in found.fetchmany(_MAX_TABLES)]

    def _note_progress(self) -> bool:
        """Return whether a question is to be given up."""
        self._instructions += _GLANCE
        return self._instructions > MAX_INSTRUCTIONS


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


def layer_column_of(row: Sequence[Any]) -> ColumnOfLayers:
    """Return a column of layers."""
    from torchscan.watching.layers_over_steps import unpack_column

    *counts, data = row
    first, last, step, num_steps = (integer_of(each, "column of layers") for each in counts)
    return unpack_column(first, last, step, num_steps, data)


def is_remote(path: Path) -> bool:
    """Return whether a file is on another machine, as far as the mounts show."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    place = path.resolve()
    around = [
        (len(each[1]), each[2])
        for each in mounts
        if place.is_relative_to(each[1].replace("\\040", " "))
    ]
    return max(around, default=(0, ""))[1].startswith(_REMOTE)


def _series(database: sqlite3.Connection) -> dict[int, Series]:
    return dict(series_of_row(row) for row in database.execute(_SELECT_SERIES))


def _connected(path: Path, mode: str = "rwc", *, patience: float = _PATIENCE) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode={mode}"
    with _explain_errors(path):
        return sqlite3.connect(address, uri=True, timeout=patience)


def _version_of(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _require_version(database: sqlite3.Connection, path: Path) -> None:
    version = _version_of(database)
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if version > VERSION:
        known = f"and this torchscan reads up to {VERSION}"
        raise StoreError(
            f"{str(path)!r} follows schema {version}, {known}: update torchscan to read it"
        )
    if 0 < version < _OLDEST_VERSION:
        raise StoreError(
            f"{str(path)!r} follows schema {version}, which only earlier versions of torchscan read"
        )
    if version < 0 or (version == 0 and tables):
        raise StoreError(
            f"{str(path)!r} is another SQLite database: give a run that watch() has written"
        )


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenRunError as error:
        raise StoreError(f"{str(path)!r} {error}: give a run that watch() has written") from error
    except (sqlite3.Error, OSError, UnicodeError) as error:  # also in a message of SQLite's
        reason = printable(str(error))
        raise StoreError(f"{str(path)!r}: {reason}", reason) from error


@contextlib.contextmanager
def _closed_if_refused(database: sqlite3.Connection, path: Path) -> Iterator[None]:
    try:
        with _explain_errors(path):
            yield
    except StoreError:
        database.close()
        raise
