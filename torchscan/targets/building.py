"""From a target to a model, built without data where possible."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from torchscan.errors import InputError, NeedsValuesError, RecordError, TorchscanError
from torchscan.recording.attempts import another_chance
from torchscan.targets.built import Built
from torchscan.targets.hub_access import offline
from torchscan.targets.hubs import HUBS
from torchscan.targets.importing import describe_error, first_on_the_path, named
from torchscan.targets.parsing import Target
from torchscan.units import memory

Result = TypeVar("Result")
Factory = Callable[[], Built]

#: the share of the machine's memory that a model may take to be built with data
_MAX_OF_MEMORY = 0.5
#: what torch says if data is needed and tensors have none, or if only some of them have it
_NO_DATA = (
    "meta tensor",
    "out of meta",
    "on meta",
    "device meta",
    "meta device",
    "device='meta'",
    "and meta",
    "meta and",
)


def with_model(
    target: Target,
    function: Callable[[Built], Result],
    *,
    folder: Path | None = None,
    is_own_process: bool = True,
    with_data: bool = False,
) -> Result:
    """Return the result of ``function`` for the target's model.

    The model is built on the meta device, or with data if its constructor or its pass needs data.
    With ``with_data`` it always has data, and is a separate copy that ``function`` may change.
    Paths and modules are searched in ``folder``, by default the current one. If torchscan runs in a
    process of the user's (``is_own_process=False``), the user's code is built with data at once,
    because it may store its models where other code finds them. The random state and the module
    search path stay unchanged.
    """
    folder = Path.cwd() if folder is None else folder
    access = offline() if target.kind == "hf" else contextlib.nullcontext()
    with torch.random.fork_rng(devices=[]), first_on_the_path(folder), access:
        try:
            factory = _factory(target, folder)
            if with_data:
                return function(_own(target, factory))
            return _with_factory(target, factory, function, is_own_process or target.kind in HUBS)
        except SystemExit as error:  # which would end torchscan as if all were well
            raise InputError.about(target, f"its code calls sys.exit({error.code!r})") from error


def _with_factory(
    target: Target, factory: Factory | Built, function: Callable[[Built], Result], may_be_meta: bool
) -> Result:
    if isinstance(factory, Built):
        return function(factory)
    on_meta = _built_without_data(target, factory) if may_be_meta else None
    if on_meta is not None and not on_meta.has_another_chance:
        return function(on_meta)
    if on_meta is not None:
        try:
            with another_chance():
                return function(on_meta)
        except TorchscanError as error:
            if not may_need_data(error):
                raise
    return function(_built(target, factory))


def _own(target: Target, factory: Factory | Built) -> Built:
    """Return a model with data, or raise an error if this machine's memory is too small for it.

    Only models of a hub are sized beforehand, because building the user's code twice may have
    effects on other code.
    """
    if isinstance(factory, Built):
        return factory.copied()
    on_meta = _built_without_data(target, factory) if target.kind in HUBS else None
    if on_meta is not None:
        size = _bytes_of(on_meta.module)
        if size > _bytes_of_machine():
            raise InputError.about(
                target,
                f"the model takes {memory(size)}, more than this machine's memory: give a smaller "
                "one",
            )
    return _built(target, factory)


def may_need_data(error: TorchscanError) -> bool:
    """Return whether a pass failed because it read data, which a model on the meta device lacks."""
    if isinstance(error, NeedsValuesError):
        return True
    text = str(error.__cause__).lower()
    return isinstance(error, RecordError) and any(words in text for words in _NO_DATA)


def _built_without_data(target: Target, factory: Factory) -> Built | None:
    try:
        with torch.device("meta"):
            built = _built(target, factory)
    except Exception:  # the constructor may have needed data: then it gets some
        return None
    fits = _bytes_of(built.module) < _MAX_OF_MEMORY * _bytes_of_machine()
    return replace(built, has_another_chance=fits)


def _bytes_of(module: nn.Module) -> int:
    total = 0
    for each in (*module.parameters(), *module.buffers()):
        if not nn.parameter.is_lazy(each):
            total += each.numel() * each.element_size()
    return total


def _bytes_of_machine() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows does not tell
        return math.inf


def _built(target: Target, factory: Factory) -> Built:
    try:
        built = factory()
    except TorchscanError:
        raise
    except Exception as error:
        text = describe_error(error)
        raise InputError.about(target, f"building the model failed: {text}") from error
    if not isinstance(built.module, nn.Module):
        raise InputError.about(
            target,
            f"it returns a {type(built.module).__name__}: give a function that returns a "
            "torch.nn.Module",
        )
    return built


def _factory(target: Target, folder: Path) -> Factory | Built:
    if target.kind in HUBS:
        return HUBS[target.kind](target, folder)
    found = named(target, folder)
    if isinstance(found, nn.Module):
        if target.is_call:
            raise InputError.about(
                target, f"{target.name} is already a model: leave out the arguments"
            )
        return Built(found)
    if not callable(found):
        raise InputError.about(
            target,
            f"{target.name} is a {type(found).__name__}: give a model, or a function that returns "
            "one",
        )
    return lambda: Built(found(*target.args, **target.kwargs))
