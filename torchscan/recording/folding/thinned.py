"""A model in which some layers hand on what they are given.

It is a copy that shares all else with the user's.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.folding.layer_folds import Fold


class UnfoldableError(Exception):
    """The layers that were left out do not follow from those that ran.

    It is caught: all layers run.
    """


def thinned(module: nn.Module, folds: Sequence[Fold]) -> nn.Module:
    """Return the copy.

    Modules on the way to a layer that is left out are copies, and nothing of the user's is changed.
    """
    made: nn.Module = copied(module)
    for fold in folds:
        above, last = above_in(made, fold.path)
        above._modules[last] = _thin(above._modules[last], fold)
    return made


def above_in(made: nn.Module, path: str) -> tuple[Any, str]:
    """Return the module that holds the one at a path, with its name.

    Those on the way become copies.
    """
    *way, last = path.split(".")
    above: Any = made
    for name in way:
        if name not in above._modules:
            break
        above._modules[name] = above = copied(above._modules[name])
    else:
        if last in above._modules:
            return above, last
    raise UnfoldableError(f"the model has no {path}")


def copied(module: Any) -> Any:
    """Return a copy that holds the same modules and tensors, in a table of its own."""
    made = _shallow_copy(module)
    made._modules = dict(module._modules)
    return made


def _shallow_copy(module: nn.Module) -> nn.Module:
    try:
        return copy.copy(module)
    except Exception as error:  # a class may copy its modules in its own way, or refuse to
        raise UnfoldableError(f"a {type(module).__name__} cannot be copied") from error


def _thin(layers: Any, fold: Fold) -> Any:
    made = copied(layers)
    returned = {index: _Returned() for index in set(fold.left_out.values())}
    for index, known in returned.items():
        made._modules[str(index)] = _with_forward(layers[index], known.noting)
    for index, other in fold.left_out.items():
        made._modules[str(index)] = _with_forward(layers[index], returned[other].instead)
    return made


def _with_forward(
    layer: nn.Module, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> nn.Module:
    """Return a copy of a layer with another forward pass, which sets its attributes on the copy."""
    made: nn.Module = _shallow_copy(layer)
    changed = change(types.MethodType(type(layer).forward, made))
    made.forward = functools.wraps(layer.forward)(changed)
    return made


class _Returned:
    """The structure of a layer's result: a tensor alone, or first in a tuple."""

    def __init__(self) -> None:
        self._others: tuple[Any, ...] | None = None
        self._type: type = Tensor

    def noting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass of the layer itself, which notes its results."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            self._note(result)
            return result

        return noted

    def _note(self, result: Any) -> None:
        first = result
        others: tuple[Any, ...] = ()
        if type(result) in (tuple, list) and result:
            first, *rest = result
            others = tuple(rest)
        if not isinstance(first, Tensor) or any(tensors_in(others)):
            raise UnfoldableError("a layer returns something else than one tensor")
        self._type, self._others = type(result), others

    def instead(self, _: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass of a layer that is left out: its result is its first tensor."""

        def handed_on(*args: Any, **kwargs: Any) -> Any:
            given = next(iter(tensors_in([args, kwargs])), None)
            if given is None or self._others is None:
                raise UnfoldableError(
                    "a layer is called before one that is equal, or without a tensor"
                )
            if self._type in (tuple, list):
                return self._type([given, *self._others])
            return given

        return handed_on
