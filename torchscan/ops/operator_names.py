"""Names of operators, by which formulas and window rules are registered and found."""

from __future__ import annotations

import functools

from torchscan.errors import InputError
from torchscan.torch_versions import CustomOpDef, MissingOperator, OpOverload, OpOverloadPacket
from torchscan.trace.kernel_operators import was_launched

#: an overload, a packet (all its overloads), the name of either, or the result of
#: ``torch.library.custom_op``
Operator = OpOverload | OpOverloadPacket | CustomOpDef | str


def name_of(operator: Operator) -> str:
    """Return the name of an operator, as torch prints it: ``aten.add`` or ``aten.add.Tensor``."""
    if isinstance(operator, CustomOpDef):
        operator = operator._qualname
    if isinstance(operator, OpOverload | OpOverloadPacket | MissingOperator):
        return str(operator)
    if not isinstance(operator, str) or not all(operator.partition("::")):
        remedy = "give torch.ops.mylib.my_op, or its name, 'mylib::my_op'"
        if hasattr(operator, "arg_names"):  # a kernel of Triton
            remedy = "give the name of a Triton kernel as 'triton::my_kernel'"
        elif isinstance(operator, str) and was_launched(operator):
            remedy = f"give 'triton::{operator}' for the Triton kernel"
        raise InputError(f"{operator!r} is not an operator: {remedy}")
    return operator.replace("::", ".")


@functools.cache
def names_to_find(operator: OpOverload) -> tuple[str, ...]:
    """Return the names to look up: the overload, the packet, and those of the functional operator.

    An in-place operator without an entry has the cost of its functional counterpart.
    """
    packet = str(operator.overloadpacket)
    functional = packet.removesuffix("_")
    return str(operator), packet, f"{functional}.{operator._overloadname}", functional
