"""A price per element of the output: how pointwise operators are declared, one line each."""

from __future__ import annotations

from torchscan.ops.registry import Formula, Operator, Work, cost_of
from torchscan.trace.events import TensorSpec


def per_element(flops: int, *operators: Operator) -> None:
    """Declare operators that spend ``flops`` on each element that they return: FLOPs = flops · numel(out)."""
    cost_of(*operators)(_formula(flops))


def _formula(flops: int) -> Formula:
    def elementwise(*, out: TensorSpec | tuple[TensorSpec, ...]) -> Work:
        first = out[0] if isinstance(out, tuple) else out
        return Work(other_flops=flops * first.numel)

    return elementwise
