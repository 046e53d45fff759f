"""Where steps go besides the run's own file: each is written by training that is watched, and read by its own reader."""

from __future__ import annotations

import contextlib
import html
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.browsing import opened
from tests.opening import watched_run
from tests.watching.test_sink_values import distribution
from tests.watching.test_watcher import HERE, is_alive, net, told, train, without_waiting
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.notes import Note
from torchscan.sinks import Aim, MLflow, Sink, SinkData, TensorBoard, Video, WandB
from torchscan.types import Distribution, Series, WatchedRun
from torchscan.watching.distributions import bounds, quantiles
from torchscan.watching.schema import CurvePoint, Phase
from torchscan.watching.sinks import color_scales, frames
from torchscan.watching.sinks.sink import histogram, limited_histogram, to_statistics
from torchscan.watching.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch


def watched(
    folder: Path, *sinks: Sink, steps: int = 3, model: nn.Module | None = None, **asked: Any
) -> WatchedRun:
    """A run with an evaluation after each step."""
    model = net() if model is None else model

    def evaluate(_: int) -> None:
        with torch.no_grad():
            model(torch.rand(8, 4))

    with watch(model, folder / "run", **{"every": 1, **asked}, sinks=sinks):
        train(model, steps, each=evaluate)
    run = watched_run(folder / "run")
    assert isinstance(run, WatchedRun)
    assert run.events == ()
    return run


def each_step(run: WatchedRun, phase: Any) -> Iterator[tuple[str, int, Distribution]]:
    """What a series is called, the step, and what the run itself knows."""
    for series in run.series:
        history = run.history(series, phase)
        for step, found in zip(history.steps, history.distributions, strict=True):
            yield series.label, step, found


def until(is_so: Callable[[], object], seconds: float = 240.0) -> float:
    """How long it took, on a machine that may be so busy that it has little time for a worker, which is nice."""
    start = time.monotonic()
    while not is_so() and time.monotonic() < start + seconds:
        time.sleep(0.02)
    assert is_so()
    return time.monotonic() - start


KILLED = """
    import sys, time, torch, torchscan
    from torch import nn
    {before}
    if __name__ == "__main__":
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        options = dict(every=1, start="fork", sinks=[{sink}])
        watcher = torchscan.watch(model, sys.argv[1] + "/run", **options)
        print(watcher._process.number, flush=True)
        for step in range(100_000):
            model(torch.rand(8, 4)).square().mean().backward()
            time.sleep(0.05)
"""


