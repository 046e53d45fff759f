"""The commands as a person, a script and a shell use them. What they print is in docs/ and compared by tests/test_docs.py."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.test_terminal import screen
from torchscan import estimate_memory, from_json
from torchscan.analyses.conventions import Convention
from torchscan.cli.main import main, parser
from torchscan.cli.options import parsers_by_command
from torchscan.cli.output import report_internal_error
from torchscan.precisions import Precision
from torchscan.recording.request import Mode
from torchscan.report.cost_table import By
from torchscan.report.roofline_table import Rows
from torchscan.report.table import FORMATS, Cut

ROOT = Path(__file__).parent.parent.parent
NETS = """
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fc = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.fc(x))

def slow():
    time.sleep(1.2)  # the line appears after a second
    return Net()

def interrupted():
    raise KeyboardInterrupt

def shapeless():
    return nn.ReLU()

def leaves():
    raise SystemExit(0)

class Leaves(Net):
    def forward(self, x):
        raise SystemExit(0)

def talks():
    print("building")
    return Net()

class Strange(Net):
    def __init__(self):
        super().__init__()
        self._modules["=1+1"], self._modules["\\ud800"] = self._modules.pop("fc"), self._modules.pop("head")

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x

class Picky(Net):
    def forward(self, x):
        raise ValueError("call me with strict=True")

class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)

unknown = Unknown()
"""
COMMANDS = tuple(parsers_by_command(parser().get_default("commands")))
HELPS = [
    ["--help"],
    ["--version"],
    *([*command.split(), "--help"] for command in ("llm", "runs", *COMMANDS)),
    ["completion", "bash"],
]
SIGNS = {
    "text": "──",
    "markdown": "| :-- |",
    "github": "| :-- |",
    "latex": r"\toprule",
    "csv": ",",
    "json": "{",
    "html": "<table",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in [
        each for each in set(sys.modules) - modules if each.startswith("_torchscan_target_")
    ]:
        del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The exit status of a command, what it printed, and what it said on standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as error:  # argparse's own way
            status = int(str(error.code))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


NET = ("nets.py:Net", "--input", "4")
_TRAIN = ("--num-gpus", "8", "--device", "H100")


# -- help ----------------------------------------------------------------------------------------------------------------


HELPS_WITHOUT_TORCH = r"""
import sys
from torchscan.cli.main import main
for arguments in {helps}:
    print("\f")
    try:
        main(arguments)
    except SystemExit as error:
        assert not error.code, arguments
    assert "torch" not in sys.modules, arguments
