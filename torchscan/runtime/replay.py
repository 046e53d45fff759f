"""Which operator makes a module's first value that is not finite: the module's call once more, on copies, watched.

The module and its arguments are copied, and what cannot be copied is not repeated. Hooks that users put on modules are left
off. Random numbers are put back; those that the replay draws are others.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.containers import ATOMS, copy_arguments, tensors_in
from torchscan.recording.call_tree import Given
from torchscan.recording.places import place_of_user
from torchscan.recording.state import keep_random_state, original_of
from torchscan.recording.undo import Undo, put_back_after
from torchscan.runtime.finiteness import FINE, Look, is_readable, look_at
from torchscan.torch_versions import OpOverload, TorchDispatchMode, as_written, without_hooks_for_gradients, without_modes

#: parameterised modules compute their weights in hooks, which are torch's own
_HOOKS_THAT_STAY = ("torch.nn.utils.", "torch.nn.modules.")
_LARGEST_COPY = 2**31
_DEEPEST, _MOST_ITEMS = 8, 1000
#: what a copy has for itself, or nobody changes
_PLAIN: Any = (
    *(*ATOMS, torch.Tensor, type, BuiltinFunctionType, ModuleType, enum.Enum, range, slice),
    *(torch.memory_format, torch.layout),
)
_REDRAWN = "its call was repeated with other random numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What made the first value that is not finite."""

    name: str | None = None
    line: str | None = None
    #: what made NaN of the infinities that it made
    then: str | None = None
    #: whether it was told to: a mask filled with infinities
    is_on_purpose: bool = False
    #: why it is not known, or may be another
    unknown: str | None = None
    unsure: str | None = None


class _Found(BaseException):
    """Ends the replay; no ``except Exception`` of the model catches it."""


def find_operator(module: nn.Module, given: Given, *, nan: bool) -> Operator:
    """The first operator in this call whose result has what its arguments have not: NaN if ``nan``, else infinities."""
    unknown = obstacle(module, given)
    if unknown is not None:
        return Operator(unknown=unknown)
    try:
        found = put_back_after(partial(_replay, module, given, nan))
    except Exception as error:
        return Operator(unknown=f"its call cannot be repeated ({type(error).__name__})")
    return found or Operator(unknown="its call, repeated, made none")


def _replay(module: nn.Module, given: Given, nan: bool, undo: Undo) -> Operator | None:
    for context in (without_modes, without_hooks_for_gradients, as_written):
        undo.enter(context, is_of_process=False)
    keep_random_state(undo)
    own = copy_of(module)
    args, kwargs = copy_arguments(given, _own)
    watch = _Watch([*own.parameters(), *(own.buffers() if nan else ())], nan=nan)  # infinities of buffers are masks
    with contextlib.suppress(_Found), watch:
        own.forward(*args, **kwargs)
    return watch.found


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def obstacle(module: nn.Module, given: Given) -> str | None:
    """Why a call cannot be made again without anybody noticing."""
    original = original_of(module)
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return "other processes would have to repeat its call, too"
    if sum(each.nbytes for each in [*original.parameters(), *original.buffers()]) > _LARGEST_COPY:
        return "it is too large to be copied"
    foreign = what_is_shared([given, *(value for each in original.modules() for value in _functions_in(each))])
    return None if foreign is None else f"it has to do with a {foreign}, which cannot be copied"


def _functions_in(module: nn.Module) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, FunctionType)]


def what_is_shared(value: Any, depth: int = 0) -> str | None:
    """The type of something in ``value`` that a copy would share with it: an iterator, a module, a connection."""
    if depth > _DEEPEST or isinstance(value, _PLAIN):
        return None
    if isinstance(value, FunctionType):
        inside: Iterable[Any] = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    elif isinstance(value, Mapping) and len(value) <= _MOST_ITEMS:
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = itertools.islice(value, _MOST_ITEMS)
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    else:
        return type(value).__name__
    return next((found for each in inside if (found := what_is_shared(each, depth + 1)) is not None), None)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False


def copy_of(module: nn.Module) -> nn.Module:
    """Return a copy of the module as it was written, without hooks of the user's."""
    own = copy.deepcopy(original_of(module))
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
        self._has_drawn = False
        self.found: Operator | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._has_drawn |= torch.Tag.nondeterministic_seeded in func.tags
        given = tensors_in((args, kwargs))
        before = self._look_at(given)  # now: it may be written to
        result = func(*args, **kwargs)
        made = tensors_in(result)
        if given and all(id(each) in self._weights for each in given) and not self._is_made_of(given, made):
            self._weights |= {id(each): each for each in made}
        elif (look := self._look_at(made)) != FINE:
            self._note(func, (*args, *kwargs.values()), before, look)
        return result

    def _is_made_of(self, weights: Iterable[Tensor], made: Iterable[Tensor]) -> bool:
        """Whether finite parameters have become what is not: of a view of such that are not, whoever takes it is the one."""
        looks = [sum(map(look_at, filter(is_readable, each)), FINE) for each in (weights, made)]
        return looks[0] == FINE != looks[1]

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
        self.found = replace(found, unsure=_REDRAWN) if self._has_drawn else found
        raise _Found

    def _look_at(self, tensors: Iterable[Tensor]) -> Look:
        return sum((look_at(each) for each in tensors if id(each) not in self._weights and is_readable(each)), FINE)


def _name_of(func: OpOverload) -> str:
    return str(func).removesuffix(".default")
