"""Notes are facts with values; their sentences are made when they are shown."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter, signature
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import pytest
from torch import Tensor, nn

import torchscan
from torchscan import (
    InputError,
    MissingFormulaError,
    analyze_roofline,
    assert_budget,
    compare,
    crawl_module,
    estimate_memory,
    from_json,
)
from torchscan.analyses.roofline.error_margin import Passed, error_margin_of
from torchscan.hardware.device_specs import device_named
from torchscan.notes import Note, registered_texts
from torchscan.plain import from_plain, to_plain
from torchscan.results import Result

PACKAGE = Path(torchscan.__file__).parent


def test_notes_are_equal_if_code_and_values_are() -> None:
    note = Note.from_text("a sentence")
    assert note == Note.of("text", text="a sentence")
    assert note != Note.from_text("another")
    assert len({note, Note.from_text("a sentence")}) == 1
    assert Note.of("shapes", shapes=(1, 2)) == Note.of("shapes", shapes=[1, 2])


def test_notes_are_stored_as_code_and_values() -> None:
    note = Note.from_text("a sentence")
    stored = json.loads(json.dumps(to_plain({"notes": [note]})))
    assert stored == {"notes": [{"code": "text", "values": {"text": "a sentence"}}]}
    assert from_plain(tuple[Note, ...], stored["notes"]) == (note,)
    assert pickle.loads(pickle.dumps(note)) == note  # noqa: S301 - of this test


def test_a_note_shows_its_sentence() -> None:
    assert str(Note.from_text("a sentence")) == "a sentence"


def test_a_code_of_a_newer_version_is_shown_with_its_values() -> None:
    assert str(Note.of("unheard-of", number=3)) == "Note(code='unheard-of', values={'number': 3})"


# -- codes and sentences -------------------------------------------------------------------------


class _Use(NamedTuple):
    """A ``Note.of("code", value=…)`` of the package, with the names of its values."""

    file: Path
    line: int
    code: str
    names: frozenset[str]


@cache
def _uses_of_codes() -> list[_Use]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Note.of" in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr != "of" or ast.unparse(node.func) != "Note.of":
                continue
            (code,) = node.args
            assert isinstance(code, ast.Constant), f"{file}:{node.lineno} has no literal code"
            names = frozenset(each.arg for each in node.keywords if each.arg is not None)
            found.append(_Use(file, node.lineno, str(code.value), names))
    return found


def _names_in(text: Any) -> set[str]:
    """Return the values that a sentence needs: a format string, one with a formatter, or a function."""
    if isinstance(text, partial):
        (text,) = text.args
    if isinstance(text, str):
        return {name for _, name, _, _ in Formatter().parse(text) if name}
    parameters = signature(text).parameters.values()
    return {each.name for each in parameters if each.default is Parameter.empty}


def test_every_code_has_a_sentence_and_every_sentence_a_code() -> None:
    used = {use.code for use in _uses_of_codes()}
    assert used == registered_texts().keys() - {"text"}


def test_values_in_sentences_are_given() -> None:
    wrong = [
        f"{use.file.name}:{use.line} {use.code}: {missing}"
        for use in _uses_of_codes()
        if (missing := _names_in(registered_texts()[use.code]) - use.names)
    ]
    assert wrong == []


def test_codes_are_words_with_hyphens() -> None:
    assert [
        code for code in registered_texts() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    ] == []


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (
            Note.of("branch-on-pick", operator="aten.argmax.default", places=["a", "b", "c", "d"]),
            "a branch at a, b, c and 1 more place reads an index that aten.argmax.default picks, "
            "so another index may take another path",
        ),
        (
            Note.of("typical-inputs", reads=[{"function": "item", "place": "net.py:3"}]),
            "generated inputs are assumed to be typical: "
            "the counts depend on values that are read by item at net.py:3",
        ),
        (
            Note.of("weights-not-counted", weights={"code": "lazy-module", "values": {"path": ""}}),
            "parameters and memory are not counted for the weights of the model, "
            "which is lazy and not reached by the pass",
        ),
        (
            Note.of("rank-share", held=532, params=2128),
            "bytes and costs are those of one rank, which holds 532 of 2,128 parameters",
        ),
        (
            Note.of("checkpoint", modules=["layers.0", "layers.1", "layers.2"]),
            "torch.utils.checkpoint for layers.0 … layers.2",
        ),
        (Note.of("saves-nothing", change="compile", saves=-0.25), "compile: 25 % more"),
        (Note.of("saves-nothing", change="compile", saves=0.001), "compile: no difference"),
        (
            Note.of(
                "no-estimate",
                changes=[
                    {"change": "fused optimizer", "variant": None},
                    {"change": "compile", "variant": {"code": "compile", "values": {}}},
                ],
                error="it failed",
            ),
            "fused optimizer, torch.compile(model): it failed",
        ),
        (
            Note.of("no-room", device="NVIDIA L4", batch_size=1, tokens=6000),
            "the memory of NVIDIA L4 is too small for a sequence of 6,000 tokens",
        ),
        (
            Note.of("no-room", device="NVIDIA L4", batch_size=8, tokens=6000),
            "the memory of NVIDIA L4 is too small for 8 sequences of 6,000 tokens",
        ),
        (
            Note.of("step-needs-timings", limit=0.12, is_per_sample=True, device="H100"),
            "the time of a step (at most 120 ms per sample on H100) is only checked with "
            "--timings (in pytest, --torchscan-timings)",
        ),
        (
            Note.of(
                "time-estimate",
                device="NVIDIA L4",
                precision=None,
                compiled=True,
                seconds=0.002,
                margin=0.4,
            ),
            "times are estimated for NVIDIA L4, compiled: 2.00 ms ± 40 % in total",
        ),
    ],
)
def test_sentences(note: Note, sentence: str) -> None:
    assert str(note) == sentence


@pytest.mark.parametrize(
    ("passed", "share", "label"),
    [
        (
            Passed(mode="eager", kind="matrices", in_half=1.0, launched=0.0),
            0.07,
            "± 7 %, validated: four of five measured times of 464 image models in mixed "
            "precision, mostly matrices, lie within this margin (eager pass, this GPU)",
        ),
        (
            Passed(mode="training", kind=None, in_half=1.0, launched=0.0),
            0.4,
            "± 40 %, not validated: no measured training step on this GPU to compare with",
        ),
        (
            Passed(mode="eager", kind="matrices", in_half=1.0, launched=0.5),
            0.285,
            "± 29 %, not validated: launches take 50 % of the time (± 50 %), "
            "kernels are ± 7 % (as measured)",
        ),
        (
            Passed(mode="eager", kind=None, in_half=1.0, launched=0.5),
            0.45,
            "± 45 %, not validated: launches take 50 % of the time (± 50 %), "
            "kernels are ± 40 % (no measured eager pass without convolutions)",
        ),
    ],
)
def test_error_margins(passed: Passed, share: float, label: str) -> None:
    margin = error_margin_of(device_named("RTX 4090"), passed)
    assert margin.share == pytest.approx(share)
    assert margin.label == label


# -- results -------------------------------------------------------------------------------------


class Routed(nn.Module):
    """A layer that gathers what a router picks."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.router(x)
        return scores.gather(1, scores.topk(2).indices)


