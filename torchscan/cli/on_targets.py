"""Work on the model that a TARGET names: built, with the inputs of the options."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from torchscan.errors import Argument, Give, InputError, naming
from torchscan.garbage import collected_later
from torchscan.terminal import progress

if TYPE_CHECKING:
    from torchscan.scan import Scan
    from torchscan.targets import Built
    from torchscan.targets.inputs import SavedInputs

Result = TypeVar("Result")


def on_model(
    options: argparse.Namespace,
    target: str,
    function: Callable[[Built, Scan], Result],
    saved: SavedInputs | None = None,
) -> Result:
    """Return what ``function`` returns for the named model and the scan of the options.

    A model without inputs takes the ``saved`` ones.
    """
    with collected_later():
        from torchscan.question import DEFAULTS
        from torchscan.scan import Scan
        from torchscan.targets import inputs_of, parse_input, parse_target, with_model
    if options.is_last and not gc.get_freeze_count():
        # A process that ends with this command keeps torch's objects, a million, until then. Every
        # full collection would go through them. Models, of which a table has several, are not kept.
        gc.freeze()

    require_step_for_optimizer(options)
    specs = [parse_input(text) for text in options.input]
    asked = {name: value for name, value in vars(options).items() if name in DEFAULTS}

    def ask(found: Built) -> Result:
        built = found.converted(options.dtype)
        chosen, batch_size = specs, DEFAULTS["batch_size"]
        if saved is not None and not specs and not built.inputs:
            chosen, batch_size = saved.specs, saved.batch_size
        if asked.get("batch_size") is None:
            asked["batch_size"] = batch_size
        inputs = inputs_of(target, built, chosen, options.dtype)
        return function(built, Scan(built.module, **{**asked, **inputs}))

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(parse_target(target), ask)


def on_generating(target: str, function: Callable[[Built], Result]) -> Result:
    """Return what ``function`` returns for the named language model, whose inputs are tokens."""
    from torchscan.targets import parse_target, with_model

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(replace(parse_target(target), is_language_model=True), function)


def require_step_for_optimizer(options: argparse.Namespace) -> None:
    """Refuse an optimizer for an inference, which has no optimizer's step."""
    if getattr(options, "optimizer", None) is not None and not options.training:
        raise InputError(
            Argument("optimizer"), " belongs to a training step: give ", Give("training", True)
        )


def on_one_of_several(
    options: argparse.Namespace,
    target: str,
    function: Callable[[Scan], Result],
    saved: SavedInputs | None = None,
) -> Result:
    """Return what ``function`` returns for the scan of this model; errors name the model."""
    with naming(target):
        return on_model(options, target, lambda _, scan: function(scan), saved)


def on_scan(options: argparse.Namespace, function: Callable[[Scan], Result]) -> Result:
    """Return what ``function`` returns for the scan of the only model."""
    return on_model(options, options.target, lambda _, scan: function(scan))
