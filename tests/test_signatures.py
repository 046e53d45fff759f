"""Arguments are defined once, and every verb shows each of them by name, type, default and explanation."""

from __future__ import annotations

import inspect
import pickle
import re
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypedDict, Unpack

import numpy as np
import pytest
import torch
from torch import nn

import torchscan
from torchscan import InputError
from torchscan.question import Question
from torchscan.recording.arguments import ScanArguments
from torchscan.scan import Scan
from torchscan.signatures import spelled_out

VERBS: list[Callable[..., Any]] = [
    torchscan.record,
    torchscan.crawl_module,
    torchscan.summary,
    torchscan.receptive_field,
    torchscan.estimate_memory,
    torchscan.analyze_roofline,
    torchscan.assert_budget,
    torchscan.model_table,
    Scan,
]
INPUTS = {"args", "kwargs", "batch_size", "mode", "training", "loss"}


def by_name(verb: Callable[..., Any]) -> Any:
    return pytest.param(verb, id=verb.__name__)


@pytest.mark.parametrize("verb", [by_name(verb) for verb in VERBS])
def test_every_argument_is_named_typed_and_explained(verb: Callable[..., Any]) -> None:
    parameters = inspect.signature(verb).parameters
    text = inspect.getdoc(verb.__init__ if inspect.isclass(verb) else verb) or ""
    explained = re.findall(r"^    (\w+): ", text, re.MULTILINE)
    assert explained == list(parameters)
    assert set(parameters) > INPUTS
    for each in parameters.values():
        assert each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        assert not isinstance(each.annotation, str | typing.ForwardRef)
        assert "ForwardRef" not in str(each.annotation)


