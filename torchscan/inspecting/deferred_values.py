"""Check of values after the step, on a device that nothing waits for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscan.inspecting.call_memory import MemoryWatch
from torchscan.inspecting.findings import NonFinite, Phase
from torchscan.inspecting.finiteness import FINE
from torchscan.inspecting.timing import StepTimes
from torchscan.inspecting.value_peaks import Peak, Peaks
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
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.module_calls import Call, Given

_LATER = Note.of("checked-after-step")
_MASK = Note.of("maybe-mask")
_LATE = Note.of("written-before-check")
_KEYWORD = Note.of("keyword-input")


class _Place(NamedTuple):
    """The module that has produced a value."""

    phase: Phase
    path: str
    type_name: str
    invocation: int
    unsure: Note | None = None

    @classmethod
    def of(cls, phase: Phase, call: Call) -> _Place:
        return cls(phase, call.path, type_name_of(call.module), call.invocation)

    @classmethod
    def of_input(cls, call: Call) -> _Place:
        """Return the place of a call's input: its caller, or the model's caller, produced it."""
        return cls.of("input", call) if call.parent is None else cls.of("forward", call.parent)


class DeferredValues(Values):
    """The check of a step's values after the step."""

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
        """Create the checks of a step. Values do not wait while ``allocated`` reads memory."""
        super().__init__(step, memory, listener)
        self._peaks: Peaks[_Place] = Peaks(device, times.as_overhead)
        self._allocated = allocated

    def note_start(
        self,
        call: Call,
        given: Given,  # noqa: ARG002
        tensors: Sequence[Tensor],
    ) -> None:
        """Check the inputs of a call that no module returned: its caller produced them."""
        for tensor in tensors:
            self._add(_Place.of_input(call), tensor)

    def note_end(
        self, call: Call, given: Given, tensors: Sequence[Tensor], missed: Sequence[Tensor]
    ) -> None:
        """Check the outputs of a call, and inputs that were not known at its start."""
        args, kwargs = given
        for tensor in missed:
            self._add(_Place.of_input(call)._replace(unsure=_KEYWORD), tensor)
        for tensor in tensors:
            if not makes_none(call.module):
                self._add(_Place.of("forward", call), tensor)
                continue
            self._known.note(tensor, FINE)
            if any(tensor is each for each in (*args, *kwargs.values())):
                self._peaks.note_harmless(tensor)
        if call.parent is None:  # the model's caller may write to them
            self._peaks.compute()

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """Check the gradients that come from the loss."""
        self._add_gradients("loss", None if owner is None else owner.outermost, gradients)

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,  # noqa: ARG002
        unseen: Collection[int],  # noqa: ARG002
        get_source: Callable[[], Source | None],  # noqa: ARG002
    ) -> None:
        """Check the gradients that a node produced."""
        self._add_gradients("backward", owner, made)

    def note_stored(
        self,
        leaf: Leaf,
        variable: Tensor,
        given: Gradients,  # noqa: ARG002
    ) -> None:
        """Check the gradient that was accumulated."""
        if variable.grad is not None:
            self._add(_Place("backward", leaf.path, leaf.type_name, 0), variable.grad)

    def note_end_of_backward(self) -> None:
        """Compute the peaks of gradients, which may be scaled, clipped or set to zero next."""
        self._peaks.compute()

    def note_update(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        *,
        is_followed: bool,  # noqa: ARG002
    ) -> None:
        """Check parameters and buffers, and send all peaks to the host."""
        for path, module in modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and f"{path}.{name}" not in self._memory.reported:
                    self._add(_Place("update", path, type_name_of(module), 0), tensor)
        self._peaks.send()

    @property
    def is_known(self) -> bool:
        """True if the peaks have arrived on the host."""
        return self._peaks.has_arrived

    def settle(self) -> None:
        """Read the peaks, and report the first that is not finite."""
        peaks = self._peaks.read()
        self._memory.written_to |= {peak.label.path for peak in peaks if peak.is_late}
        suspects = [peak for peak in peaks if not math.isfinite(peak.value)]
        self.is_counted = not suspects
        if self._memory.has_masks:
            suspects = [peak for peak in suspects if not _may_be_mask(peak)]
        self._memory.is_alarmed |= bool(suspects)
        if not all(map(_may_be_mask, suspects)):
            self._report(suspects[0])

    def let_go(self) -> None:
        """Compute the peaks of all tensors, which are then released."""
        self._peaks.compute()

    def _report(self, peak: Peak[_Place]) -> None:
        nan = int(math.isnan(peak.value))
        doubt = peak.label.unsure
        if _may_be_mask(peak):
            doubt = _MASK
        elif peak.is_late:
            doubt = _LATE
        place = peak.label._replace(unsure=doubt)
        self.first = NonFinite(
            step=self._step, **place._asdict(), nan=nan, inf=1 - nan, numel=0, unknown=_LATER
        )
        self._listener(self.first)

    def _add_gradients(self, phase: Phase, owner: Call | None, gradients: Gradients) -> None:
        for gradient in gradients:
            if gradient is not None and owner is not None:
                self._add(_Place.of(phase, owner), gradient)

    def _add(self, place: _Place, tensor: Tensor) -> None:
        if not is_readable(tensor) or self._known.get(tensor) is not None:
            return
        self._known.note(tensor, FINE)
        waits = not self._allocated.is_reading and place.path not in self._memory.written_to
        self._peaks.add(place, tensor, waits=waits)


def _may_be_mask(peak: Peak[_Place]) -> bool:
    """Return whether a peak may be a mask: the next step sees where its infinities are created."""
    return math.isinf(peak.value) and peak.label.phase in ("forward", "input")