"""


def test_help_does_not_wait_for_torch() -> None:
    code = HELPS_WITHOUT_TORCH.format(helps=HELPS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    _, *answers = done.stdout.split("\f")
    assert len(answers) == len(HELPS)
    assert all(answer.strip() for answer in answers)


@pytest.mark.slow
def test_help_teaches(run: Any) -> None:
    _, text, _ = run("--help")
    assert all(command.split()[0] in text for command in COMMANDS)
    for command in COMMANDS:
        status, text, _ = run(*command.split(), "--help")
        assert status == 0
        assert command == "completion" or f"examples\n  torchscan {command}" in text
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80])
def test_help_fits_the_terminal(run: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in ("", *COMMANDS):
        text = run(*command.split(), "--help")[1]
        # Choices, options of which one may be given, and a line of usage cannot be parted.
        fixed = re.compile(r" +-.*\{| .* \| | .* -- python train.py \[")
        lines = [line for line in text.splitlines() if not fixed.match(line)]
        assert max(map(len, lines)) <= width, command


def test_narrow_help_has_the_same_commands_and_keys(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examples(command: str) -> list[list[str]]:
        text = run(*command.split(), "--help")[1].partition("\nexamples\n")[2]
        lines = text.partition("\n\n")[0].replace("\\\n", " ").splitlines()
        return list(map(shlex.split, lines))

    def keys() -> dict[str, Any]:
        text = run("check", "--help")[1]
        lines = [line for line in text.splitlines() if re.match(r"  (\[|#|\w+ = )", line)]
        return tomllib.loads("\n".join(lines))

    monkeypatch.setenv("COLUMNS", "200")
    wide, wide_keys = {command: examples(command) for command in COMMANDS}, keys()
    monkeypatch.setenv("COLUMNS", "50")
    assert {command: examples(command) for command in COMMANDS} == wide
    assert keys() == wide_keys
    assert wide_keys["budgets"]["backbone"]["max_macs"] == "4.2G"


def test_choices_are_all_that_there_are() -> None:
    """Help does not wait for the lists themselves, which stand beside what needs torch."""
    parsers = parsers_by_command(parser().get_default("commands"))

    def choices(command: str, option: str) -> tuple[str, ...]:
        return tuple(parsers[command]._option_string_actions[option].choices or ())

    assert set(choices("summary", "--convention")) == set(get_args(Convention))
    assert choices("summary", "--mode") == get_args(Mode)
    assert choices("summary", "--wrap-mode") == get_args(Cut)
    for command in ("memory", "table", "inspect", "llm serve", "llm train"):
        assert choices(command, "--precision") == get_args(Precision)
    assert choices("roofline", "--by") == get_args(Rows)
    assert choices("summary", "--by") == get_args(By)
    assert choices("table", "--format") == FORMATS


# -- exit statuses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sumary",), "there is no command 'sumary': did you mean summary?"),
        (("summary",), "required: TARGET"),
        (("summary", "nets.py:Net"), "its inputs are not known"),
        (("summary", "a b"), "'a b' is not a model"),
        (("summary", "nets.py:Net", "--input", "4;"), "'4;' is not an input"),
        (("summary", *NET, "--dtype", "float31"), "'float31' is not a type"),
        (("summary", *NET, "--format", "word"), "invalid choice: 'word'"),
        (
            ("summary", *NET, "--columns", "price"),
            "'price' is not a column: choose from type, path, input_shape, output_shape,",
        ),
        (
            ("summary", *NET, "--columns", "50"),
            "'50' is not a column: give --width 50 for a table of 50 characters",
        ),
        (("summary", *NET, "--sort", "price"), "'price' is not a column"),
        (("summary", *NET, "--top", "0"), "'0' is not a positive number"),
        (("summary", *NET, "--batch-size", "-1"), "not a positive number"),
        (("summary", *NET, "--match", "nothing*"), "no layer matches 'nothing*'"),
        (
            ("summary", *NET, "--max-depth", "-1"),
            "argument --max-depth: '-1' is not a depth: give 0",
        ),
        (("summary", "nets.py:Net", "--input", "5"), "fc (Linear) failed in aten.linear"),
        (
            ("summary", "nets.py:unknown", "--input", "4,4", "--strict"),
            "these operators have no cost formula: aten.special_bessel_j0",
        ),
        (
            ("summary", "nets.py:unknown", "--input", "4,4", "--strict"),
            "leave out --strict for lower bounds",
        ),
        (
            ("memory", *NET, "--largest-batch"),
            "depends on the device: give --device 'NVIDIA H200', for example",
        ),
        (
            ("summary", *NET, "--output", "nets.py/report.txt"),
            "'nets.py/report.txt' cannot be written, since 'nets.py' is a file: give a path in a",
        ),
        (
            ("graph", *NET, "--output", "nets.py/below/net.svg"),
            "'nets.py/below/net.svg' cannot be written, since 'nets.py' is a file: give a path",
        ),
        (("table", *NET, "--metrics", "price"), "'price' is not a metric"),
        (
            ("table", *NET, "--metrics", "latency"),
            "a latency needs a device: give --device 'NVIDIA H200', for example",
        ),
        (("roofline", *NET, "--device", "RTX 9999"), "RTX 9999"),
        (("memory", *NET, "--optimizer", "AdamW"), "give --training"),
        (("receptive-field", *NET, "--layer", "nothing"), "no layer 'nothing' was called"),
        (("receptive-field", *NET, "--position", "1,x"), "'1,x' is not a position: give 112,112"),
        (
            ("receptive-field", *NET, "--layer", "fc", "--position", "1"),
            "--position is shown for all layers: leave out --layer",
        ),
        (("compare", "a.json", "b.json"), "the report 'a.json' cannot be read"),
        (
            ("compare", "nets.py:Net", "b.json", "--input", "4"),
            "the report 'b.json' cannot be read",
        ),
        (
            ("compare", "nets.py", "nets.py", "--input", "4"),
            "--input is for a TARGET, and nets.py and nets.py are reports",
        ),
        (
            ("compare", "nets.py", "nets.py", "--dtype", "float16"),
            "--dtype is for a TARGET, and nets.py and nets.py are reports",
        ),
        (("compare", "nets.py", "nets.py"), "nets.py: it is not JSON"),
        (("summary", "nets.py:Picky", "--input", "4"), "ValueError: call me with strict=True"),
        (("check",), "there is no torchscan.toml"),
        (("check", "--config", "nets.py"), "nets.py is not valid TOML"),
        (("completion", "powershell"), "invalid choice"),
        (("summary", "~nobody-of-that-name/m.py:Net"), "is not a path"),
        (("summary", f"{'a' * 5000}.py:Net"), "is not a path"),
        (("summary", "nets.py:Net", "--input", "999999999999999999,8"), "cannot be created"),
        (("summary", *NET, "--batch-size", "999999999999999999"), "cannot be created"),
        (("report", *NET, "--device", "NoSuchCard"), "NoSuchCard"),
        (("report", *NET, "--optimizer", "AdamW"), "give --training"),
        (
            ("summary", *NET, "--by", "module", "--sort", "macs"),
            "--sort is for the table of layers",
        ),
        (("summary", *NET, "--form", "csv"), "is not an option: did you mean --format?"),
        (("llm",), "required: COMMAND (see torchscan llm --help)"),
        (("llm", "serve", "x", "--num-gpus", "7", "--tp", "2"), "not a multiple of --tp 2"),
        (("llm", "serve", "x", "--new", "4k"), "'x' is not a model"),
        (("llm", "serve", "x", "--context", "1k", "--new", "1k"), "--new is 1024"),
        (("llm", "serve", "x", "--batch-size", "1,0"), "'0' is not a positive number"),
        # a search tries all ways to use the devices
        (("llm", "serve", "x", "--separate", "--tp", "2"), "compares all: leave out --tp"),
        (("llm", "serve", "x", "--separate", "--expert-parallel"), "compares it: leave it out"),
        (("llm", "train", "x"), "required: --num-gpus"),
        (("llm", "train", "x", "--num-gpus", "8", "--mesh", "8"), "'8' is not a mesh: give"),
        # before the model is built, which does not exist
        (("llm", "train", "x", *_TRAIN, "--mesh", "dp=4"), "the mesh dp 4 has 4 devices, not 8"),
        (("llm", "train", "x", *_TRAIN, "--async-tp"), "only compiled steps have"),
        (("runs", "--format", "csv"), "FOLDER is 'runs', which is not a folder"),
    ],
)
def test_wrong_use_is_a_line_and_status_2(run: Any, arguments: tuple[str, ...], says: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    said = err.rpartition("The pass failed in the marked layer; the error has the reason:\n")[
        2
    ]  # below the layers that ran
    assert said.count("\n") == (3 if " failed" in err else 1)


@pytest.mark.parametrize("command", ["table", "compare"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nets.py:Net", "nets.py:Net: fc (Linear) failed in aten.linear"),
        ("nets.py:Nat", "nets.py:Nat: nets.py has no 'Nat'"),
        ("Net", "'Net' is not a model"),
        ("hf:a.json", "hf:a.json: there is no file 'a.json'"),
    ],
)
def test_of_several_models_the_one_that_fails_is_named(
    run: Any, command: str, target: str, said: str
) -> None:
    status, out, err = run(command, "nets.py:shapeless", target, "--input", "5")
    assert (status, out) == (2, "")
    assert err.startswith(f"torchscan: {said}")


def test_a_mistake_of_ours_is_said_and_status_3(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("torchscan.scan.Scan.describe", broken)
    status, out, err = run("summary", *NET)
    assert (status, out) == (3, "")
    assert "internal error, please report it" in err
    assert "ZeroDivisionError('of ours')" in err
    assert "Traceback" not in err
    monkeypatch.setenv("TORCHSCAN_DEBUG", "1")
    assert "Traceback" in run("summary", *NET)[2]


def test_an_interruption_is_no_traceback(run: Any) -> None:
    assert run("summary", "nets.py:interrupted", "--input", "4") == (130, "", "")


@pytest.mark.slow
@pytest.mark.sweep
def test_whoever_reads_may_stop_reading_and_no_budget_is_fine_for_that(folder: Path) -> None:
    (folder / "torchscan.toml").write_text(
        '[budgets.a]\ntarget = "nets.py:Net"\ninput = "4"\nmax_params = 1\n'
    )
    command = f"{sys.executable} -m torchscan check; echo status $? >&2"
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-c", f"({command}) | true"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, env=given)  # noqa: S603
    assert done.stderr == "status 141\n"


HINTS = """
import torch
from torch import nn

