"""Looks at the values of a step on a device without waiting for it: one check a step, read when the device has made it.

The greatest values of all results and gradients are put into one tensor, which is copied to the host once. The first that is
not finite, in the order in which they were made, names the module. What its operator was can no longer be seen: from then on
values are looked at where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.inspecting.call_memory import MemoryWatch
from torchscan.inspecting.findings import NonFinite, Phase
from torchscan.inspecting.finiteness import FINE
from torchscan.inspecting.peaks import Peak, Peaks
from torchscan.inspecting.timing import StepTimes
from torchscan.inspecting.values import (
    Gradients,
    Leaf,
    Listener,
    Memory,
    Source,
    Values,
    makes_none,
)
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, Given

_LATER = Note.of("checked-after-step")
_MASK = Note.of("maybe-mask")
_LATE = Note.of("written-before-check")
_KEYWORD = Note.of("keyword-input")


class _Check(NamedTuple):
    """Whose the values are."""

    phase: Phase
    path: str
    type_name: str
    invocation: int
    unsure: Note | None = None


class DeferredValues(Values):
    """Looks at the values of one step when it is over."""

    awaits_end_of_backward = True

    def __init__(
        self,
        step: int,
        memory: Memory,
        listener: Listener,
        *,
        device: torch.device,
        allocated: MemoryWatch,
        times: StepTimes,
    ) -> None:
        """Create the checks of a step. Memory in ``allocated`` can be freed while it is read."""
        super().__init__(step, memory, listener)
        self._peaks: Peaks[_Check] = Peaks(device, times.as_overhead)
        self._allocated = allocated

    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:  # noqa: ARG002
        """Check the inputs of a call that no module returned: its caller produced them."""
        for tensor in tensors:
            self._note(_input_check(call), tensor)

    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """Check the outputs of a call, and its keyword arguments, which are not known before."""
        for tensor in tensors_in(given[1]) if given[1] else ():
            self._note(_input_check(call)._replace(unsure=_KEYWORD), tensor)
        for tensor in tensors:
            if not makes_none(call.module):
                self._note(_check("forward", call), tensor)
            else:
                self._known.note(tensor, FINE)
                if any(tensor is each for each in given[0]):
                    self._peaks.note_harmless(tensor)
        if call.parent is None:  # its caller may write to them
            self._peaks.look()

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """Check the gradients that come from the loss."""
        self._note_gradients("loss", None if owner is None else owner.outermost, gradients)

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,  # noqa: ARG002
        unseen: Collection[int],  # noqa: ARG002
        source: Source | None,  # noqa: ARG002
    ) -> None:
        """Check the gradients that a node produced."""
        self._note_gradients("backward", owner, made)

    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:  # noqa: ARG002
        """Check the gradient that was accumulated."""
        if variable.grad is not None:
            self._note(_Check("backward", leaf.path, leaf.type_name, 0), variable.grad)

    def note_end_of_backward(self) -> None:
        """Gradients may be scaled, clipped or set to zero now."""
        self._peaks.look()

    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:  # noqa: ARG002
        """The parameters and buffers; then everything is on its way."""
        for path, module in modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and f"{path}.{name}" not in self._memory.reported:
                    self._note(_Check("update", path, type_name_of(module), 0), tensor)
        self._peaks.send()

    @property
    def is_known(self) -> bool:
        """True if the peaks have arrived on the host."""
        return self._peaks.has_arrived

    def settle(self) -> None:
        """Read them."""
        peaks = self._peaks.read()
        self._memory.written_to |= {peak.what.path for peak in peaks if peak.is_late}
        bad = [peak for peak in peaks if not math.isfinite(peak.value)]
        self.is_counted = not bad
        suspects = [peak for peak in bad if not (self._memory.has_masks and _may_be_mask(peak))]
        self._memory.is_alarmed |= bool(suspects)
        if not all(map(_may_be_mask, suspects)):
            self._report(suspects[0])

    def let_go(self) -> None:
        """Keep no memory any longer."""
        self._peaks.look()

    def _report(self, peak: Peak[_Check]) -> None:
        nan = int(math.isnan(peak.value))
        doubt = _MASK if _may_be_mask(peak) else _LATE if peak.is_late else peak.what.unsure
        check = peak.what._replace(unsure=doubt)
        self.first = NonFinite(
            step=self._step, **check._asdict(), nan=nan, inf=1 - nan, numel=0, unknown=_LATER
        )
        self._listener(self.first)

    def _note_gradients(self, phase: Phase, owner: Call | None, gradients: Gradients) -> None:
        for gradient in gradients:
            if gradient is not None and owner is not None:
                self._note(_check(phase, owner), gradient)

    def _note(self, check: _Check, tensor: Tensor) -> None:
        if not is_readable(tensor) or self._known.get(tensor) is not None:
            return
        self._known.note(tensor, FINE)
        self._peaks.add(
            check,
            tensor,
            waits=not self._allocated.is_reading and check.path not in self._memory.written_to,
        )


def _may_be_mask(peak: Peak[_Check]) -> bool:
    """Return whether a peak may be a mask: the next step sees where its infinities are created."""
    return math.isinf(peak.value) and peak.what.phase in ("forward", "input")


def _input_check(call: Call) -> _Check:
    """Return the check of a call's input, which its caller or the model's caller produced."""
    return _check("input", call) if call.parent is None else _check("forward", call.parent)


def _check(phase: Phase, call: Call) -> _Check:
    return _Check(phase, call.path, type_name_of(call.module), call.invocation)
