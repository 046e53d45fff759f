"""The cache that one pass of a generation hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torchscan.recording.bookkeeping.containers import copy_arguments, held_tensors
from torchscan.recording.bookkeeping.tensor_copies import own_copy
from torchscan.torch_versions import making_ordinary_tensors, without_modes


class Handover:
    """Picks what the next pass gets from the output, and keeps a copy of it.

    The copy has the shapes, and the values of small integers.
    """

    def __init__(self, pick: Callable[[Any], Any]) -> None:
        self._pick = pick
        self._picked: Any = None
        #: the copy, once the pass is over
        self.kept: Any = None
        #: by the name of a tensor the number of its memory in the record
        self.storages: Mapping[str, int] = {}

    def take(self, output: Any) -> list[tuple[str, Tensor]]:
        """Pick what is kept, and return the tensors in it with their names."""
        self._picked = self._pick(output)
        return list(held_tensors(self._picked))

    def copy(self) -> None:
        """Replace what was picked by its copy, which no trace has."""

        def own(tensor: Tensor) -> Tensor:
            return own_copy(tensor.detach(), on_meta=True)

        with making_ordinary_tensors(), without_modes():
            self.kept = copy_arguments(self._picked, own)
        self._picked = None
