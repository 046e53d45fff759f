"""The verdict on a run: hand-made measurements, and real programs with one thing wrong or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.opening import inspected_run
from tests.report.runs import latency, run
from torchscan import InputError, inspect
from torchscan.cli.main import main
from torchscan.inspecting.call_run import DeviceRun
from torchscan.inspecting.evidence import Evidence, TimeShare
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.group_run import GroupRun
from torchscan.inspecting.memory_trend import MemoryTrend
from torchscan.inspecting.run import CheckedModule
from torchscan.inspecting.stragglers import Straggler
from torchscan.notes import Note
from torchscan.observing.compiling import Compilation, CompiledFrame
from torchscan.plain import to_plain
from torchscan.types import RunFacts

ROOT = Path(__file__).parent.parent.parent
#: seconds of the four modules of a step, forward and backward, in ms
TIMES: Any = dict.fromkeys(("a", "b", "c", "d"), ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)))
FINE = Evidence(
    steps=10,
    between=TimeShare(value=0.05, min=0.04),
    waiting=None,
    num_nodes=20,
    node_time=100e-6,
    memory=MemoryTrend(steps=100, size=2**30, growth=0.0),
)


def facts(times: Any = TIMES, **changes: Any) -> RunFacts:
    return replace(run(times, steps=10), **{"evidence": FINE, **changes})


def verdict(**changes: Any) -> Note:
    found = facts(**changes).verdict
    assert found is not None
    return found


def code_with(**evidence: Any) -> str:
    return verdict(evidence=replace(FINE, **evidence)).code


# -- measurements ----------------------------------------------------------------------------------


def test_a_share_has_the_minimum_of_five_parts() -> None:
    times = (30, 30, 30, 10, 20, 20, 30, 30, 40, 60)
    share = TimeShare.of([(time, 100) for time in times])
    # parts: 60, 40, 40, 60 and 100 of 200
    assert share == TimeShare(value=300 / 1000, min=40 / 200)
    assert TimeShare.of([(30, 100)] * 4) is None


def test_a_long_pause_is_not_in_every_part() -> None:
    share = TimeShare.of([(1, 100), (1, 100), (1, 100), (1, 100), (901, 1000)])
    assert share == TimeShare(value=905 / 1400, min=0.01)


def test_memory_that_grows_by_the_same_in_each_step() -> None:
    sizes = [(step, 1000 + 10 * step) for step in range(20)]
    # the last four steps are 16 to 19
    assert MemoryTrend.of(sizes) == MemoryTrend(steps=20, size=1175, growth=10.0)
    assert MemoryTrend.of(sizes[:19]) is None


@pytest.mark.parametrize(
    "by_part",
    [
        pytest.param((0, 800, 1200, 1400, 1500), id="warms up"),
        pytest.param((0, 10, 20, 30, 20), id="falls"),
        pytest.param((0, 0, 0, 0, 1000), id="grows once"),
        pytest.param((5, 5, 5, 5, 5), id="stays"),
    ],
)
def test_memory_that_does_not_grow_in_each_part(by_part: tuple[int, ...]) -> None:
    sizes = [(step, 10_000 + by_part[step // 4]) for step in range(20)]
    found = MemoryTrend.of(sizes)
    assert found is not None
    assert found.growth == 0


# -- verdicts on known measurements ----------------------------------------------------------------


def test_nothing_stands_out() -> None:
    assert verdict() == Note.of(
        "verdict-balanced",
        path="a",
        type_name="Linear",
        share=0.25,
        trains=True,
        between=0.05,
        min_between=0.04,
        model=None,
    )
    assert str(verdict()) == (
        "nothing stands out; the largest share of forward and backward is a (Linear) with 25 %; "
        "5 % of the time is between steps"
    )


def test_a_share_must_be_large_in_each_part() -> None:
    assert code_with(between=TimeShare(value=0.5, min=0.2)) == "verdict-input-bound"
    assert code_with(between=TimeShare(value=0.5, min=0.19)) == "verdict-balanced"
    assert code_with(between=None) == "verdict-balanced"


def test_a_large_share_that_is_not_in_each_part_is_explained() -> None:
    found = verdict(evidence=replace(FINE, between=TimeShare(value=0.23, min=0.15)))
    assert found.code == "verdict-balanced"
    assert str(found).endswith(
        "; 23 % of the time is between steps (but 15 % in one fifth of the steps)"
    )


def test_the_timed_model_is_named_if_several_train() -> None:
    others = (
        CheckedModule(name="G (Net)", steps=25, is_timed=True),
        CheckedModule(name="D (Net)", steps=50),
    )
    assert "of forward and backward of G (Net) is a (Linear)" in str(
        verdict(trained_modules=others)
    )
    slow: Any = {**TIMES, "a": ((3.0, 3.0, 3.0), (3.0, 3.0, 3.0))}
    assert str(facts(slow, trained_modules=others).verdict) == (
        "a (Linear) takes 50 % of forward and backward of G (Net): start there"
    )


def test_time_between_steps_may_be_another_model_s() -> None:
    share = replace(FINE, between=TimeShare(value=0.5, min=0.5))
    others = (CheckedModule(name="G (Net)", steps=25), CheckedModule(name="D (Net)", steps=50))
    assert verdict(evidence=share).code == "verdict-input-bound"
    assert verdict(evidence=share, trained_modules=others).code == "verdict-balanced"


def test_a_device_that_waits_for_the_host() -> None:
    device = DeviceRun(
        **dict.fromkeys(
            ("forward", "backward", "storing_gradients", "outside_modules"),
            latency((4.0, 4.0, 4.0)),
        ),
        waiting=0.4,
    )
    waits = replace(FINE, waiting=TimeShare(value=0.4, min=0.3), node_time=5e-6)
    assert verdict(device=device, evidence=waits) == Note.of(
        "verdict-host-bound", share=0.4, min=0.3, steps=10
    )
    # the optimizer's kernels may run between the steps
    between = replace(FINE, between=TimeShare(value=0.3, min=0.3))
    assert verdict(device=device, evidence=between).code == "verdict-balanced"
    assert verdict(evidence=between).code == "verdict-input-bound"


def test_small_operators_on_a_cpu() -> None:
    # of 8 ms, 201 nodes take 3.015 ms, and 133 nodes 1.995 ms
    assert code_with(num_nodes=201, node_time=15e-6) == "verdict-small-operators"
    assert code_with(num_nodes=201, node_time=16e-6) == "verdict-balanced"
    assert code_with(num_nodes=133, node_time=15e-6) == "verdict-balanced"
    assert code_with(num_nodes=0, node_time=0.0) == "verdict-balanced"  # no backward pass


def test_memory_that_doubles_within_ten_thousand_steps() -> None:
    grows = MemoryTrend(steps=200, size=1_000_000_000, growth=100_000.0)
    assert code_with(memory=grows) == "verdict-memory-growth"
    assert code_with(memory=replace(grows, growth=99_999.0)) == "verdict-balanced"
    assert str(verdict(evidence=replace(FINE, memory=grows))) == (
        "memory grows by 97.66 KiB per step, steadily over 200 steps, and it doubles in 10,000 more: "
        "look for tensors that are kept, such as losses that are summed without .item()"
    )


def test_a_function_that_is_compiled_again_and_again() -> None:
    def compiled(times: int) -> Compilation:
        frame = CompiledFrame(
            place="Net.forward, net.py:7", path="", times=times, reasons=("n == 3", "n == 4")
        )
        return Compilation(frames=(frame,), breaks=())

    assert verdict(compilation=compiled(3)).code == "verdict-balanced"
    assert verdict(compilation=compiled(4)) == Note.of(
        "verdict-recompilation", place="Net.forward, net.py:7", times=4, reason="n == 4"
    )


def test_the_slowest_of_several_modules() -> None:
    slow: Any = {**TIMES, "a": ((3.0, 3.0, 3.0), (3.0, 3.0, 3.0))}
    found = facts(slow).verdict
    assert found == Note.of(
        "verdict-slow-module", path="a", type_name="Linear", share=0.5, trains=True, model=None
    )
    one = facts({"a": TIMES["a"]}).verdict
    assert one is not None
    assert one.code == "verdict-balanced"


def test_what_is_wrong_comes_before_what_is_slow() -> None:
    slow = replace(
        FINE,
        between=TimeShare(value=0.9, min=0.9),
        memory=MemoryTrend(steps=50, size=10**9, growth=1e6),
    )
    found = NonFinite(
        step=3,
        path="a",
        phase="forward",
        type_name="Linear",
        invocation=0,
        nan=1,
        inf=0,
        numel=8,
        operator="aten.log",
    )
    bad = verdict(evidence=slow, nonfinite=(found,), nonfinite_steps=7)
    assert bad.code == "verdict-nonfinite"
    assert str(bad) == (
        "NaN first in step 3, in the output of a (Linear), by aten.log (7 steps have it): check the "
        "range of its inputs"
    )
    assert verdict(evidence=slow).code == "verdict-memory-growth"
    short = verdict(evidence=slow, steps=2, timed=2, nonfinite=(found,), nonfinite_steps=1)
    assert short.code == "verdict-nonfinite"


def test_few_steps_have_no_verdict() -> None:
    slow = replace(FINE, between=TimeShare(value=0.9, min=0.9), memory=None)
    assert verdict(steps=4, timed=4, evidence=slow) == Note.of(
        "verdict-too-few-steps", steps=4, needed=5
    )
    with inspect(nn.Linear(2, 2)) as nothing:
        pass
    assert nothing.verdict is None


def test_a_run_of_an_older_version() -> None:
    assert verdict(evidence=None).code == "verdict-balanced"


def test_a_rank_that_holds_up_the_others() -> None:
    straggler = Straggler(
        rank=2,
        seconds=0.05,
        share=0.87,
        is_of_steps=True,
        layer="",
        type_name="",
        phase=None,
        lost=0.0,
        kind="all_reduce",
        waits_in="",
    )
    group = GroupRun(
        num_ranks=1, runs=(facts(),), missing=(), lags=(None,), stragglers=(straggler,)
    )
    assert group.verdict == Note.of("verdict-straggler", rank=2, share=0.87)
    assert group.table().remarks[-1] == f"Verdict: {group.verdict}."
    assert group.to_dict()["verdict"] == to_plain(group.verdict)
    assert replace(group, stragglers=()).verdict == facts().verdict


def test_it_is_shown_last_and_stored(tmp_path: Path) -> None:
    run = facts()
    assert run.table().remarks[-1] == f"Verdict: {run.verdict}."
    assert run.to_dict()["verdict"] == to_plain(run.verdict)
    run.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["verdict"]["code"] == "verdict-balanced"
    assert inspected_run(tmp_path / "run.json").verdict == run.verdict
    label, value, text, key = run.measured().verdicts[-1]
    assert (label, value, key) == ("Verdict", "nothing stands out", ("a", 0))
    assert text == str(run.verdict)


def test_keys_and_units_of_inspector_gadgets() -> None:
    """Memory is in megabytes, times are in milliseconds, and NaN and Inf are one bool."""
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    with inspect(model, warm_up=0) as watched:
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    facts = watched.facts
    timed = latency((1.0, 2.0, 3.0))
    calls = tuple(
        replace(call, forward=timed, backward=timed, forward_inf=int(call.path == "0"))
        for call in facts.calls
    )
    found = replace(facts, calls=calls).to_dict(names="torch_inspector")
    assert set(found) == {"Sequential"}
    assert set(found["Sequential"]["children"]) == {"0", "1"}
    linear = found["Sequential"]["children"]["0"]
    assert linear["children"] == {}
    assert linear["info"] == {
        "type": "Linear",
        "input_shapes": [[3, 4]],
        "output_shapes": [[3, 2]],
        "grad_in_shape": [[3, 4]],
        "grad_out_shape": [[3, 2]],
        "num_parameters": 10,
        "num_learnable_parameters": 10,
        "param_memory_usage": 40e-6,
        "gradient_memory_usage": 40e-6,
        "input_memory_usage": [48e-6],
        "output_memory_usage": [24e-6],
        "effective_additional_memory_fwd": 24e-6,
        "effective_additional_memory_bwd": None,  # a CPU has no allocator that counts
        "forward_nan": True,
        "grad_in_nan": False,
        "grad_out_nan": False,
        # parameters, gradients, input and output
        "total_memory": 152e-6,
        "forward_latency": 2.0,
        "backward_latency": 2.0,
    }
    assert json.loads(json.dumps(found)) == found
    assert watched.to_dict("torchscan") == watched.to_dict()
    wrong: Any = "gadgets"
    with pytest.raises(
        InputError, match="names is 'gadgets': choose from 'torchscan', 'torch_insp"
    ):
        watched.to_dict(wrong)


# -- real programs ---------------------------------------------------------------------------------

BEGIN = """
import time
import torch
from torch import nn
from torch.nn import functional as F

