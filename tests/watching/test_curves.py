"""Loss, learning rate and gradient norm of each step: kept, thinned out, and of several ranks."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.sinks import Sink
from torchscan.watching.guests import Guest, Guests
from torchscan.watching.merging import merge
from torchscan.watching.run_database import StoreError
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks.sink import to_scalars
from torchscan.watching.store import Store
from torchscan.watching.worker_curves import CurveWriter

NAN = math.nan


def point(step: int, loss: float | None = 1.0, rate: float | None = 0.1) -> CurvePoint:
    return CurvePoint(step, step, 1000.0 + step, loss, rate, None)


def write(path: Path, points: list[CurvePoint], phase: Phase = "train") -> None:
    store = Store(path, {})
    store.write_curves({phase: points})
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "rank0.sqlite"


def test_every_value_comes_back(path: Path) -> None:
    points = [point(0, 0.5), point(1, NAN), point(2, math.inf), point(3, None, None)]
    write(path, [*points, CurvePoint(4, 4, 1004.0, 0.25, 0.1, 3.5)])
    found = watched_run(path).curves()
    assert (found.steps, found.numbers) == ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))
    assert repr(found.losses) == "(0.5, nan, inf, None, 0.25)"
    assert found.learning_rates == (0.1, 0.1, 0.1, None, 0.1)
    assert found.gradient_norms == (None, None, None, None, 3.5)
    assert found.times[4] == 1004.0
    assert found.to_dict()["losses"] == [0.5, "NaN", "Infinity", None, 0.25]
    assert repr(found) == "<Curves, train: 5 steps, 0 … 4>"
    assert "Learning rate" in str(found)


def test_text_has_both_ends_with_seconds_since_the_first_step(path: Path) -> None:
    write(path, [point(step) for step in range(100)])
    curves = watched_run(path).curves()
    heading, *rows = [line.split() for line in str(curves).splitlines() if line[:1] != "─"]
    assert heading[:4] == ["Step", "Number", "Time", "(s)"]
    assert [row[0] for row in rows[:41]] == [*map(str, range(20)), "…", *map(str, range(80, 100))]
    assert (rows[0][2], rows[19][2], rows[40][2]) == ("0", "19", "99")
    assert " ".join(rows[41]) == "60 steps are left out: to_pandas() has all."
    frame = curves.to_pandas()
    assert (len(frame), frame["time"][99]) == (100, 1099.0)


def test_phases_have_separate_curves(path: Path) -> None:
    write(path, [point(0)])
    write(path, [CurvePoint(7, 0, 1.0, 0.5, None, None)], "eval")
    run = watched_run(path)
    assert (run.curves().steps, run.curves("eval").steps) == ((0,), (7,))
    with pytest.raises(InputError, match="give 'train' or 'eval'"):
        run.curves("test")  # type: ignore[arg-type]


def test_a_step_that_comes_again_replaces_the_first(path: Path) -> None:
    """A worker that was killed is followed by another one, which may write a message again."""
    write(path, [point(0, 1.0), point(1, 2.0)])
    write(path, [point(1, 3.0)])
    assert watched_run(path).curves().losses == (1.0, 3.0)


def test_from_a_checkpoint_on_points_come_again(path: Path) -> None:
    store = Store(path, {})
    store.write_curves({"train": [point(step) for step in range(10)]})
    store.write_curves({"eval": [CurvePoint(6, 0, 1.0, 0.5, None, None)]})
    store.forget_from(6)
    store.close()
    run = watched_run(path)
    assert run.curves().steps == tuple(range(6))
    assert run.curves("eval").steps == (6,), "which ran before step 6"


@pytest.mark.sweep
def test_a_long_run_keeps_its_end_and_all_extremes(path: Path) -> None:
    """Of 40,960 steps the last 4,096 are complete; 36,864 older ones are in spans of 64."""
    count = 40_960
    lowest, highest, broken = 10_007, 20_011, 30_013
    losses = {lowest: -5.0, highest: 900.0, broken: NAN}
    store = Store(path, {})
    for start in range(0, count, 512):
        steps = range(start, start + 512)
        store.write_curves({"train": [point(step, losses.get(step, 1.0)) for step in steps]})
    store.close()
    found = watched_run(path).curves()
    assert set(range(count - 4096, count)) <= set(found.steps)
    assert {0, lowest, highest, broken} <= set(found.steps)
    by_step = dict(zip(found.steps, found.losses, strict=True))
    assert (by_step[lowest], by_step[highest]) == (-5.0, 900.0)
    assert str(by_step[broken]) == "nan"
    assert len(found) < 4096 + 1024 + 3 * 1024
    gaps = [after - before for before, after in zip(found.steps, found.steps[1:], strict=False)]
    assert max(gaps) <= 64


def test_the_loss_of_ranks_is_their_mean_and_the_rest_that_of_the_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = [CurvePoint(step, step, 10.0 + step, 1.0, 0.1, 5.0) for step in range(4)]
    second = [CurvePoint(step, step, 9.0 + step, 3.0, 0.2, 7.0) for step in (0, 2, 3, 4)]
    second[2] = second[2]._replace(loss=NAN)
    write(run / "rank0.sqlite", first)
    write(run / "rank1.sqlite", second)
    merge(run, tmp_path / "merged.sqlite")
    for found in (watched_run(run).curves(), watched_run(tmp_path / "merged.sqlite").curves()):
        assert found.steps == (0, 1, 2, 3, 4)
        # the second rank has dropped step 1, so its mean is not known; the first is not at 4 yet
        assert repr(found.losses) == "(2.0, None, 2.0, nan, 3.0)"
        assert found.learning_rates == (0.1, 0.1, 0.1, 0.1, None)
        assert found.gradient_norms == (5.0, 5.0, 5.0, 5.0, None)
        assert found.times == (9.0, 11.0, 11.0, 12.0, 13.0)


def test_older_files_have_no_curves_until_they_are_continued(path: Path) -> None:
    Store(path, {}).close()
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("DROP TABLE curves")
        old.execute("DROP TABLE layers")
        old.execute("PRAGMA user_version = 3")
    with closing(Reader(path)) as reader:
        assert (reader.curves("train"), reader.layer_columns("train")) == ([], [])
    write(path, [point(3)])
    assert watched_run(path).curves().steps == (3,)


@pytest.mark.parametrize(
    ("column", "value"), [("step", "x"), ("number", -1), ("time", -1.0), ("loss", "x")]
)
def test_broken_curves_are_refused(path: Path, column: str, value: object) -> None:
    write(path, [point(0)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE curves SET {column} = ?", (value,))  # noqa: S608
    with closing(Reader(path)) as reader, pytest.raises(StoreError, match="an invalid"):
        reader.curves("train")


def test_the_last_pass_may_be_one_that_was_not_sampled(path: Path) -> None:
    write(path, [point(step) for step in range(5)])
    with closing(Reader(path)) as reader:
        assert reader.last("train") is None
        assert reader.last_pass("train") == (4, 4)
        assert reader.last_pass("train", 2) == (2, 2)


def test_the_worker_writes_what_the_trainer_sends(tmp_path: Path) -> None:
    rows = [["train", 100, 100, 5.0, NAN, 0.1, None], ["eval", 101, 40, 6.0, 0.5, None, None]]
    about = {"optimizer": "AdamW", "batch": [64, 512], "precision": "float32", "device": "CPU"}
    with watch(torch.nn.Linear(2, 1), tmp_path / "run", graph=False) as watcher:
        watcher._process.send({"is": "curves", "rows": rows})
        watcher._process.send({"is": "about", "about": about})
    run = watched_run(tmp_path / "run")
    found = run.curves()
    assert (found.steps[-1], found.times[-1]) == (100, 5.0)
    assert repr((found.losses[-1], found.learning_rates[-1])) == "(nan, 0.1)"
    assert run.curves("eval").losses[-1] == 0.5
    assert about.items() <= run.about.items()


def test_known_values_of_a_point_have_names_for_other_tools() -> None:
    found = to_scalars("eval", CurvePoint(3, 1, 5.0, 0.5, None, 2.0))
    assert found == {"eval/loss": 0.5, "eval/gradient_norm": 2.0}


class Points(Sink):
    """A sink that keeps the points that it is shown."""

    def __init__(self) -> None:
        self.points: list[tuple[Phase, CurvePoint]] = []

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        """Keep points."""
        self.points += [(phase, each) for each in points]


class Session:
    """A session whose disk is full at first."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.written: list[tuple[Phase, CurvePoint]] = []

    def write_curves(self, points: Mapping[Phase, Sequence[CurvePoint]]) -> None:
        """Write points, or fail."""
        if self.num_failures:
            self.num_failures -= 1
            raise StoreError("the disk is full")
        for phase, each in points.items():
            self.written += [(phase, point) for point in each]


def test_sinks_are_shown_points_that_cannot_be_written_yet() -> None:
    sink = Points()
    guests = Guests(lambda _: None)
    guests.admit(Guest(sinks=[sink]))
    session: Any = Session(num_failures=1)
    writer = CurveWriter(session, guests)
    first, second = ["train", *point(0)], ["eval", *point(1)]
    shown = [("train", point(0)), ("eval", point(1))]
    with pytest.raises(StoreError):
        writer.take([first])
    assert (sink.points, session.written) == (shown[:1], [])
    writer.take([second])
    assert (sink.points, session.written) == (shown, shown)
