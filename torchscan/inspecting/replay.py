"""Search for the operator that makes a module's first non-finite value, by repeating the call on copies.

The module and its arguments are copied, and what cannot be copied is not repeated. Hooks that users put on modules are left
off. The state of random numbers is restored; the replay draws other numbers.

Infinities have an origin. One that is written (a constant of the code, of a buffer or of an argument, moved or added to other
values) is intended, as in a mask. One that an operator makes of finite values is computed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import ATOMS, copy_arguments, tensors_in
from torchscan.recording.call_tree import Given
from torchscan.recording.places import place_of_user
from torchscan.recording.state import keep_random_state, original_of
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import (
    OpOverload,
    TorchDispatchMode,
    as_written,
    without_hooks_for_gradients,
    without_modes,
)

#: parameterised modules compute their weights in hooks, which are torch's own
_HOOKS_THAT_STAY = ("torch.nn.utils.", "torch.nn.modules.")
_LARGEST_COPY = 2**31
_DEEPEST, _MAX_ITEMS = 8, 1000
#: what a copy has for itself, or nobody changes
_PLAIN: Any = (
    *(*ATOMS, torch.Tensor, type, BuiltinFunctionType, ModuleType, enum.Enum, range, slice),
    *(torch.memory_format, torch.layout),
)
_REDRAWN = Note.of("other-random-numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator that produced the first non-finite value."""

    name: str | None = None
    line: str | None = None
    #: what made NaN of the infinities that it made
    nan_operator: str | None = None
    #: what had written the infinities that it made NaN of, and where, if they were intended
    mask: Note | None = None
    #: True if all infinities of the result are intended: then this is what wrote them
    is_on_purpose: bool = False
    #: True if it is a logarithm that made -Inf alone: that of a probability of 0, for example
    is_log: bool = False
    #: the module that ran it in another thread, from the one whose call was repeated
    inside: str | None = None
    #: reasons why it is not known, or may be another one
    unknown: Note | None = None
    unsure: Note | None = None


def mask_note(path: str | None, type_name: str | None, operator: Operator) -> Note:
    """Return what wrote intended infinities: a module, an operator or both."""
    return Note.of(
        "mask-written",
        path=path,
        type_name=type_name,
        operator=operator.name,
        line=operator.line,
    )


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
        return Operator(unknown=Note.of("repeat-failed", error=type(error).__name__))
    return found or Operator(unknown=Note.of("repeat-finite"))


def _replay(module: nn.Module, given: Given, nan: bool, undo: Undo) -> Operator | None:
    for context in (without_modes, without_hooks_for_gradients, as_written):
        undo.enter(context, is_of_process=False)
    keep_random_state(undo)
    return _operator_in(copy_of(module), copy_arguments(given, _own), nan)


def _operator_in(own: nn.Module, given: Given, nan: bool) -> Operator | None:
    """Run a call of a copy, and return the operator, or None if there is no such value."""
    args, kwargs = given
    watch = _ReplayMode(
        [*own.parameters(), *(own.buffers() if nan else ())], nan=nan
    )  # infinities of buffers are masks
    threads = _OtherThreads(own, nan)
    result: object = None
    with contextlib.suppress(_Found), watch:
        result = own.forward(*args, **kwargs)
    if watch.found is not None:
        return watch.found

    bad = [
        each for each in tensors_in(result) if is_readable(each) and _has(check_values(each), nan)
    ]
    if bad and threads.first is not None:
        return threads.first.operator(nan)
    origin = None if nan else watch.origin_of(bad)
    if origin is None and bad:
        return Operator(unknown=Note.of("not-in-thread"))
    return origin


def _has(look: NonFiniteCount, nan: bool) -> bool:
    return bool(look.nan if nan else look.inf)


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """A call of a submodule in another thread, with finite arguments and a result that is not."""

    path: str
    module: nn.Module
    given: Given

    def operator(self, nan: bool) -> Operator:
        """Return the operator, found by repeating the call in this thread."""
        found = _operator_in(self.module, copy_arguments(self.given, _own), nan)
        return replace(found or Operator(unknown=Note.of("other-thread")), inside=self.path)


