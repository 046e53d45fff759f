"""Training that is watched: what is recorded, and that nothing is changed."""

from __future__ import annotations

import copy
import io
import math
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.modules import module as hooks_of_torch
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.forked import call
from tests.opening import watched_run
from tests.ranks.processes import in_processes
from tests.recording.test_record import Calls
from tests.torchvision_cpu import torchvision
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.types import WatchedRun

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch

TORCH = TorchVersion(torch.__version__)
shards_on_cpus = pytest.mark.skipif(TORCH < "2.7", reason="torch 2.6 shards on devices alone")
X = torch.rand(8, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def train(
    model: nn.Module, steps: int, x: Tensor = X, each: Callable[[int], object] = lambda _: None
) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        result = model(x)
        loss = (result[0] if isinstance(result, tuple) else result).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        each(step)
    return losses


@contextmanager
def told() -> Iterator[list[str]]:
    """What the user is warned of."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield texts
    texts += [str(each.message) for each in said]


def without_waiting(errors: str) -> list[str]:
    """Lines on standard error, without those that a machine that is busy adds: close() waits for the worker."""
    return [
        line
        for line in errors.splitlines()
        if not line.endswith("is still being written; press Ctrl-C to stop waiting")
    ]


@pytest.fixture(autouse=True)
def _no_hooks_are_left() -> Iterator[None]:
    before = (
        len(hooks_of_torch._global_forward_pre_hooks),
        len(hooks_of_torch._global_forward_hooks),
    )
    yield
    assert (
        len(hooks_of_torch._global_forward_pre_hooks),
        len(hooks_of_torch._global_forward_hooks),
    ) == before


# -- what is recorded ----------------------------------------------------------------------------------------------------


def test_everything_of_a_small_model(tmp_path: Path) -> None:
    """Its tensors have fewer values than are sampled, so figures are those of all."""
    model, expected = net(), net()
    kinds = ("inputs", "outputs", "input_grads", "output_grads", "params", "param_grads")
    with watch(model, tmp_path / "run", every=1, log=kinds):
        train(model, 3)
    run = watched_run(tmp_path / "run")
    assert isinstance(run, WatchedRun)
    assert (run.about["model"], run.about["parameters"], run.steps(), run.ranks) == (
        "Sequential",
        4 * 16 + 16 + 34,
        [0, 1, 2],
        1,
    )

    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    hidden = expected[0](X)
    active = torch.relu(hidden)
    result = expected[2](active)
    for tensor in (hidden, active, result):
        tensor.retain_grad()
    result.square().mean().backward()
    weights = [each.detach().clone() for each in expected.parameters()]
    gradients = {
        "0.weight gradient": expected[0].weight.grad,
        "2.bias gradient": expected[2].bias.grad,
        "0 output gradient": hidden.grad,
        "1 output gradient": active.grad,
        "1 input gradient": hidden.grad,
        "2 output gradient": result.grad,
        "Sequential output gradient": result.grad,
    }
    optimizer.step()
    tensors = {
        "Sequential input": X,
        "0 input": X,
        "0 output": hidden,
        "1 input": hidden,
        "1 output": active,
        "2 output": result,
    }
    tensors |= {f"{name}": each for name, each in expected.named_parameters()}
    for said, tensor in {**tensors, **gradients}.items():
        assert tensor is not None
        history = run.history(said)
        found = history.distributions[0]
        assert (found.numel, found.sampled, found.nan, found.inf) == (
            tensor.numel(),
            tensor.numel(),
            0,
            0,
        ), said
        assert found.mean == pytest.approx(tensor.mean().item(), abs=1e-6), said
        assert found.std == pytest.approx(tensor.std(correction=0).item(), abs=1e-6), said
        assert (found.min, found.max) == (tensor.min().item(), tensor.max().item()), said
    for before, (name, after) in zip(weights, expected.named_parameters(), strict=True):
        change = ((after - before).norm() / before.norm()).item()
        assert run.history(name).distributions[0].update == pytest.approx(change, rel=1e-4)
    names = {each.label for each in run.series}
    assert {"0 input gradient", "Sequential input gradient"}.isdisjoint(names), (
        "nobody asks for those"
    )
    assert set(tensors) | set(gradients) <= names


def test_the_frame_has_a_row_for_each_series_and_step(tmp_path: Path) -> None:
    with watch(model := net(), tmp_path / "run", every=1, log=("outputs",)):
        train(model, 2)
    frame = watched_run(tmp_path / "run").to_pandas()
    assert len(frame) == 2 * 4
    assert set(frame["path"]) == {"", "0", "1", "2"}


def test_which_modules_and_how_often(tmp_path: Path) -> None:
    model = net()
    chosen: list[Any] = ["0", model[2], lambda path, module: isinstance(module, nn.ReLU)]
    with watch(model, tmp_path / "run", every=3, log=("outputs", "params"), modules=chosen[:2]):
        train(model, 8)
    run = watched_run(tmp_path / "run")
    assert run.steps() == [0, 3, 6]
    assert {each.label for each in run.series} == {
        "0 output",
        "2 output",
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }
    with watch(model, tmp_path / "other", every=1, log=("outputs",), modules=chosen[2:]):
        train(model, 1)
    assert [each.label for each in watched_run(tmp_path / "other").series] == ["1 output"]


def test_evaluation_is_apart(tmp_path: Path) -> None:
    model = net()

    def evaluate(step: int) -> None:
        model.eval()
        with torch.no_grad():
            model(X)
            model(2 * X)
        model.train()

    with watch(model, tmp_path / "run", every=1, log=("outputs", "params")):
        train(model, 3, each=evaluate)
    run = watched_run(tmp_path / "run")
    assert (run.steps(), run.steps("eval")) == ([0, 1, 2], [1, 2, 3])
    assert len(run.history("2 output", "eval")) == 6
    assert len(run.history("0.weight", "eval")) == 0


def test_several_forward_passes_before_a_backward_pass(tmp_path: Path) -> None:
    model = net()
    with watch(model, tmp_path / "run", every=1, log=("outputs", "output_grads")):
        for _ in range(2):
            (model(X) + model(2 * X)).sum().backward()
    run = watched_run(tmp_path / "run")
    assert run.steps() == [0, 1]
    one, two = run.history("0 output"), run.history("0 (2) output")
    assert len(one) == len(two) == 2
    assert len(run.history("0 (2) output gradient")) == 2


def test_steps_that_are_told(tmp_path: Path) -> None:
    """Two backward passes make one step here."""
    model = net()
    with watch(model, tmp_path / "run", every=2, log=("outputs",)) as watcher:
        watcher.step(10)
        for _ in range(5):
            for scale in (1, 2):
                model(scale * X).sum().backward()
            watcher.step()
    run = watched_run(tmp_path / "run")
    assert run.steps() == [10, 12, 14]
    assert len(run.history("0 (2) output")) == 3


def test_steps_are_told_from_the_first_on(tmp_path: Path) -> None:
    """Nobody knew that when it began. What is told after the end is not heard."""
    model = net()
    with watch(model, tmp_path / "run", every=1, log=("outputs",)) as watcher:
        for _ in range(3):
            model(X).sum().backward()
            watcher.step()
    watcher.step()
    model(X)
    assert watched_run(tmp_path / "run").steps() == [0, 1, 2]


@pytest.mark.parametrize(
    "variables", [{"RANK": "3"}, {"LOCAL_RANK": "3"}, {"RANK": "3", "LOCAL_RANK": "1"}]
)
def test_each_process_writes_its_own_file(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with watch(net(), tmp_path / "run"):
        pass
    assert [file.name for file in tmp_path.glob("run/*.sqlite")] == ["rank3.sqlite"]


class Attaches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x) * 3
        assert torch.equal(torchscan.attach(hidden, self, "after_skip"), hidden)
        return hidden.relu()


def test_training_after_a_call_in_a_thread_that_has_ended(tmp_path: Path) -> None:
    model = net()
    with watch(model, tmp_path / "run", every=1):
        warm_up = threading.Thread(target=model, args=(X,))
        warm_up.start()
        warm_up.join()
        train(model, 3)
    assert watched_run(tmp_path / "run").steps("train") == [0, 1, 2]


def test_any_tensor_inside_a_forward(tmp_path: Path) -> None:
    model = nn.Sequential(Attaches(), nn.Linear(4, 1))
    with watch(model, tmp_path / "run", every=1, log=()):
        train(model, 2)
    run = watched_run(tmp_path / "run")
    assert {each.label for each in run.series} == {"0.after_skip", "0.after_skip gradient"}
    assert len(run.history("0.after_skip gradient")) == 2
    train(model, 1)  # and nobody minds afterwards


def test_a_module_that_is_met_late(tmp_path: Path) -> None:
    model = net()
    with watch(model, tmp_path / "run", every=1, log=("outputs",)):
        train(model, 2)
        model.append(nn.Tanh())
        train(model, 2)
    run = watched_run(tmp_path / "run")
    assert run.history("3 output").steps == (2, 3)
    assert run.history("0 output").steps == (0, 1, 2, 3)


# -- what is not changed -------------------------------------------------------------------------------------------------


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (lambda: torchvision.models.resnet18(), (2, 3, 32, 32)),
    "dropout": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "recurrent": (_Recurrent, (2, 5, 4)),
    "in place": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)),
        (8, 4),
    ),
    "checkpointed": (
        lambda: Calls(
            lambda self, x: checkpoint(self.a, x, use_reentrant=False), a=nn.Linear(4, 4)
        ),
        (8, 4),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    build, shape = MODELS[name]

    def trained(watches: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model, x = build(), torch.rand(shape)
        watcher = watch(model, tmp_path / "run", every=1) if watches else None
        losses = train(model, 20 if name == "ResNet-18" else 200, x)
        if watcher is not None:
            watcher.close()
            assert watcher.dropped == 0
        return [*losses, *model.state_dict().values(), torch.get_rng_state()]

    plain, watched = trained(False), trained(True)
    assert all(map(torch.equal, plain, watched))
    assert len(watched_run(tmp_path / "run").steps()) == (20 if name == "ResNet-18" else 200)


def test_copies_files_and_compilation_go_on(tmp_path: Path) -> None:
    model = net()
    with watch(model, tmp_path / "run", every=1):
        train(model, 2)
        twin = copy.deepcopy(model)
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (twin, loaded):
            assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))
            train(other, 1)  # which nobody watches
    assert watched_run(tmp_path / "run").steps() == [0, 1]


@pytest.mark.filterwarnings("ignore:Guards may run slower")
@pytest.mark.skipif(TORCH < "2.7", reason="torch 2.6 compiles again where global hooks come or go")
def test_what_is_compiled_is_the_same(tmp_path: Path) -> None:
    def frames(watches: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model: Any = torch.compile(net(), backend="eager")
        watcher = watch(model, tmp_path / "run", every=2) if watches else None
        train(model, 6)
        if watcher is not None:
            watcher.close()
        train(model, 2)
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    frames(False)
    assert frames(True) == frames(False)
    assert watched_run(tmp_path / "run").steps() == [0, 2, 4]


def test_a_step_that_is_left_by_an_exception(tmp_path: Path) -> None:
    model = net()
    with watch(model, tmp_path / "run", every=1, log=("outputs",)):
        train(model, 1)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.rand(8, 5))
        train(model, 1)
    assert watched_run(tmp_path / "run").steps()[0] == 0


# -- one run, several processes ------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_or_is_told_to(tmp_path: Path) -> None:
    model = net()
    for _ in range(2):
        with watch(model, tmp_path / "run", every=1, log=("outputs",)) as watcher:
            train(model, 3)
            saved = watcher.state_dict()
    assert watched_run(tmp_path / "run").steps() == list(range(6))
    assert saved == {"step": 6}
    with watch(model, tmp_path / "run", every=1, log=("outputs",), step=4):
        train(model, 3)
    assert watched_run(tmp_path / "run").steps() == list(range(7))
    assert len(watched_run(tmp_path / "run").history("0 output")) == 7


def watch_another(folder: Path) -> None:
    torchscan.watch(nn.Linear(1, 1), folder)


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    with (
        watch(net(), tmp_path / "run"),
        pytest.raises(InputError, match="is being written by another process"),
    ):
        call(watch_another, tmp_path / "run")
    told = "is the run of a Sequential with other parameters: give another folder"
    with pytest.raises(InputError, match=told):
        call(watch_another, tmp_path / "run")
    with watch(net(), tmp_path / "run"):
        pass


HERE = Path(torchscan.__file__).parent.parent
SCRIPT = """
    import sys, torch, torchscan
    from torch import nn
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    watcher = torchscan.watch(model, sys.argv[1], every=1)
    print(watcher._process.number, flush=True)
    for step in range(100_000):
        model(torch.rand(8, 4)).square().mean().backward()
        if step == 10 and len(sys.argv) > 2:
            break
"""


def is_alive(number: int) -> bool:
    """A process that has ended and was not asked how is no longer at work."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.few(1)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks the kernel for processes")
