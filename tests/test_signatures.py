"""Arguments are defined once, and every verb shows each of them by name, type, default and explanation."""

from __future__ import annotations

import inspect
import pickle
import re
import typing
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from types import FunctionType, SimpleNamespace
from typing import Any, TypedDict, Unpack

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan import (
    InputError,
    Scan,
    TorchscanError,
    analyze_roofline,
    assert_budget,
    crawl_module,
    estimate_memory,
    format_info,
    receptive_field,
    record,
    summary,
)
from torchscan.question import Question
from torchscan.recording.arguments import ScanArguments
from torchscan.signatures import spelled_out

VERBS: list[Callable[..., Any]] = [
    record,
    crawl_module,
    summary,
    receptive_field,
    estimate_memory,
    analyze_roofline,
    assert_budget,
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
            crawl_module,
            "bach_size",
            r"^crawl_module\(\) got .* 'bach_size': did you mean 'batch_size'",
        ),
        (record, "optimizer", r"^record\(\) got .* 'optimizer': choose from args, "),
        (
            estimate_memory,
            "execute",
            r"^estimate_memory\(\) got an unexpected keyword argument 'execute'",
        ),
        (assert_budget, "max_parms", "'max_parms': did you mean 'max_params'"),
        (Scan, "devise", "'devise': did you mean 'device'"),
        # as torchinfo, thop, fvcore and ptflops call theirs
        (
            summary,
            "input_size",
            r"has no argument 'input_size': give input_shape=\(3, 224, 224\) for one sample",
        ),
        (summary, "input_data", r"'input_data': give args=\(x,\)"),
        (summary, "col_names", r"'col_names': give columns=\["),
        (summary, "depth", "'depth': give max_depth="),
        (record, "device", "'device', and needs none: the model stays where it is"),
        (summary, "verbose", "'verbose', and needs none: crawl_module"),
        (crawl_module, "inputs", r"'inputs': give args=\(x,\)"),
        (crawl_module, "input_res", "'input_res': give input_shape="),
        (crawl_module, "as_strings", "'as_strings', and needs none: values are numbers"),
        (
            record,
            "backward",
            "'backward': give training=True, mode='eval', and what to differentiate as loss=$",
        ),
        (summary, "backend", "'backend': give convention='ptflops'"),
        (
            estimate_memory,
            "backend",
            "'backend', and needs none: operators are counted as they run",
        ),
        (summary, "report_missing", "'report_missing': give strict=True"),
        (
            estimate_memory,
            "report_missing",
            "'report_missing', and needs none: operators without a cost formula",
        ),
        (
            crawl_module,
            "flops_units",
            "'flops_units', and needs none: values are numbers",
        ),
        (crawl_module, "row_settings", "'row_settings', and needs none: format_info"),
        (summary, "row_settings", "'row_settings': give columns= and width="),
        (
            crawl_module,
            "print_per_layer_stat",
            r"and needs none: crawl_module\(...\) has every layer",
        ),
        (summary, "print_per_layer_stat", "'print_per_layer_stat': give columns="),
        # it has no max_depth to name
        (crawl_module, "depth", "'depth', and needs none: aggregate_info"),
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
input_size input_data batch_dim cache_forward_pass col_names col_width dtypes row_settings verbose
inputs custom_ops ret_layer_info report_missing supported_ops
input_res print_per_layer_stat as_strings input_constructor ost ignore_modules custom_modules_hooks
backend flops_units param_units output_precision backend_specific_config
"""


@pytest.mark.parametrize("verb", [summary, crawl_module])
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
    info = crawl_module(nn.Linear(2, 2), (2,))
    with pytest.raises(OverflowError):
        info.to_json(indent=10**30)


def test_public_functions_can_be_sent_to_other_processes() -> None:
    for function in (crawl_module, format_info, torchscan.crawler.crawl_module):
        assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301


#: names that arguments had -> the one spelling
OLD_ARGUMENTS = {
    "model": "module",
    "build": "module",
    "batch": "batch_size",
    "global_batch": "global_batch_size",
    "min_batch": "min_batch_size",
    "gpus": "num_gpus",
    "processes": "num_ranks",
    "context": "cuda_context, or tokens as length",
    "context_bytes": "cuda_context",
    "context_mb": "cuda_context_mb",
    "backward": "training",
    "rows": "top",
    "depth": "max_depth",
    "record": "trace",
    "picture": "image",
    "least": "min_…",
    "most": "max_…",
}
#: names that attributes of results had -> the one spelling
OLD_ATTRIBUTES = {
    "said": "label, or description",
    "least": "min",
    "most": "max",
    "spread": "error_margin",
    "late": "lags",
    "looking": "overhead",
    "gpus": "num_gpus",
    "records": "num_traces",
    "remedies": "suggestions",
    "max_batch": "max_batch_size",
    "context_bytes": "cuda_context_bytes",
    "context_range": "cuda_context_range",
    "known_context_bytes": "known_cuda_context_bytes",
    "compute_utilisation": "compute_utilization",
    "memory_utilisation": "memory_utilization",
    "least_bytes_read": "min_bytes_read",
}
#: arguments that have another type or default somewhere -> why
DIFFERENT = {
    "accumulation_steps": "search() compares numbers of micro batches by default",
    "batch_size": "analyze_generation() also takes several",
    "checkpoint": "search() compares choices by default",
    "inputs": "of a module, or by name of a prompt",
    "max_depth": "tables of times are short, summary() is complete",
    "mesh": "plan() is about one",
    "schedule": "search() compares schedules by default",
    "module": "plan() also takes a function that makes the model",
    "optimizer": "search() is about training",
    "precision": "search() is about training, for which weights are converted",
    "sharding": "search() takes several to compare",
    "sequence_parallel": "search() compares the fastest way that a model has",
    "receptive_field": "data has them, a table has room for them if they are asked for",
    "run": "a path, or what was opened from one",
    "step": "a number in watch(), a function that calls a language model",
    "strict": "budgets refuse lower bounds, reports mark them",
    "title": "tables of models have one",
    "weights": "engines have other formats than training",
    "width": "summary() prints to a terminal, which has one",
}
#: types that modules import for type checkers alone
_FOR_CHECKERS = {
    "Tensor": Tensor,
    "pd": SimpleNamespace(DataFrame=Any),
    **dict.fromkeys(("Axes", "DeviceMesh", "Server", "Statistic"), Any),
}


def public_values() -> dict[str, Any]:
    """Return everything that is public by name."""
    places = (torchscan, torchscan.types, torchscan.sinks, torchscan.parallel)
    return {
        name: getattr(place, name)
        for place in places
        for name in [*place.__all__, "inspect"]
        if hasattr(place, name)
    }


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions by name, and ``Scan``."""
    functions = {name: each for name, each in public_values().items() if inspect.isfunction(each)}
    return {**functions, "Scan": Scan}