def killed(
    folder: Path, sink: str, is_there: Callable[[], object], before: str = ""
) -> tuple[int, float]:
    """A trainer that is killed once something is there: the number of its worker, and how long that lived on."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(KILLED).format(sink=sink, before=textwrap.dedent(before)))
    call = [sys.executable, str(script), str(folder)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=HERE) as trainer:  # noqa: S603
        assert trainer.stdout is not None
        worker = int(trainer.stdout.readline())
        try:
            until(is_there)
        finally:
            trainer.send_signal(signal.SIGKILL)
    return worker, until(lambda: not is_alive(worker))  # it writes what was trained before


# -- what all have in common ---------------------------------------------------------------------------------------------


def test_a_package_that_is_missing_is_told_of_where_the_user_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "torchscan.watching.sinks.sink.find_spec",
        lambda name: None if name == "tensorboard" else util.find_spec(name),
    )
    with pytest.raises(InputError, match=r"TensorBoard needs tensorboard: pip install tensorboard"):
        TensorBoard("folder")


# -- curves and notes ----------------------------------------------------------------------------------------------------

#: of three steps, of which the first was sampled
POINTS = [
    CurvePoint(0, 0, 1e9, 2.0, 0.1, 3.0),
    CurvePoint(1, 1, 1e9 + 1, 1.5, 0.1, None),
    CurvePoint(2, 2, 1e9 + 2, 1.25, 0.05, None),
]
LOSSES = [(0, 2.0), (1, 1.5), (2, 1.25)]


def show_curves(sink: Sink, folder: Path) -> None:
    """A step, the curves up to the third one, an evaluation and a note, as a worker hands them over."""
    sink.on_open(folder)
    sink.on_data(SinkData(step=0, phase="train", number=0, time=1e9, distributions={}))
    sink.on_curves("train", POINTS)
    sink.on_curves("eval", [CurvePoint(3, 0, 1e9 + 3, 1.75, None, None)])
    sink.on_note(Note.of("user-note", text="epoch 1", step=3))
    sink.on_close()


def test_curves_and_notes_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    show_curves(TensorBoard(tmp_path / "board"), tmp_path)
    read = events_in(tmp_path / "board")
    assert [(each.step, each.value) for each in read.Scalars("train/loss")] == LOSSES
    assert [each.step for each in read.Scalars("train/gradient_norm")] == [0]
    assert read.Scalars("train/learning_rate")[2].value == pytest.approx(0.05)
    assert read.Scalars("eval/loss")[0].value == 1.75
    (note,) = read.Tensors("notes")
    assert (note.step, note.tensor_proto.string_val[0]) == (3, b"epoch 1")


@pytest.mark.sweep
def test_curves_and_notes_in_weights_and_biases(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    show_curves(WandB(mode="offline", dir=str(tmp_path), page_every=None), tmp_path)
    wandb.teardown()  # workers of later tests would use its process, which the environment names
    until(lambda: len(rows_in(tmp_path)) == 4)
    rows = rows_in(tmp_path)
    assert [(step, row["train/loss"]) for step, row in sorted(rows.items())[:3]] == LOSSES
    assert rows[0]["train/gradient_norm"] == 3.0
    assert "train/gradient_norm" not in rows[1]
    assert (rows[3]["eval/loss"], rows[3]["note"]) == (1.75, "epoch 1")


@pytest.mark.sweep
def test_curves_and_notes_in_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    show_curves(MLflow((tmp_path / "mlruns").as_uri(), "curves"), tmp_path)
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("curves").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == LOSSES
    assert run.data.metrics["eval/loss"] == 1.75
    assert run.data.tags["note.3"] == "epoch 1"


def test_curves_and_notes_in_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackio reads its folder from the environment, once."""
    pytest.importorskip("trackio", reason="Trackio is not installed")
    code = f"""
        import json
        from pathlib import Path
        from trackio.sqlite_storage import SQLiteStorage
        from tests.watching.test_sinks import show_curves
        from torchscan.sinks import Trackio
        show_curves(Trackio("curves", name="first"), Path({str(tmp_path)!r}))
        print(json.dumps(SQLiteStorage.get_logs("curves", "first")))
    """
    rows = json.loads(in_trackio(code, tmp_path))
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == LOSSES
    assert [row["train/gradient_norm"] for row in rows if "train/gradient_norm" in row] == [3.0]
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [1.75]
    assert [row["note"]["_value"] for row in rows if "note" in row] == ["epoch 1"]


def in_trackio(code: str, folder: Path) -> str:
    """What a program prints whose Trackio writes to this folder."""
    return subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "TRACKIO_DIR": str(folder / "trackio")},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout


def test_trackio_has_what_the_run_has(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="Trackio is not installed")
    code = f"""
        import json
        from pathlib import Path
        from trackio.sqlite_storage import SQLiteStorage
        from tests.watching.test_sinks import watched
        from torchscan.sinks import Trackio
        if __name__ == "__main__":
            watched(Path({str(tmp_path)!r}), Trackio("values", name="first"))
            print(json.dumps(SQLiteStorage.get_logs("values", "first")))
    """
    rows = json.loads(in_trackio(code, tmp_path))
    run = watched_run(tmp_path / "run")
    for phase in ("train", "eval"):
        for label, step, found in each_step(run, phase):
            name = f"{phase}/{label}"
            (row,) = (each for each in rows if each["step"] == step and name in each)
            edges, counts = limited_histogram(found)
            assert row[name]["values"] == counts
            assert row[name]["bins"] == pytest.approx(edges)
            for statistic, value in to_statistics(found).items():
                assert row[f"{name}/{statistic}"] == pytest.approx(value)