@pytest.mark.parametrize("after", [0.0, pytest.param(3.0, marks=pytest.mark.sweep), 4.1])
def test_a_trainer_that_is_killed(after: float, tmp_path: Path) -> None:
    """The file opens, the worker ends, and another process goes on."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    call = [sys.executable, str(script), str(tmp_path / "run")]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=HERE) as trainer:  # noqa: S603
        assert trainer.stdout is not None
        worker = int(trainer.stdout.readline())
        time.sleep(after)
        trainer.send_signal(signal.SIGKILL)
    until = (
        time.monotonic() + 20
    )  # it looks twice a second, but this machine may be busy, and it may still be importing torch
    while is_alive(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(worker)
    subprocess.run([*call, "stop"], check=True, capture_output=True, cwd=HERE)  # noqa: S603
    run = watched_run(tmp_path / "run")
    steps = run.steps()
    assert len(steps) >= 11
    assert len(set(steps)) == len(steps)


def train_with_another(rank: int, given: tuple[Path, str]) -> None:
    """Train in a group of processes, without and with a run."""
    folder, way = given
    for how in ("plain", "watched"):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        if way == "sharded":
            mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
            for part in (model[0], model[2], model):
                fully_shard(part, mesh=mesh)
        watcher = watch(model, folder / "run", every=1) if how == "watched" else None
        parallel = model if way == "sharded" else DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for _ in range(20):
            optimizer.zero_grad()
            parallel(torch.rand(8, 4)).square().mean().backward()
            optimizer.step()
        if watcher is not None:
            watcher.close()
        torch.save(local(model[0].weight.grad), folder / f"gradient{rank}.pt")
        state = {name: local(each) for name, each in model.state_dict().items()}
        torch.save(state, folder / f"{how}{rank}.pt")


def local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


@pytest.mark.parametrize(
    ("way", "weights"), [("copied", 2 * 32), pytest.param("sharded", 32, marks=shards_on_cpus)]
)
@pytest.mark.sweep
def test_two_processes_that_train_together(way: str, weights: int, tmp_path: Path) -> None:
    """Results are the same with and without; each writes its own file, and they are read as one."""
    in_processes(2, train_with_another, (tmp_path, way), tmp_path)
    for rank in range(2):
        plain, watched = (torch.load(tmp_path / f"{how}{rank}.pt") for how in ("plain", "watched"))
        assert all(torch.equal(plain[name], watched[name]) for name in plain)
    run = watched_run(tmp_path / "run")
    assert (run.ranks, run.steps()) == (2, list(range(20)))
    assert {each.sampled for each in run.history("0 output").distributions} == {2 * 64}
    assert {each.numel for each in run.history("0.weight").distributions} == {weights}
    assert {each.numel for each in run.history("0.weight gradient").distributions} == {weights}
    assert all(update > 0 for update in run.history("0.weight").statistic("update"))
    for rank in range(2):
        own = watched_run(tmp_path / f"run/rank{rank}.sqlite").history("0.weight gradient")
        gradient = torch.load(tmp_path / f"gradient{rank}.pt")
        assert own.statistic("mean")[-1] == pytest.approx(gradient.mean().item(), rel=1e-5), (
            "summed over all processes"
        )
    gradients = [torch.load(tmp_path / f"gradient{rank}.pt") for rank in range(2)]
    whole = gradients[0] if way == "copied" else torch.cat(gradients)
    norm = run.history("0.weight gradient").statistic("norm")[-1]
    assert norm == pytest.approx(whole.norm().item(), rel=1e-5)


def test_processes_that_are_forked_watch_nothing(tmp_path: Path) -> None:
    """Workers of a data loader have the model, and its hooks, but not the run."""
    model = net()

    class Computed(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            with torch.no_grad():
                return model(torch.full((4,), float(index)))

    with watch(model, tmp_path / "run", every=1, log=("outputs",)):
        loader = torch.utils.data.DataLoader(
            Computed(), num_workers=1, multiprocessing_context="fork"
        )
        assert len(list(loader)) == 4
        train(model, 2)
    run = watched_run(tmp_path / "run")
    assert (run.steps(), run.steps("eval")) == ([0, 1], [])


def test_a_file_that_is_another_s(tmp_path: Path) -> None:
    (tmp_path / "rank0.sqlite").write_text("not a database, by any means " * 100)
    with pytest.raises(InputError, match="cannot be continued"):
        watch(net(), tmp_path)


def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stay in their order."""
    times = iter(range(10_000, 0, -100))
    monkeypatch.setattr("torchscan.watching.series_rows.time.time", lambda: float(next(times)))
    with watch(model := net(), tmp_path / "run", every=1, log=("outputs",)):
        train(model, 4)
    run = watched_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert run.history("0 output").steps == (0, 1, 2, 3)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="log has 'weights': choose from inputs"):
        watch(net(), tmp_path / "run", log=("weights",))
    with pytest.raises(InputError, match=r"log is a single text: give a list, log=\['outputs'\]"):
        watch(net(), tmp_path / "run", log="outputs")
    with pytest.raises(InputError, match="every is 0"):
        watch(net(), tmp_path / "run", every=0)
    with pytest.raises(InputError, match=r"has no watched run: record one with watch\(model, "):
        watched_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        watch(net(), tmp_path / "file" / "run")


def test_two_runs_of_one_process(tmp_path: Path) -> None:
    one, two = net(), net()
    with (
        watch(one, tmp_path / "one", every=1, log=("outputs",)),
        watch(two, tmp_path / "two", every=1, log=("outputs",)),
    ):
        train(one, 2)
        train(two, 3)
    runs: list[Any] = [watched_run(tmp_path / name) for name in ("one", "two")]
    assert [run.steps() for run in runs] == [[0, 1], [0, 1, 2]]
    with pytest.raises(InputError, match=r"has no watched run: choose from '.*/one', '.*/two'"):
        watched_run(tmp_path)
    with pytest.raises(InputError, match="kind is 'outputs': choose from input, output, "):
        runs[0].find("0", "outputs")


def test_values_without_a_number_have_no_range_in_the_table(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="has NaN in"), watch(model, tmp_path / "run", every=1):
        model(torch.full((2, 4), math.nan)).sum().backward()
    lines = str(watched_run(tmp_path / "run")).splitlines()
    rows = [line.split() for line in lines]
    (output,) = [row for row in rows if row[:2] == ["0", "output"] and row[2] != "gradient"]
    assert output[-4:] == ["8", "0", "–", "–"]  # NaN, Inf, Min, Max