@torch.library.custom_op("cli_hints::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@torch.library.custom_op("cli_hints::flat", mutates_args=())
def flat(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

flat.register_fake(torch.empty_like)

class Shapeless(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
    def forward(self, x):
        return shapeless(super().forward(x))

class Flat(Shapeless):
    def forward(self, x):
        return flat(nn.Linear.forward(self, x))

def linear(): return nn.Linear(4, 2)
def chain(): return nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2))
def upscaled(): return nn.Sequential(nn.Linear(4, 8), nn.ConvTranspose2d(9, 2, 3))
def pair(): return nn.Bilinear(4, 4, 2)
def embedding(): return nn.Embedding(7, 4)
def image(): return nn.Conv2d(3, 8, 3)
def norm(): return nn.BatchNorm1d(4)
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("linear", "--input", "5"),
            "try: another --input than 5: the layer takes 4 features and is given 5\n",
        ),
        (("image", "--input", "8,8"), "try: another --input than 8,8: give"),
        (
            ("image", "--input", "1,3,8,8"),
            "try: --input 3,8,8, without the batch dimension (--batch-size sets it)",
        ),
        (
            ("chain", "--input", "4"),
            "the layer takes 9 features and is given 8; or give another --input than 4\n",
        ),
        (
            ("upscaled", "--input", "2,5,4"),
            "which cannot use its input, and --input 2,5,4\n",
        ),
        (
            ("pair", "--input", "4"),
            "give one shape per argument of forward(input1, input2) with --input\n",
        ),
        (("embedding", "--input", "4"), "try: token ids are integers: give --dtype long\n"),
        (
            ("linear", "--input", "4:double"),
            "try: give the inputs the type that the model expects with --dtype\n",
        ),
        (
            ("norm", "--input", "4", "--mode", "train"),
            "needs more than one sample: give --batch-size 2\n",
        ),
        (
            ("Shapeless", "--input", "4"),
            "@my_op.register_fake; or give execute='real' (in Python)\n",
        ),
        (
            ("Flat", "--input", "4", "--training"),
            "my_op.register_autograd; or leave out --training\n",
        ),
    ],
)
def test_advice_in_a_shell_is_of_options(
    run: Any, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    (folder / "hints.py").write_text(HINTS)
    status, out, err = run("summary", f"hints.py:{arguments[0]}", *arguments[1:])
    assert (status, out) == (2, "")
    assert said in err


def test_code_that_leaves_does_not_leave_us(run: Any) -> None:
    for target in ("nets.py:leaves", "nets.py:Leaves"):
        status, out, err = run("summary", target, "--input", "4")
        assert (status, out) == (2, "")
        assert err == f"torchscan: {target}: its code calls sys.exit(0)\n"


def test_what_a_model_prints_is_no_part_of_the_answer(run: Any) -> None:
    _, out, err = run("summary", "nets.py:talks", "--input", "4", "--format", "json")
    assert from_json(out)["overall"]["macs"] == 48
    assert "building" in err


def test_terminals_without_our_signs_get_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(*options: str) -> bytes:
        received = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(received, encoding="ascii"))
            assert main(["summary", "nets.py:unknown", "--input", "4,4", *options]) == 0
            sys.stdout.flush()
            return received.getvalue()

    assert b"Multiply-accumulations             >= 0 MACs" in printed()
    assert "≥ 0 MACs".encode() in printed("--format", "markdown"), "a document is UTF-8"


def test_a_call_without_a_command_prints_the_help(run: Any) -> None:
    status, out, err = run()
    assert (status, out) == (2, "")
    assert err.startswith("usage: torchscan")
    assert "torchscan summary torchvision:resnet50" in err


