"""The shapes of a model's parameters on one rank without data parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from torchscan.analyses.fsdp_costs import ParameterShape
from torchscan.torch_versions import is_sharded_type
from torchscan.trace.trace import Trace


class StorageSizes(NamedTuple):
    """Bytes of an element, or None for those of the model itself."""

    stored: int | None = None
    gathered: int | None = None
    reduced: int | None = None


class ParameterShapes:
    """The shapes of parameters on a rank without data parallelism."""

    def __init__(self, sizes: StorageSizes, experts: Iterable[nn.Module]) -> None:
        """Take the experts of the modules in ``experts`` as divided along "ep"."""
        self._sizes = sizes
        self._experts = {id(each) for module in experts for each in module.parameters()}
        self._in_8_bits: set[int] = set()

    def gather_in_8_bits(self, layers: Iterable[nn.Linear]) -> None:
        """Take the weights of these layers as all-gathered in 8 bits."""
        self._in_8_bits = {id(each.weight) for each in layers}

    def of(
        self, model: nn.Module, layers: Mapping[str, nn.Module]
    ) -> dict[str, tuple[ParameterShape, ...]]:
        """Return the parameters of each layer, and of the rest by their own paths."""
        met: set[int] = set()
        shapes: dict[str, tuple[ParameterShape, ...]] = {}
        for path, layer in layers.items():
            own = [each for each in layer.parameters() if id(each) not in met]
            met |= {id(each) for each in own}
            shapes[path] = tuple(map(self._shape_of, own))
        for path, parameter in model.named_parameters():
            if id(parameter) not in met:
                shapes[path] = (self._shape_of(parameter),)
        return shapes

    def _shape_of(self, parameter: Any) -> ParameterShape:
        local = parameter.to_local() if is_sharded_type(type(parameter)) else parameter
        rows = local.shape[0] if local.dim() else 1
        size = local.element_size()
        gathered = self._sizes.gathered or size
        return ParameterShape(
            rows=rows,
            width=local.numel() // max(1, rows),
            stored=self._sizes.stored or size,
            gathered=1 if id(parameter) in self._in_8_bits else gathered,
            gradient=gathered,
            reduced=self._sizes.reduced or size,
            is_trained=parameter.requires_grad,
            is_expert=id(parameter) in self._experts,
            is_scaled=id(parameter) in self._in_8_bits,
        )


def split_outside(
    trace: Trace, shapes: Mapping[str, tuple[ParameterShape, ...]], layers: Sequence[str]
) -> tuple[tuple[ParameterShape, ...], tuple[ParameterShape, ...]]:
    """Return the parameters outside of layers that are used before the layers, and after them."""
    inside = tuple(f"{each}." for each in layers)
    used: set[int] = set()
    for op in trace.ops:
        if f"{trace.path_of(op)}.".startswith(inside):
            break
        used.update(trace.tensors[tensor].storage for tensor in op.inputs)

    before: list[ParameterShape] = []
    after: list[ParameterShape] = []
    for record in trace.parameters:
        if record.path in shapes:
            part = after if used.isdisjoint(record.storages) else before
            part += shapes[record.path]
    return tuple(before), tuple(after)
