"""Messages name arguments in the words of the interface: Python, the shell or the budget file."""

from __future__ import annotations

import argparse
import ast
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.models.generating import Echo
from tests.models.refused import Bessel, Limited
from torchscan import Scan
from torchscan.budgets.file_spelling import FileSpelling
from torchscan.cli.main import main, parser
from torchscan.cli.options import parsers_by_command
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import (
    Argument,
    Give,
    InputError,
    PythonOnly,
    RecordError,
    TorchName,
    TorchscanError,
    Value,
    naming,
)
from torchscan.user_warnings import TorchscanWarning, warn_user

PACKAGE = Path(torchscan.__file__).parent
NETS = """
from torch import nn
from tests.models.generating import Echo
from tests.models.refused import Bessel, Limited

net = lambda: nn.Linear(4, 2)
image = lambda: nn.Conv2d(3, 8, 3)
chain = lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2))
pair = lambda: nn.Bilinear(4, 4, 2)
embedding = lambda: nn.Embedding(7, 4)
norm = lambda: nn.BatchNorm1d(4)
frozen = lambda: nn.Linear(4, 2).requires_grad_(False)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with models that targets name."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("_torchscan_target_"):
            del sys.modules[name]


def in_python(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises."""
    with pytest.raises(TorchscanError) as caught:
        call()
    return str(caught.value)