def tracked_in(repo: Path) -> Callable[..., dict[int, Any]]:
    """The values of a series in the only run of a repository, which ``aim up`` would index, by step."""
    aim = pytest.importorskip("aim", reason="Aim is not installed")
    contexts = pytest.importorskip("aim.storage.context", reason="Aim is not installed")
    indexing = pytest.importorskip("aim.sdk.index_manager", reason="Aim is not installed")
    opened_repo = aim.Repo(str(repo))
    (name,) = opened_repo.list_all_runs()
    indexing.RepoIndexManager.get_index_manager(opened_repo).index(name)
    run = aim.Run(name, repo=str(repo), read_only=True)

    def of(name: str, phase: str, kind: str = "metric") -> dict[int, Any]:
        found = getattr(run, f"get_{kind}")(name, contexts.Context({"subset": phase}))
        if kind == "metric":  # its values are stored under hashes of the steps
            frame = found.dataframe()
            return dict(zip(frame["step"], frame["value"], strict=True))
        return dict(zip(*found.values.sparse_list(), strict=True))

    return of


def test_curves_and_notes_in_aim(tmp_path: Path) -> None:
    pytest.importorskip("aim", reason="Aim is not installed")
    show_curves(Aim(tmp_path / "aim", experiment="curves"), tmp_path)
    tracked = tracked_in(tmp_path / "aim")
    assert tracked("loss", "train") == dict(LOSSES)
    assert tracked("gradient_norm", "train") == {0: 3.0}
    assert tracked("loss", "eval") == {3: 1.75}
    (note,) = tracked("note", "train", "text_sequence").values()
    assert note.data == "epoch 1"


def test_aim_has_what_the_run_has(tmp_path: Path) -> None:
    pytest.importorskip("aim", reason="Aim is not installed")
    watched(tmp_path, Aim(tmp_path / "aim"))
    run = watched_run(tmp_path / "run")
    tracked = tracked_in(tmp_path / "aim")
    for phase in ("train", "eval"):
        for label, step, found in each_step(run, phase):
            kept = tracked(label, phase, "distribution_sequence")[step]
            edges, counts = histogram(found)
            assert kept.range == pytest.approx([edges[0], edges[-1]])
            assert kept.weights.sum() == pytest.approx(sum(counts))
            for statistic, value in to_statistics(found).items():
                assert tracked(f"{label}/{statistic}", phase)[step] == pytest.approx(value)


def test_curves_of_a_run_that_is_there(tmp_path: Path) -> None:
    run = watched(tmp_path)
    store = Store(run.path / "rank0.sqlite", {})
    store.write_curves({"train": POINTS})
    store.note(Note.of("user-note", text="epoch 1", step=3))
    store.close()
    run.export(sink := Remembers())
    assert [point for phase, point in sink.points if phase == "train"] == POINTS
    assert {phase for phase, _ in sink.points} == {"train", "eval"}
    assert [note.values["text"] for note in sink.notes] == ["epoch 1"]


# -- TensorBoard ---------------------------------------------------------------------------------------------------------


