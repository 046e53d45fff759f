"""Training as people do it besides the usual way: what is recorded is right, and nothing of ours is raised in it."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.opening import watched_run
from tests.watching.test_watcher import told
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.sinks import Sink, SinkData
from torchscan.types import WatchedRun

pytestmark = pytest.mark.slow  # each has a process of its own, which imports torch

X = torch.rand(8, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def opened(folder: Path) -> WatchedRun:
    return watched_run(folder)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


# -- what a step is ------------------------------------------------------------------------------------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("way", ["optimizer", "by hand", "half of them twice", "frozen"])
def test_the_number_of_steps_is_the_same_however_many_are_looked_at(
    every: int, way: str, run: Path
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "frozen":  # the first and the last parameter tell nothing
        model[0].requires_grad_(False)
        model[2].bias.requires_grad_(False)
    with watch(model, run, every=every) as watcher:
        for step in range(7):
            if way == "half of them twice" and step % 2:
                model(X)  # nobody asks for gradients of it
            loss = model(X).square().mean()
            if way == "optimizer":
                loss.backward()
                optimizer.step()
            else:
                trained = [each for each in model.parameters() if each.requires_grad]
                for each, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                    each.data.sub_(gradient, alpha=0.1)
        assert watcher.state_dict() == {"step": 7}
    assert opened(run).steps() == list(range(0, 7, every))


@pytest.mark.parametrize("is_told", [False, True])
def test_an_evaluation_in_the_middle_of_a_step_is_not_of_it(is_told: bool, run: Path) -> None:
    """Targets of reinforcement learning, pseudo-labels, teachers: the step goes on."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, run, every=1) as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            result = model(X)
            with torch.no_grad():
                target = model(X + 100)
            (result - 0.01 * target).square().mean().backward()
            optimizer.step()
            if is_told:
                watcher.step()
    found = opened(run)
    assert (found.steps(), found.steps("eval")) == ([0, 1, 2], [])
    assert len(found.history("2 output gradient")) == 3
    assert all(update > 0 for update in found.history("0.weight").statistic("update"))
    assert max(found.history("Sequential input").statistic("max")) <= 1.0
    assert {each.invocation for each in found.series} == {0}


def test_evaluations_that_alternate_with_steps(run: Path) -> None:
    """One at every fourth pass of the model, of both kinds."""
    model = net()
    with watch(model, run, every=4) as watcher:
        watcher.step(5)
        for _ in range(8):
            model.eval()
            model(X)
            model.train()
            model(X).sum().backward()
            watcher.step()
    assert opened(run).steps() == [8, 12]
    assert opened(run).steps("eval") == [5, 7, 9, 11]