def public_methods() -> dict[str, Callable[..., Any]]:
    """Return the methods of public classes by name."""
    return {
        f"{name}.{key}": method
        for name, kind in public_values().items()
        if inspect.isclass(kind)
        for key, method in vars(kind).items()
        if inspect.isfunction(method) and not key.startswith("_")
    }


def arguments_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each argument by its name."""
    hinted = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(hinted, localns=_FOR_CHECKERS)
    parameters = inspect.signature(function).parameters
    return {
        name: (hints.get(name, each.annotation), each.default) for name, each in parameters.items()
    }


@pytest.mark.parametrize("name", [*public_functions(), *public_methods()])
def test_no_argument_has_an_old_name(name: str) -> None:
    function = {**public_functions(), **public_methods()}[name]
    found = inspect.signature(function).parameters.keys() & OLD_ARGUMENTS.keys()
    assert {each: OLD_ARGUMENTS[each] for each in found} == {}


def test_no_attribute_of_a_result_has_an_old_name() -> None:
    kinds = [each for each in public_values().values() if inspect.isclass(each)]
    found = {
        f"{kind.__name__}.{name}": new
        for kind in kinds
        for name, new in OLD_ATTRIBUTES.items()
        if name in dir(kind) or name in getattr(kind, "__annotations__", ())
    }
    assert found == {}


def test_an_argument_has_one_type_and_one_default() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for function in public_functions().values():
        for name, kind in arguments_of(function).items():
            kinds[name].add(str(kind))
    several = {name for name, each in kinds.items() if len(each) > 1}
    assert sorted(several) == sorted(DIFFERENT)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, each in public_functions().items()
        if "module" in inspect.signature(each).parameters
        and name != "attach"  # whose module is a part of the model
    ],
)
def test_model_is_another_word_for_module(name: str) -> None:
    message = ""
    try:
        public_functions()[name](model=nn.Linear(2, 2))
    except (TorchscanError, TypeError) as error:  # other arguments are missing
        message = str(error)
    assert "'model'" not in message
    assert "'module'" not in message


def test_a_model_is_given_once() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(InputError, match="module and model are the same argument"):
        torchscan.inspect(module=layer, model=layer)  # type: ignore[call-arg]


def test_errors_name_functions_as_people_call_them() -> None:
    """Python names a function in its errors as it was defined."""
    for home in (torchscan, torchscan.parallel):
        for name in home.__all__:
            public = getattr(home, name)
            if isinstance(public, FunctionType):
                assert public.__name__ == name
