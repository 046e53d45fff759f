"""Arguments shared by several verbs: defined once, as a ``TypedDict``, and shown in full wherever a verb takes them.

A verb is declared as ``def verb(module, **asked: Unpack[SomeArguments])``, which type checkers understand. What people see
(``?``, completion, the reference) is generated from it: every argument with its name, type, default and explanation.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from torchscan.errors import InputError, RecordError, TorchscanError
from torchscan.wrong_arguments import RAW_ERRORS, misfit, shape_joiner

Given = ParamSpec("Given")
Result = TypeVar("Result")

_ARGS = re.compile(r"^Args:\n((?:(?:    .*)?\n?)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)


def spelled_out(
    defaults: Mapping[str, Any], definitions: Sequence[type]
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Show each argument behind ``**asked: Unpack[...]``, and refuse all others.

    ``definitions`` explain the arguments in the ``Args:`` of their docstrings (all are needed, since a TypedDict forgets what
    it extends). An argument without a default defaults to None.
    """
    explained = {
        name: text
        for each in definitions
        for name, text in _entries(inspect.getdoc(each) or "").items()
    }

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        parameters = _parameters(function, defaults)
        called = function.__qualname__.removesuffix(".__init__")
        known = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
        join = shape_joiner(function)

        @functools.wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            __tracebackhide__ = True  # pytest shows the line that asked
            if not kwargs.keys() <= known:
                raise TypeError(_unknown(called, kwargs.keys() - known, known))
            args = join(args)
            try:
                return function(*args, **kwargs)
            except (
                RecordError
            ) as error:  # what the model raised is chained to it; our own lines say nothing
                raise error.with_traceback(None) from error.__cause__
            except TorchscanError:
                raise
            except RAW_ERRORS as error:
                message = misfit(checked, args, kwargs)
                if message is None:
                    raise
                raise InputError(message) from error

        shown: Any = checked
        returned = get_type_hints(function)["return"]
        returned = None if returned is type(None) else returned
        shown.__signature__ = inspect.Signature(parameters, return_annotation=returned)
        shown.__annotations__ = {each.name: each.annotation for each in parameters} | {
            "return": returned
        }
        shown.__doc__ = _explained(function.__doc__ or "", explained, parameters)
        return checked

    return decorate


def _parameters(
    function: Callable[..., Any], defaults: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """The verb's own arguments, with the definition's inserted before its keywords."""
    hints = get_type_hints(function)
    declared = inspect.signature(function).parameters.values()
    own = [each.replace(annotation=hints.get(each.name, each.empty)) for each in declared]
    shared: type = get_args(own[-1].annotation)[0]
    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [
        inspect.Parameter(name, keyword, default=defaults.get(name), annotation=hint)
        for name, hint in get_type_hints(shared).items()
        if name not in hints
    ]
    positional = [each for each in own if each.kind is not keyword]
    return [*positional[:-1], *named, *(each for each in own if each.kind is keyword)]


#: arguments of other tools -> what to give here. The names in it are in the signature, or the advice is not for this verb
_ELSEWHERE: Mapping[str, str] = {
    "model": "module=",
    **dict.fromkeys(
        ("input_size", "input_res"), "input_shape=(3, 224, 224) for one sample, and batch_size="
    ),
    **dict.fromkeys(("input_data", "inputs", "input_constructor"), "args=(x,), or kwargs={'x': x}"),
    "dtypes": "dtype=",
    "batch_dim": "batch_size=, since input_shape= is that of one sample",
    "col_names": "columns=['type', 'output_shape', 'params', 'macs']",
    **dict.fromkeys(("row_settings", "col_width"), "columns= and width="),
    "depth": "max_depth=",
    "print_per_layer_stat": "columns=; crawl_module(...) gives the same without printing",
    **dict.fromkeys(
        ("backend", "backend_specific_config"),
        "convention='ptflops' for the numbers of its usual backend",
    ),
    "report_missing": "strict=True to refuse operators without a price, which are named in any case",
}
#: arguments of other tools that need no counterpart
_NEEDLESS: Mapping[str, str] = {
    "verbose": "crawl_module(...) gives what summary(...) prints",
    **dict.fromkeys(
        ("as_strings", "flops_units", "param_units", "output_precision"),
        "figures are numbers; format_info(...) makes text of them",
    ),
    **dict.fromkeys(
        ("row_settings", "col_width", "col_names"),
        "format_info(...) lays figures out, with columns= and width=",
    ),
    **dict.fromkeys(
        ("print_per_layer_stat", "ret_layer_info"),
        "crawl_module(...) has every layer, and summary(...) prints them",
    ),
    "ost": "summary(...) prints, and format_info(...) gives the same text to write anywhere",
    "ignore_modules": "all that runs is counted; select_layers(...) picks layers",
    "device": "the model stays where it is, and runs on shapes alone unless it is on a GPU",
    "cache_forward_pass": "Scan(...) keeps its pass for all questions",
    **dict.fromkeys(("backend", "backend_specific_config"), "operators are counted as they run"),
    "report_missing": "operators without a price are named in any case",
    **dict.fromkeys(
        ("custom_ops", "custom_modules_hooks", "supported_ops"),
        "operators are priced, not modules: see torchscan.cost_of",
    ),
}


def _unknown(called: str, unknown: set[str], known: set[str]) -> str:
    name = min(unknown)
    if name in _ELSEWHERE and set(re.findall(r"(\w+)=", _ELSEWHERE[name])) & known:
        return f"{called}() has no argument {name!r}: give {_ELSEWHERE[name]}"
    if name in _NEEDLESS:
        return f"{called}() has no argument {name!r}, and needs none: {_NEEDLESS[name]}"
    near = difflib.get_close_matches(name, known, 1)
    said = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    return f"{called}() got an unexpected keyword argument {name!r}: {said}"


def _explained(
    text: str, shared: Mapping[str, str], parameters: Sequence[inspect.Parameter]
) -> str:
    """The verb's docstring with an entry for each argument: the verb's own, or else the shared one."""
    text = inspect.cleandoc(text)
    entries = {**shared, **_entries(text)}
    lines = "\n".join(
        f"    {each.name}: {entries[each.name]}" for each in parameters if each.name in entries
    )
    return f"{_ARGS.sub('', text).rstrip()}\n\nArgs:\n{lines}\n"


def _entries(text: str) -> dict[str, str]:
    block = _ARGS.search(text)
    return {} if block is None else {name: said.rstrip() for name, said in _ENTRY.findall(block[1])}
