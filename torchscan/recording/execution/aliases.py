"""Results of an operator that share memory with its operands."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchscan.torch_versions import share_memory

#: from this number of outputs on, what they share memory with is looked up
_MANY = 8


def alias_positions(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...]:
    """Return for each output the position of the first operand that shares its memory."""
    if len(outputs) > _MANY:
        return _aliases_of_many(outputs, operands)
    return tuple([_first_alias(output, operands) for output in outputs])


def _aliases_of_many(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...]:
    """Compare the memories themselves: not every output is held against every operand."""
    position_by_memory: dict[int, int] = {}
    try:
        for position, operand in enumerate(operands):
            position_by_memory.setdefault(operand.untyped_storage()._cdata, position)
        memories = [output.untyped_storage()._cdata for output in outputs]
    except (NotImplementedError, RuntimeError):  # some have no memory of their own
        return tuple([_first_alias(output, operands) for output in outputs])
    return tuple(map(position_by_memory.get, memories))


def _first_alias(output: Tensor, operands: Sequence[Tensor]) -> int | None:
    for position, operand in enumerate(operands):
        if output is operand or share_memory(output, operand):
            return position
    return None
