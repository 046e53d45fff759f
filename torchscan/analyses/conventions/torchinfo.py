"""Total of torchinfo: elements of weights and biases, times the assumed number of their uses."""

from __future__ import annotations

import math

from torchscan.analyses.conventions.rules import CountedModule, by_module
from torchscan.trace.trace import Trace


def torchinfo(trace: Trace) -> list[int]:
    """Return the numbers of torchinfo: modules that own other modules count nothing themselves."""
    return by_module(trace, _module)


def _module(layer: CountedModule) -> int:
    """Return ``Σ numel(parameter) · uses``.

    A convolution uses its weight and bias at each position of the output, other modules use them
    once per sample. Of modules that have several, each is used once per sample and step.
    """
    if not layer.is_leaf or not layer.outputs:
        return 0

    shape = layer.output.shape
    num_samples = math.prod(shape[:1])
    num_positions = math.prod(shape[2:]) if "Conv" in layer.type_name else 1
    num_steps = math.prod(shape[:2])
    total = 0
    for name, elements in layer.parameters.items():
        if name in ("weight", "bias"):
            total += elements * num_samples * num_positions
        elif "weight" in name or "bias" in name:
            total += elements * num_steps
    return total
