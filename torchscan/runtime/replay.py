"""Which operator makes a module's first value that is not finite: the module's call once more, on copies, watched.

The module is copied without its parameters, which the copy shares; its buffers and arguments are copied. Hooks that users put
on modules are left off, random numbers are put back.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.call_tree import Given
from torchscan.recording.places import place_of_user
from torchscan.recording.state import keep_random_state, original_of
from torchscan.recording.undo import Undo, put_back_after
from torchscan.runtime.finiteness import FINE, Look, is_readable, look_at
from torchscan.torch_versions import OpOverload, TorchDispatchMode, as_written, without_hooks_for_gradients, without_modes

#: parameterised modules compute their weights in hooks, which are torch's own
_HOOKS_THAT_STAY = ("torch.nn.utils.", "torch.nn.modules.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What made the first value that is not finite."""

    name: str | None = None
    line: str | None = None
    #: what made NaN of the infinities that it made
    then: str | None = None
    #: whether it was told to: a mask filled with infinities
    is_on_purpose: bool = False
    #: why it is not known
    unknown: str | None = None


class _Found(BaseException):
    """Ends the replay; no ``except Exception`` of the model catches it."""


def find_operator(module: nn.Module, given: Given, *, nan: bool) -> Operator:
    """The first operator in this call whose result has what its arguments have not: NaN if ``nan``, else infinities."""
    try:
        found = put_back_after(partial(_replay, module, given, nan))
    except Exception as error:
        return Operator(unknown=f"its call cannot be repeated ({type(error).__name__})")
    return found or Operator(unknown="its call, repeated, made none")


def _replay(module: nn.Module, given: Given, nan: bool, undo: Undo) -> Operator | None:
    for context in (without_modes, without_hooks_for_gradients, as_written):
        undo.enter(context, is_of_process=False)
    keep_random_state(undo)
    own = _copy_of(module)
    args, kwargs = copy_arguments(given, _own)
    watch = _Watch([*own.parameters(), *own.buffers()], nan=nan)
    with contextlib.suppress(_Found), watch:
        own.forward(*args, **kwargs)
    return watch.found


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _copy_of(module: nn.Module) -> nn.Module:
    original = original_of(module)
    shared: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for parameter in original.parameters()
    }
    own: nn.Module = copy.deepcopy(original, shared)
    for each in own.modules():
        for hooks in _hooks_of(each):
            for number in [number for number, hook in hooks.items() if not _is_of_torch(hook)]:
                del hooks[number]
    return own


def _hooks_of(module: nn.Module) -> Iterator[dict[int, Callable[..., Any]]]:
    yield from (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)


def _is_of_torch(hook: Callable[..., Any]) -> bool:
    return (getattr(hook, "__module__", None) or type(hook).__module__).startswith(_HOOKS_THAT_STAY)


class _Watch(TorchDispatchMode):
    """Looks at what each operator is given and makes, until it finds the one.

    A parameter that is not finite is nothing that an operator was given: the operator that takes it is the one.
    """

    def __init__(self, weights: Iterable[Tensor], *, nan: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {id(each): each for each in weights}
        self._nan = nan
        self._overflow: Operator | None = None
        self.found: Operator | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        before = self._look_at(given)  # now: it may be written to
        result = func(*args, **kwargs)
        made = tensors_in(result)
        if given and all(id(each) in self._weights for each in given):
            self._weights |= {id(each): each for each in made}
        elif (look := self._look_at(made)) != FINE:
            self._note(func, (*args, *kwargs.values()), before, look)
        return result

    def _note(self, func: OpOverload, values: tuple[Any, ...], before: Look, look: Look) -> None:
        is_told_to = any(isinstance(each, float) and not math.isfinite(each) for each in values)
        made = Operator(name=_name_of(func), line=place_of_user(), is_on_purpose=is_told_to)
        if look.nan and not before.nan:
            self._end(made if self._overflow is None or before.is_fine else replace(self._overflow, then=made.name))
        if before.is_fine and not is_told_to:
            self._overflow = self._overflow or made
        if before.is_fine and not self._nan:
            self._end(made)

    def _end(self, found: Operator) -> None:
        self.found = found
        raise _Found

    def _look_at(self, tensors: Iterable[Tensor]) -> Look:
        return sum((look_at(each) for each in tensors if id(each) not in self._weights and is_readable(each)), FINE)


def _name_of(func: OpOverload) -> str:
    return str(func).removesuffix(".default")
