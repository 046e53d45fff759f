"""From a target to a model: called, and built without data where that can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from torchscan.errors import InputError, NeedsValuesError, RecordError, TorchscanError
from torchscan.targets.built import Built
from torchscan.targets.hubs import HUBS
from torchscan.targets.importing import first_on_the_path, named
from torchscan.targets.parsing import Target

Result = TypeVar("Result")
Factory = Callable[[], Built]

#: what torch says of tensors that have no data, where they would be needed, or of those that have it beside them
_NO_DATA = ("meta tensor", "out of meta", "on meta", "device meta", "meta device", "device='meta'", "and meta", "meta and")


def with_model(
    target: Target, verb: Callable[[Built], Result], *, folder: Path | None = None, is_own_process: bool = True
) -> Result:
    """What ``verb`` says of the model: built on the meta device, and with data where its constructor or its pass needs them.

    Paths and modules are looked for in the ``folder``, by default that at hand. Where this process is not our own
    (``is_own_process``), code of the user's is built with data at once: it may keep what it makes, for others to find. The
    random state and the path of modules stay as they are.
    """
    folder = Path.cwd() if folder is None else folder
    with torch.random.fork_rng(devices=[]), first_on_the_path(folder):
        try:
            return _with_factory(target, _factory(target, folder), verb, is_own_process or target.kind in HUBS)
        except SystemExit as error:  # which would end us as if all were well
            raise InputError(f"{target}: its code calls sys.exit({error.code!r})") from error


def _with_factory(target: Target, factory: Factory | Built, verb: Callable[[Built], Result], may_be_hollow: bool) -> Result:
    if isinstance(factory, Built):
        return verb(factory)
    hollow = _built_without_data(target, factory) if may_be_hollow else None
    if hollow is not None:
        try:
            return verb(hollow)
        except TorchscanError as error:
            if not may_need_data(error):
                raise
    return verb(_built(target, factory))


def may_need_data(error: TorchscanError) -> bool:
    """A pass that read what a model on the meta device does not have, rather than one that is wrong."""
    said = f"{error} {error.__cause__}".lower()
    return isinstance(error, NeedsValuesError) or (isinstance(error, RecordError) and any(words in said for words in _NO_DATA))


def _built_without_data(target: Target, factory: Factory) -> Built | None:
    try:
        with torch.device("meta"):
            return replace(_built(target, factory), has_another_chance=True)
    except Exception:  # whatever a constructor does with values: it gets them then
        return None


def _built(target: Target, factory: Factory) -> Built:
    try:
        built = factory()
    except TorchscanError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InputError(f"{target} could not be built: {said}") from error
    if not isinstance(built.module, nn.Module):
        raise InputError(f"{target} gives a {type(built.module).__name__}, which is not a torch.nn.Module")
    return built


def _factory(target: Target, folder: Path) -> Factory | Built:
    if target.kind in HUBS:
        return HUBS[target.kind](target, folder)
    found = named(target, folder)
    if isinstance(found, nn.Module):
        if target.is_call:
            raise InputError(f"{target}: {target.name} is already a model and takes no arguments here")
        return Built(found)
    if not callable(found):
        raise InputError(
            f"{target}: {target.name} is of type {type(found).__name__}: name a model, or something that makes one"
        )
    return lambda: Built(found(*target.args, **target.kwargs))
