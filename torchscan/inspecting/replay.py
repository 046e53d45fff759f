"""Search for the operator that makes a module's first non-finite value, by repeating the call.

The module and its arguments are copied, and what cannot be copied is not repeated. Hooks that users
put on modules are left off. The state of random numbers is restored; the replay draws other
numbers.

Infinities have an origin. One that is written (a constant of the code, of a buffer or of an
argument, moved or added to other values) is intended, as in a mask. One that an operator makes of
finite values is computed.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.module_copies import copy_of, obstacle
from torchscan.inspecting.replayed_operator import Operator, mask_note
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.module_calls import Given
from torchscan.recording.places import place_of_user
from torchscan.recording.state import keep_random_state
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import (
    OpOverload,
    TorchDispatchMode,
    as_written,
    without_hooks_for_gradients,
    without_modes,
)

_REDRAWN = Note.of("other-random-numbers")
#: operators that return -Inf at a probability of 0
_LOGARITHMS = re.compile(
    r"aten\.(log|log2|log10|log1p|logit|xlogy|special_xlogy|special_xlog1py|special_logit"
    r"|special_log_ndtr|_log_softmax|logsumexp|special_logsumexp|logcumsumexp|_logcumsumexp"
    r"|logaddexp|logaddexp2)_?(\.\w+)?"
)


# -- copies --------------------------------------------------------------------------------------


def _copy_tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


# -- the replay ----------------------------------------------------------------------------------


def find_operator(module: nn.Module, given: Given, *, nan: bool) -> Operator:
    """Return the first operator of a call that makes NaN of other values, or infinities."""
    unknown = obstacle(module, given)
    if unknown is not None:
        return Operator(unknown=unknown)

    def replay(undo: Undo) -> Operator | None:
        for context in (without_modes, without_hooks_for_gradients, as_written):
            undo.enter(context, is_of_process=False)
        keep_random_state(undo)
        return _find_in(copy_of(module), copy_arguments(given, _copy_tensor), nan)

    try:
        found = put_back_after(replay)
    except Exception as error:
        return Operator(unknown=Note.of("repeat-failed", error=type(error).__name__))
    return found or Operator(unknown=Note.of("repeat-finite"))


def _find_in(module: nn.Module, given: Given, nan: bool) -> Operator | None:
    """Run a call of a copy, and return the operator, or None if there is no such value."""
    args, kwargs = given
    weights: list[Tensor] = list(module.parameters())
    if nan:  # infinities of buffers are masks
        weights += module.buffers()
    mode = _ReplayMode(weights, nan=nan)
    threads = _OtherThreads(module, nan)
    result: object = None
    with contextlib.suppress(_Found), mode:
        result = module.forward(*args, **kwargs)
    if mode.found is not None:
        return mode.found

    readable = filter(is_readable, tensors_in(result))
    bad = [each for each in readable if _has(check_values(each), nan)]
    if bad and threads.first is not None:
        return threads.first.find_operator(nan)
    origin = None if nan else mode.find_origin(bad)
    if origin is None and bad:
        return Operator(unknown=Note.of("not-in-thread"))
    return origin


def _has(counts: NonFiniteCount, nan: bool) -> bool:
    return bool(counts.nan if nan else counts.inf)


class _Found(BaseException):
    """The end of a replay. ``except Exception`` of the model does not catch it."""


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """A call of a submodule in another thread, with finite arguments and a result that is not."""

    path: str
    module: nn.Module
    given: Given

    def find_operator(self, nan: bool) -> Operator:
        """Return the operator, found by repeating the call in this thread."""
        found = _find_in(self.module, copy_arguments(self.given, _copy_tensor), nan)
        return replace(found or Operator(unknown=Note.of("other-thread")), inside=self.path)


class _OtherThreads:
    """The calls of a copy's submodules in other threads, where no operator is seen."""

    def __init__(self, module: nn.Module, nan: bool) -> None:
        self._home, self._nan = threading.get_ident(), nan
        #: first call that has returned: it is inside all others that pass its result on
        self.first: _ThreadCall | None = None
        for path, each in module.named_modules():
            if path:
                each.register_forward_hook(partial(self._note, path), with_kwargs=True)

    def _note(self, path: str, module: nn.Module, args: Any, kwargs: Any, result: object) -> None:
        if self.first is not None or threading.get_ident() == self._home:
            return
        before = _check_all_values(tensors_in((args, kwargs)))
        after = _check_all_values(tensors_in(result))
        if _has(after, self._nan) and not _has(before, self._nan):
            self.first = _ThreadCall(path, module, (args, kwargs))