@pytest.mark.few(1)
@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "status"),
    [("> /dev/full 2>&1", 2), (">&- 2>&-", 0), ("> /dev/full", 2), (">&-", 0), ("2>&-", 0)],
)
def test_standard_streams_may_be_full_or_closed(redirection: str, status: int) -> None:
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    command = f"{sys.executable} -m torchscan summary nets.py:Net --input 4 {redirection}"
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-c", command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, env=given)  # noqa: S603
    assert done.returncode == status
    assert done.stderr in ("", "torchscan: the answer cannot be written: No space left on device\n")


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "written"),
    [
        ("summary nets.py:Net --input 4", 0, "Linear"),
        ("summary nets.py:Nat --input 4", 2, ""),
        ("sumary", 2, ""),
        ("check exceeded", 1, "✗ exceeded exceeds its budget"),
        ("check", 2, "✗ exceeded exceeds its budget"),
    ],
)
def test_errors_that_cannot_be_written_leave_the_status_as_it_is(
    folder: Path, arguments: str, status: int, written: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    budget = '[budgets.{}]\ntarget = "nets.py:{}"\ninput = "4"\nmax_params = 1\n'
    (folder / "torchscan.toml").write_text(
        budget.format("exceeded", "Net") + budget.format("missing", "Nat")
    )
    shell = ["bash", "-c", f"{sys.executable} -m torchscan {arguments} 2> /dev/full"]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(shell, capture_output=True, text=True, check=False, env=given)  # noqa: S603
    assert (done.returncode, written in done.stdout) == (status, True)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (errno.EIO, 2, "the answer cannot be written: Input/output error\n"),
        (errno.EDOM, 3, "internal error, please report it"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_disk_that_fails_is_no_mistake_of_torchscans(
    code: int,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_: str) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "write", fail)
        patch.setattr(os, "dup2", lambda *_: None)
        assert main(["summary", *NET]) == status
    assert capfd.readouterr().err.startswith(f"torchscan: {told}")


def test_notes_are_lines_on_standard_error(run: Any) -> None:
    options = ["--input", "4", "--device", "GTX 1650 Ti"]
    status, out, err = run("roofline", "nets.py:Net(2000000000)", *options)
    assert (status, "Expected time" in out) == (0, True)
    assert err.startswith("torchscan: note: the pass does not fit on NVIDIA GeForce GTX 1650 Ti")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.sweep
def test_numpy_is_not_missed() -> None:
    """Torch warns that it is not there."""
    code = (
        "import sys; sys.modules['numpy'] = None; from torchscan.cli.main import main; "
        "sys.exit(main(['summary', 'nets.py:Net', '--input', '4']))"
    )
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=given
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_figures_in_every_format(run: Any) -> None:
    """4·8 and 8·2 multiplications."""
    text, markdown, github, latex = (
        run("summary", *NET, "--format", each)[1]
        for each in ("text", "markdown", "github", "latex")
    )
    assert "├─fc    Linear  8           40    32     67 % █████▍" in text
    assert "| &emsp;fc | Linear | 8 | 40 | 32 | 67 % |" in markdown
    assert "<details><summary>3 layers</summary>" in github
    assert r"fc & Linear & 8 & 40 & 32 & 67 \% \\" in latex
    table = list(csv.DictReader(io.StringIO(run("summary", *NET, "--format", "csv")[1])))
    assert [(row["path"], row["macs"]) for row in table] == [
        ("", "0"),
        ("fc", "32"),
        ("head", "16"),
    ]
    info = from_json(run("summary", *NET, "--format", "json")[1])
    assert info["overall"]["macs"] == 48
    assert run("summary", *NET, "--format", "html")[1].startswith("<!doctype html>")


@pytest.mark.parametrize(
    "command", ["summary --by operator", "receptive-field", "receptive-field --projective", "table"]
)
@pytest.mark.parametrize("style", ["text", "markdown", "github", "latex", "csv", "json", "html"])
def test_every_table_in_every_format(run: Any, command: str, style: str) -> None:
    status, out, err = run(*command.split(), *NET, "--format", style)
    assert (status, err) == (0, "")
    assert SIGNS[style] in out
    if style == "json":
        assert json.loads(out)["rows"]
    if style == "csv":
        widths = {len(row) for row in csv.reader(io.StringIO(out))}
        assert len(widths) == 1


@pytest.mark.slow
def test_figures_of_other_commands(run: Any) -> None:
    rows = json.loads(run("summary", *NET, "--by", "operator", "--format", "json")[1])["rows"]
    assert [(row["operator"], row["macs"]) for row in rows] == [("aten.linear", 48), ("total", 48)]
    rows = json.loads(run("summary", *NET, "--by", "module", "--format", "json")[1])["rows"]
    assert [(row["module"], row["macs"]) for row in rows] == [
        ("fc", 32),
        ("head", 16),
        ("total", 48),
    ]
    with_backward = json.loads(
        run("summary", *NET, "--by", "operator", "--training", "--format", "json")[1]
    )["rows"]
    assert with_backward[-1]["macs"] == 48 * 3 - 32  # the input needs no gradient
    (row,) = json.loads(run("table", *NET, "--format", "json", "--batch-size", "5")[1])["rows"]
    assert (row["model"], row["params"], row["macs"], row["activation_memory"]) == (
        "Net",
        58,
        240,
        5 * 4 * 10,
    )
    memory = json.loads(run("memory", *NET, "--format", "json")[1])
    assert memory["peak_bytes"] == 4 * (58 + 4 + 8 + 2)
    roofline = json.loads(run("roofline", *NET, "--device", "NVIDIA H200", "--format", "json")[1])
    assert roofline["device"] == "NVIDIA H200"


STEPS = """
import torch
from torch import nn

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
        self.head = nn.Linear(64, 512)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return {"loss": logits.logsumexp(-1).mean(), "logits": logits}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--checkpoint full", {"checkpoint": True}),
        ("--checkpoint 2", {"checkpoint": 2}),
        ("--lora 4 --weights int8", {"lora": 4, "weights": "int8"}),
        ("--offload optimizer,activations", {"offload": ["optimizer", "activations"]}),
        ("--optimizer-in-backward", {"optimizer_in_backward": True}),
        (
            "--clip-gradients --accumulation-steps 2",
            {"clip_gradients": True, "accumulation_steps": 2},
        ),
        ("--loss loss", {"loss": lambda outputs: outputs["loss"]}),
    ],
)
def test_a_training_step_in_a_shell_is_that_of_python(
    run: Any, folder: Path, words: str, options: dict[str, Any]
) -> None:
    (folder / "steps.py").write_text(STEPS)
    names: dict[str, Any] = {}
    exec(STEPS, names)  # noqa: S102 - the text above
    step = ["steps.py:Stack", "--input", "64", "-b", "256", "--training", "--optimizer", "AdamW"]
    status, out, err = run("memory", *step, *words.split(), "--format", "json")
    assert (status, err) == (0, "")
    asked: dict[str, Any] = {"batch_size": 256, "training": True, "optimizer": "AdamW"}
    with torch.device("meta"):
        model = names["Stack"]()
    plain = estimate_memory(model, (64,), **asked)
    expected = estimate_memory(model, (64,), **asked, **options)
    assert json.loads(out)["peak_bytes"] == expected.peak_bytes
    assert expected.timeline != plain.timeline


def test_an_output_that_is_not_returned_is_named(run: Any, folder: Path) -> None:
    (folder / "steps.py").write_text(STEPS)
    status, out, err = run(
        "memory", "steps.py:Stack", "--input", "64", "--training", "--loss", "nll"
    )
    assert (status, out) == (2, "")
    assert err.startswith("torchscan: --loss is 'nll', which the model does not return: give ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_layers_are_chosen(run: Any) -> None:
    def shown(*options: str) -> list[str]:
        return [
            row["path"]
            for row in csv.DictReader(
                io.StringIO(run("summary", *NET, "--format", "csv", *options)[1])
            )
        ]

    assert shown() == ["", "fc", "head"]
    assert shown("--max-depth", "0") == [""]
    assert shown("--max-depth", "7") == ["", "fc", "head"]
    assert shown("--sort", "macs") == ["fc", "head", ""]
    assert shown("--sort", "macs", "--top", "1") == ["fc"]
    assert shown("--match", "Linear") == ["fc", "head"]
    assert shown("--match", "h*") == ["head"]
    text = run("summary", *NET, "--match", "h*")[1]
    assert "1 of 3 layers that match h*, each with its own values" in text
    assert "48 MACs" in text


@pytest.mark.parametrize("style", FORMATS)
def test_names_of_any_kind_are_written_in_every_format(run: Any, folder: Path, style: str) -> None:
    strange = ("summary", "nets.py:Strange", "--input", "4", "--format", style)
    status, out, _ = run(*strange)
    assert (status, run(*strange, "--output", "strange")) == (0, (0, "", "Wrote strange.\n"))
    assert (folder / "strange").read_text(encoding="utf-8").rstrip("\n") == out.rstrip("\n")
    if style == "csv":
        assert [row["path"] for row in csv.DictReader(io.StringIO(out))] == ["", "'=1+1", "�"]


def test_a_spreadsheet_runs_nothing_that_a_command_writes(run: Any) -> None:
    out = run("summary", "nets.py:Strange", "--input", "4", "--by", "module", "--format", "csv")[1]
    assert [row["module"] for row in csv.DictReader(io.StringIO(out))] == ["'=1+1", "�", "total"]


@pytest.mark.parametrize(
    ("name", "start"),
    [("net.csv", "path,"), ("net.JSON", "{"), ("net.txt", "─"), ("net", "─")],
)
def test_the_name_of_a_file_chooses_the_format(
    run: Any, folder: Path, name: str, start: str
) -> None:
    assert run("summary", *NET, "--output", name) == (0, "", f"Wrote {name}.\n")
    assert (folder / name).read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize(
    ("command", "name"), [("graph", "net.dot"), ("graph", "net.svg"), ("memory", "net.md")]
)
def test_each_command_names_the_file_that_it_wrote(
    run: Any, folder: Path, command: str, name: str
) -> None:
    assert run(command, *NET, "-o", name) == (0, "", f"Wrote {name}.\n")
    assert (folder / name).exists()


def test_a_file_whose_name_says_another_format_is_refused(run: Any, folder: Path) -> None:
    message = (
        "torchscan: --output is 'net.svg': give a name that ends in .csv, .html, .json, .md, .tex "
        "or .txt, or --format text\n"
    )
    for command in (("summary", *NET), ("compare", "nets.py:Net", *NET)):
        assert run(*command, "--output", "net.svg") == (2, "", message)
    assert not (folder / "net.svg").exists()
    assert run("summary", *NET, "--output", "net.svg", "--format", "csv")[0] == 0
    assert (folder / "net.svg").read_text(encoding="utf-8").startswith("path,")
    assert run("summary", *NET, "--output", "net.csv", "--format", "text")[0] == 0
    assert (folder / "net.csv").read_text(encoding="utf-8").startswith("─")


def test_a_model_is_compared_with_the_inputs_of_the_report(run: Any) -> None:
    """Three samples: 3 × 48 MACs."""
    written = ("summary", *NET, "-b", "3", "--format", "json", "--output", "three.json")
    assert run(*written) == (0, "", "Wrote three.json.\n")
    for sides in (("three.json", "nets.py:Net"), ("nets.py:Net", "three.json")):
        status, out, err = run("compare", *sides)
        assert (status, err) == (0, "")
        assert "No layer changed." in out
        assert "differ" not in out
    status, asked, err = run("compare", "three.json", "nets.py:Net", "-b", "1")
    assert (status, err) == (0, "")
    assert "The reports differ in batch size: 3 before, 1 now." in asked
    assert run("compare", "nets.py:Net", "nets.py:Net")[2].endswith(
        "give the shape of one sample as --input 3,224,224\n"
    )


def test_files_are_written_whole_or_not_at_all(run: Any, folder: Path) -> None:
    report = folder / "out" / "net.json"
    assert run("summary", *NET, "--format", "json", "--output", str(report))[0] == 0
    assert from_json(report.read_text())["overall"]["macs"] == 48
    before = report.read_text()
    assert (
        run("summary", "nets.py:Net", "--input", "5", "--format", "json", "--output", str(report))[
            0
        ]
        == 2
    )
    assert report.read_text() == before
    assert [path.name for path in report.parent.iterdir()] == ["net.json"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "replace", fail)
    before = sorted(folder.glob("*.*"))
    status, _, error = run("summary", *NET, "--format", "csv", "--output", "net.csv")
    assert (status, "cannot be written" in error) == (2, True)
    assert sorted(folder.glob("*.*")) == before


def test_a_pipe_stays_a_pipe_and_a_link_a_link(run: Any, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit((folder / "pipe").read_text)
        run("summary", *NET, "--format", "csv", "--output", "pipe")
        assert received.result().startswith("path,call")
    assert (folder / "pipe").is_fifo()
    (folder / "real.csv").write_text("")
    (folder / "real.csv").chmod(0o640)
    (folder / "link.csv").symlink_to("real.csv")
    run("summary", *NET, "--format", "csv", "--output", "link.csv")
    assert (folder / "link.csv").is_symlink()
    assert (folder / "real.csv").read_text().startswith("path,call")
    assert (folder / "real.csv").stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
def test_comparing_and_one_page(run: Any, folder: Path) -> None:
    for name, target in (("a", "nets.py:Net"), ("b", "nets.py:Net(9)")):
        run("summary", target, "--input", "4", "--format", "json", "--output", f"{name}.json")
    assert json.loads(run("compare", "a.json", "b.json", "--format", "json")[1])["totals"][
        "macs"
    ] == {
        "before": 48,
        "after": 54,
    }
    narrow, wide = (
        run("compare", "a.json", "b.json", "--width", width)[1].splitlines()
        for width in ("40", "70")
    )
    assert {"─" * 26, "    output now (-1, 9)"} <= set(narrow)
    assert "─" * 46 in wide
    as_reports = run("compare", "a.json", "b.json")
    for before, after in (
        ("nets.py:Net", "nets.py:Net(9)"),
        ("a.json", "nets.py:Net(9)"),
        ("nets.py:Net", "b.json"),
    ):
        assert run("compare", before, after, "--input", "4") == as_reports
    assert (
        "| MACs | 48 | 54 | +12.50 % |"
        in run("compare", "a.json", "b.json", "--format", "github")[1]
    )
    sides = ("nets.py:Net", "nets.py:Net(9)", "--input", "4", "--device", "RTX 4090")
    assert run("compare", *sides, "-o", "pair.html") == (0, "", "Wrote pair.html.\n")
    pair = (folder / "pair.html").read_text()
    assert "<title>nets.py:Net → nets.py:Net(9) · torchscan</title>" in pair
    assert '"levels":[{"nodes"' in pair
    assert "Peak memory" in run("compare", *sides)[1]
    names = json.loads(run("compare", *sides, "--format", "json")[1])["names"]
    assert names == {"before": "nets.py:Net", "after": "nets.py:Net(9)"}
    assert run("report", *NET, "--device", "RTX 4090") == (0, "", "Wrote torchscan.html.\n")
    page = (folder / "torchscan.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert [row["name"] for row in data["rows"]] == ["Net", "fc", "head"]
    assert [each["label"] for each in data["verdicts"]][:3] == [
        "Fits in 23 GiB",
        "One pass",
        "Limited by",
    ]


def test_a_comparison_of_checkpoints_says_how_to_choose_one(run: Any, folder: Path) -> None:
    (folder / "deep.py").write_text(
        "from torch import nn\n"
        "class Block(nn.Sequential):\n"
        "    pass\n"
        "def deep():\n"
        "    return nn.Sequential(*(Block(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))\n"
    )
    step = ("deep.py:deep", "--input", "4", "--training", "--device", "RTX 4090")
    status, out, _ = run("memory", *step, "--checkpoint", "compare")
    assert status == 0
    said = "give --checkpoint none (nothing), a number (every n-th layer), full (all layers) or"
    assert said in " ".join(out.split())
    assert run("memory", *step, "--checkpoint", "full")[0] == 0


def test_a_report_without_a_name_replaces_only_a_report(run: Any, folder: Path) -> None:
    page = folder / "torchscan.html"
    page.write_text("<title>torchscan</title> my notes")
    status, out, err = run("report", *NET)
    assert (status, out, page.read_text()) == (2, "", "<title>torchscan</title> my notes")
    assert err == (
        "torchscan: torchscan.html exists and is not a report of torchscan: give --output "
        "report.html or another name\n"
    )
    assert run("report", *NET, "--output", "torchscan.html")[0] == 0
    small = page.stat().st_size
    assert run("report", *NET, "--device", "RTX 4090") == (0, "", "Wrote torchscan.html.\n")
    assert page.stat().st_size > small


def test_folders_of_a_file_are_created(run: Any, folder: Path) -> None:
    for command, name in (("summary", "net.json"), ("graph", "net.svg"), ("report", "net.html")):
        path = f"{command}/new/{name}"
        assert run(command, *NET, "--output", path) == (0, "", f"Wrote {path}.\n")
        assert (folder / path).is_file()


@pytest.mark.parametrize("has_matplotlib", [False, True])
def test_the_page_of_a_table_names_the_model_and_has_the_plot(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, has_matplotlib: bool
) -> None:
    if not has_matplotlib:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("memory", *NET, "--output", "memory.html")[0] == 0
    content = (folder / "memory.html").read_text()
    title = "Memory: nets.py:Net"
    assert f"<title>torchscan: {title}</title>" in content
    assert f"<h1>{title}</h1>" in content
    assert ("<svg" in content) is has_matplotlib
    assert ("For the plot, install matplotlib" in content) is not has_matplotlib


def test_a_page_of_a_pass_that_fails_shows_how_far_it_came(run: Any, folder: Path) -> None:
    status, out, err = run("report", "nets.py:Net", "--input", "5", "--output", "failed.html")
    assert (status, out) == (2, "")
    assert err.startswith("Wrote failed.html.\n")
    assert "failed in aten.linear" in err
    assert '"failed":true' in (folder / "failed.html").read_text()


def test_a_section_that_is_not_known_says_why(run: Any, folder: Path) -> None:
    assert run("report", *NET, "--precision", "fp8")[0] == 0
    assert "Memory: memory is not estimated for fp8" in (folder / "torchscan.html").read_text()


def test_lines_of_check_fit_the_terminal(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = 'max_params = "1k"\nmax_macs = "1k"\nmax_model_size = "1MiB"'
    budget = f'[budgets.net]\ntarget = "nets.py:Net"\ninput = "4"\n{limits}'
    (folder / "torchscan.toml").write_text(budget)
    _, wide, _ = run("check")
    monkeypatch.setattr("torchscan.cli.check.terminal_width", lambda: 40)
    status, narrow, _ = run("check")
    assert (status, wide.count("\n")) == (0, 1)
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.split() == wide.split()


@pytest.mark.slow
def test_checking(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = '[budgets.{}]\ntarget = "nets.py:{}"\ninput = "4"\nmax_params = {}\n'
    config = folder / "torchscan.toml"
    config.write_text(limits.format("a", "Net", 58) + limits.format("b", "Net(9)", 65))
    assert run("check") == (0, "✓ a: Parameters 58\n✓ b: Parameters 65\n", "")
    config.write_text(limits.format("a", "Net", 57) + limits.format("b", "Net(9)", 65))
    status, out, _ = run("check")
    assert (status, out.splitlines()[:2]) == (
        1,
        ["✗ a exceeds its budget", "  Parameters: 58, at most 57 (+1.75 %)"],
    )
    assert out.endswith("✓ b: Parameters 65\n")
    assert run("check", "b")[0] == 0
    config.write_text(
        limits.format("a", "Nat", 57)
        + limits.format("b", "Net(9)", 64)
        + "[budgets.c]\nmax_params = 1\n"
    )
    status, out, err = run("check")
    assert (
        status == 2
    )  # what cannot be checked weighs more, and keeps nothing else from being checked
    assert out.splitlines()[0] == "? a: cannot be checked"
    assert out.splitlines()[1].endswith("nets.py:Nat: nets.py has no 'Nat': did you mean Net?")
    assert out.splitlines()[2] == "✗ b exceeds its budget"
    assert out.endswith("- c: has no target, so only a test can check it\n")
    assert err == ""
    with monkeypatch.context() as patch:
        patch.setattr("torchscan.budgets.budget_check.check_model", lambda *_, **__: 1 / 0)
        status, out, err = run("check")
    assert (status, out.count("cannot be checked")) == (3, 2)
    status, out, err = run("check", "d")
    assert (status, out, err) == (2, "", "torchscan: there is no budget 'd': choose from a, b, c\n")


# -- widths --------------------------------------------------------------------------------------------------------------

CARD = ("--device", "RTX 4090")
ANSWERS = [
    ("summary", *NET),
    ("summary", *NET, "--receptive-field", *CARD),
    (
        "summary",
        *NET,
        "--sort",
        "macs",
        "--top",
        "2",
        "--columns",
        "type,path,input_shape,output_shape,params,macs,flops,dmas",
    ),
    *(("summary", *NET, "--by", by) for by in ("operator", "module")),
    *(("roofline", *NET, *CARD, "--by", by) for by in ("layer", "kind", "operator")),
    ("roofline", *NET, *CARD, "--suggestions"),
    ("memory", *NET, "--training", "--optimizer", "AdamW", *CARD),
    ("memory", *NET, "--training", *CARD, "--suggestions"),
    ("receptive-field", "torchvision:resnet18"),
    ("receptive-field", "torchvision:resnet18", "--layer", "layer4"),
    ("receptive-field", "torchvision:resnet18", "--projective"),
    ("table", "torchvision:resnet18", "torchvision:mobilenet_v3_large", *CARD),
    ("compare", "torchvision:resnet18", "torchvision:resnet34"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    ANSWERS,
    ids=lambda arguments: " ".join(each for each in arguments if each[0] != "n"),
)
def test_no_answer_is_wider_than_the_terminal(run: Any, arguments: tuple[str, ...]) -> None:
    pytest.importorskip(
        "tests.torchvision_cpu"
    )  # lets torchvision be imported beside a CPU build of torch
    for width in (80, 40):
        status, text, err = run(*arguments, "--width", str(width))
        assert (status, err) == (0, "")
        assert max(map(len, text.splitlines())) <= width, width


# -- a terminal ----------------------------------------------------------------------------------------------------------


def on_a_terminal(*arguments: str) -> str:
    """What a terminal receives on standard error."""
    reader, writer = pty.openpty()
    code = f"import sys; from torchscan.cli.main import main; sys.exit(main({list(arguments)!r}))"
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code], stderr=writer, stdout=subprocess.DEVNULL
    )
    os.close(writer)
    received = b""
    while process.poll() is None or received == b"":
        try:
            received += os.read(reader, 4096)
        except OSError:  # the other end is closed
            break
    process.wait()
    os.close(reader)
    return received.decode()


@pytest.mark.slow
def test_a_line_says_what_takes_long_and_goes_away() -> None:
    received = on_a_terminal("summary", "nets.py:slow", "--input", "4")
    assert re.search(r"torchscan: nets\.py:slow … \d+ s", received)
    assert screen(received) == ""


def test_no_line_where_that_is_no_terminal(run: Any) -> None:
    assert run("summary", "nets.py:slow", "--input", "4")[2] == ""


# -- completion ----------------------------------------------------------------------------------------------------------


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} here")
    return found


@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        ("torchscan ''", "summary", "--format"),
        ("torchscan su", "summary", "memory"),
        ("torchscan summary --fo", "--format", "--match"),
        ("torchscan summary x --format ''", "latex", "--max-depth"),
        ("torchscan summary x --format l", "latex", "csv"),
        ("torchscan memory x --precision bf16", "bf16-mixed", "fp16"),
        ("torchscan summary torchv", "torchvision:", "timm:"),
        ("torchscan completion ''", "zsh", "torchvision:"),
        ("torchscan summary ''", "torchvision:", "torchvision:resnet50"),
        ("torchscan summary torchvision:res", "torchvision:resnet50", "torchvision:vgg16"),
        (
            "torchscan summary torchvision : res",
            "resnet50",
            "vgg16",
        ),  # where the colon parts words, as by default
        ("torchscan summary torchvision :", "vgg16", "torchvision:vgg16"),
        ("torchscan compare x torchvision : res", "resnet50", "vgg16"),
        ("torchscan summary x --columns fl", "flops", "macs"),
        ("torchscan summary x --columns type,fl", "type,flops", "flops"),
        ("torchscan summary x --sort fl", "flops", "macs"),
        ("torchscan memory x --device TPU", "TPU\\ v4", "NVIDIA\\ H200"),
        ("torchscan memory x --device H2", "H200", "NVIDIA\\ H200"),
        ("torchscan inspect x --run-on ''", "cuda", "TPU\\ v4"),
        ("torchscan memory x -d H2", "H200", "NVIDIA\\ H200"),
        ("torchscan memory x -d RTX", "RTX\\ 4090", "RTX"),
        ("torchscan llm ''", "serve", "--format"),
        ("torchscan llm t", "train", "serve"),
        ("torchscan llm serve --co", "--context", "--checkpoint"),
        ("torchscan llm train --ch", "--checkpoint", "--context"),
        ("torchscan llm train x --precision bf16", "bf16-mixed", "fp16"),
        ("torchscan llm train x --checkpoint ''", "selective", "--lora"),
        ("torchscan memory x --checkpoint f", "full", "selective"),
        ("torchscan memory x --offload ''", "activations", "--offload"),
        ("torchscan roofline x --weights nf4", "nf4-dq", "int8"),
        ("torchscan roofline x --float8", "--float8-skip", "--format"),
        ("torchscan llm serve x --device H2", "H200", "NVIDIA\\ H200"),
        ("torchscan runs ''", "merge", "nets.py"),
        ("torchscan runs open ne", "nets.py", "merge"),
        ("torchscan runs list --fo", "--format", "--host"),
        ("torchscan runs open x -o ne", "nets.py", "--host"),
        ("torchscan report x --run ne", "nets.py", "--output"),
        ("torchscan inspect x --precision bf16", "bf16-mixed", "fp16"),
        ("torchscan inspect x --on-nonfinite r", "raise", "warn"),
        ("torchscan memory --snapshot ne", "nets.py", "--moment"),
        ("torchscan report x --overlay ne", "nets.py", "--run"),
        ("torchscan inspect x --save ne", "nets.py", "--steps"),
        ("torchscan inspect -- python ne", "nets.py", "torchvision:"),
        ("torchscan inspect -- python nets.py --device ne", "nets.py", "cuda"),
        ("torchscan memory x --device '\"NVIDIA H2'", "NVIDIA H200", "H200"),
        ("torchscan devices App", "Apple\\ M1", "NVIDIA\\ H200"),
        ("torchscan devices --m", "--measure", "TPU\\ v4"),
        ("torchscan check --config ne", "nets.py", "--update"),
        ("torchscan summary x --output ne", "nets.py", "--update"),
    ],
)
def test_completion_in_bash(run: Any, words: str, offered: str, not_offered: str) -> None:
    script = run("completion", "bash")[1]
    call = f"""{script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); _torchscan; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(  # noqa: S603
        [needs("bash"), "--norc", "-c", call], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert offered in done.stdout.splitlines()
    assert not_offered not in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("keys", "completed"),
    [
        ("summary torchvision:resnet10\t", ["summary", "torchvision:resnet101"]),
        ("compare a.json torchvision:resnet10\t", ["compare", "a.json", "torchvision:resnet101"]),
        ("summary x --columns type,flo\t", ["summary", "x", "--columns", "type,flops"]),
        ("memory x --device H100\\ N\t", ["memory", "x", "--device", "H100 NVL"]),
        ('memory x --device "NVIDIA B20\t', ["memory", "x", "--device", "NVIDIA B200"]),
        ("completion b\t", ["completion", "bash"]),
    ],
)
def test_the_tabulator_completes_in_bash(
    run: Any, folder: Path, keys: str, completed: list[str]
) -> None:
    (folder / "script.bash").write_text(run("completion", "bash")[1])
    (folder / "setup.bash").write_text(
        "source ./script.bash; torchscan() { printf '<%s>' \"$@\"; }\n"
    )
    given = {**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null"}
    reader, writer = pty.openpty()
    call = [needs("bash"), "--noprofile", "--rcfile", "setup.bash", "-i"]
    process = subprocess.Popen(call, stdin=writer, stdout=subprocess.PIPE, stderr=writer, env=given)  # noqa: S603
    os.close(writer)
    os.write(reader, f"torchscan {keys}\nexit\n".encode())
    out, _ = process.communicate(timeout=30)
    os.close(reader)
    assert out.decode().endswith("".join(f"<{word}>" for word in completed))


def test_completion_knows_the_models_of_torchvision(run: Any) -> None:
    """It reads their names from its code."""
    from tests.torchvision_cpu import torchvision

    found = re.findall(r"torchvision:(\w+)", run("completion", "bash")[1])
    assert sorted(found) == sorted(torchvision.models.list_models())


def test_completion_in_fish(run: Any, folder: Path) -> None:
    fish = needs("fish")
    (folder / "script.fish").write_text(run("completion", "fish")[1])

    def offered(line: str) -> list[str]:
        code = f"source script.fish; complete -C {json.dumps(line)}"
        done = subprocess.run(  # noqa: S603
            [fish, "--no-config", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return [word.split("\t")[0] for word in done.stdout.splitlines()]

    assert "summary" in offered("torchscan su")
    assert "--format" in offered("torchscan summary --fo")
    assert offered("torchscan summary x --format l") == ["latex"]
    assert offered("torchscan summary torchvision:resnet10") == ["torchvision:resnet101"]
    assert offered("torchscan summary x --columns type,flo") == ["type,flops"]
    assert offered("torchscan memory x --device 'NVIDIA B20") == ["NVIDIA B200"]
    assert offered("torchscan memory x -d 'NVIDIA B20") == ["NVIDIA B200"]
    assert offered("torchscan devices 'NVIDIA B20") == ["NVIDIA B200"]
    assert offered("torchscan llm s") == ["serve"]
    assert "--checkpoint" in offered("torchscan llm train --ch")
    assert offered("torchscan llm serve --ch") == []
    assert offered("torchscan llm train x --precision bf16-") == ["bf16-mixed"]
    assert offered("torchscan memory x --offload opt") == ["optimizer"]


def test_the_script_of_fish_offers_devices_where_one_is_named(run: Any) -> None:
    """``devices`` takes their names, and ``-d`` of others; commands with models take targets."""
    lines = run("completion", "fish")[1].splitlines()
    of_command = {}
    for name in ("devices", "memory", "completion"):
        start = f"complete -c torchscan -n '__fish_seen_subcommand_from {name}' "
        of_command[name] = [each.removeprefix(start) for each in lines if each.startswith(start)]
    named = "\\'NVIDIA B200\\'"
    (bare,) = [each for each in of_command["devices"] if each.endswith(" -F")]
    assert bare.startswith("-a '")
    assert named in bare
    (bare,) = [each for each in of_command["memory"] if each.endswith(" -F")]
    assert bare.startswith("-a 'torchvision: timm: hf: torchvision:alexnet ")
    options = [each for each in of_command["memory"] if named in each]
    assert [each.partition(" -x -a ")[0] for each in options] == ["-l device", "-s d"]
    assert "-a 'bash zsh fish' -F" in of_command["completion"]
    values = {each.partition(" -d ")[0] for each in of_command["memory"] if " -d " in each}
    assert {"-l output -r", "-s o -r", "-l width -x", "-l training"} <= values


def test_the_script_of_zsh_is_one(run: Any, folder: Path) -> None:
    (folder / "script.zsh").write_text(run("completion", "zsh")[1])
    call = "autoload -Uz compinit && compinit -u -d ./dump && source ./script.zsh && whence -w _torchscan"
    done = subprocess.run(  # noqa: S603
        [needs("zsh"), "-f", "-c", call], capture_output=True, text=True, check=True
    )
    assert done.stdout == "_torchscan: function\n"


# -- where it is called from ---------------------------------------------------------------------------------------------


@pytest.fixture
def as_installed(folder: Path) -> dict[str, str]:
    """An environment with the command on its path, and a budget file."""
    (folder / "torchscan.toml").write_text(
        '[budgets.net]\ntarget = "nets.py:Net"\ninput = "4"\nmax_params = 58\n'
    )
    bin_ = folder / "bin"
    bin_.mkdir()
    (bin_ / "torchscan").write_text(f'#!/bin/sh\nexec {sys.executable} -m torchscan "$@"\n')
    (bin_ / "torchscan").chmod(0o755)
    return {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_the_steps_of_the_action(folder: Path, as_installed: dict[str, str]) -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / ".github" / "actions" / "check" / "action.yml").read_text())
    install, check, comment = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert set(check["env"]) == {"BUDGETS", "CONFIG"}
    assert set(comment["env"]) == {"GH_TOKEN", "NUMBER"}
    summary, written = folder / "summary.md", folder / "torchscan-comment.md"
    calls = folder / "calls"
    gh = folder / "bin" / "gh"  # which lists comments 7 and 8 if there is a file named "earlier"
    gh.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\n'
        'case "$*" in *--paginate*) [ ! -f earlier ] || printf "7\\n8\\n" ;; esac\n'
        "[ ! -f refused ]\n"
    )
    gh.chmod(0o755)

    def step(script: str, budgets: str, config: str) -> int:
        given = {
            "BUDGETS": budgets,
            "CONFIG": config,
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_ACTION_PATH": "/nowhere",
            "GITHUB_REPOSITORY": "owner/nets",
            "RUNNER_TEMP": str(folder),
            "NUMBER": "3",
        }
        shell = [
            "bash",
            "--noprofile",
            "--norc",
            "-eo",
            "pipefail",
            "-c",
            script,
        ]  # as the runner calls it
        return subprocess.run(  # noqa: S603
            shell, env=as_installed | given, check=False, capture_output=True
        ).returncode

    assert step(install["run"], "", "") == 0  # it is there, so nothing is installed
    assert step(check["run"], "", "") == 0
    assert "✓ net" in summary.read_text()
    assert step(comment["run"], "", "") == 0
    body = f"--field body=@{written}"
    assert calls.read_text().splitlines()[1:] == [
        f"api --silent --method POST repos/owner/nets/issues/3/comments {body}"
    ]
    assert written.read_text() == f"<!-- torchscan check -->\n{summary.read_text()}"
    config = folder / "torchscan.toml"
    config.write_text(config.read_text().replace("58", "57"))
    assert step(check["run"], "net", "torchscan.toml") == 1
    assert "exceeds its budget" in summary.read_text()
    (folder / "earlier").touch()
    assert step(comment["run"], "", "") == 0
    update = f"api --silent --method PATCH repos/owner/nets/issues/comments/7 {body}"
    assert calls.read_text().splitlines()[3:] == [update]
    assert "exceeds its budget" in written.read_text()
    (folder / "refused").touch()  # as for a pull request from a fork, which may not write
    assert step(comment["run"], "", "") == 0
    (folder / "net").touch()
    assert step(check["run"], "n*t", "") == 2  # a name of a budget, not a pattern of files


@pytest.mark.parametrize(
    ("urls", "place"),
    [
        ("", ""),
        ("Project-URL: Homepage, https://example.org\n", ""),
        (
            "Project-URL: Homepage, https://example.org\n"
            "Project-URL: Issues, https://example.org/issues\n",
            " at https://example.org/issues",
        ),
    ],
)
def test_an_internal_error_names_the_issue_tracker_if_there_is_one(
    urls: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    about = tmp_path / "torchscan-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchscan\nVersion: 1.0\n{urls}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert report_internal_error(ZeroDivisionError("x")) == 3
    assert capsys.readouterr().err == (
        f"torchscan: internal error, please report it{place}: ZeroDivisionError('x') "
        "(TORCHSCAN_DEBUG=1 shows the traceback)\n"
    )


def test_workflows_run_the_scripts_and_a_release_only_when_it_is_published() -> None:
    yaml = pytest.importorskip("yaml")
    folder = ROOT / ".github"
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.yml")}
    content = {name: yaml.safe_load(path.read_text()) for name, path in files.items()}
    tests, release = content["workflows/tests.yml"], content["workflows/release.yml"]
    runs = {
        name: [step["run"] for step in job["steps"] if "run" in step][-1]
        for name, job in tests["jobs"].items()
    }
    assert runs == {"check": "scripts/check", "test": "scripts/test"}
    for job in tests["jobs"].values():
        assert job["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    assert release[True] == {"release": {"types": ["published"]}}  # YAML reads "on" as True
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    for name in ("bug", "question"):
        form = content[f"ISSUE_TEMPLATE/{name}.yml"]
        assert {"name", "description", "body"} <= form.keys()
        assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])


@pytest.mark.usefixtures("as_installed")
def test_the_hook_runs_what_is_there(run: Any) -> None:
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == (
        "torchscan-check",
        "system",
        False,
    )
    program, *arguments = hook["entry"].split()
    assert program == "torchscan"
    assert run(*arguments)[:2] == (0, "✓ net: Parameters 58\n")


def test_a_note_is_told_once(run: Any, folder: Path) -> None:
    (folder / "loud.py").write_text(
        "import warnings\nfrom torch import nn\n\nclass Loud(nn.Module):\n    def forward(self, x):\n"
        "        warnings.warn('too loud')\n        warnings.warn('too loud')\n"
        "        warnings.warn('too fast')\n        return x + 1\n"
    )
    _, _, said = run("summary", "loud.py:Loud", "--input", "4")
    assert said == "torchscan: note: too loud\ntorchscan: note: too fast\n"


@pytest.mark.parametrize("kind", ["DeprecationWarning", "FutureWarning", "ResourceWarning"])
def test_warnings_for_authors_of_code_are_not_shown(run: Any, folder: Path, kind: str) -> None:
    (folder / "dated.py").write_text(
        "import warnings\nfrom torch import nn\n\nclass Dated(nn.Module):\n"
        f"    def forward(self, x):\n        warnings.warn('too old', {kind})\n"
        "        return x + 1\n"
    )
    status, _, said = run("summary", "dated.py:Dated", "--input", "4")
    assert (status, said) == (0, "")