class Two(nn.Module):
    """A layer for each of two inputs: 10 · 4 and 20 · 4 MACs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(10, 4), nn.Linear(20, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.one(x) + self.other(y)


@pytest.mark.parametrize(
    "shapes", [((10,), (20,)), ([10], [20]), (torch.Size([10]), (np.int64(20),))]
)
def test_shapes_one_after_the_other_are_those_of_several_inputs(shapes: tuple[Any, ...]) -> None:
    first, second = shapes
    crawl: Any = torchscan.crawl_module  # type checkers know one shape, or a list of them
    assert torchscan.crawl_module(Two(), first, second)["overall"]["macs"] == 120
    with_type = crawl(Two().double(), first, second, torch.float64)
    assert [each["dtype"] for each in with_type["provenance"]["inputs"]] == ["float64"] * 2
    assert Scan(Two(), first, second).question.input_shape == [first, second]
    peak = torchscan.estimate_memory(Two(), [(10,), (20,)]).peak_bytes
    assert torchscan.estimate_memory(Two(), first, second).peak_bytes == peak
    torchscan.assert_budget(Two(), first, second, max_macs=120)


def test_summary_takes_its_layout_after_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    torchscan.summary(Two(), [(10,), (20,)], "tail", 0)
    text = capsys.readouterr().out
    summary: Any = torchscan.summary
    summary(Two(), (10,), (20,), "tail", 0)
    assert capsys.readouterr().out == text


def test_a_shape_after_a_list_of_shapes_is_refused_with_the_call_to_write() -> None:
    said = r"give the shapes of several inputs as one list, \[\(10,\), \(20,\)\]"
    with pytest.raises(InputError, match=said):
        torchscan.summary(Two(), [(10,)], (20,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        torchscan.crawl_module(Two(), [(10,)], (20,))  # type: ignore[arg-type]


def test_defaults_are_those_of_the_question() -> None:
    shown = inspect.signature(Scan).parameters
    assert {each.name: each.default for each in fields(Question) if each.name != "module"} == {
        name: each.default for name, each in shown.items() if name != "module"
    }


def test_the_question_has_a_field_for_every_argument() -> None:
    names = [field.name for field in fields(Question)]
    assert sorted(names) == sorted(
        ["module", "input_shape", "dtype", *typing.get_type_hints(ScanArguments)]
    )


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        (
            torchscan.crawl_module,
            "bach_size",
            r"^crawl_module\(\) got .* 'bach_size': did you mean 'batch_size'",
        ),
        (torchscan.record, "optimizer", r"^record\(\) got .* 'optimizer': there are args, "),
        (
            torchscan.estimate_memory,
            "execute",
            r"^estimate_memory\(\) got an unexpected keyword argument 'execute'",
        ),
        (torchscan.assert_budget, "max_parms", "'max_parms': did you mean 'max_params'"),
        (Scan, "devise", "'devise': did you mean 'device'"),
        # as torchinfo, thop, fvcore and ptflops call theirs
        (
            torchscan.summary,
            "input_size",
            r"has no argument 'input_size': give input_shape=\(3, 224, 224\) for one sample",
        ),
        (torchscan.summary, "input_data", r"'input_data': give args=\(x,\)"),
        (torchscan.summary, "col_names", r"'col_names': give columns=\["),
        (torchscan.summary, "depth", "'depth': give max_depth="),
        (torchscan.record, "device", "'device', and needs none: the model stays where it is"),
        (torchscan.summary, "verbose", "'verbose', and needs none: crawl_module"),
        (torchscan.crawl_module, "inputs", r"'inputs': give args=\(x,\)"),
        (torchscan.crawl_module, "input_res", "'input_res': give input_shape="),
        (torchscan.crawl_module, "as_strings", "'as_strings', and needs none: figures are numbers"),
        (torchscan.summary, "model", "'model': give module=$"),
        (torchscan.summary, "backend", "'backend': give convention='ptflops'"),
        (
            torchscan.estimate_memory,
            "backend",
            "'backend', and needs none: operators are counted as they run",
        ),
        (torchscan.summary, "report_missing", "'report_missing': give strict=True"),
        (
            torchscan.estimate_memory,
            "report_missing",
            "'report_missing', and needs none: operators without a price",
        ),
        (
            torchscan.crawl_module,
            "flops_units",
            "'flops_units', and needs none: figures are numbers",
        ),
        (torchscan.crawl_module, "row_settings", "'row_settings', and needs none: format_info"),
        (torchscan.summary, "row_settings", "'row_settings': give columns= and width="),
        (
            torchscan.crawl_module,
            "print_per_layer_stat",
            r"and needs none: crawl_module\(...\) has every layer",
        ),
        (torchscan.summary, "print_per_layer_stat", "'print_per_layer_stat': give columns="),
        (torchscan.crawl_module, "depth", "'depth': there are"),  # it has no max_depth to name
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest(
    verb: Callable[..., Any], given: str, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        verb(nn.Linear(4, 4), (4,), **{given: None})


class Shared(TypedDict, total=False):
    """What two verbs take.

    Args:
        first: said in the definition,
            on two lines.
        second: said there, too.
    """

    first: int
    second: str | None


def test_a_verb_explains_in_its_own_words_what_it_has_words_for() -> None:
    @spelled_out({"first": 1}, [Shared])
    def verb(given: int, *, own: bool = False, **asked: Unpack[Shared]) -> str:
        """Do it.

        Args:
            own: the verb's.
            second: better said here.
        """
        return f"{given} {own} {sorted(asked)}"

    assert (
        str(inspect.signature(verb))
        == "(given: int, *, first: int = 1, second: str | None = None, own: bool = False) -> str"
    )
    assert verb.__doc__ == (
        "Do it.\n\nArgs:\n    first: said in the definition,\n        on two lines.\n    second: better said here.\n"
        "    own: the verb's.\n"
    )
    assert verb(3, second="x") == "3 False ['second']"


#: of torchinfo.summary, thop.profile, fvcore.nn.flop_count and ptflops.get_model_complexity_info, but those that we have, too
_OTHERS = """
model input_size input_data batch_dim cache_forward_pass col_names col_width dtypes row_settings verbose
inputs custom_ops ret_layer_info report_missing supported_ops
input_res print_per_layer_stat as_strings input_constructor ost ignore_modules custom_modules_hooks
backend flops_units param_units output_precision backend_specific_config
"""


@pytest.mark.parametrize("verb", [torchscan.summary, torchscan.crawl_module])
@pytest.mark.parametrize("name", _OTHERS.split())
def test_every_argument_of_other_tools_is_answered(verb: Callable[..., Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"has no argument '{name}'(: give |, and needs none: )"):
        verb(nn.Linear(4, 4), (4,), **{name: None})


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        ("crawl_module", {"kwargs": 3}, "kwargs is 3: give a dict or None"),
        (
            "crawl_module",
            {"mode": torch.zeros(2)},
            "mode is a Tensor: give one of 'eval', 'train', 'same' or None",
        ),
        (
            "estimate_memory",
            {"largest_batch": torch.zeros(2)},
            "largest_batch is a Tensor: give True or False",
        ),
        ("summary", {"columns": 3}, "columns is 3: give a list or None"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_what_to_give(
    function: str, arguments: Any, says: str
) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        getattr(torchscan, function)(nn.Linear(2, 2), (2,), **arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_error_of_arguments_that_fit_their_types_stays_as_it_is() -> None:
    info = torchscan.crawl_module(nn.Linear(2, 2), (2,))
    with pytest.raises(OverflowError):
        torchscan.to_json(info, indent=10**30)


def test_public_functions_can_be_sent_to_other_processes() -> None:
    for function in (torchscan.crawl_module, torchscan.format_info, torchscan.crawler.crawl_module):
        assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301
