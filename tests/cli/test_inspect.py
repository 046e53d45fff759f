"""``torchscan inspect``: real steps of a model, and of the model that a script trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as hooks_of_torch
from torch.torch_version import TorchVersion

from tests.opening import inspected_run
from torchscan.cli.main import main
from torchscan.inspecting.step_execution import local_device

ROOT = Path(__file__).parent.parent.parent
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fc = nn.Linear(4, width)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.head(self.fc(x))

class Decides(Net):
    def forward(self, x):
        return super().forward(x if x.sum().item() > 0 else -x)

class Breaks(Net):
    def forward(self, x):
        if isinstance(x.sum().item(), float):
            raise KeyError("halfway")

class Divides(Net):
    def forward(self, x):
        return self.head(self.fc(x) / 0)

def without_data():
    with torch.device("meta"):
        return Net()

def frozen():
    return Net().requires_grad_(False)

net = Net()
"""
#: what scripts begin with
TRAINING = """
import torch
from torch import nn
from torch.nn.modules import module as torchs

def hooks():
    return len(torchs._global_forward_pre_hooks) + len(torchs._global_forward_hooks)

def step(model, x=torch.ones(2, 4)):
    model(x).sum().backward()

def net(width):
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    assert sys.path == path
    for name in [
        each
        for each in set(sys.modules) - modules
        if each.startswith(("_torchscan_target_", "package"))
    ]:
        del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """The exit status, what was printed, and what was said on standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(["inspect", *arguments])
        except SystemExit as error:  # argparse's own way
            status = int(str(error.code))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


@pytest.fixture
def facts(run: Command, folder: Path) -> Callable[..., dict[str, Any]]:
    """What a script's inspection found, and what the script printed."""

    def of(code: str, *options: str) -> dict[str, Any]:
        (folder / "script.py").write_text(TRAINING + textwrap.dedent(code))
        status, out, err = run(
            "--format", "json", "--output", "facts.json", *options, "--", "python", "script.py"
        )
        assert status == 0, err
        found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        last = "Wrote facts.json.\n"
        assert err.endswith(last)
        return {**found, "printed": out, "said": err.removesuffix(last)}

    return of


def width(found: dict[str, Any]) -> int:
    """Which of the models it is, by the features of its first layer."""
    return int(found["calls"][1]["output_shapes"][0][-1])


def hooks() -> int:
    return len(hooks_of_torch._global_forward_pre_hooks) + len(hooks_of_torch._global_forward_hooks)


# -- a model -------------------------------------------------------------------------------------------------------------

NET = ("nets.py:Net", "--input", "4")
CPU = ("--run-on", "cpu", "--format", "json")


def test_steps_are_taken(run: Command) -> None:
    status, out, err = run(*NET, *CPU, "--steps", "3", "--batch-size", "6")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert (found["steps"], found["warm_up"], found["num_differing"]) == (3, 1, 0)
    assert [call["path"] for call in found["calls"]] == ["", "fc", "head", "head.0", "head.1"]
    assert found["calls"][1]["input_shapes"] == [[6, 4]]
    assert found["calls"][1]["macs"] == 6 * 4 * 8
    assert found["forward"]["median"] > 0 == found["backward"]["median"]


@pytest.mark.parametrize("optimizer", [(), ("--optimizer", "adamw"), ("--optimizer", "LBFGS")])
def test_steps_of_a_training(run: Command, optimizer: tuple[str, ...]) -> None:
    status, out, _ = run(*NET, *CPU, "--training", *optimizer)
    found = json.loads(out)
    assert (status, found["steps"]) == (0, 5)
    assert found["calls"][1]["backward"]["median"] > 0


def test_help_shows_both_ways(run: Command) -> None:
    status, out, _ = run("--help")
    assert (status, out.splitlines()[1].strip()) == (
        0,
        "torchscan inspect [options] -- python train.py [arguments]",
    )


def test_rows_and_columns(run: Command) -> None:
    _, out, _ = run(*NET, "--run-on", "cpu", "--max-depth", "1")
    assert out.splitlines()[1].split()[:3] == ["Layer", "Type", "Forward"]
    assert [line.split()[0] for line in out.splitlines()[3:6]] == ["Net", "├─fc", "└─head"]
    assert "Medians of 5 steps after 1 warm-up step" in out


