"""The file of a run."""

from __future__ import annotations

import functools
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.opening import watched_run
from tests.watching.test_distributions import of
from torchscan.notes import Note
from torchscan.watching.run_database import StoreError
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Phase, RunEvent, SampledStep, Series
from torchscan.watching.store import KEPT, Store, thinned_out

ONE = Series(path="a", type_name="Linear", kind="output", name="0")
OTHER = Series(path="a", type_name="Linear", kind="param", name="weight")
NOTE = Note.of("run-continued", step=5)


@functools.cache  # ranks and sessions write the same steps
def watched(step: int, phase: Phase = "train") -> SampledStep:
    return SampledStep(
        step=step,
        phase=phase,
        number=step,
        time=1.5,
        distributions={1: of(torch.tensor([float(step)]))},
    )


def steps(path: Path, phase: Phase = "train") -> list[int]:
    reader = Reader(path)
    found = [each.step for each in reader.steps(phase)]
    reader.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "rank0.sqlite"


def test_what_was_written_is_read(path: Path) -> None:
    store = Store(path, {"model": "Net"})
    assert (store.number_of(ONE), store.number_of(OTHER), store.number_of(ONE)) == (1, 2, 1)
    for each in (watched(3), watched(5), watched(5, "eval")):
        store.write(each)
    store.note(NOTE, 1.0)
    reader = Reader(path)  # while it is written
    assert (reader.about(), reader.series()) == ({"model": "Net"}, {1: ONE, 2: OTHER})
    found = [
        replace(each, distributions=dict(each.distributions)) for each in reader.steps("train")
    ]
    assert repr(found) == repr([watched(3), watched(5)])
    assert (reader.last("train"), reader.last("eval")) == ((5, 5), (5, 5))
    assert reader.events() == [RunEvent(time=1.0, rank=None, note=NOTE)]
    reader.close()
    store.close()


def test_steps_of_one_transaction_are_numbered_by_phase(path: Path) -> None:
    with closing(Store(path, {})) as store:
        store.write(watched(1))
        store.write_steps([watched(2), watched(2, "eval"), watched(3)])
    assert steps(path) == [1, 2, 3]
    assert steps(path, "eval") == [2]


def test_it_goes_on_where_it_was(path: Path) -> None:
    store = Store(path, {})
    store.number_of(ONE)
    store.write(watched(0))
    store.close()
    again = Store(path, {})
    assert (again.number_of(OTHER), again.number_of(ONE)) == (2, 1)
    again.write(watched(1))
    again.close()
    assert steps(path) == [0, 1]


def test_from_a_checkpoint_on_steps_come_again(path: Path) -> None:
    store = Store(path, {})
    for step in range(10):
        store.write(watched(step))
    store.forget_from(6)
    for step in range(6, 9):
        store.write(watched(step))
    store.close()
    assert steps(path) == list(range(9))


def test_old_steps_are_thinned_out() -> None:
    """The newest stay; of older ones the fewer the older they are, and none that is gone is needed again."""
    rows, count = set[int](), 64 * KEPT
    for written in range(count):
        rows.add(written)
        gone = set(thinned_out(written))
        assert gone <= rows
        rows -= gone
    assert set(range(count - KEPT, count)) <= rows
    for age in (KEPT, 4 * KEPT, 32 * KEPT - 1):
        gaps = [
            one - other
            for one, other in zip(sorted(rows)[1:], sorted(rows), strict=False)
            if count - one > age
        ]
        assert max(gaps, default=0) <= 2 * count / KEPT
    assert len(rows) <= KEPT * 5
    assert min(rows) == 0


def test_the_thinning_is_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchscan.watching.store.KEPT", 8)
    store = Store(path, {})
    for step in range(40):
        store.write(watched(step))
    store.close()
    found = steps(path)
    assert found[-8:] == list(range(32, 40))
    assert len(found) < 24


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, by any means " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Reader(tmp_path / "text")
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="another SQLite database: give a run"):
        Store(tmp_path / "other", {})
    with closing(sqlite3.connect(tmp_path / "newer")) as newer:
        newer.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="schema 7, and this torchscan reads up to 4: update"):
        Reader(tmp_path / "newer")
    with pytest.raises(StoreError, match="does not exist"):
        Reader(tmp_path / "nothing")


def test_sentences_of_an_older_file_are_notes(path: Path) -> None:
    lost = [{"phase": "train", "first": 1, "last": 2, "count": 2, "why": "it was slow"}]
    Store(path, {"model": "Net", "lost": lost, "missing": ["rank 1 is missing"]}).close()
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("INSERT INTO events VALUES (1.0, 'step 3: NaN')")
        old.execute("PRAGMA user_version = 2")
    events = [RunEvent(time=1.0, rank=None, note=Note.from_text("step 3: NaN"))]
    with closing(Reader(path)) as reader:
        assert reader.events() == events
    run = watched_run(path)
    assert [str(each) for each in run.lost] == ["2 steps, 1 to 2 (it was slow)"]
    assert run.missing == (Note.from_text("rank 1 is missing"),)

    store = Store(path, {})  # which is continued
    store.note(NOTE, 2.0)
    store.close()
    with closing(Reader(path)) as reader:
        assert reader.events() == [*events, RunEvent(time=2.0, rank=None, note=NOTE)]


def test_notes_of_the_user_are_events_with_a_sentence(path: Path) -> None:
    store = Store(path, {})
    store.note(Note.of("user-note", text="epoch 3", step=40), 1.0)
    store.note(Note.of("paused", step=41), 2.0)
    store.note(Note.of("resumed", step=50), 3.0)
    store.close()
    sentences = [str(event) for event in watched_run(path).events]
    assert sentences == [
        "note at step 40: epoch 3",
        "watching was paused at step 41",
        "watching was resumed at step 50",
    ]


@pytest.mark.parametrize(
    "what", ["step 3: NaN", "[]", '{"code": 3, "values": {}}', '{"code": "x"}', '"x"', "NaN"]
)
def test_an_event_that_is_not_a_note_is_refused(path: Path, what: str) -> None:
    Store(path, {}).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO events VALUES (1.0, ?)", (what,))
    with closing(Reader(path)) as reader, pytest.raises(StoreError):
        reader.events()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises((StoreError, OSError)):
        Store(tmp_path / "run" / "rank0.sqlite", {})


def test_a_reader_in_the_process_of_the_store_leaves_its_log_alone(path: Path) -> None:
    """Closing a file that a process has opened by itself takes SQLite's locks away, and then others remove the log."""
    store = Store(path, {})
    with closing(Reader(path)):
        pass
    query = "print(*database.execute('SELECT count(*) FROM steps').fetchone()); database.close()"
    count = f"import sqlite3; database = sqlite3.connect({str(path)!r}); {query}"
    assert run_python(count) == "0"
    store.write(watched(3))
    assert run_python(count) == "1"
    store.close()


def run_python(code: str) -> str:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