def test_results_show_sentences_and_store_codes() -> None:
    model = nn.Linear(8, 8)
    estimate = estimate_memory(model, (8,), training=True, loss=lambda output: output.sum())
    assert "The model's output is freed when the loss is computed" in _text_of(estimate)
    assert estimate.to_dict()["assumptions"] == [{"code": "output-dropped", "values": {}}]

    roofline = analyze_roofline(model, (8,), device="NVIDIA H200", precision="bf16")
    assert "These values of NVIDIA H200 are unverified: power_w." in _text_of(roofline)
    values = {"device": "NVIDIA H200", "values": ["power_w"]}
    assert roofline.to_dict()["assumptions"] == [{"code": "unverified-values", "values": values}]

    info = crawl_module(Routed(), (4,))
    assert "Balanced routing is assumed: the picks of aten.topk.default" in _text_of(info)
    routing = {"code": "balanced-routing", "values": {"operator": "aten.topk.default"}}
    assert routing in info["provenance"]["assumptions"]
    assert json.loads(info.to_json())["provenance"]["assumptions"] == [routing]


def test_suggestions_show_code_and_store_values() -> None:
    model = nn.Linear(8, 8)
    suggestions = estimate_memory(
        model, (8,), batch_size=8, training=True, optimizer="Adam"
    ).suggestions()
    smaller = next(each for each in suggestions if each.change == "smaller batches")
    assert smaller.how == Note.of("smaller-batch-accumulated", batch_size=4)
    assert "with gradient accumulation" in suggestions.table().write("csv")
    stored = next(
        each for each in suggestions.to_dict()["suggestions"] if each["change"] == smaller.change
    )
    assert stored["how"] == {"code": "smaller-batch-accumulated", "values": {"batch_size": 4}}


def _text_of(result: Result) -> str:
    return " ".join(str(result).split())


def test_sentences_of_older_reports_are_notes() -> None:
    """Reports of schema 1 have sentences, in JSON and in dicts that were kept."""
    content = json.loads(crawl_module(nn.Linear(4, 2), (4,)).to_json())
    content["schema"] = "torchscan/info/1"
    provenance = content["provenance"]
    del provenance["reasons"]
    provenance["reason"] = "shapes are enough"
    provenance["assumptions"] = ["that the numbers drawn are typical"]
    del provenance["unreadable_weights"]
    provenance["unread"] = ["what log holds, which cannot be read"]
    provenance["missed"] = provenance.pop("unrecorded_modules")
    content["unpriced"] = content.pop("without_formula")
    content["estimates"] = ["Memory is estimated: 1.50 GiB at the most."]
    info = from_json(json.dumps(content))
    assert info["provenance"]["reasons"] == [
        {"code": "text", "values": {"text": "shapes are enough"}}
    ]
    assert "reason" not in info["provenance"]
    text = _text_of(info)
    assert "Assumed that the numbers drawn are typical." in text
    assert "Memory is estimated: 1.50 GiB at the most." in text
    assert "≥ 10" in text  # weights that cannot be read make a lower bound
    with pytest.raises(MissingFormulaError, match="what log holds, which cannot be read"):
        assert_budget(info, max_params=100)
    assert json.loads(info.to_json())["schema"] == "torchscan/info/2"

    del content["schema"]
    assert compare(content, info).is_same
    broken = {**content, "provenance": {**provenance, "assumptions": "none"}}
    with pytest.raises(InputError, match="assumptions is 'none', not array"):
        compare(broken, info)


