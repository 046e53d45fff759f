"""Infinities that a step contains on purpose: masks, and logarithms of 0."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from torchscan.inspecting.open_values import Suspicion
from torchscan.inspecting.replayed_operator import Operator, mask_note
from torchscan.inspecting.values import Memory
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.module_calls import Call

#: a module that has written infinities of these signs on purpose so often goes on to
_MAX_MASKS = 3


class IntendedInfinities:
    """The results of one step whose infinities are intended."""

    def __init__(self, memory: Memory) -> None:
        self._masking = memory.masking
        #: by identity, which other tensors may have once the tensor is gone
        self._tensors: dict[int, weakref.ref[Tensor]] = {}
        #: note about what wrote the last mask of this step, or None
        self.mask: Note | None = None

    def has(self, tensor: Tensor) -> bool:
        """Return whether the infinities of a tensor are intended."""
        known = self._tensors.get(id(tensor))
        return known is not None and known() is tensor

    def add(self, tensors: Iterable[weakref.ref[Tensor]]) -> None:
        """Add tensors whose infinities are intended."""
        for each in tensors:
            tensor = each()
            if tensor is not None:
                self._tensors[id(tensor)] = each

    def is_usual(self, call: Call, suspicion: Suspicion) -> bool:
        """Return whether the module has written such masks in several calls."""
        return self._masking[call.path, suspicion.signs] >= _MAX_MASKS

    def note_usual_mask(self, call: Call, operator: Operator, suspicion: Suspicion) -> None:
        """Note a mask as :meth:`note_mask` does, and count it for the steps that follow."""
        self._masking[call.path, suspicion.signs] += 1
        self.note_mask(call, operator, suspicion)

    def note_mask(self, call: Call, operator: Operator, suspicion: Suspicion) -> None:
        """Note that a call has written infinities on purpose."""
        self.add(suspicion.tensors)
        self.mask = mask_note(call.path, type_name_of(call.module), operator)
