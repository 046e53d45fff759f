"""Hints for names, arguments and keys of older releases and of other tools: what to write instead.

``hints.toml`` has them. It is read when a name, an argument or a key does not exist, and not
before. This file must not import torch: ``import torchscan`` loads it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn, Self

from torchscan.errors import Argument, InputError, TorchscanError


@functools.lru_cache(maxsize=1)
def hint_tables() -> dict[str, Any]:
    """Return the tables of ``hints.toml``."""
    import tomllib

    with open(f"{__file__.removesuffix('.py')}.toml", "rb") as file:
        return tomllib.load(file)


# -- names ---------------------------------------------------------------------------------------


def hint_for_name(name: str, module: str = "torchscan") -> str | None:
    """Return what to write instead of a name that ``module`` does not have, or None."""
    tables = hint_tables()
    for origin, replacements in tables["names"].items():
        if name in replacements:
            return f"{module}.{name} {origin}: write {replacements[name]}"
    for home, names in tables["moved"].items():
        if name in names:
            return f"{module}.{name} has moved in 1.0: write {home}.{name}"
    for prefix, replacement in tables["prefixes"].items():
        if name.startswith(prefix):
            return f"{module}.{name} was internal to torchscan 0.1 and 0.2: write {replacement}"
    return None


def raise_for_name(module: str, name: str) -> NoReturn:
    """Raise the AttributeError of a module without that name."""
    hint = hint_for_name(name, module)
    raise AttributeError(hint or f"module {module!r} has no attribute {name!r}")


class HintFinder:
    """An import hook that finds nothing, but answers imports of names that have a hint.

    Python would say "cannot import name", whatever ``__getattr__`` of a module raises.
    """

    packages = (
        "torchscan",
        "torchscan.modules",
        "torchscan.process",
        "torchscan.report",
        "torchscan.utils",
    )

    @classmethod
    def find_spec(cls, fullname: str, *_place: object) -> None:
        """Raise an ImportError if there is a hint for the name."""
        package, _, name = fullname.rpartition(".")
        hint = hint_for_name(name, package) if package in cls.packages else None
        if hint is not None:
            raise ImportError(hint, name=fullname)


def forward_old_module(name: str, *submodules: str) -> None:
    """Give a module that forwards old names its submodules, which are itself, and hints."""
    module: Any = sys.modules[name]
    module.__getattr__ = functools.partial(raise_for_name, name)
    for each in submodules:
        sys.modules[f"{name}.{each}"] = module
        setattr(module, each, module)


# -- keys ----------------------------------------------------------------------------------------


def hint_for_key(key: object) -> str | None:
    """Return what to read instead of a key of older releases, or None."""
    hint: str | None = hint_tables()["keys"].get(key) if isinstance(key, str) else None
    return hint


class HintedDict(dict[str, Any]):
    """A dict that answers keys of older releases with those to use."""

    def __missing__(self, key: object) -> NoReturn:
        """Raise a KeyError, with a hint if there is one."""
        hint = hint_for_key(key)
        raise KeyError(key if hint is None else f"{key!r} is no longer a key: read {hint}")

    def copy(self) -> Self:
        """Return a shallow copy of the same type."""
        return type(self)(self)


class HintedLayer(HintedDict):
    """A layer in the dict of ``crawl_module``. Its deep copies and pickles are plain dicts."""

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Return how to build a plain dict, which every serializer knows."""
        return dict, (dict(self),)


_NO_DATA = "summary() prints and returns no data: write info = crawl_module(...) and read {}"


class PrintedSummary:
    """The result of ``summary``. It displays nothing, since the table is printed already."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return nothing to display."""
        return ""

    def __bool__(self) -> bool:
        """Return False, as None does."""
        return False

    def _ipython_display_(self) -> None:
        """Display nothing in a notebook."""

    def __getitem__(self, key: object) -> NoReturn:
        """Raise a TypeError that names the function which returns data."""
        raise TypeError(_NO_DATA.format(hint_for_key(key) or f"info[{key!r}]"))

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that names the function which returns data."""
        hint = hint_tables()["statistics"].get(name, "info['overall']")
        raise AttributeError(_NO_DATA.format(hint))


# -- arguments -----------------------------------------------------------------------------------


def raise_for_old_value(error: TorchscanError, arguments: Mapping[str, object]) -> None:
    """Raise an InputError in place of another one if an argument has a value of 0.1 or 0.2."""
    if not isinstance(error, InputError):
        return
    for name, advice_by_value in hint_tables()["values"].items():
        value = arguments.get(name)
        advice = advice_by_value.get(value) if isinstance(value, str) else None
        if advice is not None:
            problem = f" is {value!r}, which torchscan 0.2 had: {advice}"
            raise InputError(Argument(name), problem) from None


def explain_unknown_arguments(called: str, given: Iterable[str], known: Set[str]) -> str:
    """Return one message for all arguments among ``given`` that a function does not have."""
    unknown = [name for name in given if name not in known]
    if len(unknown) == 1:
        advice, text = _advise(unknown[0], known)
        return f"{called}() {_ALONE[advice].format(name=repr(unknown[0]), text=text)}"
    answers = "; ".join(_explain_together(unknown, known))
    return f"{called}() got {len(unknown)} unexpected keyword arguments: {answers}"


#: kind of advice -> the message for one argument
_ALONE = {
    "give": "has no argument {name}: give {text}",
    "leave out": "has no argument {name}, and needs none: {text}",
    "similar": "got an unexpected keyword argument {name}: {text}",
}
#: kind of advice -> its part in the message for several arguments
_TOGETHER = {
    "give": "for {names} give {text}",
    "leave out": "leave out {names} ({text})",
    "similar": "for {names}, {text}",
}


def _explain_together(unknown: Sequence[str], known: Set[str]) -> list[str]:
    """Return one part of a message for all arguments with the same advice."""
    names_by_advice: dict[tuple[str, str], list[str]] = {}
    for name in unknown:
        names_by_advice.setdefault(_advise(name, known), []).append(repr(name))
    parts = []
    for (advice, text), names in names_by_advice.items():
        parts.append(_TOGETHER[advice].format(names=" and ".join(names), text=text))
    return parts


def _advise(name: str, known: Set[str]) -> tuple[str, str]:
    """Return the kind of advice for an argument, and its text."""
    import difflib

    tables = hint_tables()
    text, *arguments = tables["give"].get(name, [""])
    if not known.isdisjoint(arguments):
        return "give", text
    if name in tables["leave_out"]:
        return "leave out", tables["leave_out"][name]
    similar = difflib.get_close_matches(name, known, 1)
    if similar:
        return "similar", f"did you mean {similar[0]!r}?"
    return "similar", f"choose from {', '.join(sorted(known))}"
