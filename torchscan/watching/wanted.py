"""The user's choice of what to sample, and how often."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.watching.argument_checks import (
    MAX_STEP,
    flag,
    list_of,
    number_above_zero,
    quote,
    texts,
    whole_number,
)
from torchscan.watching.schema import STATISTICS, Kind
from torchscan.watching.sinks.sink import Sink

#: kinds of tensors that users choose, in the plural
_LOGGED: dict[str, Kind] = {
    "inputs": "input",
    "outputs": "output",
    "input_grads": "input_grad",
    "output_grads": "output_grad",
    "params": "param",
    "param_grads": "param_grad",
}
#: values of a tensor that are sampled at most
_MAX_SAMPLED = 2**24
_MAX_TIMEOUT = 1e6
_SHARE = "a share above 0 of the training time, such as 0.01"
_CHOOSERS = "patterns, modules, or functions of a path and a module"
Chosen = str | nn.Module | Callable[[str, nn.Module], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The validated choice of series, modules and frequency."""

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


def wanted_of(
    model: nn.Module,
    *,
    every: object,
    log: Sequence[str],
    modules: object,
    sample_n: object,
    sample_norms: object,
    whole: object,
    sinks: Sequence[Sink],
    overhead_budget: object,
    graph: object,
) -> Wanted:
    """Return the checked arguments, or raise an error that names the wrong one."""
    patterns = [] if whole is None else texts("whole", whole, "patterns such as 'fc.weight'")
    complete = [(each, sys.maxsize) for each in patterns]
    for sink in sinks:
        complete += [(each, sink.max_elements) for each in sink.whole]
    kinds = frozenset(_LOGGED[name] for name in log)
    what = "a number of values of each tensor"
    return Wanted(
        every=_every_of(every),
        overhead_budget=number_above_zero(
            "overhead_budget", overhead_budget, _SHARE, sys.float_info.max
        ),
        kinds=kinds,
        modules=None if modules is None else chosen_by(modules, model),
        whole=complete,
        sample_n=whole_number("sample_n", sample_n, 1, _MAX_SAMPLED, what),
        sample_norms=flag("sample_norms", sample_norms),
        graph=flag("graph", graph),
    )


def log_of(log: object) -> list[str]:
    """Return the names of the kinds of tensors to record."""
    names = texts("log", log, f"names from {', '.join(_LOGGED)}")
    for name in names:
        if name not in _LOGGED:
            raise InputError(f"log has {name!r}: choose from {', '.join(_LOGGED)}")
    return names


def _every_of(every: object) -> int | Literal["auto"]:
    if isinstance(every, str) and every == "auto":
        return "auto"
    try:
        return whole_number("every", every, 1, MAX_STEP)
    except InputError as error:
        raise InputError(
            f"every is {quote(every)}: give a number of steps (1 or more) or 'auto'"
        ) from error


def step_of(step: object) -> int:
    """Return the number of a training step."""
    return whole_number("step", step, 0, MAX_STEP)


def sinks_of(given: object) -> list[Sink]:
    """Return a list of sinks, from one or several."""
    if given is None:
        return []
    if isinstance(given, Sink):
        given = [given]
    what = 'torchscan.sinks, such as TensorBoard("runs/board")'
    sinks: list[Sink] = list_of("sinks", given, what, is_one=lambda each: isinstance(each, Sink))
    for sink in sinks:
        _require_sane(sink)
    return sinks


def _require_sane(sink: Sink) -> None:
    """Raise if an attribute of a sink, which may be the user's own, has no meaning."""
    name = type(sink).__name__
    number_above_zero(
        f"{name}.timeout", sink.timeout, "a number of seconds, such as 10.0", _MAX_TIMEOUT
    )
    if sink.frequency is not None:
        number_above_zero(
            f"{name}.frequency",
            sink.frequency,
            "a number of times per second, or None",
            sys.float_info.max,
        )
    whole_number(f"{name}.max_elements", sink.max_elements, 0, sys.maxsize)
    texts(f"{name}.whole", sink.whole, "patterns such as 'fc.weight'")


def statistics_of(custom: object) -> dict[str, Any]:
    """Return statistics by their names."""
    if custom is None:
        return {}
    if not isinstance(custom, Mapping):
        raise InputError(f"custom is {quote(custom)}: give a dict such as {{'kurtosis': function}}")
    for name, statistic in custom.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"custom has the name {quote(name)}: give a string")
        if name in STATISTICS:
            raise InputError(
                f"custom has {name!r}, which is already a statistic: give another name"
            )
        if not callable(statistic):
            raise InputError(f"custom[{name!r}] is {quote(statistic)}: give a function of a tensor")
    return dict(custom)


def chosen_by(modules: object, model: nn.Module) -> list[Chosen]:
    """Return the choosers of modules. Each matches at least one module, or an error is raised."""
    chosen = list_of(
        "modules", modules, _CHOOSERS, is_one=lambda each: isinstance(each, str) or callable(each)
    )
    if not chosen:
        raise InputError("modules is an empty list: name at least one module, or give None for all")
    for each in chosen:
        if not any(_matches(each, path, module) for path, module in modules_of(model)):
            paths = ", ".join(repr(path) for path, _ in modules_of(model) if path)
            raise InputError(
                f"modules has {quote(each)}, which matches no module of the model: choose from "
                f"{paths[:200] or 'no parts'}"
            )
    return chosen


def is_chosen(modules: Sequence[Chosen] | None, path: str, module: nn.Module) -> bool:
    """Return whether a module is sampled."""
    return modules is None or any(_matches(each, path, module) for each in modules)


def _matches(chosen: Chosen, path: str, module: nn.Module) -> bool:
    if isinstance(chosen, str):
        return fnmatch.fnmatchcase(path, chosen)
    if isinstance(chosen, type):
        name = chosen.__name__
        raise InputError(
            f"modules has the class {name}: give lambda path, module: isinstance(module, {name})"
        )
    if isinstance(chosen, nn.Module):
        return chosen is module
    try:
        return bool(chosen(path, module))
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InputError(
            f"modules has {quote(chosen)}, which raised {said} for {path!r}: "
            "give a function of path and module"
        ) from error