# -- no text of the package is searched ----------------------------------------------------------

#: two words
_WORDS = re.compile(r"[^\W_][,.:;]? [^\W_]{2,}")
_METHODS = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "partition"})
_METHODS |= {"rpartition", "split", "rsplit", "replace", "find", "rfind", "index", "rindex"}
_METHODS |= {"count", "compile", "match", "search", "fullmatch", "sub", "findall", "finditer"}
#: by file, a pattern of the texts that it may compare or search for, and whose they are
_TEXTS_OF_OTHERS: Mapping[str, tuple[str, str]] = {
    "recording/sayings.py": (".*", "messages of torch"),
    "recording/sharding.py": (".*", "messages of torch"),
    "recording/models_without_data.py": (".*tensor subclasses", "a message of torch"),
    "report/roofline_table.py": (r"\(the model itself\)", "the name of a row"),
    "targets/building.py": (".*meta.*", "messages of torch"),
    "targets/importing.py": ("operator torchvision::", "a message of torchvision"),
    "recording/failure_advice.py": ("maximum recursion .*", "a message of Python"),
    "watching/peers.py": (".*", "messages of torch.distributed, gloo and NCCL"),
    "inspecting/out_of_memory.py": (".*ried to allocate .*", "a message of torch"),
    "hardware/this_machine.py": ("model name", "a key of /proc/cpuinfo"),
    "analyses/roofline/call_times.py": ("Blackwell GB100", "an architecture"),
    "report/device_table.py": ("Workstation Edition", "names of GPUs"),
    "report/pictures/inline.py": ("rgba.*", "a color of matplotlib"),
    "analyses/optimizer_states.py": ("optimizer state", "a kind of tensor"),
    "analyses/module_graph/flow.py": ("optimizer state", "a kind of tensor"),
    "recording/execution/abstract.py": ("optimizer state", "a kind of tensor"),
}


@pytest.mark.slow
def test_no_sentence_of_the_package_is_compared_or_searched() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        allowed, _ = _TEXTS_OF_OTHERS.get(name, ("(?!)", ""))
        wrong += [
            f"{name}:{line}: {text!r}"
            for line, text in _searched_texts(ast.parse(file.read_text(encoding="utf-8")))
            if not re.fullmatch(allowed, text)
        ]
    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        'text.startswith("a guess: ")',
        'guess = "a guess: "\ntext.removeprefix(guess)',
        'any(part in text for part in ("of the time", "one of several"))',
        'for part in PARTS:\n    part in text\nPARTS = ("of the time", "one of several")',
        're.search(r"step (\\d+): NaN in (.+)", text)',
        'text == f"step {number} has NaN"',
        'match text:\n    case "one of several": pass',
    ],
)
def test_searched_sentences_are_found(code: str) -> None:
    assert list(_searched_texts(ast.parse(code)))
    assert not list(_searched_texts(ast.parse('"a b".join(each.split()); x == "word"')))


def _searched_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield literals of at least two words that text is compared with, searched for or cut at."""
    outer: dict[str, set[str]] = {}
    for scope in [tree, *(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))]:
        nodes = list(_nodes_in(scope))
        constants = _constants_in(nodes, outer)
        if scope is tree:
            outer = constants
        for node in nodes:
            operands: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                operands = node.args if node.func.attr in _METHODS else []
            elif isinstance(node, ast.MatchValue):
                operands = [node.value]
            for each in operands:
                texts = _literals_in(each, constants)
                yield from ((each.lineno, text) for text in texts if _WORDS.search(text))


def _nodes_in(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module or function, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef):
            yield node
            yield from _nodes_in(node)


def _constants_in(nodes: Sequence[ast.AST], outer: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the literals by the names of constants, and of variables that iterate over them."""
    constants = {**outer}
    values = (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Set)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, values):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            texts = set(_literals_in(node.value, {}))
            constants |= {each.id: texts for each in targets if isinstance(each, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
            constants[node.target.id] = set(_literals_in(node.iter, constants))
    return constants


def _literals_in(node: ast.expr, constants: Mapping[str, set[str]]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values
        )
    elif isinstance(node, ast.Name):
        yield from constants.get(node.id, ())
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from _literals_in(each, constants)
