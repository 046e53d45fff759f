"""What is looked at, and how often, as users say it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from torchscan.errors import InputError
from torchscan.live.probe import LOGGED
from torchscan.live.schema import Kind
from torchscan.live.sinks.sink import Sink
from torchscan.live.starting import START_METHODS
from torchscan.recording.bookkeeping.inventory import modules_of

Chosen = str | nn.Module | Callable[[str, nn.Module], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is looked at, and how often."""

    every: int | Literal["auto"]
    overhead_budget: float
    kinds: frozenset[Kind]
    #: patterns, modules and functions that choose modules; None: all
    modules: Sequence[Chosen] | None
    #: patterns of the series of which all values are taken, each with how many these may be
    whole: Sequence[tuple[str, int]]
    sample_n: int
    sample_norms: bool
    #: whether the run has the graph of the model
    graph: bool


def require_known(log: Sequence[str], every: int | str, start: str) -> None:
    """Raise if one of these says what nobody knows."""
    require_list("log", log)
    unknown = [name for name in log if name not in LOGGED]
    if unknown:
        raise InputError(f"log has {unknown[0]!r}: there are {', '.join(LOGGED)}")
    if every != "auto" and (not isinstance(every, int) or every < 1):
        raise InputError(f"every is {every!r}: a number of steps from 1 on, or 'auto'")
    if start not in START_METHODS:
        raise InputError(f"start is {start!r}: there are {', '.join(START_METHODS)}")


def require_list(name: str, given: object) -> None:
    """Raise if a text was given for a list of texts."""
    if isinstance(given, str):
        raise InputError(f"{name} is a text: give a list, {name}=[{given!r}]")


def sinks_of(given: Iterable[Sink]) -> list[Sink]:
    """One, or several."""
    sinks: list[Any] = [given] if isinstance(given, Sink) else list(given)
    wrong = next((each for each in sinks if not isinstance(each, Sink)), None)
    if wrong is not None:
        raise InputError(f'sinks has {wrong!r}: each is a torchscan.Sink, such as TensorBoard("runs/board")')
    return sinks


def require_positive(**given: float) -> None:
    """Raise if one of these is not."""
    wrong = next((name for name, value in given.items() if not value > 0), None)
    if wrong is not None:
        raise InputError(f"{wrong} is {given[wrong]!r}: it has to be more than 0")


def chosen_by(modules: Iterable[Chosen], model: nn.Module) -> list[Chosen]:
    """What chooses modules, each of which chooses one at least: now, or when a lazy model has more of them."""
    require_list("modules", modules)
    chosen = list(modules)
    for each in chosen:
        if not any(_matches(each, path, module) for path, module in modules_of(model)):
            some = ", ".join(repr(path) for path, _ in modules_of(model) if path)
            raise InputError(f"modules has {each!r}, which chooses none of the model's: there are {some[:200] or 'no parts'}")
    return chosen


def is_chosen(modules: Sequence[Chosen] | None, path: str, module: nn.Module) -> bool:
    """Whether a module is looked at."""
    return modules is None or any(_matches(each, path, module) for each in modules)


def _matches(chosen: Chosen, path: str, module: nn.Module) -> bool:
    if isinstance(chosen, str):
        return fnmatch.fnmatchcase(path, chosen)
    if isinstance(chosen, type):
        name = chosen.__name__
        raise InputError(f"modules has the class {name}: give lambda path, module: isinstance(module, {name})")
    return chosen is module if isinstance(chosen, nn.Module) else bool(chosen(path, module))
