"""Files of runs that are broken, or that someone has made to do harm: a line is said, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.opening import watched_run
from tests.watching.test_run_pages import write
from torchscan import InputError
from torchscan.cli.main import main
from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.packing_3 import read_version_3
from torchscan.watching.validation import BrokenRunError, json_of

Break = Callable[[Path], object]

HEADER = {"series": 1, "rows": 1, "bins": 0, "custom": []}
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 1.0, x FROM c"
CROWD = (
    "WITH RECURSIVE c(x) AS (SELECT 1000 UNION ALL SELECT x + 1 FROM c LIMIT 200001) "
    "INSERT INTO series SELECT x, 'p'||x, 'T', 'input', '0', 0 FROM c"
)


def sql(*statements: str, value: object = None) -> Break:
    """Change the database of a run; ``value`` is that of each question mark."""

    def change(file: Path) -> None:
        with closing(sqlite3.connect(file)) as database:
            for each in statements:
                database.execute(each, (value,) * each.count("?"))
            database.commit()

    return change


def step(header: object, body: bytes = b"") -> Break:
    """Write other data into the run's step."""

    def change(file: Path) -> None:
        text = json.dumps(header).encode()
        data = zlib.compress(struct.pack("<I", len(text)) + text + body)
        sql("UPDATE steps SET data = ?", value=data)(file)

    return change


def packed_step(sizes: tuple[int, ...], *streams: bytes) -> Break:
    """Write a step of today's format: bytes of names, series, rows, bins, then four streams."""

    def change(file: Path) -> None:
        data = [zlib.compress(each) for each in streams]
        head = struct.pack("<BxxxIIIIIIII", 4, *sizes, *map(len, data))
        sql("UPDATE steps SET data = ?", value=head + b"".join(data))(file)

    return change


def instead(make: Callable[[Path], object]) -> Break:
    """Put something else where the file is."""

    def change(file: Path) -> None:
        file.unlink()
        make(file)

    return change


def beside(name: str) -> Break:
    """Put a pipe beside the file."""
    return lambda file: os.mkfifo(file.with_name(name))


def about(name: str, text: str) -> Break:
    """Let the run say something else of itself."""
    return sql(f"INSERT OR REPLACE INTO about VALUES ('{name}', ?)", value=text)  # noqa: S608