DEEP = """
from torch import nn
model = nn.Linear(4, 4)
for _ in range(4):
    model = nn.Sequential(model)
"""


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ((), 4),
        (("--format", "markdown"), 4),
        (("--format", "csv"), 5),
        (("--format", "html"), 5),
        (("--format", "csv", "--max-depth", "1"), 2),
        (("--max-depth", "9"), 5),
    ],
)
def test_programs_and_pages_get_all_modules(
    run: Command, folder: Path, options: tuple[str, ...], rows: int
) -> None:
    (folder / "deep.py").write_text(DEEP)
    _, out, _ = run("deep.py:model", "--input", "4", "--run-on", "cpu", *options)
    assert out.count("Linear") + len(re.findall(r"\bSequential *[\s,|<]", out)) >= rows
    assert ("Linear" in out.partition("Verdict")[0]) == (rows == 5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_precisions(run: Command, precision: str) -> None:
    assert run(*NET, *CPU, "--training", "--precision", precision)[0] == 0


def test_a_model_that_decides_by_values_has_some(run: Command) -> None:
    status, out, _ = run("nets.py:Decides", "--input", "4", *CPU)
    assert (status, len(json.loads(out)["calls"])) == (0, 5)


def test_a_model_that_exists_is_not_changed(run: Command) -> None:
    before = set(sys.modules)
    assert (
        run(
            "nets.py:net",
            "--input",
            "4",
            *CPU,
            "--training",
            "--optimizer",
            "SGD",
            "--precision",
            "bf16",
        )[0]
        == 0
    )
    (name,) = (each for each in set(sys.modules) - before if each.startswith("_torchscan_target_"))
    net = sys.modules[name].net
    assert all(each.grad is None and each.dtype is torch.float32 for each in net.parameters())
    assert net.training


def test_the_random_state_is_left_alone(run: Command) -> None:
    before = torch.get_rng_state()
    run(*NET, *CPU)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a TARGET, or a script after --, as in torchscan inspect -- python train.py"),
        (
            ("nets.py",),
            "nets.py is a script: give a model in it, nets.py:NAME, or run it, torchscan inspect -- python nets.py",
        ),
        (("nets.py:Net",), "its inputs are not known"),
        (("python", "nets.py"), "give a script after --, torchscan inspect -- python nets.py"),
        (("nets.py:Net", "(3,4)"), "give a shape as --input 3,4"),
        (
            ("nets.py", "--steps", "3", "--lr", "1"),
            "give a script after --, torchscan inspect -- nets.py --steps 3 --lr 1",
        ),
        (("nets.py:Net", "[3, 4]"), "[3, 4] is not an option: give a shape as --input 3,4"),
        (("nets.py:Net", "--input", "3", "4"), "4 is not an option: give a shape as --input 3,4"),
        (("nets.py:Net", "3", "4"), "3 4 are not options: give a shape as --input 3,4"),
        (("nets.py:Net", "--depht", "2"), "--depht is not an option"),
        ((*NET, "--steps", "0"), "'0' is not a positive number"),
        ((*NET, "--max-depth", "-1"), "'-1' is not a depth: give 0 for the model, or more"),
        ((*NET, "--optimizer", "SGD"), "give --training"),
        (
            (*NET, "--run-on", "RTX 4090"),
            "the device is 'RTX 4090', and steps run on this machine: give cpu, cuda or cuda:0",
        ),
        ((*NET, "--run-on", "meta"), "the device is 'meta'"),
        (
            (*NET, "--run-on", "cuda:99"),
            "cuda:99 is not a device that torch can use here: give cpu",
        ),
        (
            (*NET, "--run-on", "cpu", "--precision", "tf32"),
            "precision is tf32, which needs a CUDA device, and steps run on cpu: give fp32 or bf16",
        ),
        ((*NET, "--precision", "fp8"), "precision is fp8, which needs its own modules"),
        (
            (*NET, "--training", "--optimizer", "Adamant"),
            "--optimizer is 'Adamant': did you mean 'Adamax'? Give the name of a class",
        ),
        (
            ("nets.py:Breaks", "--input", "4", "--run-on", "cpu"),
            "Breaks failed in a real step: KeyError: 'halfway'",
        ),
        (
            ("nets.py:without_data", "--input", "4"),
            "Net has tensors without data, but real steps need data",
        ),
        (
            ("nets.py:frozen", "--input", "4", "--run-on", "cpu", "--training"),
            "unfreeze a parameter, or leave out --training",
        ),
        (("nets.py:Net", "--input", "5", "--run-on", "cpu"), "fc (Linear) failed in aten.linear"),
        (
            ("nets.py:Net", "--input", "4:long", "--run-on", "cpu"),
            "try: give the inputs the type that the model expects with --dtype",
        ),
    ],
)
def test_wrong_use_is_a_line_and_status_2(
    run: Command, arguments: tuple[str, ...], says: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == (3 if "  try: " in err else 1)
    assert hooks() == 0


def test_the_device_is_the_fastest_one_here() -> None:
    assert local_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")


# -- what is not finite, and files ---------------------------------------------------------------------------------------

DIVIDES = ("nets.py:Divides", "--input", "4", "--run-on", "cpu", "--steps", "2")
FOUND = "first Inf in the output of the model (Divides), forward pass"


def test_what_is_not_finite_is_said_below_the_table(run: Command) -> None:
    status, out, err = run(*DIVIDES, "--width", "120")
    assert (status, err) == (0, "")
    assert f"In 3 steps, first in step 0: {FOUND}" in out


def test_it_is_warned_of_at_once(run: Command) -> None:
    status, out, err = run(*DIVIDES, "--on-nonfinite", "warn", "--width", "120")
    assert (status, FOUND in out) == (0, True)
    assert err.startswith(f"torchscan: note: step 0: {FOUND}")


def test_it_ends_the_steps_with_status_1_and_the_table(run: Command) -> None:
    status, out, err = run(*DIVIDES, "--on-nonfinite", "raise", "--width", "120")
    assert status == 1
    assert f"Step 0: {FOUND}" in out
    assert err.startswith(f"torchscan: step 0: {FOUND}")
    assert err.count("\n") == 1
    assert hooks() == 0


OVERFLOWS = f"""{TRAINING}
model = net(8)
for number in range(4):
    print(number)
    step(model, torch.ones(2, 4) * (float("inf") if number == 2 else 1))
"""


@pytest.mark.parametrize(("reaction", "status", "steps"), [("record", 0, 4), ("raise", 1, 3)])
def test_a_script_goes_on_unless_it_is_to_end(
    run: Command, folder: Path, reaction: str, status: int, steps: int
) -> None:
    (folder / "script.py").write_text(OVERFLOWS)
    ended, out, err = run("--on-nonfinite", reaction, "--", "script.py")
    assert (ended, out.split()) == (status, list(map(str, range(steps))))
    table = " ".join(err.rpartition("Step to step")[2].split())
    assert "Step 2: first Inf in the input of the model: 8 of 8 values are Inf" in table
    assert ("NonFiniteError: step 2: first Inf" in err) == (reaction == "raise")


def test_a_script_is_warned_of_it_and_goes_on(run: Command, folder: Path) -> None:
    (folder / "script.py").write_text(OVERFLOWS)
    with pytest.warns(UserWarning, match="step 2: first Inf in the input of the model"):
        assert run("--on-nonfinite", "warn", "--", "script.py")[:2] == (0, "0\n1\n2\n3\n")


def test_what_is_found_when_the_script_is_over_is_raised_then(run: Command, folder: Path) -> None:
    """Parameters that an optimizer spoils after the last step."""
    code = "model = net(8)\nstep(model)\nmodel[0].weight.data.fill_(float('nan'))\nprint('mine')\n"
    (folder / "script.py").write_text(TRAINING + code)
    status, out, err = run("--on-nonfinite", "raise", "--save", "run.json", "--", "script.py")
    assert (status, out) == (1, "mine\n")
    assert "\ntorchscan: step 0: first NaN in 0 (Linear) after the step" in err
    assert json.loads((folder / "run.json").read_text())["nonfinite"][0]["phase"] == "update"
    (folder / "script.py").write_text(f"{TRAINING}{code}raise SystemExit(7)")
    assert run("--on-nonfinite", "raise", "--", "script.py")[0] == 7


@pytest.mark.parametrize("words", [(*NET, "--run-on", "cpu", "--training"), ("--", "script.py")])
def test_runs_and_traces_are_saved(run: Command, folder: Path, words: tuple[str, ...]) -> None:
    (folder / "script.py").write_text(
        f"{TRAINING}\nmodel = net(8)\nfor _ in range(3): step(model)\n"
    )
    status, out, err = run("--save", "runs/run.json", "--trace", "runs/trace.json", *words)
    assert status == 0
    saved = inspected_run(folder / "runs" / "run.json")
    written = "Wrote runs/run.json.\nWrote runs/trace.json.\n"
    assert (out, err) in ((f"{saved}\n", written), ("", f"{written}{saved}\n"))
    events = json.loads((folder / "runs" / "trace.json").read_text())["traceEvents"]
    assert {f"{call.path} {call.type_name}".strip() for call in saved.calls} <= {
        event["name"] for event in events
    }


def test_nan_is_reported_beside_a_written_file(run: Command, folder: Path) -> None:
    status, out, err = run(*DIVIDES, "--output", "table.txt")
    written, *findings = err.splitlines()
    assert (status, out, written) == (0, "", "Wrote table.txt.")
    assert len(findings) == 1
    sentence = findings[0].removeprefix("torchscan: ")
    assert FOUND in sentence
    assert sentence in " ".join((folder / "table.txt").read_text().split())
    assert run(*NET, "--run-on", "cpu", "-o", "table.txt") == (0, "", "Wrote table.txt.\n")


def test_iterations_of_a_model_without_loops_are_pointed_out(run: Command) -> None:
    status, _, err = run(*NET, "--run-on", "cpu", "--steps", "1", "--loop-iterations", "7")
    assert status == 0
    assert err == (
        "torchscan: note: --loop-iterations 7 has no effect on Net, which has no while_loop whose "
        "end depends on data\n"
    )


@pytest.mark.parametrize("option", ["--save", "--trace"])
def test_a_file_that_cannot_be_written_costs_no_table(
    run: Command, folder: Path, option: str
) -> None:
    status, out, err = run(*NET, "--run-on", "cpu", option, "nets.py/file")
    assert (status, out.startswith("───"), "cannot be written" in err, err.count("\n")) == (
        2,
        True,
        True,
        1,
    )
    (folder / "script.py").write_text(f"{TRAINING}\nstep(net(8))\n")
    status, _, err = run(option, "nets.py/file", "--", "script.py")
    assert (status, err.startswith("───"), "cannot be written" in err) == (2, True, True)


# -- a script: as Python runs it -----------------------------------------------------------------------------------------


def test_a_script_finds_what_python_gives_it(run: Command, folder: Path) -> None:
    """The same as in a process of its own, without torchscan."""
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour.py").write_text("")
    names = (
        "__name__, __file__, __spec__, __package__, __cached__, __doc__, type(__loader__).__name__"
    )
    code = f"import sys, neighbour\nprint(sys.argv, sys.path[0], {names})\nprint(sys.modules['__main__'].names)\n"
    (folder / "sub" / "script.py").write_text(f"names = 1\n{code}")
    words = ["sub/script.py", "--steps", "7", "--", "x"]
    plain = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)  # noqa: S603
    before = list(sys.argv), sys.modules["__main__"]
    status, out, err = run("--", "python", *words)
    assert (status, out) == (0, plain.stdout)
    assert (
        err
        == "torchscan: the script called no torch module in this process, so there is nothing to show\n"
    )
    assert (sys.argv, sys.modules["__main__"]) == before
    assert "neighbour" in sys.modules
    del sys.modules["neighbour"]


