"""The total of torchinfo: the elements of weights and biases, times how often each of them is assumed to be used."""

from __future__ import annotations

import math

from torchscan.analyses.conventions.rules import CountedModule, by_module
from torchscan.trace.trace import Trace


def torchinfo(trace: Trace) -> list[int]:
    """The numbers of torchinfo: modules that own other modules count nothing themselves."""
    return by_module(trace, _module)


def _module(layer: CountedModule) -> int:
    """``Σ numel(parameter) · uses``."""
    if not layer.is_leaf or not layer.outputs:
        return 0
    shape = layer.outputs[0].shape
    return sum(
        elements * _uses(layer.type_name, name, shape)
        for name, elements in layer.parameters.items()
    )


def _uses(type_name: str, name: str, output: tuple[int, ...]) -> int:
    """A convolution uses a weight at each position; others use it once per sample, or, if it is one of many, per step."""
    if name in ("weight", "bias"):
        positions = output[2:] if "Conv" in type_name else ()
        return math.prod((*output[:1], *positions))
    return math.prod(output[:2]) if "weight" in name or "bias" in name else 0
