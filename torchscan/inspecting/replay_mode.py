"""The check of each operator of a repeated call, until one makes a non-finite value.

Infinities have an origin. One that is written (a constant of the code, of a buffer or of an
argument, moved or added to other values) is intended, as in a mask. One that an operator makes of
finite values is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.replayed_operator import Operator, mask_note
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import OpOverload, TorchDispatchMode

_REDRAWN = Note.of("other-random-numbers")
#: operators that return -Inf at a probability of 0
_LOGARITHMS = re.compile(
    r"aten\.(log|log2|log10|log1p|logit|xlogy|special_xlogy|special_xlog1py|special_logit"
    r"|special_log_ndtr|_log_softmax|logsumexp|special_logsumexp|logcumsumexp|_logcumsumexp"
    r"|logaddexp|logaddexp2)_?(\.\w+)?"
)


class OperatorFound(BaseException):
    """The end of a replay. ``except Exception`` of the model does not catch it."""


class ReplayMode(TorchDispatchMode):
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
        if check_all_values(given) == FINE != check_all_values(made):
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
            raise OperatorFound
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
            is_log = False
            if _LOGARITHMS.fullmatch(operator.name or "") is not None:
                real = [each for each in made if each.is_floating_point()]
                is_log = not any(bool(torch.isposinf(each).any()) for each in real)
            origin = replace(operator, is_log=is_log)
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
        return check_all_values(each for each in tensors if id(each) not in self._weights)


def check_all_values(tensors: Iterable[Tensor]) -> NonFiniteCount:
    """Return the counts of all tensors that can be read together."""
    return sum(map(check_values, filter(is_readable, tensors)), FINE)