def mlp(*sizes):
    pairs = zip(sizes, sizes[1:])
    layers = [each for a, b in pairs for each in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])

def train(model, batches, each=lambda out, loss: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        each(out, loss)
"""
#: program -> the code of its verdict
PROGRAMS = {
    "verdict-input-bound": """
        def batches():
            for _ in range(10):
                time.sleep(0.1)  # a slow loader
                yield torch.rand(8, 64), torch.rand(8, 8)
        train(mlp(64, 128, 128, 128, 8), batches())
    """,
    "verdict-memory-growth": """
        kept = []
        data = [(torch.rand(64, 64), torch.rand(64, 1024))]
        train(mlp(64, 128, 1024), data * 60, lambda out, loss: kept.append(out))
    """,
    "verdict-nonfinite": """
        class Log(nn.Module):
            def forward(self, x):
                return x.log()
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Log())
        train(model, [(torch.rand(4, 8), torch.rand(4, 8))] * 10)
    """,
    "verdict-slow-module": """
        class Waits(nn.Module):
            def forward(self, x):
                time.sleep(0.1)
                return x
        model = nn.Sequential(nn.Linear(8, 8), Waits(), nn.ReLU(), nn.Linear(8, 8))
        train(model, [(torch.rand(4, 8), torch.rand(4, 8))] * 10)
    """,
    "verdict-too-few-steps": """
        train(mlp(8, 8), [(torch.rand(4, 8), torch.rand(4, 8))] * 4)
    """,
}


Inspect = Callable[[str], tuple[RunFacts, str]]
OPTIONS = ("--save", "run.json", "--", "python", "train.py")


@pytest.fixture
def inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Inspect:
    """Return the facts of a program that runs in this process, and what ``torchscan inspect`` printed."""
    monkeypatch.chdir(tmp_path)

    def of(code: str) -> tuple[RunFacts, str]:
        write_program(code, tmp_path)
        status = main(["inspect", *OPTIONS])
        printed = capsys.readouterr().err
        assert status == 0, printed
        return inspected_run(tmp_path / "run.json"), printed

    return of


def write_program(code: str, folder: Path) -> None:
    (folder / "train.py").write_text(BEGIN + textwrap.dedent(code))


def inspected_process(code: str, folder: Path) -> tuple[RunFacts, str]:
    """Return the same of a new process, of which the memory that it has grows from nothing."""
    write_program(code, folder)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "torchscan", "inspect", *OPTIONS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return inspected_run(folder / "run.json"), done.stderr


#: in a process that has other threads and memory, these would depend on what ran before
APART = ("verdict-input-bound", "verdict-memory-growth")


@pytest.mark.parametrize("code", [each for each in PROGRAMS if each not in APART])
def test_a_program_with_one_thing_wrong(code: str, inspected: Inspect) -> None:
    expect_verdict(code, *inspected(PROGRAMS[code]))


@pytest.mark.slow
@pytest.mark.parametrize("code", APART)
@pytest.mark.sweep
def test_a_process_with_one_thing_wrong(code: str, tmp_path: Path) -> None:
    expect_verdict(code, *inspected_process(PROGRAMS[code], tmp_path))


def expect_verdict(code: str, run: RunFacts, printed: str) -> None:
    assert run.verdict is not None
    assert run.verdict.code == code
    last = f"Verdict: {run.verdict}."
    assert " ".join(printed.split()).endswith(last)


#: programs with nothing wrong
HEALTHY = {
    "validation": """
        model = mlp(64, 512, 512, 512, 512, 8)
        for _ in range(3):
            train(model.train(), [(torch.rand(64, 64), torch.rand(64, 8))] * 10)
            with torch.no_grad():
                for _ in range(5):
                    model.eval()(torch.rand(64, 64))
            torch.save(model.state_dict(), "checkpoint.pt")
    """,
    "losses in a list": """
        losses = []
        data = [(torch.rand(64, 64), torch.rand(64, 512))]
        train(mlp(64, 512, 512, 512), data * 60, lambda out, loss: losses.append(loss.item()))
    """,
    "several models": """
        G, D = mlp(64, 512, 512, 256), mlp(256, 512, 256, 1)
        first, second = (torch.optim.Adam(each.parameters(), 1e-4) for each in (G, D))
        for _ in range(10):
            fake = G(torch.rand(64, 64))
            second.zero_grad()
            (D(fake.detach()).mean() - D(torch.rand(64, 256)).mean()).backward()
            second.step()
            first.zero_grad()
            (-D(fake).mean()).backward()
            first.step()
    """,
    "truncated backpropagation": """
        rnn, head = nn.GRU(32, 256, batch_first=True), nn.Linear(256, 32)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.head = rnn, head
            def forward(self, x, state):
                x, state = self.rnn(x, state)
                return self.head(x), state
        model, state = Net(), None
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(30):
            x = torch.rand(16, 20, 32)
            out, state = model(x, state)
            F.mse_loss(out, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            state = state.detach()
    """,
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program(name: str, tmp_path: Path) -> None:
    run, _ = inspected_process(HEALTHY[name], tmp_path)
    assert run.verdict is not None
    assert run.verdict.code in ("verdict-balanced", "verdict-slow-module")


@pytest.mark.slow
def test_small_operators_are_counted(inspected: Inspect) -> None:
    """How long an operator takes depends on the machine, so the number of them is what is checked."""
    code = """
        class Many(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(8))
                self.last = nn.Linear(8, 8)
            def forward(self, x):
                for _ in range(200):
                    x = torch.tanh(x * self.scale)
                return self.last(x)
        train(Many(), [(torch.rand(4, 8), torch.rand(4, 8))] * 10)
    """
    run, _ = inspected(code)
    assert run.evidence is not None
    # tanh, multiply and the accumulation of scale's gradient, the last layer and the loss
    assert 400 <= run.evidence.num_nodes <= 410
    assert run.evidence.node_time > 0


@pytest.mark.slow
def test_another_model_between_the_steps_is_not_a_slow_loader(inspected: Inspect) -> None:
    """The teacher of a distillation runs there."""
    code = """
        class Teacher(nn.Linear):
            def forward(self, x):
                time.sleep(0.1)
                return super().forward(x)
        teacher = Teacher(8, 8).requires_grad_(False)
        def batches():
            for _ in range(10):
                x = torch.rand(4, 8)
                with torch.no_grad():
                    y = teacher(x)
                yield x, y
        train(mlp(8, 512, 512, 512, 8), batches())
    """
    run, _ = inspected(code)
    assert run.between.median > 0.05
    assert run.verdict is not None
    assert run.verdict.code != "verdict-input-bound"
