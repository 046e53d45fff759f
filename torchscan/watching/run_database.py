"""The SQLite file of a run: its tables and versions, connections to it, and errors."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.watching.schema import Series
from torchscan.watching.validation import BrokenRunError, integer_of, series_of_row

if TYPE_CHECKING:
    from torchscan.watching.layer_columns import ColumnOfLayers

#: of the tables; it grows where a reader of the one before would misread them.
#: Events and reasons are notes from 3 on; before, they were sentences, which still open.
#: From 4 on there are curves, and steps have norms
VERSION = 4
OLDEST_VERSION, FIRST_WITH_NOTES, FIRST_WITH_CURVES = 2, 3, 4
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
#: under which name what is said of the run has the data of the model's page, which is long
GRAPH_ENTRY = "graph"
#: seconds for which another process that writes is waited for
PATIENCE = 5.0
#: the same in the worker and in the process that draws the graph: the training does not wait
PATIENCE_OF_WRITERS = 120.0
SELECT_SERIES = "SELECT number, path, type_name, kind, name, invocation FROM series"
SELECT_COLUMNS = "SELECT first, last, step, num_steps, data FROM layers WHERE phase = ?"
SELECT_CURVES = (
    "SELECT step, number, time, loss, learning_rate, gradient_norm FROM curves "
    "WHERE phase = ? ORDER BY number"
)

CREATE_TABLES = f"""
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS series (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, type_name TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, invocation INTEGER NOT NULL, UNIQUE (path, kind, name, invocation)
);
CREATE TABLE IF NOT EXISTS steps (
    phase TEXT NOT NULL, written INTEGER NOT NULL, step INTEGER NOT NULL,
    number INTEGER NOT NULL, time REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (phase, written)
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


def read_series(database: sqlite3.Connection) -> dict[int, Series]:
    """Return the series of a run by their numbers."""
    return dict(map(series_of_row, database.execute(SELECT_SERIES)))


def connect(path: Path, mode: str = "rwc", *, patience: float = PATIENCE) -> sqlite3.Connection:
    """Return a connection to a file, with SQLite's ``mode``."""
    address = f"{path.resolve().as_uri()}?mode={mode}"
    with explain_errors(path):
        return sqlite3.connect(address, uri=True, timeout=patience)


def version_of(database: sqlite3.Connection) -> int:
    """Return the version of a file's schema, 0 if it is new."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def require_version(database: sqlite3.Connection, path: Path) -> None:
    """Raise a StoreError if a file is not a run, or one of another version."""
    version = version_of(database)
    (num_tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > VERSION:
        known = f"and this torchscan reads up to {VERSION}"
        raise StoreError(
            f"{str(path)!r} follows schema {version}, {known}: update torchscan to read it"
        )
    if 0 < version < OLDEST_VERSION:
        raise StoreError(
            f"{str(path)!r} follows schema {version}, which only earlier versions of torchscan read"
        )
    if version < 0 or (version == 0 and num_tables):
        raise StoreError(
            f"{str(path)!r} is another SQLite database: give a run that watch() has written"
        )


def upgrade_events(database: sqlite3.Connection) -> None:
    """Turn the events of a file of version 2, which are sentences, into notes."""
    if version_of(database) != OLDEST_VERSION:
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        if version_of(database) != OLDEST_VERSION:  # another process was faster
            return
        rows: list[tuple[str, int]] = []
        for number, what in database.execute("SELECT rowid, what FROM events").fetchall():
            note = Note.from_text(str(what))
            rows.append((json.dumps(note.to_data()), number))
        database.executemany("UPDATE events SET what = ? WHERE rowid = ?", rows)
        database.execute(f"PRAGMA user_version = {FIRST_WITH_NOTES}")


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system, and wrong content, into StoreErrors inside."""
    try:
        yield
    except BrokenRunError as error:
        raise StoreError(f"{str(path)!r} {error}: give a run that watch() has written") from error
    except (sqlite3.Error, OSError, UnicodeError) as error:  # also in a message of SQLite's
        reason = printable(str(error))
        raise StoreError(f"{str(path)!r}: {reason}", reason) from error


@contextlib.contextmanager
def close_if_refused(database: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Close a connection if a StoreError is raised inside."""
    try:
        with explain_errors(path):
            yield
    except StoreError:
        database.close()
        raise


def layer_column_of(row: Sequence[Any]) -> ColumnOfLayers:
    """Return a column of layers."""
    from torchscan.watching.layer_columns import unpack_column

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
    around: list[tuple[int, str]] = []
    for _, folder, kind, *_ in mounts:
        if place.is_relative_to(folder.replace("\\040", " ")):
            around.append((len(folder), kind))
    _, innermost = max(around, default=(0, ""))
    return innermost.startswith(_REMOTE)
