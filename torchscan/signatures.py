"""Arguments that public functions share: defined once, as a ``TypedDict``, and shown in each.

Functions are declared as ``def verb(module, **asked: Unpack[SomeArguments])``, which type checkers
understand. What ``?``, completion and the reference show is generated from it: every argument with
its name, type, default and explanation.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from torchscan.errors import RecordError, TorchscanError
from torchscan.hints import explain_unknown_arguments, raise_for_old_value
from torchscan.wrong_arguments import RAW_ERRORS, argument_fixer, misfit

Given = ParamSpec("Given")
Result = TypeVar("Result")

_ARGS = re.compile(r"^Args:\n((?:(?:    .*)?\n?)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)


def spelled_out(
    defaults: Mapping[str, Any], definitions: Sequence[type]
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Show each argument behind ``**asked: Unpack[...]``, and refuse all others.

    ``definitions`` explain the arguments in the ``Args:`` of their docstrings. All are needed,
    since a TypedDict forgets what it extends. An argument without a default defaults to None.
    """
    explained: dict[str, str] = {}
    for each in definitions:
        explained |= _entries(inspect.getdoc(each) or "")

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        parameters = _parameters(function, defaults)
        called = function.__qualname__.removesuffix(".__init__")
        names = [each.name for each in parameters]
        fix = argument_fixer(list(inspect.signature(function).parameters))
        known = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}

        @functools.wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            __tracebackhide__ = True  # pytest shows the line that asked
            args = fix(args, kwargs)
            if not kwargs.keys() <= known:
                raise TypeError(explain_unknown_arguments(called, kwargs, known))
            try:
                return function(*args, **kwargs)
            except RecordError as error:
                # What the model raised is chained to it; our own lines say nothing.
                raise error.with_traceback(None) from error.__cause__
            except TorchscanError as error:
                raise_for_old_value(error, dict(zip(names, args, strict=False)) | kwargs)
                raise
            except RAW_ERRORS as error:
                wrong = misfit(checked, args, kwargs)
                if wrong is None:
                    raise
                raise wrong from error

        doc = _explained(function.__doc__ or "", explained, parameters)
        _show(checked, parameters, get_type_hints(function)["return"], doc)
        return checked

    return decorate


def _show(shown: Any, parameters: Sequence[inspect.Parameter], returned: Any, doc: str) -> None:
    """Set the signature, the annotations and the docstring that help and completion show."""
    if returned is type(None):
        returned = None
    annotations = {each.name: each.annotation for each in parameters}
    shown.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    shown.__annotations__ = annotations | {"return": returned}
    shown.__doc__ = doc


def _parameters(
    function: Callable[..., Any], defaults: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """Return a function's own arguments, with the shared ones inserted before its keywords."""
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


def _explained(
    text: str, shared: Mapping[str, str], parameters: Sequence[inspect.Parameter]
) -> str:
    """Return a docstring with an entry for each argument: its own, or else the shared one."""
    text = inspect.cleandoc(text)
    entries = {**shared, **_entries(text)}
    names = [each.name for each in parameters]
    lines = "\n".join(f"    {name}: {entries[name]}" for name in names if name in entries)
    return f"{_ARGS.sub('', text).rstrip()}\n\nArgs:\n{lines}\n"


def _entries(text: str) -> dict[str, str]:
    """Return the text of each argument in the ``Args:`` of a docstring."""
    block = _ARGS.search(text)
    if block is None:
        return {}
    return {name: entry.rstrip() for name, entry in _ENTRY.findall(block[1])}