class _OtherThreads:
    """The calls of a copy's submodules in other threads, where no operator is seen."""

    def __init__(self, own: nn.Module, nan: bool) -> None:
        self._home, self._nan = threading.get_ident(), nan
        #: the first that returned, so that it is inside all others that pass its result on
        self.first: _ThreadCall | None = None
        for path, each in own.named_modules():
            if path:
                each.register_forward_hook(partial(self._note, path), with_kwargs=True)

    def _note(self, path: str, module: nn.Module, args: Any, kwargs: Any, result: object) -> None:
        if self.first is not None or threading.get_ident() == self._home:
            return
        before, after = (_check_all_values(tensors_in(each)) for each in ((args, kwargs), result))
        if _has(after, self._nan) and not _has(before, self._nan):
            self.first = _ThreadCall(path, module, (args, kwargs))


def _check_all_values(tensors: Iterable[Tensor]) -> NonFiniteCount:
    return sum((check_values(each) for each in tensors if is_readable(each)), FINE)


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def obstacle(module: nn.Module, given: Given) -> Note | None:
    """Return the reason why a call cannot be repeated without side effects, or None if it can."""
    original = original_of(module)
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        return Note.of("other-ranks")
    tensors = [*original.parameters(), *original.buffers()]
    if sum(each.nbytes for each in tensors if not nn.parameter.is_lazy(each)) > _LARGEST_COPY:
        return Note.of("module-too-large")
    foreign = what_is_shared(
        [given, *(value for each in original.modules() for value in _functions_in(each))]
    )
    return None if foreign is None else Note.of("not-copyable", type_name=foreign)


def _functions_in(module: nn.Module) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, FunctionType)]


