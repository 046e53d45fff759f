"""A price per element: how pointwise operators are declared, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchscan.ops.op_costs import Work, elements
from torchscan.ops.operator_names import Operator
from torchscan.ops.registry import Formula, cost_of, pointwise
from torchscan.trace.events import TensorSpec

Output = TensorSpec | tuple[TensorSpec, ...]


def per_element(
    flops: int, *operators: Operator, complex_flops: int | None = None, mixes: bool = False
) -> None:
    """Declare operators that spend ``flops`` on each element of their result.

    FLOPs = flops · numel(out).

    On complex numbers they spend ``complex_flops``, by default twice as much, for the two parts. An
    element is made from the operands' elements at the same place, unless the operator ``mixes``
    them.
    """
    cost_of(*operators)(_formula(flops, 2 * flops if complex_flops is None else complex_flops))
    if not mixes:
        pointwise(*operators)


def per_input(flops: int, *operators: Operator) -> None:
    """Declare operators that spend ``flops`` on each element of their first operand.

    What they return does not matter.
    """

    def formula(self: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
        return Work(other_flops=flops * real_parts(self) * self.numel)

    cost_of(*operators)(formula)


def per_listed_element(flops: int, *operators: Operator) -> None:
    """Declare operators that spend ``flops`` on each element of a list of tensors.

    A number may come before the list.
    """

    def formula(
        self: Sequence[TensorSpec] | float, *others: Any, out: Output, **_kwargs: object
    ) -> Work:
        listed = next(each for each in (self, *others) if isinstance(each, tuple))
        return Work(other_flops=flops * elements(listed))

    cost_of(*operators)(formula)


def first_output(out: Output) -> TensorSpec:
    """Return the first result of an operator."""
    return out[0] if isinstance(out, tuple) else out


def real_parts(spec: TensorSpec) -> int:
    """Return 2 for complex numbers, else 1."""
    return 2 if spec.dtype.is_complex else 1


def _formula(flops: int, complex_flops: int) -> Formula:
    def elementwise(
        self: TensorSpec | float, *others: object, out: Output, **_kwargs: object
    ) -> Work:
        result = first_output(out)
        operands = (result, self, *others)
        is_complex = any(
            isinstance(each, TensorSpec) and each.dtype.is_complex for each in operands
        )
        return Work(other_flops=(complex_flops if is_complex else flops) * result.numel)

    return elementwise