def test_a_module_finds_what_python_gives_it(run: Command, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    code = "import sys\nprint(sys.argv, sys.path[0], __name__, __spec__.name, __package__)\n"
    for name in ("train", "__main__"):
        (folder / "package" / f"{name}.py").write_text(code)
    for name in ("package.train", "package"):
        words = ["-m", name, "-m", "x"]
        plain = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)  # noqa: S603
        assert run("--", "python3", *words)[:2] == (0, plain.stdout)
        assert run("--", *words)[:2] == (0, plain.stdout)


@pytest.mark.parametrize(
    "words", [("-u", "script.py"), ("-um", "script"), ("-u", "-m", "script"), ("-mscript",)]
)
def test_flags_that_are_kept(run: Command, folder: Path, words: tuple[str, ...]) -> None:
    (folder / "script.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    assert run("--", sys.executable, *words, "-u", "x")[:2] == (0, "-u x\n")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("exit(3)", 3, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        (
            "raise __import__('torchscan').InputError('of the script')",
            1,
            "InputError: of the script\n",
        ),
    ],
)
def test_the_exit_status_is_the_scripts(
    run: Command, folder: Path, code: str, status: int, said: str
) -> None:
    (folder / "script.py").write_text(
        f"import sys\n{TRAINING}\nmodel = net(8)\nstep(model)\n{code}\n"
    )
    ended, out, err = run("--", "python", "script.py")
    assert (ended, out) == (status, "")
    before, _, table = err.partition("─")
    assert before.endswith(said) if said else before == ""
    assert "Sequential" in table
    assert "Traceback" not in table


