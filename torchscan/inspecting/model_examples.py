"""Arguments of a model in real steps, without data, for the estimate of its costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torchscan.inspecting.call_memory import Shapes
from torchscan.inspecting.facts import InspectedCall
from torchscan.inspecting.module_copies import what_is_shared
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.bookkeeping.tensor_copies import own_copy
from torchscan.recording.bookkeeping.tensor_layouts import shape_of
from torchscan.recording.module_calls import Given
from torchscan.torch_versions import without_tracing

#: shapes of inputs that are remembered
_MAX_EXAMPLES = 64


class ModelExamples:
    """The arguments of a model by their shapes, one call for each."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        #: None for arguments that must not be used once more
        self._by_shapes: dict[Shapes, Given | None] = {}
        #: type in which products were computed under autocast by the last call that was kept, or
        #: None without autocast
        self.autocast: torch.dtype | None = None

    def note(self, given: Given) -> None:
        """Keep the arguments of a call if their shapes are new, unless they cannot be copied."""
        shapes = tuple(shape_of(tensor) for tensor in tensors_in(given))
        if shapes in self._by_shapes or len(self._by_shapes) >= _MAX_EXAMPLES:
            return

        example = None
        if what_is_shared(given) is None:
            with without_tracing():
                example = copy_arguments(given, lambda each: own_copy(each, on_meta=True))
        self._by_shapes[shapes] = example
        kind = "cuda" if is_on_cuda(self._model) else "cpu"
        is_autocast = torch.is_autocast_enabled(kind)
        self.autocast = torch.get_autocast_dtype(kind) if is_autocast else None

    def find(self, calls: Sequence[InspectedCall]) -> Given | None:
        """Return the arguments of the first of a step's calls, or None if they are not known."""
        return self._by_shapes.get(calls[0].input_shapes) if calls else None