def test_parameters_are_those_after_the_optimizer_s_step(run: Path) -> None:
    """Averaged weights are swapped in afterwards, and out again."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, run, every=1):
        for _ in range(2):
            model(X).square().mean().backward()
            optimizer.step()
            trained = copy.deepcopy(model.state_dict())
            with torch.no_grad():
                for each in model.parameters():
                    each.fill_(5.0)
            model.eval()
            model(X)
            model.load_state_dict(trained)
            model.train()
        after = trained["0.weight"].clone()
        model.load_state_dict(
            {name: torch.full_like(each, 5.0) for name, each in trained.items()}
        )  # the best ones, at the end
    history = opened(run).history("0.weight")
    assert history.statistic("mean")[-1] == pytest.approx(after.mean().item(), abs=1e-6)
    assert max(history.statistic("update")) < 0.5


def test_updates_of_steps_that_are_seldom_looked_at(run: Path) -> None:
    """An optimizer that writes to ``.data`` leaves no trace of it."""
    model = nn.Linear(4, 4)
    changes = []
    with watch(model, run, every=2, log=("params",)):
        for _ in range(6):
            before = model.weight.detach().clone()
            model(X).sum().backward()
            for each in model.parameters():
                each.data.add_(0.25)
            changes.append(((model.weight.detach() - before).norm() / before.norm()).item())
    assert opened(run).history("Linear.weight").statistic("update") == pytest.approx(
        changes[::2], rel=1e-4
    )


def test_a_bias_that_was_zero_has_no_ratio(run: Path) -> None:
    model = nn.Linear(4, 4)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, run, every=1, log=("params",)):
        model(X).sum().backward()
        optimizer.step()
    assert torch.tensor(opened(run).history("Linear.bias").statistic("update")).isnan().all()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_not_another_call(
    use_reentrant: bool, run: Path
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    with watch(model := Checkpointed(), run, every=1):
        model(X.clone().requires_grad_()).sum().backward()
    assert {each.label for each in opened(run).find("inner", "output")} == {"inner output"}


def test_a_step_that_is_interrupted_where_parts_are_called(run: Path) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), _Interrupted()

    model = Parts()
    with watch(model, run, every=1, log=("outputs",)):
        for step in range(4):
            model.b.interrupts = step == 1
            try:
                model.b(model.a(X)).sum().backward()
            except KeyboardInterrupt:
                continue
    assert opened(run).steps() == [0, 1, 2]
    assert {each.label for each in opened(run).series} == {
        "a output",
        "b output",
        "a (2) output",
        "b (2) output",
    }


class _Interrupted(nn.Module):
    interrupts = False

    def forward(self, x: Tensor) -> Tensor:
        if self.interrupts:
            raise KeyboardInterrupt
        return x * 2


def test_an_interruption_without_a_message_ends_with_its_name(run: Path) -> None:
    model = net()
    watcher = watch(model, run, every=1, log=("outputs",))
    for _ in range(2):
        model(X).sum().backward()
    with pytest.raises(KeyboardInterrupt), watcher:
        raise KeyboardInterrupt
    (ended,) = opened(run).missing
    assert "by an exception, KeyboardInterrupt; its last recorded step is" in str(ended)


# -- resuming ------------------------------------------------------------------------------------------------------------


def test_an_evaluation_before_a_checkpoint_stays(run: Path) -> None:
    def epochs(first: int, last: int, **how: Any) -> None:
        model = net()
        with watch(model, run, every=1, log=("outputs",), **how):
            for _ in range(first, last):
                model.train()
                model(X).sum().backward()
                model.eval()
                model(X)

    epochs(0, 4)
    epochs(3, 6, step=3)
    assert opened(run).steps() == list(range(6))
    assert opened(run).steps("eval") == [1, 2, 3, 4, 5, 6]
    assert len(opened(run).history("0 output", "eval")) == 6


def test_going_back_writes_anew(run: Path) -> None:
    model = net()
    with watch(model, run, every=1, log=("outputs",)) as watcher:
        for number in (0, 1, 2, 1, 2, 3):
            watcher.step(number)
            model(X).sum().backward()
    assert opened(run).history("0 output").steps == (0, 1, 2, 3)


# -- nothing of ours is raised -------------------------------------------------------------------------------------------


def test_files_are_closed_once(run: Path) -> None:
    with watch(net(), run) as watcher:
        watcher.close()
        numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    for number in numbers:
        os.close(number)  # which fails if somebody else has


def test_one_process_writes_a_run_once(run: Path) -> None:
    model = net()
    with watch(model, run):
        with pytest.raises(
            InputError,
            match=r"is being written by this process: close\(\) its watcher first",
        ):
            watch(model, run)
        with watch(model, run.with_name("other")):
            pass
    with watch(model, run):
        pass


def test_calls_in_other_threads_are_left_alone(run: Path) -> None:
    model = net()
    stop = threading.Event()
    failed: list[BaseException] = []

    def evaluate() -> None:
        try:
            while not stop.is_set():
                with torch.no_grad():
                    model(X)
        except BaseException as error:
            failed.append(error)

    with watch(model, run, every=1):
        model(X).sum().backward()
        thread = threading.Thread(target=evaluate)
        thread.start()
        for _ in range(30):
            model(X).sum().backward()
        stop.set()
        thread.join()
    assert not failed
    assert (opened(run).steps(), opened(run).steps("eval")) == (list(range(31)), [])
    assert len(opened(run).history("2 output gradient")) == 31


@pytest.fixture
def _defaults() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    torch.set_default_device(None)


@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_default_types(dtype: torch.dtype, run: Path) -> None:
    torch.set_default_dtype(dtype)
    model, x = net(), torch.rand(8, 4)
    with watch(model, run, every=1):
        for _ in range(3):
            model(x).sum().backward()
    assert opened(run).steps() == [0, 1, 2]


class _Counted(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("_defaults")
def test_modes_of_the_user_s_see_nothing_of_ours(run: Path) -> None:
    def trained(watches: bool) -> int:
        model = net()
        watcher = watch(model, run, every=1) if watches else None
        with _Counted() as mode:
            for _ in range(3):
                model(X).sum().backward()
        if watcher is not None:
            watcher.close()
        return mode.count

    assert trained(False) == trained(True)
    assert opened(run).steps() == [0, 1, 2]
    model = net()
    torch.set_default_device("meta")
    with watch(model, run.with_name("meta"), every=1):
        for _ in range(3):
            model(X).sum().backward()
    assert opened(run.with_name("meta")).steps() == [0, 1, 2]


def test_tensors_that_nothing_reads(run: Path) -> None:
    class Quantizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.last = nn.Identity(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                packed = self.inside(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))
            return self.last(packed.dequantize())

    with watch(model := Quantizes(), run, every=1):
        for _ in range(2):
            model(X).sum().backward()
    assert opened(run).steps() == [0, 1]
    assert "last output" in {each.label for each in opened(run).series}


def test_attach_takes_what_comes(run: Path) -> None:
    class Attaches(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert torchscan.attach(None, self, "mask") is None  # type: ignore[arg-type]
            return super().forward(x)

    with watch(model := Attaches(4, 2), run, every=1):
        model(X).sum().backward()
    assert opened(run).steps() == [0]


def test_a_model_that_is_traced(run: Path) -> None:
    model = net()
    with watch(model, run, every=1):
        model(X).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated
            traced: Any = torch.jit.trace(model, (X,))
        torch.func.functional_call(model, dict(model.named_parameters()), (X,))
        gradients = torch.func.grad(
            lambda w: torch.func.functional_call(model, {"0.weight": w}, (X,)).sum()
        )
        gradients(dict(model.named_parameters())["0.weight"].detach())
        model(X).sum().backward()
    assert torch.equal(traced(X), model(X))
    assert opened(run).steps()[-1] >= 1


def test_a_process_that_is_forked_in_the_middle_of_a_step(run: Path) -> None:
    model = net()
    with watch(model, run, every=1) as watcher:
        result = model(X)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(3):
                    model(X)
                    watcher.step()
                status = 0 if not torch.nn.modules.module._global_forward_hooks else 1
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        result.sum().backward()
        model(X).sum().backward()
    assert opened(run).steps() == [0, 1]


def test_warnings_that_are_errors_do_not_end_training(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def wrong(path: str, module: nn.Module) -> bool:
        if torch.is_grad_enabled() and wrong.__dict__.get("is_late"):
            raise ZeroDivisionError
        return True

    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch(model, run, every=1, modules=[wrong]):
            wrong.__dict__["is_late"] = True
            model.append(nn.Identity())  # modules are chosen again when the model changes
            model(X).sum().backward()
    assert "stopped watching" in capfd.readouterr().err


class _Leaves(Sink):
    def on_data(self, seen: SinkData) -> None:
        sys.exit(3)


def _leaves(values: Tensor) -> float:
    sys.exit(3)


def test_nobody_s_sink_or_statistic_ends_the_worker(run: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with watch(model := net(), run, every=1, sinks=[_Leaves()], custom={"leaves": _leaves}):
            for _ in range(3):
                model(X).sum().backward()
    assert opened(run).steps() == [0, 1, 2]
    told = [str(each.message) for each in said]
    assert any("sink _Leaves is disabled" in each for each in told)
    assert any("statistic 'leaves' is disabled" in each for each in told)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"modules": "fc"}, "modules is a single text: give a list"),
        (
            {"modules": ["fc"]},
            "modules has 'fc', which matches no module of the model: choose from '0', '1', '2'",
        ),
        ({"sample_n": 0}, "sample_n is 0: give a number of values"),
        ({"overhead_budget": 0.0}, "overhead_budget is 0.0: give a share"),
    ],
)
def test_arguments_that_say_nothing(given: dict[str, Any], said: str, run: Path) -> None:
    with pytest.raises(InputError, match=said):
        watch(net(), run, **given)
    assert not run.exists()


def test_another_tool_s_argument_names_that_of_watch(run: Path) -> None:
    with pytest.raises(TypeError, match=r"^watch\(\) has no argument 'log_freq': give every=$"):
        watch(net(), run, log_freq=10)  # type: ignore[call-arg]
    assert not run.exists()


def test_what_an_exception_has_held_is_let_go_of(run: Path) -> None:
    """Out of memory, a smaller batch: what the larger one took must be free by then."""
    freed: list[Callable[[], object]] = []

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            large = x * 2
            freed.append(weakref.ref(large))
            raise MemoryError

    with watch(model := Fails(), run, every=1):
        with contextlib.suppress(MemoryError):
            model(X)
        assert freed[0]() is None


def test_another_model_s_optimizer_ends_no_step(run: Path) -> None:
    """Two models that are trained in turn, as generators and discriminators are."""
    one, other = net(), net()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, other)]
    with watch(one, run, every=1), watch(other, run.with_name("other"), every=1):
        for _ in range(3):
            result = one(X)
            other(X).sum().backward()
            optimizers[1].step()
            (result + one(2 * X)).sum().backward()
            optimizers[0].step()
    for folder in (run, run.with_name("other")):
        assert opened(folder).steps() == [0, 1, 2]
    assert len(opened(run).history("0 (2) output")) == 3
    assert all(update > 0 for update in opened(run).history("0.weight").statistic("update"))


# -- what users see ------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_begins_with_the_step_that_was_next(run: Path) -> None:
    """Not with the one after the last that was looked at."""
    for again in (False, True):
        model = net()
        with told() as texts, watch(model, run, every=10) as watcher:
            for _ in range(25):
                model(X).sum().backward()
        text = f"run {str(run)!r} already exists and continues at step 25"
        assert texts == [f"{text}: give step=25 to confirm, or another folder"] * again
    assert watcher.state_dict() == {"step": 50}
    assert opened(run).steps() == [0, 10, 20, 30, 40]
    assert [str(each) for each in opened(run).events] == ["the run continues at step 25"]
    with told() as texts, watch(model, run, every=10, step=7) as watcher:
        model(X).sum().backward()
    assert watcher.state_dict() == {"step": 8}
    assert not texts, "who says which step knows of the run"
    with watch(model, run) as watcher:
        assert watcher.state_dict() == {"step": 8}


def test_the_first_nan_is_told(run: Path) -> None:
    model = net()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with watch(model, run, every=1, log=("outputs",)):
            for step in range(4):
                model(X if step < 2 else X * float("nan")).sum().backward()
    told = [str(each.message) for each in said if "NaN" in str(each.message)]
    assert len(told) == 1
    assert told[0].startswith(
        "step 2 has NaN in '0 output' and 3 more tensors: run torchscan.inspect(model)"
    )
    (event,) = opened(run).events
    assert told == [str(event)]
    assert (event.step, event.rank, event.note.values["path"]) == (2, 0, "0")


def test_what_cannot_be_read_is_refused(run: Path) -> None:
    with watch(model := net(), run, every=1):
        model(X).sum().backward()
    history = opened(run).history("0.weight")
    assert repr(history) == "<History of '0.weight', train: 1 steps, 0 … 0>"
    with pytest.raises(InputError, match="quantile 50 is out of range: give shares from 0 to 1"):
        history.quantiles(50)
    with pytest.raises(InputError, match="phase is 'val': give 'train' or 'eval'"):
        opened(run).history("0.weight", "val")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'0\.wieght' is not a series: choose from '0\.weight'"):
        opened(run).history("0.wieght")
    with pytest.raises(InputError, match="step is -1"):
        watch(model, run, step=-1)
    with pytest.raises(InputError, match="custom has 'std', which is already a statistic"):
        watch(model, run, custom={"std": len})
    with pytest.raises(
        InputError, match="modules has the class Linear: give lambda path, module: isinstance"
    ):
        watch(model, run, modules=[nn.Linear])  # type: ignore[list-item]


class _RatePerColumn(torch.optim.Optimizer):
    """An optimizer whose learning rate is a tensor of several values."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": torch.tensor([0.1, 0.2])})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            each -= 0.1 * each.grad