def what_is_shared(value: Any, depth: int = 0) -> str | None:
    """The type of something in ``value`` that a copy would share with it: an iterator, a module, a connection."""
    if depth > _DEEPEST or isinstance(value, _PLAIN):
        return None
    if isinstance(value, FunctionType):
        inside: Iterable[Any] = [
            cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)
        ]
    elif isinstance(value, Mapping) and len(value) <= _MAX_ITEMS:
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = itertools.islice(value, _MAX_ITEMS)
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    else:
        return type(value).__name__
    return next(
        (found for each in inside if (found := what_is_shared(each, depth + 1)) is not None), None
    )


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
    yield from (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def _is_of_torch(hook: Callable[..., Any]) -> bool:
    return (getattr(hook, "__module__", None) or type(hook).__module__).startswith(_HOOKS_THAT_STAY)


class _ReplayMode(TorchDispatchMode):
    """Looks at what each operator is given and makes, until it finds the one.

    A parameter that is not finite is nothing that an operator was given: the operator that takes it is the one.
    """

    def __init__(self, weights: Iterable[Tensor], *, nan: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {id(each): each for each in weights}
        self._nan = nan
        #: tensors with computed infinities, and what made them
        self._computed: dict[int, tuple[Tensor, Operator]] = {}
        #: what made computed ones first, and what wrote intended ones last
        self._first: Operator | None = None
        self._mask: Operator | None = None
        self._has_drawn = False
        self.found: Operator | None = None

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._has_drawn |= torch.Tag.nondeterministic_seeded in func.tags
        given = tensors_in((args, kwargs))
        before = self._check_values(given)  # now: it may be written to
        origin = self._origin_in(given) if before.inf else None
        result = func(*args, **kwargs)
        made = tensors_in(result)
        if (
            given
            and all(id(each) in self._weights for each in given)
            and not self._is_made_of(given, made)
        ):
            self._weights |= {id(each): each for each in made}
        elif (look := self._check_values(made)) != FINE:
            here = Operator(name=_name_of(func), line=place_of_user())
            has_infinite_argument = any(
                isinstance(each, float) and not math.isfinite(each)
                for each in (*args, *kwargs.values())
            )
            if self._nan and look.nan and not before.nan:
                self._end(self._source_of_nan(here, before, origin))
            if look.inf and origin is None and (has_infinite_argument or before.inf):
                self._note_mask(here, has_infinite_argument=has_infinite_argument)
            elif look.inf:
                self._note_computed(origin or replace(here, is_log=_is_log(here, made)), made)
        return result

    def _is_made_of(self, weights: Iterable[Tensor], made: Iterable[Tensor]) -> bool:
        """Return whether finite parameters became non-finite results.

        If a view of them is non-finite already, the module that takes it is the source.
        """
        looks = [
            sum(map(check_values, filter(is_readable, each)), FINE) for each in (weights, made)
        ]
        return looks[0] == FINE != looks[1]

    def _source_of_nan(
        self, here: Operator, before: NonFiniteCount, origin: Operator | None
    ) -> Operator:
        """Return the source of the infinities that this operator makes NaN of, or else the operator itself."""
        if before.is_fine:
            return here
        if origin is not None:
            return replace(origin, nan_operator=here.name)
        if self._mask is None:
            return here
        return replace(here, mask=mask_note(None, None, self._mask))

    def _note_mask(self, here: Operator, *, has_infinite_argument: bool) -> None:
        """Remember what writes intended infinities: rather what puts a constant into other values than what makes it."""
        if (
            has_infinite_argument
            or self._mask is None
            or (_creates(self._mask) and not _creates(here))
        ):
            self._mask = here

    def _note_computed(self, origin: Operator, made: Sequence[Tensor]) -> None:
        self._first = self._first or origin
        self._computed |= {
            id(each): (each, origin)
            for each in made
            if is_readable(each) and check_values(each).inf
        }

    def _origin_in(self, tensors: Iterable[Tensor]) -> Operator | None:
        """Return the operator that computed the infinities in one of these, or None."""
        for each in tensors:
            tensor, origin = self._computed.get(id(each), (None, None))
            if tensor is not None and check_values(tensor).inf:
                return origin
        return None

    def origin_of(self, results: Sequence[Tensor]) -> Operator | None:
        """Return what made the infinities of these or, if they are finite, of others; None: no operator that was seen has."""
        origin = self._origin_in(results) if results else self._first
        if origin is None and self._mask is not None:
            origin = replace(self._mask, is_on_purpose=True)
        return None if origin is None else self._marked(origin)

    def _marked(self, found: Operator) -> Operator:
        return replace(found, unsure=_REDRAWN) if self._has_drawn else found

    def _end(self, found: Operator) -> None:
        self.found = self._marked(found)
        raise _Found

    def _check_values(self, tensors: Iterable[Tensor]) -> NonFiniteCount:
        return sum(
            (
                check_values(each)
                for each in tensors
                if id(each) not in self._weights and is_readable(each)
            ),
            FINE,
        )


#: what makes tensors of constants, or hands them on
_CREATING = (
    "full",
    "lift_fresh",
    "scalar_tensor",
    "fill",
    "_to_copy",
    "clone",
    "detach",
    "alias",
    "expand",
    "view",
    "triu",
)
#: what returns -Inf at a probability of 0
_LOGARITHMS = re.compile(
    r"aten\.(log|log2|log10|log1p|logit|xlogy|special_xlogy|special_xlog1py|special_logit|special_log_ndtr"
    r"|_log_softmax|logsumexp|special_logsumexp|logcumsumexp|_logcumsumexp|logaddexp|logaddexp2)_?(\.\w+)?"
)


def _creates(operator: Operator) -> bool:
    """Return whether the operator only creates a constant, which another one then puts into other values."""
    return (operator.name or "").removeprefix("aten.").startswith(_CREATING)


def _is_log(operator: Operator, made: Iterable[Tensor]) -> bool:
    is_logarithm = _LOGARITHMS.fullmatch(operator.name or "") is not None
    return is_logarithm and not any(
        bool(torch.isposinf(each).any()) for each in made if each.is_floating_point()
    )


def _name_of(func: OpOverload) -> str:
    return str(func).removesuffix(".default")
