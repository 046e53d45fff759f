"""Looks at the values of a step on a device without waiting for it: one check a step, read when the device has made it.

The sums of all results and gradients are put into one tensor, which is copied to the host once; they are double, so that they
cannot overflow. The first that is not finite, in the order in which they were made, names the module. What its operator was can
no longer be seen: from then on values are looked at where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, Given
from torchscan.runtime.findings import NonFinite, Phase
from torchscan.runtime.finiteness import FINE, is_readable, total_of
from torchscan.runtime.values import Gradients, Leaf, Listener, Memory, Source, Values, makes_none
from torchscan.torch_versions import unseen

_LATER = "values were looked at after the step; from now on they are where they are made"


class _Check(NamedTuple):
    """Whose the values are that were added up."""

    phase: Phase
    path: str
    type_name: str
    invocation: int


class DeferredValues(Values):
    """Looks at the values of one step when it is over."""

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._checks: list[_Check] = []
        self._sums: list[Tensor] = []
        self._copied: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:  # noqa: ARG002
        """What it is given, and nobody has returned, its caller made."""
        for tensor in tensors:
            self._note(_check("input", call) if call.parent is None else _check("forward", call.parent), tensor)

    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:  # noqa: ARG002
        """What it returns."""
        for tensor in tensors:
            if makes_none(call.module):
                self._known.note(tensor, FINE)
            else:
                self._note(_check("forward", call), tensor)

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """What comes from the loss."""
        self._note_gradients("loss", None if owner is None else owner.outermost, gradients)

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,  # noqa: ARG002
        unseen: Collection[int],  # noqa: ARG002
        source: Source | None,  # noqa: ARG002
    ) -> None:
        """What it made."""
        self._note_gradients("backward", owner, made)

    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:  # noqa: ARG002
        """What is added to a gradient."""
        if variable.grad is not None:
            self._note(_Check("backward", leaf.path, leaf.type_name, 0), variable.grad)

    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:  # noqa: ARG002
        """The parameters and buffers; then all sums are on their way."""
        for path, module in modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and f"{path}.{name}" not in self._memory.known_bad:
                    self._note(_Check("update", path, type_name_of(module), 0), tensor)
        if self._sums:
            self._send()

    @property
    def is_known(self) -> bool:
        """Whether the sums have arrived."""
        return self._event is None or self._event.query()

    def settle(self) -> None:
        """Read them."""
        if self._event is not None:
            self._event.synchronize()
        sums = [] if self._copied is None else self._copied.tolist()
        bad = [each for each in zip(self._checks, sums, strict=True) if not math.isfinite(each[1])]
        suspects = [each for each in bad if not (self._memory.has_masks and _may_be_mask(*each))]
        self._memory.is_alarmed |= bool(suspects)
        if not all(_may_be_mask(*each) for each in suspects):
            self._tell(*suspects[0])
        self._copied, self._sums, self._checks = None, [], []

    def _tell(self, check: _Check, total: float) -> None:
        nan = int(math.isnan(total))
        self.first = NonFinite(step=self._step, **check._asdict(), nan=nan, inf=1 - nan, numel=0, unknown=_LATER)
        self._listener(self.first)

    def _note_gradients(self, phase: Phase, owner: Call | None, gradients: Gradients) -> None:
        for gradient in gradients:
            if gradient is not None and owner is not None:
                self._note(_check(phase, owner), gradient)

    def _note(self, check: _Check, tensor: Tensor) -> None:
        if not is_readable(tensor) or self._known.get(tensor) is not None:
            return
        self._known.note(tensor, FINE)
        total = total_of(tensor)
        if total is not None:
            self._sums.append(total)
            self._checks.append(check)

    def _send(self) -> None:
        with unseen():
            sums = torch.stack([each.to(self._sums[0].device) for each in self._sums])
            self._copied = sums.to("cpu", non_blocking=True)
            if sums.is_cuda:
                self._event = torch.cuda.Event()
                self._event.record()


def _may_be_mask(check: _Check, total: float) -> bool:
    """Whether infinities of a forward pass are masks is seen where they are made, in the next step."""
    return math.isinf(total) and check.phase in ("forward", "input")


def _check(phase: Phase, call: Call) -> _Check:
    return _Check(phase, call.path, type_name_of(call.module), call.invocation)