def test_a_learning_rate_of_several_values_is_not_recorded(run: Path) -> None:
    model = net()
    optimizer = _RatePerColumn(model.parameters())
    with watch(model, run, every=1):
        for _ in range(2):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    assert opened(run).curves().learning_rates == (None, None)


def test_the_gradient_norm_of_a_scaled_loss_of_0_is_known(run: Path) -> None:
    """Its gradient is (2, 2): the scale does not follow from the losses 0 and 0."""
    model = nn.Linear(2, 1, bias=False)
    scaler = torch.amp.GradScaler("cpu")
    with watch(model, run, every=1):
        output = model(torch.ones(2, 2)).sum()
        scaler.scale(output - output.detach()).backward()
    assert opened(run).curves().gradient_norms == pytest.approx([math.sqrt(8)])


class _Grouped(nn.Module):
    """A model whose names hide methods of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.modules = [self.layer]  # type: ignore[assignment,method-assign]

    def parameters(self, decay: float) -> Iterator[Tensor]:  # type: ignore[override]
        yield self.layer.weight
        yield self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output


def test_a_model_that_hides_methods_of_torch(run: Path) -> None:
    model = _Grouped()
    optimizer = torch.optim.SGD(model.parameters(0.1), 0.1)
    with watch(model, run, every=1):
        for _ in range(3):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    assert opened(run).steps() == [0, 1, 2]


_COMPILES_LATER = """
import sys, torch
from torch import nn
from torchscan import watch

def net():
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

if __name__ == "__main__":
    x, model = torch.ones(2, 3), net()
    assert "torch._dynamo" not in sys.modules
    with watch(model, sys.argv[1], every=2, graph=False):
        torch.compile(net(), backend="eager", fullgraph=True)(x)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            if step == 3:
                torch._dynamo.reset()
            optimizer.zero_grad()
            compiled(x).sum().backward()
            optimizer.step()
"""


@pytest.mark.sweep
def test_the_compiler_may_be_loaded_after_watching_has_begun(run: Path, tmp_path: Path) -> None:
    """It compiles another model first, and is reset. Hooks are not compiled: ``fullgraph`` fails if they are."""
    script = tmp_path / "compiles_later.py"
    script.write_text(_COMPILES_LATER)
    done = subprocess.run(  # noqa: S603 - this test
        [sys.executable, "-W", "error::UserWarning", script, run],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(opened(run).curves().steps) == 6
