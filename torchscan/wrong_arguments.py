"""Errors for arguments of the wrong kind, found after a call of a public function has failed.

Functions check what they can explain best. If an argument of another type than the annotated one
makes a call fail with an error of Python or torch, the annotation says what to give. Nothing is
checked while calls succeed.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import itertools
import numbers
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from torchscan.errors import Argument, InputError, TorchscanError
from torchscan.hints import explain_unknown_arguments

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: what Python and torch raise for values of the wrong kind
RAW_ERRORS = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    OSError,
)
#: elements of a list or dict that are checked
_MAX_CHECKED = 100
_MAX_SHOWN = 60


def explain_wrong_types(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Make errors for arguments of the wrong type InputErrors that name the argument.

    The function accepts ``model=`` for ``module=``.
    """
    parameters = inspect.signature(function).parameters
    known = {name for name, each in parameters.items() if each.kind is not each.POSITIONAL_ONLY}
    takes_known = all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    fix = argument_fixer(list(parameters))

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        __tracebackhide__ = True  # pytest shows the line that asked
        args = fix(args, kwargs)
        try:
            return function(*args, **kwargs)
        except TorchscanError:
            raise
        except RAW_ERRORS as error:
            if takes_known and not kwargs.keys() <= known:
                text = explain_unknown_arguments(function.__qualname__, kwargs, known)
                raise TypeError(text) from None
            wrong = misfit(function, args, kwargs)
            if wrong is None:
                raise
            raise wrong from error

    return called


def argument_fixer(names: Sequence[str]) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a function that takes the arguments of a call as people write them.

    It returns the positional ones. ``model`` among the keyword arguments becomes ``module``, if the
    function has only that: other tools call it ``model``, and so do many people. The arguments of
    ``f(model, (10,), (20,))`` become those of ``f(model, [(10,), (20,)])``. No other argument is a
    sequence of whole numbers, so this is not ambiguous.
    """
    is_renamed = "module" in names and "model" not in names
    position = names.index("input_shape") if "input_shape" in names else sys.maxsize

    def fix(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if is_renamed and "model" in kwargs:
            if "module" in kwargs:
                raise InputError(Argument("module"), " and model are the same argument: give one")
            kwargs["module"] = kwargs.pop("model")
        if len(args) < position + 2:
            return args
        shapes = list(itertools.takewhile(_is_shape, args[position:]))
        if len(shapes) < 2:
            return args
        return (*args[:position], shapes, *args[position + len(shapes) :])

    return fix


def _is_shape(value: object) -> bool:
    """Return whether a value is a list or tuple of whole numbers, including those of NumPy."""
    if not isinstance(value, list | tuple):
        return False
    sizes = [hasattr(size, "__index__") and not isinstance(size, bool) for size in value]
    return all(sizes)


def misfit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> InputError | None:
    """Return the error of the first argument that does not fit its annotation, or None."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # an argument is missing, or there are too many: Python says so
        return None
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        hint = _hint_of(parameter, function)
        if not _fits(value, hint):
            return InputError(
                Argument(name), f" is {_format_argument(value)}: give {_words_for(hint)}"
            )
    return None


def _hint_of(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """Return the annotated type, or Any if its names are only known to type checkers."""
    annotated = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(annotated, namespace).get(parameter.name, Any)
    except (NameError, TypeError, AttributeError):
        return Any


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; True for annotations that are not understood.

    Functions take numbers of other packages for floats, and a ``torch.device`` for its name.
    """
    if hint in (Any, inspect.Parameter.empty):
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return _is_one_of(value, parts)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is not None:
        return _fits_container(value, origin, parts)
    return _fits_class(value, hint)


_NUMBERS: Mapping[Any, type] = {int: numbers.Integral, float: numbers.Real}


def _fits_class(value: Any, hint: Any) -> bool:
    if hint in (None, type(None)):
        return value is None
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    kind = type(value)
    is_device = kind.__module__ == "torch" and kind.__name__ == "device"
    if hint is str and is_device:
        return True
    if not isinstance(hint, type):
        return True
    try:
        return isinstance(value, hint)
    except TypeError:  # protocols and typed dicts cannot be asked
        return True


def _is_one_of(value: Any, literals: Iterable[Any]) -> bool:
    return any(value is each or (type(value) is type(each) and value == each) for each in literals)


def _fits_container(value: Any, origin: Any, parts: Sequence[Any]) -> bool:
    if not isinstance(origin, type) or not issubclass(origin, collections.abc.Iterable):
        return not isinstance(origin, type) or isinstance(value, origin)
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return False
    if isinstance(value, Mapping) and len(parts) == 2:
        return _all_fit(value.keys(), parts[0]) and _all_fit(value.values(), parts[1])
    if origin is not tuple and len(parts) == 1 and isinstance(value, collections.abc.Collection):
        return _all_fit(value, parts[0])
    return True


def _all_fit(values: Iterable[Any], hint: Any) -> bool:
    return all(_fits(value, hint) for value, _ in zip(values, range(_MAX_CHECKED), strict=False))


_WORDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "None",
    os.PathLike: "a path",
    collections.abc.Callable: "a function",
}


def _words_for(hint: Any) -> str:
    """Return an annotation in words: ``int | None -> "a whole number or None"``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        *before, last = dict.fromkeys(_words_for(part) for part in parts)
        if not before:
            return last
        return f"{', '.join(before)} or {last}"
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if hint in _WORDS or origin in _WORDS:
        return _WORDS.get(hint) or _WORDS[origin]
    return _words_for_class(hint if origin is None else origin, is_generic=origin is not None)


def _words_for_class(kind: Any, *, is_generic: bool) -> str:
    """Return a class in words, with its article."""
    if isinstance(kind, type):
        if issubclass(kind, Mapping):
            return "a dict"
        if is_generic and issubclass(kind, collections.abc.Iterable):
            return "a list"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def _format_argument(value: Any) -> str:
    if type(value).__module__ == "torch" and type(value).__name__ != "Tensor":
        return repr(value)
    if isinstance(value, str | bytes | int | float | list | tuple | dict | type(None)):
        text = repr(value)
        if len(text) <= _MAX_SHOWN:
            return text
        return f"{text[: _MAX_SHOWN - 1]}…"
    return f"a {type(value).__name__}"
