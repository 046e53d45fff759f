"""Operators that take functions.

They have no schema; those that are known here are recorded under a name that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.sayings import HigherOrderError
from torchscan.torch_versions import HigherOrderOperator, OpOverload, TorchDispatchMode

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define(
    "flex_attention(Tensor query, Tensor key, Tensor value, int score_operators)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "flex_attention_backward(Tensor query, Tensor key, Tensor value, int score_operators)"
    " -> (Tensor, Tensor, Tensor)"
)


class NamedCall(NamedTuple):
    """A call of such an operator."""

    #: the name to record it under
    op: OpOverload
    #: the arguments to record
    args: tuple[Any, ...]
    #: runs it on tensors
    run: Callable[[Callable[[Tensor], Tensor]], Any]


def named_call(
    func: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NamedCall:
    """Return the call to record for a higher-order operator."""
    op = _NAMES.get(func.name())
    if op is None:
        raise HigherOrderError(f"the operator {func.name()} takes functions and cannot be recorded")
    function = next(value for value in args if callable(value) and not isinstance(value, Tensor))
    query, key, value = args[:3]
    if query.is_meta:
        raise NeedsValuesError(f"{func.name()} runs on data only")

    def run(replace: Callable[[Tensor], Tensor]) -> Any:
        operands = []
        for each in args:
            if isinstance(each, Tensor):
                each = replace(each)
            operands.append(each)
        return func(*operands, **kwargs)

    score_operators = _operators_in(function, query)
    return NamedCall(op, (query, key, value, score_operators), run)


def _operators_in(score_mod: Callable[..., Any], query: Tensor) -> int:
    """Return the number of floating-point operators that change one score."""
    place = [torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(4)]
    score = torch.zeros((), dtype=torch.float32, device=query.device)
    counter = _Counter()
    with counter:
        score_mod(score, *place)
    return counter.operators


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without annotations
        self.operators: int = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point() and not func.is_view:
            self.operators += 1
        return result


_NAMES: Mapping[str, OpOverload] = {
    "flex_attention": torch.ops.torchscan.flex_attention.default,
    "flex_attention_backward": torch.ops.torchscan.flex_attention_backward.default,
}