@pytest.mark.parametrize("code", ["def f():\n    1 / 0\nf()\n", "import\n", "import nowhere\n"])
def test_tracebacks_are_pythons(run: Command, folder: Path, code: str) -> None:
    (folder / "script.py").write_text(code)
    plain = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False
    )
    status, _, err = run("--", "python", "script.py")
    assert (status, err.rpartition("torchscan: ")[0]) == (plain.returncode, plain.stderr)


def test_a_hook_of_the_scripts_for_exceptions_is_called(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    code = "import sys\nsys.excepthook = lambda kind, error, trace: print(kind.__name__, trace.tb_lineno)\n1 / 0\n"
    (folder / "script.py").write_text(code)
    assert run("--", "script.py")[:2] == (1, "ZeroDivisionError 3\n")
    (folder / "script.py").write_text("import sys\nsys.excepthook = lambda *_: {}[0]\n1 / 0\n")
    assert "ZeroDivisionError: division by zero\n" in run("--", "script.py")[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing follows --: give a script: python train.py"),
        (("python",), "nothing follows --: give a script"),
        (("python", "-m"), "nothing follows --: give a module: python -m package.module"),
        (
            ("torchrun", "train.py"),
            "'torchrun' is not Python: give a script after --, as in python train.py, or let the launcher",
        ),
        (("python2.7", "train.py"), "the script asks for Python 2.7, and this is 3."),
        (
            ("python", "-X", "dev", "nets.py"),
            "python -X has no effect after --: start torchscan with it, as in python -X … -m torchscan",
        ),
        (("python", "-W", "error", "nets.py"), "python -W has no effect after --"),
        (("python", "-O", "nets.py"), "python -O has no effect after --"),
        (("python", "-c", "pass"), "a program after -- is a file or a module"),
        (("python", "-"), "a program after -- is a file or a module"),
        (("python", "nowhere.py"), "'nowhere.py' does not exist: give a script"),
        (("python", "-m", "nowhere.at.all"), "'nowhere' is not an installed module"),
        (("python", "-m", "json.nowhere"), "'json.nowhere' is not an installed module"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(
    run: Command, words: tuple[str, ...], says: str
) -> None:
    before = list(sys.argv)
    status, out, err = run("--", *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"torchscan: {says}")
    assert err.count("\n") == 1
    assert (sys.argv, hooks()) == (before, 0)


@pytest.mark.parametrize(
    "options",
    [
        ("--training",),
        ("--input", "4"),
        ("--batch-size", "2"),
        ("--run-on", "cpu"),
        ("--precision", "bf16"),
        ("nets.py:Net",),
    ],
)
def test_options_for_targets_are_refused_for_scripts(
    run: Command, options: tuple[str, ...]
) -> None:
    status, out, err = run(*options, "--", "python", "nets.py")
    assert (status, out) == (2, "")
    assert f"{options[0]} is for a TARGET, not for a script" in err


# -- a script: its model -------------------------------------------------------------------------------------------------


def test_the_model_is_watched_for_so_many_steps(facts: Any) -> None:
    found = facts(
        """
        model = net(8)
        for _ in range(9):
            print(hooks())
            step(model)
        """,
        *("--steps", "3"),
    )
    assert (found["steps"], found["warm_up"]) == (3, 1)
    assert [call["path"] for call in found["calls"]] == ["", "0", "1"]
    assert found["calls"][0]["macs"] == 2 * (4 * 8 + 8)
    watched = list(map(int, found["printed"].split()))
    assert all(watched[:5])
    assert watched[5:] == [2, 2, 2, 2]  # of the checks that go on
    assert hooks() == 0


def test_fewer_steps_are_all_there_are(facts: Any) -> None:
    found = facts("model = net(8)\nfor _ in range(3): step(model)")
    assert (found["steps"], found["warm_up"], found["said"]) == (2, 1, "")
    assert facts("step(net(8))")["steps"] == 1


@pytest.mark.parametrize(
    ("code", "features"),
    [
        ("for _ in range(9): step(small); step(large)", 16),
        ("for _ in range(9): step(large); step(small)", 16),
        ("with torch.no_grad(): large(x)\nfor _ in range(9): step(small)", 8),
        ("large.requires_grad_(False)\nfor _ in range(9): large(x); step(small)", 8),
        ("with torch.no_grad(): small(x)\nfor _ in range(9): step(small)", 8),
        ("large[0](x)\nfor _ in range(9): step(large)", 16),
        ("for _ in range(3): step(small)\nfor _ in range(9): step(large)", 16),
        ("for _ in range(9): step(small)\nstep(large)", 8),
        ("large[0].requires_grad_(False)\nfor _ in range(9): step(small); step(large)", 16),
    ],
)
def test_the_largest_that_trains_is_found(facts: Any, code: str, features: int) -> None:
    found = facts(f"small, large, x = net(8), net(16), torch.ones(2, 4)\n{code}")
    assert width(found) == features
    assert len(found["calls"]) == 3
    assert found["steps"] >= 1
    assert found["said"] == ""


def test_a_model_in_another_that_it_is_no_part_of(facts: Any) -> None:
    """It has more parameters, and is called in the middle."""
    found = facts(
        """
        class Trainer(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.models = nn.Linear(1, 1), [net(8)]

            def forward(self, x):
                return self.scale(self.models[0](x))

        trainer = Trainer()
        for _ in range(4): step(trainer)
        """
    )
    assert (width(found), found["steps"]) == (8, 3)


def test_lazy_models_are_found(facts: Any) -> None:
    found = facts(
        "model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(1))\nfor _ in range(4): step(model)"
    )
    assert [call["path"] for call in found["calls"]] == ["", "0", "1"]


def test_training_in_another_thread_is_followed(facts: Any) -> None:
    found = facts(
        """
        import threading
        model = net(8)
        thread = threading.Thread(target=lambda: [step(model) for _ in range(9)])
        thread.start()
        thread.join()
        print(hooks())
        """
    )
    assert (found["steps"], found["printed"]) == (5, "2\n")


@pytest.mark.slow
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.7",
    reason="torch 2.6 compiles again where global hooks come or go",
)
def test_a_compiled_model_stays_in_one_piece(facts: Any) -> None:
    """It is compiled once, as without hooks, which are away meanwhile."""
    found = facts(
        """
        import warnings
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        compiled = []
        def backend(graph, inputs):
            compiled.append(graph)
            return graph
        model = torch.compile(net(8), backend=backend)
        for _ in range(12): step(model)
        print([len([node for node in graph.graph.nodes if node.op == "call_function"]) for graph in compiled])
        """
    )
    assert (found["printed"], found["said"]) == ("[2]\n", "")
    assert [(call["path"], call["type_name"]) for call in found["calls"]] == [
        ("", "OptimizedModule")
    ]
    assert found["steps"] == 5


COMPILED_LATER = """
import sys
step(model := net(8))
assert "torch._dynamo" not in sys.modules
compiled = []
def backend(graph, inputs):
    compiled.append(graph)
    return graph
model = torch.compile(model, backend=backend, fullgraph=True)
for _ in range(12): step(model)
print(len(compiled))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.7",
    reason="torch 2.6 compiles again where global hooks come or go",
)
@pytest.mark.sweep
def test_a_model_that_is_compiled_after_its_first_call_stays_in_one_piece(folder: Path) -> None:
    """In a process of its own: the compiler must not have been loaded before. What was compiled is watched from then on."""
    (folder / "script.py").write_text(TRAINING + COMPILED_LATER)
    call = [sys.executable, "-m", "torchscan", "inspect", "--save", "run.json", "--", "script.py"]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=given)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    found = inspected_run("run.json")
    assert [call.type_name for call in found.calls] == ["OptimizedModule"]
    assert found.steps == 5
    assert found.compilation is not None
    assert (found.compilation.breaks, found.compilation.recompiled) == ((), 0)


def test_what_a_model_is_put_into_takes_its_place(facts: Any) -> None:
    """But no other with as many parameters does."""
    found = facts(
        "model = net(8)\nstep(model)\nstep(net(8))\nmodel = nn.Sequential(model)\nfor _ in range(9): step(model)"
    )
    assert [call["path"] for call in found["calls"]] == ["", "0", "0.0", "0.1"]
    assert found["steps"] == 5


def test_a_script_that_only_evaluates_is_told_so(facts: Any) -> None:
    found = facts(
        "torch.set_grad_enabled(False)\nfor _ in range(9): net(8)(torch.ones(2, 4))\ntorch.set_grad_enabled(True)"
    )
    assert (
        found["said"]
        == "torchscan: note: no module of the script trains, so this is the largest that it calls\n"
    )
    assert found["steps"] == 1  # each model is another
    found = facts(
        "model = net(8)\nwith torch.no_grad():\n    for _ in range(9): model(torch.ones(2, 4))",
        "--steps",
        "4",
    )
    assert (found["steps"], found["backward"]["median"]) == (4, 0.0)


def test_evaluations_between_the_steps_of_a_script_are_apart(facts: Any) -> None:
    found = facts(
        """
        model = net(8)
        for _ in range(9):
            with torch.no_grad():
                for _ in range(3):
                    model(torch.ones(7, 4))
            step(model)
        """,
        *("--steps", "4"),
    )
    assert (found["steps"], found["timed"], found["warm_up"]) == (4, 4, 1)
    assert found["backward"]["median"] > 0
    assert (found["evaluation"]["passes"], found["evaluation"]["calls"][0]["input_shapes"]) == (
        12,
        [[7, 4]],
    )


@pytest.mark.slow
def test_results_are_the_same_bit_by_bit(facts: Any, folder: Path) -> None:
    found = facts(
        """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(), nn.BatchNorm1d(32), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(9):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
        """
    )
    plain = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=True
    )
    assert found["printed"] == plain.stdout


@pytest.mark.slow
def test_a_model_is_let_go_when_its_steps_are_over(facts: Any) -> None:
    found = facts(
        """
        import gc, weakref
        model = net(8)
        gone = weakref.ref(model)
        for _ in range(9): step(model)
        del model
        gc.collect()
        print(gone())
        """
    )
    assert found["printed"] == "None\n"


def test_a_mistake_of_ours_does_not_stop_the_script(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [50]

    def broken(*_: Any) -> int:
        if not sizes:
            raise ZeroDivisionError("of ours")
        return sizes.pop()

    monkeypatch.setattr("torchscan.inspecting.largest_module.LargestModule._size_of", broken)
    code = "step(net(8))\nprint(hooks() > 0)\nstep(net(9))\nprint(hooks())\nraise SystemExit(5)"
    (folder / "script.py").write_text(TRAINING + code)
    status, out, err = run("--", "script.py")
    assert (status, out) == (5, "True\n2\n")
    assert err.startswith("torchscan: internal error, please report it")


def test_costs_that_cannot_be_worked_out_do_not_stop_it_either(
    facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("torchscan.expectation.Scan", broken)
    found = facts("model = net(8)\nfor _ in range(9): step(model)")
    assert (found["steps"], found["calls"][0]["macs"]) == (5, None)


# -- a script: the answer ------------------------------------------------------------------------------------------------


def test_standard_output_is_the_scripts(run: Command, folder: Path) -> None:
    (folder / "script.py").write_text(f"{TRAINING}\nprint('mine')\nstep(net(8))\n")
    status, out, err = run("--", "script.py")
    assert (status, out) == (0, "mine\n")
    assert err.startswith("───")
    assert run("--format", "csv", "--output", "run.csv", "--", "script.py") == (
        *(0, "mine\n", "Wrote run.csv.\n"),
    )
    assert (folder / "run.csv").read_text().startswith("path,")


def test_a_table_that_cannot_be_written_fails_a_script_that_did_not(
    run: Command, folder: Path
) -> None:
    (folder / "script.py").write_text(f"{TRAINING}\nstep(net(8))\n")
    status, _, err = run("--output", "nets.py/table", "--", "script.py")
    assert (status, "cannot be written" in err, err.count("\n")) == (2, True, 1)
    (folder / "script.py").write_text(f"{TRAINING}\nstep(net(8))\nraise SystemExit(7)")
    assert run("--output", "nets.py/table", "--", "script.py")[0] == 7


def test_a_stream_that_the_script_has_closed_is_not_needed(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    code = "import sys, io\nsys.stderr = io.StringIO()\nstep(net(8))\nsys.stderr.close()\n"
    (folder / "script.py").write_text(TRAINING + code)
    status, _, err = run("--", "script.py")
    assert (status, err.startswith("───")) == (0, True)


WHOLE = """
import multiprocessing, os, sys, warnings

def double(x):
    return 2 * x

if __name__ == "__main__":
    print("begins")
    warnings.warn("careful")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
    import torch
    model = torch.nn.Linear(4, 1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("ends")
    sys.exit(4)
"""


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("words", [("python", "whole.py"), ("python", "-m", "whole")])
def test_a_process_of_its_own(folder: Path, words: tuple[str, ...]) -> None:
    """Warnings, workers that import the script again, forks, and the order of what is said."""
    (folder / "whole.py").write_text(WHOLE)
    call = [sys.executable, "-m", "torchscan", "inspect", "--", *words]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603
        call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=given
    )
    assert done.returncode == 4
    before, table = done.stdout.split("─", 1)
    assert "whole.py:9: UserWarning: careful\n" in before
    assert [line for line in before.splitlines() if line in ("begins", "[2, 4]", "ends")] == [
        "begins",
        "[2, 4]",
        "ends",
    ]
    assert table.count("Medians of 2 steps after 1 warm-up step") == 1


LATE = """
import atexit, pickle, sys, threading
import torch

class Net(torch.nn.Linear):
    pass

def save(file):
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    import late_layers
    with open(file, "wb") as stream:
        pickle.dump(Net(4, late_layers.FEATURES), stream)
    print(sys.argv[1:])

if __name__ == "__main__":
    atexit.register(save, "by_atexit.pt")
    threading.Thread(target=save, args=["by_thread.pt"]).start()
"""


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("words", [("python", "-m", "late"), ("python", "late.py")])
def test_what_a_script_does_when_it_is_over_finds_its_own_things(
    folder: Path, words: tuple[str, ...]
) -> None:
    """Its classes, so that a checkpoint can be written; its neighbours; its arguments."""
    (folder / "late.py").write_text(LATE)
    (folder / "late_layers.py").write_text("FEATURES = 2\n")
    call = [sys.executable, "-m", "torchscan", "inspect", "--", *words, "--epochs", "3"]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=given)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, "['--epochs', '3']\n" * 2)
    assert "Traceback" not in done.stderr
    assert b"__main__" in (folder / "by_atexit.pt").read_bytes()
    assert b"__main__" in (folder / "by_thread.pt").read_bytes()