REFUSED: dict[str, tuple[Break, str]] = {
    "pipe": (instead(os.mkfifo), "has no watched run"),
    "folder": (instead(Path.mkdir), "has no watched run"),
    "loop": (instead(lambda file: file.symlink_to(file.name)), "has no watched run"),
    "device": (instead(lambda file: file.symlink_to("/dev/zero")), "has no watched run"),
    "text": (lambda file: file.write_text("x" * 5000), "is not a database"),
    "cut": (lambda file: os.truncate(file, 5000), "malformed"),
    "log": (beside("rank0.sqlite-wal"), "'rank0.sqlite-wal' next to it"),
    "old": (sql("PRAGMA user_version = -5"), "another SQLite database"),
    "view": (sql("DROP TABLE events", f"CREATE VIEW events (time, what) AS {ENDLESS}"), "a view 'events'"),
    "trigger": (sql("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM steps; END"), "trigger"),
    "virtual": (sql("DROP TABLE events", "CREATE VIRTUAL TABLE events USING fts5(time, what)"), "no table"),
    "computed": (sql("DROP TABLE events", "CREATE TABLE events (time, what AS (zeroblob(9)))"), "columns"),
    "deep": (about("model", "[" * 200_000), "JSON that cannot be read"),
    "nan": (about("ended", "NaN"), "NaN is not a number"),
    "huge": (about("processes", "100000000"), "'100000000' as its 'processes'"),
    "graph": (about("graph", '{"rows": 5}'), "graph of the model that cannot be drawn"),
    "kind": (sql("UPDATE series SET kind = 'evil'"), "invalid series"),
    "paths": (sql("UPDATE series SET path = CAST(X'FFFE' AS TEXT)"), "UTF-8"),
    "crowd": (sql(CROWD), "200,000 rows"),
    "number": (sql("UPDATE steps SET step = 'x'"), "an invalid step 'x'"),
    "time": (sql("UPDATE steps SET time = 9e999"), "an invalid time 'inf'"),
    "empty": (sql("UPDATE steps SET data = x''"), "step that cannot be read"),
    "type": (sql("UPDATE steps SET data = 7"), "step of type int"),
    "list": (step([]), "header is malformed"),
    "negative": (step({**HEADER, "rows": -5}), "header is malformed"),
    "short": (step(HEADER), "length is not the one in its header"),
    "bomb": (step({**HEADER, "series": 0, "rows": 2_000_000}, bytes(99 * 2_000_000)), "too long"),
    "hidden bomb": (step({**HEADER, "series": 0, "rows": 0}, bytes(200_000_000)), "length is not the one in its header"),
    "half a step": (sql("UPDATE steps SET data = substr(data, 1, length(data) / 2)"), "not the one in its header"),
    "promise": (packed_step((2, 2**31, 0, 0), b"[]", b"", b"", b""), "too long"),
    "many rows": (packed_step((2, 0, 2**26, 0), b"[]", b"", b"", b""), "too long"),
    "names": (packed_step((2, 0, 0, 0), b"{}", b"", b"", b""), "header is malformed"),
    "stream": (packed_step((2, 0, 0, 0), b"[]" + bytes(200_000_000), b"", b"", b""), "length is not the one"),
    "bins": (packed_step((2, 0, 0, 9), b"[]", bytes(200_000_000), b"", b""), "length is not the one"),
    "events": (sql("INSERT INTO events VALUES (1, X'FF')"), "an invalid event of type bytes"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "good", [("train", 0, 0), ("train", 1, 1)])


@pytest.mark.few(12)
@pytest.mark.parametrize(("harm", "said"), REFUSED.values(), ids=list(REFUSED))
def test_a_broken_run_is_refused_in_one_line(
    good: Path, tmp_path: Path, harm: Break, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    harm(run / "rank0.sqlite")
    with pytest.raises(InputError) as refused:
        page_of_run(run)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)

    assert main(["runs", "open", str(run), "--output", str(tmp_path / "run.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_copies_and_pipes_in_the_folder_are_not_read(good: Path, tmp_path: Path) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    shutil.copy(run / "rank0.sqlite", run / "rank0 (copy).sqlite")
    shutil.copy(run / "rank0.sqlite", run / "rank0-copy.sqlite")
    for pipe in ("rank1.sqlite", "rank0.lock", "rank0.json"):
        os.mkfifo(run / pipe)
    found = watched_run(run)
    assert (found.ranks, found.steps(), found.missing) == (1, [0, 1], ())
    assert watched_run(run / "rank0 (copy).sqlite").steps() == [0, 1]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file or a folder: give a saved or watched run"):
        watched_run(tmp_path / "pipe")


def test_one_broken_run_hides_no_other(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(good, tmp_path / "good")
    shutil.copytree(good, tmp_path / "bad")
    sql("UPDATE steps SET step = 'x'")(tmp_path / "bad" / "rank0.sqlite")
    assert main(["runs", "list", str(tmp_path), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "good" in said.out
    assert "bad" not in said.out


def test_absent_processes_are_counted_rather_than_listed_one_by_one(
    good: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    about("processes", "1000")(run / "rank0.sqlite")
    *named, others = watched_run(run).missing
    assert str(named[0]) == "rank 1 of 1000 recorded nothing"
    assert str(others) == "983 other ranks of 1000 recorded nothing"


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "1e999", '{"x": [-1e999]}'])
def test_a_number_that_is_not_finite_is_refused(text: str) -> None:
    """A page could not draw it. Python reads 1e999, which no float can hold, as infinity."""
    with pytest.raises(BrokenRunError, match="has JSON that cannot be read"):
        json_of(text)
    assert json_of("[1e300, -0.5]") == [1e300, -0.5]


def test_custom_statistics_of_an_older_file_are_read() -> None:
    """A step of version 3 has the columns of its series, then those of its rows.

    Of each series: number, row, whether units can die, saturated, and the custom statistics. Of
    each row: five counts and seven statistics, whether its extremes are exact, and the number of
    its bins. At last come the numbers of all bins, and their counts.
    """
    header = json.dumps({**HEADER, "bins": 2, "custom": ["spread", "peak"]}).encode()
    of_series = struct.pack("<QIBddd", 7, 0, 1, 0.25, 2.5, 4.0)
    of_row = struct.pack("<5Q7dBH", 9, 4, 1, 0, 2, 0.5, 1.5, -1.0, 3.0, 0.1, 0.0, 8.0, 1, 2)
    bins = struct.pack("<2H2I", 1000, 1001, 3, 70_000)
    data = struct.pack("<I", len(header)) + header + of_series + of_row + bins
    found = read_version_3(zlib.compress(data))[7]
    assert found.custom == {"spread": 2.5, "peak": 4.0}
    assert (found.numel, found.sampled, found.nan, found.saturated) == (9, 4, 1, 0.25)
    assert (found.mean, found.max, found.is_exact) == (0.5, 3.0, True)
    assert found.counts == {1000: 3, 1001: 70_000}
