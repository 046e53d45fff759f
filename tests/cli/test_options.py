"""Every command and option: their names, short forms and help texts, and what they were called."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.test_signatures import public_values
from torchscan.cli.main import main, parser
from torchscan.cli.options import parsers_by_command
from torchscan.cli.renamed import RENAMED_OPTIONS
from torchscan.recording.arguments import RecipeArguments
from torchscan.recording.training.recipe import Recipe

TOP = parser()
COMMANDS = TOP.get_default("commands")
PARSERS = parsers_by_command(COMMANDS)
#: options that have no counterpart among arguments in Python
OF_THE_SHELL = {
    *("help", "input", "context", "symbolic", "suggestions", "tp", "projective"),
    *("format", "output", "save", "config", "timings", "measure"),
}
#: arguments that Python spells differently
SPELLED_DIFFERENTLY = {
    "run_on": "device",
    "snapshot": "path",
}
VERBS = re.findall(
    r"\w+",
    """Add Analyze Check Choose Clip Collapse Compare Compute Convert Count Differentiate Divide
    Estimate Fail Find Fit Fold Freeze
    Generate Give Include Keep Leave List Listen Measure Merge Name Open Overlap Print Read Recompute Record Run Set Shard Show
    Sort Suggest Take Truncate Update Write""",
)


def options() -> Iterator[tuple[str, argparse.Action]]:
    for command, each in PARSERS.items():
        for action in each._actions:
            if action.option_strings:
                yield command, action


def arguments_in_python() -> set[str]:
    """Arguments of public functions, and of the methods of public classes."""
    found: set[str] = set()
    for public in public_values().values():
        members = vars(public).values() if inspect.isclass(public) else ()
        for each in (public, *members):
            with contextlib.suppress(TypeError, ValueError):  # not everything has a signature
                found.update(inspect.signature(each).parameters)
    return found


def test_there_are_few_commands() -> None:
    assert len(COMMANDS.choices) <= 14


def test_options_are_arguments_in_python() -> None:
    known = arguments_in_python()
    for command, action in options():
        name = action.option_strings[0].removeprefix("--").replace("-", "_")
        in_python = SPELLED_DIFFERENTLY.get(name, name)
        assert name in OF_THE_SHELL or in_python in known, (command, name)


def help_texts() -> Iterator[tuple[str, str]]:
    parsers = {"": TOP, **COMMANDS.choices, **PARSERS}
    for command, each in parsers.items():
        yield command, each.description or ""
        for action in each._actions:
            if not isinstance(action, argparse._SubParsersAction):
                yield f"{command} {action.dest}", action.help or ""
                continue
            for inner in action._choices_actions:
                yield f"{command} {inner.dest}", inner.help or ""


def test_help_texts_are_sentences() -> None:
    for name, text in help_texts():
        assert re.split(r"\W", text)[0] in VERBS, (name, text)
        assert re.search(r"[^.]\.$", text), (name, text)


def test_short_forms_mean_the_same_everywhere() -> None:
    meanings = defaultdict(set)
    for _, action in options():
        for short in action.option_strings[1:]:
            if not short.startswith("--no-"):
                meanings[short].add(action.option_strings[0])
    assert meanings == {
        "-b": {"--batch-size"},
        "-d": {"--device"},
        "-o": {"--output"},
        "-h": {"--help"},
    }


def test_a_name_is_always_given_in_the_same_way() -> None:
    """Short forms, and whether a value follows, do not depend on the command."""
    spellings = defaultdict(set)
    for _, action in options():
        spellings[action.option_strings[0]].add((*action.option_strings, action.nargs == 0))
    assert {name: forms for name, forms in spellings.items() if len(forms) > 1} == {}


def test_no_two_options_of_a_command_mean_the_same() -> None:
    for command, each in PARSERS.items():
        dests = [action.dest for action in each._actions]
        assert len(dests) == len(set(dests)), command
        helps = [action.help for action in each._actions]
        assert len(helps) == len(set(helps)), command


def test_an_argument_of_python_has_one_option() -> None:
    flags = defaultdict(set)
    for _, action in options():
        flags[action.dest].add(action.option_strings[0])
    assert {dest: names for dest, names in flags.items() if len(names) > 1} == {}


def test_old_options_are_no_options() -> None:
    known = {flag for _, action in options() for flag in action.option_strings}
    assert {new.partition(" ")[0] for new in RENAMED_OPTIONS.values()} <= known
    assert known.intersection(RENAMED_OPTIONS) == {"--context", "--device"}, "of other commands"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("flops torchvision:resnet50", "write torchscan summary TARGET --by operator"),
        ("train x --gpus 8", "write torchscan llm train"),
        ("explore runs/first", "write torchscan runs open"),
        ("merge runs/first one.sqlite", "write torchscan runs merge"),
        ("llm x", "write torchscan llm serve x or torchscan llm train x"),
        ("llm trian x", "there is no command 'llm trian': did you mean llm train?"),
        ("runs experiments", "write torchscan runs list experiments or"),
        ("summary x --depth 2", "--depth is not an option of summary: write --max-depth"),
        ("summary x -i 3,4", "-i is not an option of summary: write --input"),
        ("summary x --rf", "--rf is not an option of summary: write --receptive-field"),
        (
            "llm serve x --eager",
            "--eager is not an option of llm serve: write --engine transformers",
        ),
        ("summary x --filter=a", "--filter is not an option of summary: write --match"),
        ("memory x --context 900MiB", "not an option of memory: write --cuda-context"),
        ("memory x --gpu A100", "--gpu is not an option of memory: write --device"),
        ("memory x --remedies", "not an option of memory: write --suggestions"),
        ("roofline x --remedies", "not an option of roofline: write --suggestions"),
        ("inspect x --device cpu", "not an option of inspect: write --run-on"),
        ("llm serve x --batch 1,8", "not an option of llm serve: write --batch-size"),
        ("llm train x --gpus=8", "not an option of llm train: write --num-gpus"),
        ("llm train x --global-batch 8", "llm train: write --global-batch-size"),
        ("llm train x --network 50", "llm train: write --network-gbs"),
    ],
)
def test_old_spellings_are_refused_with_the_new_ones(
    call: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["summary", "x", "--batch-siz", "2"])
    assert ended.value.code == 2
    assert "--batch-siz is not an option: did you mean --batch-size?" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["prompt", "context", "new"])
def test_tokens_may_be_thousands(option: str) -> None:
    """1,024 of them, as in the names of models."""
    given = PARSERS["llm serve"].parse_args(["x", f"--{option}", "4k"])
    assert getattr(given, option) == 4096


def test_tokens_of_training_may_be_thousands() -> None:
    words = ["x", "--num-gpus", "8", "--length", "2K", "--global-batch-size", "1024"]
    given = PARSERS["llm train"].parse_args(words)
    assert (given.length, given.global_batch_size) == (2048, 1024)


def test_defaults_are_those_of_python() -> None:
    serve = PARSERS["llm serve"].parse_args(["x"])
    assert (serve.prompt, serve.new, serve.batch_size) == (512, 128, (1, 8, 32))
    train = PARSERS["llm train"].parse_args(["x", "--num-gpus", "8"])
    assert (train.length, train.batch_size, train.per_machine) == (4096, 1, 8)
    assert (train.precision, train.optimizer, train.network_gbs) == ("bf16", "AdamW", 50.0)
    summary = PARSERS["summary"].parse_args(["x"])
    assert (summary.batch_size, summary.convention, summary.wrap_mode) == (1, "torchscan", "mid")


@pytest.mark.parametrize("command", ["memory", "roofline"])
def test_options_of_a_training_step_are_all_that_python_has(command: str) -> None:
    """But for what several devices send each other, and policies that are Python functions."""
    options = {action.dest for action in PARSERS[command]._actions}
    in_python = set(RecipeArguments.__annotations__)
    assert in_python - options == {"float8_all_gather"}
    given = vars(PARSERS[command].parse_args(["x"]))
    recipe = Recipe(**{name: given[name] for name in in_python & options})
    assert recipe == Recipe()


@pytest.mark.parametrize(
    ("text", "value"), [("none", False), ("full", True), ("selective", "selective"), ("2", 2)]
)
@pytest.mark.parametrize("words", ["memory x", "roofline x", "llm train x --num-gpus 8"])
def test_checkpoints_are_spelled_alike(words: str, text: str, value: bool | int | str) -> None:
    given = TOP.parse_args([*words.split(), "--checkpoint", text])
    assert given.checkpoint == value
    assert type(given.checkpoint) is type(value)


@pytest.mark.parametrize(
    "words", ["--offload optimizer --offload activations", "--offload optimizer,activations"]
)
def test_both_may_be_offloaded(words: str) -> None:
    given = PARSERS["memory"].parse_args(["x", *words.split()])
    assert given.offload == ["optimizer", "activations"]
    assert PARSERS["memory"].parse_args(["x"]).offload is None


@pytest.mark.parametrize("words", ["memory x", "roofline x -d L4"])
@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [
        ("--offload", "optimizer,disk", "disk"),
        ("--offload", "parameters", "parameters"),
        ("--fused-kernels", "rope,lor", "lor"),
    ],
)
def test_one_of_several_choices_is_refused_before_the_model_is_built(
    capsys: pytest.CaptureFixture[str], words: str, option: str, value: str, wrong: str
) -> None:
    with pytest.raises(SystemExit):
        TOP.parse_args([*words.split(), option, value])
    assert f"argument {option}: invalid choice: '{wrong}' (choose from '" in capsys.readouterr().err


def test_an_output_is_chosen_by_its_name() -> None:
    loss = PARSERS["memory"].parse_args(["x", "--loss", "nll"]).loss
    assert loss({"nll": 2, "logits": 3}) == 2
    assert loss(SimpleNamespace(nll=4)) == 4


def test_layers_that_keep_their_bits_are_named() -> None:
    given = PARSERS["roofline"].parse_args(["x", "--float8-skip", "lm_head, embed"])
    assert given.float8_skip == ["lm_head", "embed"]


def examples() -> Iterator[str]:
    for each in (TOP, *PARSERS.values()):
        lines = (each.epilog or "").replace("\\\n", "").splitlines()
        yield from (line.strip() for line in lines if line.startswith("  torchscan "))


@pytest.mark.parametrize("example", list(examples()))
def test_examples_of_help_are_understood(example: str) -> None:
    words = shlex.split(example.partition(" >> ")[0])[1:]
    own = list(itertools.takewhile(lambda word: word != "--", words))
    if own == ["runs"]:
        own = ["runs", "list"]
    _, unknown = TOP.parse_known_args(own)
    assert unknown == []