def in_shell(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command that fails prints on standard error."""
    assert main(words) == 2
    return capsys.readouterr().err


def linear() -> nn.Module:
    """Return a model of 4 features."""
    return nn.Linear(4, 2)


def search(**options: Any) -> Any:
    """Compare meshes for a small language model."""
    asked: dict[str, Any] = {"num_gpus": 2, "device": "H100 SXM", "length": 64, **options}
    return torchscan.parallel.search(Limited(), progress=False, **asked)


TRAIN = "llm train nets.py:Limited -d H100 --length 64 --num-gpus 2"
SERVE = "llm serve nets.py:Echo -d L4 --prompt 4 --new 2 -b 1"

#: a call, the command that asks the same, and what both say
PAIRS: list[tuple[Callable[[], Any], str, str, str]] = [
    # -- shapes and types
    (
        lambda: torchscan.record(nn.Conv2d(3, 8, 3), (1, 3, 8, 8)),
        "summary nets.py:image --input 1,3,8,8",
        "try: input_shape=(3, 8, 8), without the batch dimension (batch_size sets it)",
        "try: --input 3,8,8, without the batch dimension (--batch-size sets it)",
    ),
    (
        lambda: torchscan.record(nn.Conv2d(3, 8, 3), (4, 8, 8)),
        "summary nets.py:image --input 4,8,8",
        "try: another input_shape than (4, 8, 8): the layer takes 3 channels and is given 4",
        "try: another --input than 4,8,8: the layer takes 3 channels and is given 4",
    ),
    (
        lambda: torchscan.record(nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2)), (4,)),
        "summary nets.py:chain --input 4",
        "is given 8; or give another input_shape than (4,)",
        "is given 8; or give another --input than 4",
    ),
    (
        lambda: torchscan.record(nn.Bilinear(4, 4, 2), (4,)),
        "summary nets.py:pair --input 4",
        "forward(input1, input2) with input_shape, or complete args= and kwargs=",
        "forward(input1, input2) with --input\n",
    ),
    (
        lambda: torchscan.record(nn.Embedding(7, 4), (4,)),
        "summary nets.py:embedding --input 4",
        "try: token ids are integers: give dtype=torch.long",
        "try: token ids are integers: give --dtype long",
    ),
    (
        lambda: torchscan.record(linear(), (4,), [torch.float64]),
        "summary nets.py:net --input 4:double",
        "the type that the model expects with dtype, one for all or one per input",
        "the type that the model expects with --dtype\n",
    ),
    (
        lambda: torchscan.record(nn.BatchNorm1d(4), (4,), mode="train"),
        "summary nets.py:norm --input 4 --mode train",
        "needs more than one sample: give batch_size=2",
        "needs more than one sample: give --batch-size 2",
    ),
    # -- the pass
    (
        lambda: torchscan.estimate_memory(linear(), (4,), optimizer="AdamW"),
        "memory nets.py:net --input 4 --optimizer AdamW",
        "optimizer belongs to a training step: give training=True",
        "--optimizer belongs to a training step: give --training",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), training=True, optimizer="Adamant"),
        "memory nets.py:net --input 4 --training --optimizer Adamant",
        "such as 'AdamW', or in bitsandbytes, such as 'AdamW8bit', or a class",
        "such as 'AdamW', or in bitsandbytes, such as 'AdamW8bit'\n",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), lora=4),
        "memory nets.py:net --input 4 --lora 4",
        "lora belongs to a training step: give training=True",
        "--lora belongs to a training step: give --training",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), training=True, offload="optimizer"),
        "memory nets.py:net --input 4 --training --offload optimizer",
        "offload is about the optimizer's step: give optimizer='AdamW'",
        "--offload is about the optimizer's step: give --optimizer AdamW",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), training=True, checkpoint=True),
        "memory nets.py:net --input 4 --training --checkpoint full",
        "checkpoint needs equal layers in a torch.nn.ModuleList or torch.nn.Sequential, and Linear has none",
        "--checkpoint needs equal layers in a torch.nn.ModuleList or torch.nn.Sequential, and Linear has none",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), training=True, cross_entropy="liger"),
        "memory nets.py:net --input 4 --training --cross-entropy liger",
        "cross_entropy is 'liger', and Linear has no loss function",
        "--cross-entropy is 'liger', and Linear has no loss function",
    ),
    (
        lambda: torchscan.estimate_memory(
            linear(), (4,), training=True, clip_gradients=True, optimizer_in_backward=True
        ),
        "memory nets.py:net --input 4 --training --clip-gradients --optimizer-in-backward",
        "all parameters at once: leave out optimizer_in_backward",
        "all parameters at once: leave out --optimizer-in-backward",
    ),
    (
        lambda: torchscan.record(linear().requires_grad_(False), (4,), training=True),
        "summary nets.py:frozen --input 4 --training",
        "unfreeze a parameter, or leave out training=True",
        "unfreeze a parameter, or leave out --training",
    ),
    (
        lambda: torchscan.crawl_module(Bessel(), (4,), strict=True),
        "summary nets.py:Bessel --input 4 --strict",
        "leave out strict=True for lower bounds",
        "leave out --strict for lower bounds",
    ),
    # -- devices
    (
        lambda: torchscan.estimate_memory(linear(), (4,), device="RTX 9999 XL"),
        "memory nets.py:net --input 4 -d RTX\xa09999\xa0XL",
        "device is 'RTX 9999 XL', which is not known: give a name like",
        "--device is 'RTX",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), cuda_context="1 GiB"),
        "memory nets.py:net --input 4 --cuda-context 1GiB",
        "cuda_context needs a device: give device='NVIDIA H200', for example",
        "--cuda-context needs a device: give --device 'NVIDIA H200', for example",
    ),
    (
        lambda: Scan(linear(), (4,)).largest_batch(),
        "memory nets.py:net --input 4 --largest-batch",
        "the largest batch depends on the device: give device='NVIDIA H200'",
        "the largest batch depends on the device: give --device 'NVIDIA H200'",
    ),
    (
        lambda: Scan(linear(), (4,), device="8 GiB").longest_sequence(),
        "memory nets.py:net --input 4 -d 8GiB --longest-sequence",
        "integers of the shape [batch, length]: give dtype=torch.long",
        "integers of the shape [batch, length]: give --dtype long",
    ),
    (
        lambda: torchscan.summary(linear(), (4,), columns=["latency"]),
        "summary nets.py:net --input 4 --columns latency",
        "the column 'latency' needs a device: give device='RTX 4090', for example",
        "the column 'latency' needs a device: give --device 'RTX 4090', for example",
    ),
    (
        lambda: torchscan.model_table({"net": linear()}, (4,), metrics=["latency"]),
        "table nets.py:net --input 4 --metrics latency",
        "a latency needs a device: give device='NVIDIA H200', for example",
        "a latency needs a device: give --device 'NVIDIA H200', for example",
    ),
    (
        lambda: torchscan.analyze_roofline(linear(), (4,), device="A100", precision="fp8"),
        "roofline nets.py:net --input 4 -d A100 --precision fp8",
        "precision is 'fp8', and NVIDIA A100-SXM4-80GB has no fp8: give ",
        "--precision is 'fp8', and NVIDIA A100-SXM4-80GB has no fp8: give ",
    ),
    (
        lambda: torchscan.estimate_memory(linear(), (4,), precision="fp8"),
        "memory nets.py:net --input 4 --precision fp8",
        "give another precision, such as 'bf16'",
        "give another --precision, such as 'bf16'",
    ),
    # -- language models
    (
        lambda: torchscan.analyze_generation(Echo(), 4, 2, device="L4", weights="fp16"),
        f"{SERVE} --weights fp16",
        "weights is 'fp16': give precision='fp16', which converts the model",
        "--weights is 'fp16': give --precision fp16, which converts the model",
    ),
    (
        lambda: torchscan.analyze_generation(Echo(), 4, 2, device="L4", cache="int3"),
        f"{SERVE} --cache int3",
        "cache is 'int3': give one of fp32",
        "--cache is 'int3': give one of fp32",
    ),
    (
        lambda: torchscan.analyze_generation(
            Echo(), 4, 2, batch_size=[1], device="L4", per_machine=0, mesh={"tp": 2}
        ),
        f"{SERVE} --num-gpus 2 --network-gbs -1",
        "per_machine is 0: give the number of devices in a machine, 1 or more",
        "--network-gbs is -1: give the bandwidth of the network for each device",
    ),
    (
        lambda: torchscan.analyze_generation(Limited(), 250, 10, device="L4"),
        "llm serve nets.py:Limited -d L4 --prompt 250 --new 10 -b 1",
        "fewer than 250 + 10 tokens: give a smaller prompt or new",
        "fewer than 250 + 10 tokens: give a smaller --prompt or --new",
    ),
    (
        lambda: torchscan.analyze_generation(Limited(), 250, 10, device="L4"),
        "llm serve nets.py:Limited -d L4 --context 260 --new 10 -b 1",
        "give a smaller prompt or new",
        "give a smaller --context or --new",
    ),
    (
        lambda: search(batch_size=2, global_batch_size=8),
        f"{TRAIN} --batch-size 2 --global-batch-size 8",
        "batch_size and global_batch_size are both given: give the sequences of each device",
        "--batch-size and --global-batch-size are both given: give the sequences of each device",
    ),
    (
        lambda: search(length="4k"),
        f"{TRAIN} --length 4k",
        "fewer than sequences of 4,096 tokens need: give length=256 or less",
        "fewer than sequences of 4,096 tokens need: give --length 256 or less",
    ),
    (
        lambda: search(meshes=[{"dp": 4}]),
        f"{TRAIN} --mesh dp=4",
        "the mesh dp 4 has 4 devices, not 2: give num_gpus=4, or another mesh",
        "the mesh dp 4 has 4 devices, not 2: give --num-gpus 4, or another mesh",
    ),
    (
        lambda: search(meshes=[{"tp": 2}], lora=2),
        f"{TRAIN} --mesh tp=2 --lora 2",
        "adapters have no plan for tensor parallelism: shard them with apply=",
        "adapters have no plan for tensor parallelism: shard them with apply= (in Python)",
    ),
    # -- one layer
    (
        lambda: Scan(linear(), (4,)).graph("", 1),
        "graph nets.py:net --input 4 --call 2",
        "call is out of range: the model was called once",
        "--call is out of range: the model was called once",
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "command", "python", "shell"), PAIRS)
def test_each_interface_names_arguments_in_its_own_words(
    call: Callable[[], Any],
    command: str,
    python: str,
    shell: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert python in in_python(call)
    words = [word.replace("\xa0", " ") for word in command.split(" ")]
    printed = in_shell(capsys, *words)
    assert shell in printed
    parameters = re.findall(r"(\w+)=", printed.replace("(in Python)", ""))
    options = {action.dest for action in parser_of(words)._actions}
    assert options.isdisjoint(parameters)


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    parsers = parsers_by_command(parser().get_default("commands"))
    return parsers.get(words[0]) or parsers[" ".join(words[:2])]


@pytest.mark.parametrize(
    ("part", "python", "shell"),
    [
        (Argument("batch_size"), "batch_size", "--batch-size"),
        (Argument("input_shape"), "input_shape", "--input"),
        (Argument("target"), "target", "TARGET"),
        (Argument("apply"), "apply", "apply (in Python)"),
        (Give("batch_size"), "batch_size=", "--batch-size"),
        (Give("batch_size", 2), "batch_size=2", "--batch-size 2"),
        (Give("training", True), "training=True", "--training"),
        (Give("training", False), "training=False", "no --training"),
        (Give("precision", None), "precision=None", "no --precision"),
        (Give("device", "RTX 4090"), "device='RTX 4090'", "--device 'RTX 4090'"),
        (Give("dtype", torch.float16), "dtype=torch.float16", "--dtype float16"),
        (Give("dtype", TorchName("torch.long")), "dtype=torch.long", "--dtype long"),
        (Give("input_shape", (3, 8, 8)), "input_shape=(3, 8, 8)", "--input 3,8,8"),
        (
            Give("input_shape", [(3, 8), (4,)]),
            "input_shape=[(3, 8), (4,)]",
            "--input 3,8 --input 4",
        ),
        (
            Give("input_shape", {"x": (8,), "y": (2, 3)}),
            "input_shape={'x': (8,), 'y': (2, 3)}",
            "--input x=8 --input y=2,3",
        ),
        (Give("execute", "real"), "execute='real'", "execute='real' (in Python)"),
        (Value((3, 8)), "(3, 8)", "3,8"),
        (Value({"dp": 8, "tp": 2}), "{'dp': 8, 'tp': 2}", "dp=8,tp=2"),
        (Value("fp8"), "'fp8'", "'fp8'"),
        (Value(None), "None", "missing"),
        (Value("x" * 200), f"'{'x' * 98}…", f"'{'x' * 98}…"),
        (PythonOnly((", or ", Give("args"))), ", or args=", ""),
    ],
)
def test_parts_are_written_for_an_interface(part: Any, python: str, shell: str) -> None:
    options = parser().parse_args(["memory", "x"])
    assert str(part) == python
    assert part.write(ShellSpelling(options)) == shell


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Argument("input_shape"), "input"),
        (Give("strict", False), "strict = false"),
        (Give("device", "RTX 4090"), 'device = "RTX 4090"'),
        (Give("batch_size", 2), "batch_size = 2"),
        (Give("input_shape", (3, 8)), 'input = "3,8"'),
        (Give("input_shape", [(3, 8), (4,)]), 'input = ["3,8", "4"]'),
        (Give("input_shape", {"x": "8:long"}), 'input = ["x=8:long"]'),
        (Give("dtype", TorchName("torch.long")), 'dtype = "long"'),
        (Give("precision", None), "no precision"),
        (Give("mode"), "mode"),
        (Give("execute", "real"), "execute='real' (in Python)"),
        (Value(True), "true"),
        (Value(None), "missing"),
    ],
)
def test_parts_are_written_for_a_budget_file(part: Any, expected: str) -> None:
    keys = {"input", "strict", "device", "batch_size", "dtype", "precision", "mode"}
    assert part.write(FileSpelling(keys)) == expected


def test_a_budget_is_refused_in_the_words_of_its_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "torchscan.toml").write_text(
        '[budgets.a]\ntarget = "nets.py:net"\nmax_params = 9\n'
        '[budgets.b]\ntarget = "nets.py:Bessel"\ninput = "4"\nmax_macs = 9\n'
        '[budgets.c]\ntarget = "nets.py:embedding"\ninput = "4"\nmax_macs = 9\n'
    )
    assert main(["check"]) == 2
    printed = capsys.readouterr().out
    assert 'give the shape of one sample as input = "3,224,224"' in printed
    assert "accept the bound with strict = false" in printed
    assert 'token ids are integers: give dtype = "long"' in printed


def test_a_shell_names_the_option_for_inputs_that_are_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = in_shell(capsys, "summary", "nets.py:net")
    assert "give the shape of one sample as --input 3,224,224" in printed


# -- errors as data ------------------------------------------------------------------------------


def test_an_error_knows_what_it_is_about() -> None:
    error = InputError.of_value("batch_size", 0, "give ", Give("input_shape", (3,)))
    assert str(error) == "batch_size is 0: give input_shape=(3,)"
    assert error.args == ("batch_size is 0: give input_shape=(3,)",)
    assert error.parameters == ("batch_size", "input_shape")
    assert repr(error) == "InputError('batch_size is 0: give input_shape=(3,)')"
    choice = InputError.of_choice("by", "x", ("layer", "kind"))
    assert str(choice) == "by is 'x': choose from 'layer', 'kind'"


def test_details_and_advice_are_separate() -> None:
    error = RecordError("fc failed", details="it was given x", advice=("give ", Give("dtype")))
    error.failed = 3
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert str(again) == "fc failed\n  it was given x\n  try: give dtype="
    assert (again.problem, again.failed, again.parameters) == ("fc failed", 3, ("dtype",))


def test_an_embedded_error_is_written_in_the_same_words() -> None:
    inner = InputError.of_value("mode", "x", "give another")
    error = InputError.about("net", "it failed: ", inner)
    options = parser().parse_args(["memory", "x"])
    assert str(error) == "net: it failed: mode is 'x': give another"
    assert error.write(ShellSpelling(options)) == "net: it failed: --mode is 'x': give another"


def test_a_subject_is_named_once() -> None:
    for error in (InputError("wrong"), InputError.about("net", "wrong")):
        with pytest.raises(InputError, match=r"^net: wrong$"), naming("net"), naming("net"):
            raise error


def test_a_message_that_begins_like_its_subject_is_named_all_the_same() -> None:
    with pytest.raises(InputError, match=r"^net: net: is a text$"), naming("net"):
        raise InputError("net: is a text")


def test_warnings_name_arguments_too() -> None:
    with pytest.warns(TorchscanWarning, match="^give batch_size=2$") as caught:
        warn_user("give ", Give("batch_size", 2))
    options = parser().parse_args(["memory", "x"])
    warning: Any = caught[0].message
    assert warning.write(ShellSpelling(options)) == "give --batch-size 2"


def test_control_characters_are_replaced_in_every_interface() -> None:
    error = InputError("\x1b[31mname", Value("\x07"))
    options = parser().parse_args(["memory", "x"])
    assert str(error).isprintable()
    assert error.write(ShellSpelling(options)).isprintable()


# -- all messages of the package -----------------------------------------------------------------

#: text in a message that names an argument as Python does -> why it may
PYTHON_WORDS = {
    "dp=8,tp=8": "the value of --mesh",
    "device='meta'": "a text of torch's errors",
    "batch_size=": "the description of a change, which its arguments hold as data",
    "of symbolic_costs, --near on the command line": "a note that names both",
    "--input=": "how a shell may write the option",
    "?mode=": "a URI of SQLite",
    "register_device(..., ": "a call in Python",
}
#: text outside of the command line that names an option -> why it may
SHELL_WORDS = {
    "torchscan check --update": "a command to run",
    "torchscan devices --measure": "a command to run",
    "torchscan summary --format json": "a command to run",
    "--revision": "an option of hf download",
    "--torchscan-": "an option of pytest",
    "only checked with --timings": "a remark of `torchscan check`",
    "of symbolic_costs, --near on the command line": "a note that names both",
}
#: HTML, CSS, SVG and LaTeX, which have attributes and properties of these names
MARKUP = ("report/html.py", "report/latex.py", "report/paging/", "report/graphs/", "report/page/")


@cache
def literals() -> list[tuple[str, str]]:
    """Return the texts of the package, apart from docstrings, with the file of each."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(MARKUP):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        docstrings = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Constant) or id(node) in docstrings:
                continue
            if isinstance(node.value, str):
                found.append((name, node.value))
    return found


def parameters_with_options() -> set[str]:
    """Return the names in Python of all arguments that some command has an option for."""
    parsers = parsers_by_command(parser().get_default("commands")).values()
    actions = [action for each in parsers for action in each._actions if action.option_strings]
    return {getattr(action, "parameter", action.dest) for action in actions}


@pytest.mark.slow
def test_no_message_names_an_argument_that_has_an_option_as_python_does() -> None:
    names = "|".join(sorted(parameters_with_options()))
    keyword = re.compile(rf"(?<![\w.(])({names})=(?!=)")
    found = []
    for file, text in literals():
        is_example = "\n  torchscan " in text
        if (
            keyword.search(text)
            and not is_example
            and not any(each in text for each in PYTHON_WORDS)
        ):
            found.append(f"{file}: {text}")
    assert not found, "give Give(name, value) instead: " + json.dumps(found, indent=2)


@pytest.mark.slow
def test_no_message_outside_of_the_command_line_names_an_option() -> None:
    option = re.compile(r"(?<![\w-])--[a-z][\w-]*")
    found = []
    for file, text in literals():
        if file.startswith("cli/") or any(each in text for each in SHELL_WORDS):
            continue
        if option.search(text):
            found.append(f"{file}: {text}")
    assert not found, "give Argument(name) instead: " + json.dumps(found, indent=2)


@pytest.mark.slow
def test_every_exception_of_the_lists_is_needed() -> None:
    texts = [text for _, text in literals()]
    for exceptions in (PYTHON_WORDS, SHELL_WORDS):
        assert [each for each in exceptions if not any(each in text for text in texts)] == []


@pytest.mark.parametrize("given", [lambda: None, nn.Linear(2, 2), torch.zeros(3), [object()]])
def test_errors_hold_no_objects_that_were_given(given: Any) -> None:
    error = InputError.of_value("module", given, "give a torch.nn.Module")
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    assert str(copied) == str(error) == error.args[0]


def test_the_text_of_an_error_does_not_change_with_the_value() -> None:
    shape = [3, [4]]
    error = InputError.of_value("input_shape", shape, "give another")
    shape[1].append(5)  # type: ignore[attr-defined]
    assert str(error) == "input_shape is [3, [4]]: give another"
    endless: list[Any] = []
    endless.append(endless)
    assert "[...]" in str(InputError.of_value("input_shape", endless, "give another"))