def events_in(folder: Path) -> Any:
    """TensorBoard's own reader."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0})
    read.Reload()
    return read


def test_tensorboard_has_what_the_run_has(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = watched(tmp_path, TensorBoard(tmp_path / "board"), custom={"largest": largest})
    read = events_in(tmp_path / "board")
    for phase in ("train", "eval"):
        for said, step, found in each_step(run, phase):
            (event,) = (each for each in read.Histograms(f"{phase}/{said}") if each.step == step)
            value = event.histogram_value
            assert (value.num, sum(value.bucket)) == (found.sampled, found.sampled)
            assert (value.min, value.max) == (found.min, found.max)
            assert [count for count in value.bucket if count] == [
                count for *_, count in sorted(bars(found))
            ]
            assert value.bucket_limit == sorted(set(value.bucket_limit)), "they grow"
            assert value.sum == pytest.approx(found.mean * found.sampled, abs=1e-6)
            for name, figure in to_statistics(found).items():
                (scalar,) = (
                    each for each in read.Scalars(f"{phase}/{said}/{name}") if each.step == step
                )
                assert scalar.value == pytest.approx(figure, rel=1e-6), name
    assert len(read.Histograms("train/0.weight")) == 3
    assert {"train/0.weight/update", "eval/1 output/largest"} <= set(read.Tags()["scalars"])


def bars(found: Distribution) -> list[tuple[float, int]]:
    return [(bounds(number)[0], count) for number, count in found.counts.items()]


def largest(values: Tensor) -> float:
    return values.max().item()


@pytest.mark.sweep
def test_tensorboard_s_file_of_a_trainer_that_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = tmp_path / "board"

    def has_some() -> bool:
        return any(file.stat().st_size > 100_000 for file in board.glob("events*"))

    killed(tmp_path, f"torchscan.sinks.TensorBoard({str(board)!r})", has_some)
    assert len(events_in(board).Histograms("train/0.weight")) > 5


# -- Weights & Biases ----------------------------------------------------------------------------------------------------


def records_in(path: Path) -> Iterator[Any]:
    """Of the file of a run that is offline: after seven bytes blocks of 32 KiB with pieces of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:  # the rest of a block has no room for another piece
            at = -(-at // 32768) * 32768
            continue
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if at % 32768 > 32768 - 7:
            at = -(-at // 32768) * 32768
        if kind in (1, 4):  # all of it, or the last piece
            yield Record.FromString(record)
            record = b""


def rows_in(folder: Path) -> dict[int, dict[str, Any]]:
    """What was logged at each step."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = [_row(each.history) for each in records_in(path) if each.HasField("history")]
    return {row["_step"]: row for row in rows}


def _row(history: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for item in history.item:
        *outer, name = item.nested_key or [item.key]
        place = row
        for each in outer:
            place = place.setdefault(each, {})
        place[name] = json.loads(item.value_json)
    return row


@pytest.mark.sweep
def test_weights_and_biases_has_what_the_run_has(tmp_path: Path) -> None:
    """Of a short run, the page is that of its end."""
    pytest.importorskip("wandb")
    run = watched(tmp_path, WandB("project", mode="offline", dir=str(tmp_path)))
    rows = rows_in(tmp_path)
    assert sorted(rows) == [0, 1, 2, 3]
    for phase in ("train", "eval"):
        for said, step, found in each_step(run, phase):
            row, name = rows[step], f"{phase}/{said}"
            edges, counts = histogram(found)
            assert row[name]["_type"] == "histogram"
            assert row[name]["values"] == counts
            assert row[name]["bins"] == pytest.approx(edges)
            for figure, value in to_statistics(found).items():
                assert row[f"{name}/{figure}"] == pytest.approx(value)
    (page,) = pages_in(tmp_path)
    assert '"last_step": 2' in page or "step 2" in page


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks the kernel for processes")
@pytest.mark.sweep
def test_weights_and_biases_own_process_ends_with_training(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    model = net()
    sink = WandB(mode="offline", dir=str(tmp_path), page_every=None)
    with watch(model, tmp_path / "run", every=1, sinks=[sink]) as watcher:
        train(model, 3)
        until(lambda: services_of(watcher._process.number))
    until(lambda: not services_of(watcher._process.number))

    def has_some() -> bool:
        return any(
            file.stat().st_size > 40_000  # more than a block
            for file in (tmp_path / "killed").glob("wandb/offline-run-*/run-*.wandb")
        )

    (tmp_path / "killed").mkdir()
    worker, _ = killed(
        tmp_path / "killed",
        f"torchscan.sinks.WandB(mode='offline', dir={str(tmp_path / 'killed')!r}, page_every=None)",
        has_some,
    )
    until(lambda: not services_of(worker))
    assert len(rows_in(tmp_path / "killed")) > 5


def services_of(worker: int) -> list[str]:
    """Processes that Weights & Biases has started for it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            call = file.read_bytes().split(b"\0")
            found += (
                [file.parent.name]
                if {b"--pid", str(worker).encode()} <= {*call} and is_alive(int(file.parent.name))
                else []
            )
    return found


@pytest.mark.sweep
def test_weights_and_biases_takes_no_step_twice(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    model = net()
    with (
        told() as texts,
        watch(
            model, tmp_path / "run", every=1, sinks=[WandB(mode="offline", dir=str(tmp_path))]
        ) as watcher,
    ):
        watcher.step(5)
        train(model, 1)
        watcher.step(2)
        train(model, 1)
    assert len(texts) == 1
    assert "ValueError: step 2 comes after step 5, and W&B accepts only later steps" in texts[0]


@pytest.mark.sweep
def test_weights_and_biases_has_the_page_of_the_run(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    model = net()
    with watch(
        model,
        tmp_path / "run",
        every=1,
        sinks=[WandB(mode="offline", dir=str(tmp_path), page_every=0.1)],
    ):
        until(lambda: train(model, 1) or pages_in(tmp_path), 60)
        train(model, 2)
    pages = pages_in(tmp_path)
    framed = tmp_path / "panel.html"
    framed.write_text(
        f'<iframe sandbox="allow-scripts" width="900" height="700" srcdoc="{html.escape(pages[-1])}"></iframe>'
    )
    with opened(browser, framed) as page:
        inside = page.frame_locator("iframe")
        inside.locator(".node[data-name='0']").focus()
        page.keyboard.press("Enter")
        inside.locator(".card").nth(1).locator("figure").first.wait_for()
        assert "· step " in inside.locator(".question").inner_text()


def pages_in(folder: Path) -> list[str]:
    """Those that were logged, in their order."""
    files = list(folder.glob("wandb/offline-run-*/files/media/html/page_*.html"))
    return [
        file.read_text() for file in sorted(files, key=lambda file: int(file.name.split("_")[1]))
    ]


@pytest.mark.parametrize("every", [0, -1.0])
def test_pages_come_after_some_time(every: float) -> None:
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match="page_every is"):
        WandB(page_every=every)


# -- MLflow --------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_mlflow_has_what_the_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "mlruns").as_uri()
    run = watched(tmp_path, MLflow(uri, "first", tags={"mine": "yes"}), model=Twice())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(uri)
    (written,) = client.search_runs([client.get_experiment_by_name("first").experiment_id])
    assert (written.info.status, written.data.tags["mine"]) == ("FINISHED", "yes")
    folder = Path(client.download_artifacts(written.info.run_id, "histograms"))
    for phase in ("train", "eval"):
        for said, step, found in each_step(run, phase):
            name = f"{phase}/{said}".replace("(", "_").replace(")", "_")
            known = to_statistics(found) | {"median": quantiles(found.counts, [0.5])[0]}
            for figure, value in known.items():
                metrics = client.get_metric_history(written.info.run_id, f"{name}/{figure}")
                (metric,) = (each for each in metrics if each.step == step)
                assert metric.value == pytest.approx(value), figure
            (file,) = (folder / phase).glob(f"{step}-*.json")
            edges, counts = histogram(found)
            assert json.loads(file.read_text())[said] == {"edges": edges, "counts": counts}
    assert any("(2)" in each.label for each in run.series)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
@pytest.mark.sweep
def test_mlflow_run_of_the_user_s(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on after us."""
    mlflow = pytest.importorskip("mlflow")
    if scheme == "sqlite":
        pytest.importorskip("sqlalchemy")
        pytest.importorskip("alembic")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (
        (tmp_path / "mlruns").as_uri() if scheme == "file" else f"sqlite:///{tmp_path / 'runs.db'}"
    )
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("mine", artifact_location=(tmp_path / "files").as_uri())
    number = client.create_run(experiment).info.run_id
    watched(tmp_path, MLflow(uri, run_id=number, histograms=False))
    assert client.get_run(number).info.status == "RUNNING"
    assert [each.step for each in client.get_metric_history(number, "train/0.weight/mean")] == [
        0,
        1,
        2,
    ]
    assert client.list_artifacts(number) == []


# -- video ---------------------------------------------------------------------------------------------------------------


class Draws(nn.Module):
    """Of all that a video shows, one each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torchscan.attach(self.layer(x).relu(), self, "hidden")
        torchscan.attach(
            torch.stack([hidden.detach().flatten().sin(), hidden.detach().flatten().cos()], 1),
            self,
            "curve",
        )
        torchscan.attach(hidden.detach()[:1].reshape(1, 4, 8), self, "map")
        return self.table(hidden)


def frames_in(path: Path) -> list[Any]:
    """As pictures."""
    av = pytest.importorskip("av")
    with av.open(str(path)) as file:
        return [frame.to_image() for frame in file.decode(video=0)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "codec"), [("run.mp4", "h264"), ("run.webm", "vp9")])
def test_a_video_has_a_frame_for_each_step(name: str, codec: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / name).write_text("from another day")
    video = Video(tmp_path / name, ["Draws.*", "table.*", "* output"], size=(320, 240), codec=codec)
    run = watched(tmp_path, video, steps=6, model=Draws())
    frames = frames_in((tmp_path / name).with_stem("run-2"))
    assert (len(frames), frames[0].size) == (len(run.steps()), (320, 240))
    light = [sum(frame.convert("L").histogram()[100:]) / (320 * 240) for frame in frames]
    assert min(light) > 0.02, "something is drawn"
    assert (tmp_path / name).read_text() == "from another day"


@pytest.mark.sweep
def test_a_run_that_is_there_as_a_video(tmp_path: Path) -> None:
    run = watched(tmp_path)
    pytest.importorskip("av")
    run.export(Video(tmp_path / "eval.mp4", "* output", phase="eval"))
    assert len(frames_in(tmp_path / "eval.mp4")) == 3
    run.export(Video(tmp_path / "parts.mp4", "* output", max_frames=2))
    assert [len(frames_in(tmp_path / name)) for name in ("parts.mp4", "parts-2.mp4")] == [2, 1]


@pytest.mark.sweep
def test_a_video_of_a_trainer_that_was_killed_plays_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = tmp_path / "run.mp4"
    sink = f"torchscan.sinks.Video({str(path)!r}, ['0.weight', '2 output'])"

    def has_some() -> bool:
        return path.exists() and path.stat().st_size > 50_000

    killed(tmp_path, sink, has_some)
    run = watched_run(tmp_path / "run")
    assert isinstance(run, WatchedRun)
    assert len(frames_in(path)) >= len(run.steps()) - 1


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks the kernel for processes")
def test_a_video_whose_worker_was_killed_plays_to_its_last_fragment(tmp_path: Path) -> None:
    pytest.importorskip("av")
    model, path = net(), tmp_path / "run.mp4"
    with (
        told(),
        watch(model, tmp_path / "run", every=1, sinks=[Video(path, "0.weight")]) as watcher,
    ):
        train(model, 10, each=lambda _: time.sleep(0.05))
        until(lambda: playing(path) >= 5)
        os.kill(watcher._process.number, signal.SIGKILL)
    assert playing(path) >= 5


def test_values_of_a_series_that_there_is_none_of(tmp_path: Path) -> None:
    with told() as texts:
        watched(tmp_path, whole=["0.weight", "head.weight"])
    assert texts == [
        "whole has 'head.weight', which matched no series: choose from open_run(…).find()"
    ]


def test_a_thin_table_is_drawn_so_that_it_can_be_seen() -> None:
    """Two rows of a thousand columns would be less than a pixel high."""
    pytest.importorskip("PIL")
    shown = frames.FrameSeries(
        weight := Series(path="a", type_name="A", kind="param", name="weight"),
        distribution({254: 3}),
        None,
    )
    drawn = frames.Frames((320, 240))
    grounds = [
        drawn.draw("", "", [shown._replace(values=torch.zeros(shape) + 1)])
        for shape in ((2, 1_000), (1_000, 9))
    ]
    assert weight.label == "a.weight"
    for picture in grounds:
        colours_of = picture.crop((60, 80, 260, 190)).getcolors(100_000)
        assert max(count for count, _ in colours_of) < 0.9 * 200 * 110


def playing(path: Path) -> int:
    """How many frames there are so far."""
    try:
        return len(frames_in(path))
    except OSError:  # its header is not there yet
        return 0


SHAPES = {
    "lines": [(5,), (20, 2), (20, 8)],
    "picture": [(20, 9), (8, 8), (1, 8, 9), (1, 20, 2), (400, 300)],
    "histogram": [(3, 8, 9), (), (1,), (0, 3)],
}


@pytest.mark.parametrize(
    ("shape", "drawn"), [(shape, drawn) for drawn, shapes in SHAPES.items() for shape in shapes]
)
def test_how_a_tensor_is_drawn(shape: tuple[int, ...], drawn: str) -> None:
    assert frames.shape_of(torch.zeros(shape)) == drawn
    shown = frames.FrameSeries(
        Series(path="a", type_name="A", kind="output", name="0"),
        distribution({254: 3}),
        torch.zeros(shape),
    )
    pytest.importorskip("PIL")
    for values in (
        shown.values,
        torch.full(shape, float("nan")),
        torch.full(shape, float("inf")),
        None,
    ):
        for number in (1, 4, 16):
            picture = frames.Frames((320, 240)).draw(
                "step 1", "train", [shown._replace(values=values)] * number
            )
            assert picture.size == (320, 240)


def test_colours_grow_by_steps_that_look_equal() -> None:
    """Of what is left once it is bytes."""
    steps = lightness(color_scales.growing()).diff()
    assert steps.min() > 0.8 * steps.mean()
    assert steps.max() < 1.2 * steps.mean()
    around = lightness(color_scales.around_zero()).diff()
    assert around[:8].max() < 0 < around[8:].min()


def lightness(scale: Tensor) -> Tensor:
    """In OKLab."""
    light = [color_scales.to_light(f"#{bytes(each).hex()}") for each in scale[::15].tolist()]
    return color_scales.to_lab(torch.stack(light))[:, 0]


def test_wrong_arguments_of_a_video() -> None:
    pytest.importorskip("av")
    with pytest.raises(
        InputError, match=r"size is \(641, 480\): give two even numbers of pixels \(128 to 8192\)"
    ):
        Video("run.mp4", "*", size=(641, 480))


# -- runs that are there already -----------------------------------------------------------------------------------------


class Remembers(Sink):
    def __init__(self) -> None:
        self.seen: list[SinkData] = []
        self.points: list[tuple[Phase, CurvePoint]] = []
        self.notes: list[Note] = []
        self.is_closed = False

    def on_data(self, seen: SinkData) -> None:
        self.seen.append(seen)

    def on_curves(self, phase: Phase, points: Sequence[CurvePoint]) -> None:
        self.points += [(phase, point) for point in points]

    def on_note(self, note: Note) -> None:
        self.notes.append(note)

    def on_close(self) -> None:
        self.is_closed = True


def test_a_run_that_is_there_is_shown_in_the_order_of_time(tmp_path: Path) -> None:
    run = watched(tmp_path)
    run.export(sink := Remembers())
    assert sink.is_closed
    phases = [("train", 0), ("eval", 1), ("train", 1), ("eval", 2), ("train", 2), ("eval", 3)]
    assert [(each.phase, each.step) for each in sink.seen] == phases
    for seen in sink.seen:
        known = {
            said: found for said, step, found in each_step(run, seen.phase) if step == seen.step
        }
        assert {series.label: found.counts for series, found in seen.distributions.items()} == {
            said: found.counts for said, found in known.items()
        }


def test_all_ranks_of_a_run_are_shown_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        run = watched(tmp_path, steps=2)
    run.export(sink := Remembers())
    assert [(each.phase, each.step) for each in sink.seen].count(("train", 1)) == 1
    sizes = {series.label: found.sampled for series, found in sink.seen[0].distributions.items()}
    assert (run.ranks, sizes["0 output"]) == (2, 2 * 8 * 16)


def test_a_run_that_is_there_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = watched(tmp_path, TensorBoard(tmp_path / "live"))
    run.export(TensorBoard(tmp_path / "later"))
    live, later = events_in(tmp_path / "live"), events_in(tmp_path / "later")
    for kind in ("scalars", "histograms"):
        assert sorted(live.Tags()[kind]) == sorted(later.Tags()[kind])
    assert [(each.step, each.value) for each in live.Scalars("train/loss")] == [
        (each.step, each.value) for each in later.Scalars("train/loss")
    ]
    assert live.Histograms("eval/0 output") == later.Histograms("eval/0 output")


# -- sinks of the user's -------------------------------------------------------------------------------------------------


class Writes(Sink):
    """A line for each step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_data(self, seen: SinkData) -> None:
        with self.path.open("a") as file:
            file.write(f"{seen.phase} {seen.step}\n")

    def on_close(self) -> None:
        with self.path.open("a") as file:
            file.write("closed\n")


class Raises(Sink):
    def on_data(self, seen: SinkData) -> None:
        raise OSError("no room")


class Sleeps(Sink):
    timeout = 0.2

    def on_data(self, seen: SinkData) -> None:
        time.sleep(60)


def test_a_sink_that_raises_and_one_that_hangs_stop_nobody_but_themselves(tmp_path: Path) -> None:
    model = net()
    sinks = [Raises(), Sleeps(), Writes(tmp_path / "lines")]
    with told() as texts, watch(model, tmp_path / "run", every=1, sinks=sinks):
        train(model, 5)
    why = "is disabled: its on_data() raised"
    assert sorted(texts) == [
        f"sink Raises {why} OSError: no room",
        f"sink Sleeps {why} TimeoutError: it took longer than 0.2 s",
    ]
    run = watched_run(tmp_path / "run")
    assert isinstance(run, WatchedRun)
    assert run.steps() == [0, 1, 2, 3, 4]
    assert sorted(map(str, run.events)) == sorted(texts)
    assert (tmp_path / "lines").read_text().split("\n") == [
        *(f"train {step}" for step in range(5)),
        "closed",
        "",
    ]


def test_a_sink_that_is_shown_a_step_now_and_then(tmp_path: Path) -> None:
    seldom = Writes(tmp_path / "lines")
    seldom.frequency = 0.001
    watched(tmp_path, seldom, steps=5)
    assert (tmp_path / "lines").read_text().split("\n") == ["train 0", "closed", ""]


class Norms(Sink):
    whole = ("*.weight",)
    max_elements = 40

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_data(self, seen: SinkData) -> None:
        shapes = {
            series.label: tuple(values.shape)
            for series, values in seen.values.items()
            if series.kind == "param"
        }
        self.path.write_text(str(shapes))


def test_a_sink_that_asks_for_all_values(tmp_path: Path) -> None:
    """Those of ``0.weight`` are 64."""
    model = net()
    with watch(model, tmp_path / "run", every=1, sinks=[Norms(tmp_path / "shapes")], sample_n=50):
        train(model, 2)
    expected = {"0.weight": (50,), "0.bias": (16,), "2.weight": (2, 16), "2.bias": (2,)}
    assert (tmp_path / "shapes").read_text() == str(expected)


def test_sinks_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"sinks has <class .*Writes'>: give a list of torchscan\.sinks"
    ):
        watch(net(), tmp_path / "run", sinks=[Writes])  # type: ignore[list-item]
    with pytest.raises(
        InputError, match=r"whole is a single text: give a list, whole=\['0.weight'\]"
    ):
        watch(net(), tmp_path / "run", whole="0.weight")


SCRIPT = """
    import sys, torch, torchscan
    from torch import nn

    class Mine(torchscan.sinks.Sink):
        def __init__(self, path):
            self.path = path
        def on_data(self, seen):
            found = next(each for series, each in seen.distributions.items() if series.label == "0.weight")
            with open(self.path, "a") as file:
                file.write(f"{seen.step} {found.custom['largest']}\\n")

    def largest(values):
        return values.max().item()

    if __name__ == "__main__":
        folder, start = sys.argv[1:]
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        statistic = (lambda values: values.max().item()) if start == "fork" else largest
        mine, custom = Mine(folder + "/lines"), {"largest": statistic}
        with torchscan.watch(model, folder + "/run", every=1, sinks=[mine], custom=custom, start=start):
            for step in range(3):
                model(torch.rand(8, 4)).square().mean().backward()
        print(max(step for step in torchscan.open_run(folder + "/run").history("0.weight").statistic("largest")))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("start", ["spawn", "fork", "forkserver"])
def test_what_is_defined_in_the_user_s_program(start: str, tmp_path: Path) -> None:
    """Lambdas, too, where processes are forked."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    call = [sys.executable, "-W", "error", str(tmp_path / "train.py"), str(tmp_path), start]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=HERE)  # noqa: S603
    assert without_waiting(done.stderr) == []
    lines = [line.split() for line in (tmp_path / "lines").read_text().splitlines()]
    assert [step for step, _ in lines] == ["0", "1", "2"]
    assert max(float(value) for _, value in lines) == float(done.stdout)


HANGS = """
    from torchscan.watching import worker_pulse
    worker_pulse._MAX_BUSY = 4  # looks; the worker imports this, too
    class Hangs(torchscan.sinks.Sink):
        timeout = 1000.0
        def __init__(self, path):
            self.path = path
        def on_data(self, seen):
            open(self.path, "w").close()
            time.sleep(1000)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks the kernel for processes")
def test_the_worker_ends_while_a_sink_hangs(tmp_path: Path) -> None:
    path = tmp_path / "hangs"
    killed(tmp_path, f"Hangs({str(path)!r})", path.exists, before=HANGS)