class _ReplayMode(TorchDispatchMode):
    """The check of each operator's operands and result, until the operator is found.

    A parameter that is not finite does not count as an operand: the operator that reads it is the
    source.
    """

    def __init__(self, weights: Iterable[Tensor], *, nan: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {id(each): each for each in weights}
        self._nan = nan
        #: tensors with computed infinities and their operators, by identity
        self._computed: dict[int, tuple[Tensor, Operator]] = {}
        #: operator that computed infinities first, or None
        self._first: Operator | None = None
        #: operator that wrote intended infinities last, or None
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
        before = self._check_values(given)  # now: they may be written to
        origin = self._origin_in(given) if before.inf else None
        result = func(*args, **kwargs)
        made = tensors_in(result)
        if not self._are_weights(given, made):
            constants = [each for each in (*args, *kwargs.values()) if isinstance(each, float)]
            has_infinite_constant = not all(map(math.isfinite, constants))
            self._check_results(func, has_infinite_constant, before, origin, made)
        return result

    def _are_weights(self, given: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        """Return whether results are views or functions of parameters, and count as parameters.

        If finite parameters became non-finite, this operator is the source. If a view of parameters
        is non-finite already, the module that reads it is the source.
        """
        if not given or not all(id(each) in self._weights for each in given):
            return False
        if _check_all_values(given) == FINE != _check_all_values(made):
            return False
        self._weights |= {id(each): each for each in made}
        return True

    def _check_results(
        self,
        func: OpOverload,
        has_infinite_constant: bool,
        before: NonFiniteCount,
        origin: Operator | None,
        made: Sequence[Tensor],
    ) -> None:
        """Note an operator with a result that is not finite; raise if it is the source."""
        counts = self._check_values(made)
        if counts == FINE:
            return
        operator = Operator(name=str(func).removesuffix(".default"), line=place_of_user())
        if self._nan and counts.nan and not before.nan:
            self.found = self._mark(self._find_source_of_nan(operator, before, origin))
            raise _Found
        if not counts.inf:
            return
        if origin is None and (has_infinite_constant or before.inf):
            self._note_mask(operator, has_infinite_constant=has_infinite_constant)
        else:
            self._note_computed(operator, origin, made)

    def _note_computed(
        self, operator: Operator, origin: Operator | None, made: Sequence[Tensor]
    ) -> None:
        """Remember the tensors with computed infinities, and their origin."""
        if origin is None:
            origin = replace(operator, is_log=_is_log(operator, made))
        if self._first is None:
            self._first = origin
        for each in filter(is_readable, made):
            if check_values(each).inf:
                self._computed[id(each)] = each, origin

    def _note_mask(self, operator: Operator, *, has_infinite_constant: bool) -> None:
        """Remember the operator that writes intended infinities.

        An operator that puts a constant into other values says more than the one that creates it.
        """
        if (
            self._mask is None
            or has_infinite_constant
            or (self._mask.creates and not operator.creates)
        ):
            self._mask = operator

    def _find_source_of_nan(
        self, operator: Operator, before: NonFiniteCount, origin: Operator | None
    ) -> Operator:
        """Return the source of the infinities that an operator makes NaN of, or the operator."""
        if before.is_fine:
            return operator
        if origin is not None:
            return replace(origin, nan_operator=operator.name)
        if self._mask is None:
            return operator
        return replace(operator, mask=mask_note(None, None, self._mask))

    def _origin_in(self, tensors: Iterable[Tensor]) -> Operator | None:
        """Return the operator that computed the infinities in one of these, or None."""
        for each in tensors:
            tensor, origin = self._computed.get(id(each), (None, None))
            if tensor is not None and check_values(tensor).inf:
                return origin
        return None

    def find_origin(self, results: Sequence[Tensor]) -> Operator | None:
        """Return the operator that made the infinities of results, or None if none was seen.

        If the results are finite, return the first operator that computed infinities.
        """
        origin = self._origin_in(results) if results else self._first
        if origin is None and self._mask is not None:
            origin = replace(self._mask, is_on_purpose=True)
        return None if origin is None else self._mark(origin)

    def _mark(self, found: Operator) -> Operator:
        return replace(found, unsure=_REDRAWN) if self._has_drawn else found

    def _check_values(self, tensors: Iterable[Tensor]) -> NonFiniteCount:
        return _check_all_values(each for each in tensors if id(each) not in self._weights)


def _is_log(operator: Operator, made: Iterable[Tensor]) -> bool:
    """Return whether an operator is a logarithm that has made only -Inf."""
    if _LOGARITHMS.fullmatch(operator.name or "") is None:
        return False
    return not any(bool(torch.isposinf(each).any()) for each in made if each.is_floating_point())


def _check_all_values(tensors: Iterable[Tensor]) -> NonFiniteCount:
    return sum(map(check_values, filter(is_readable, tensors)), FINE)
