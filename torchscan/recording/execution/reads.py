"""Operators that read the values of their operands: for Python, or for the shape of a result."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.op_traits import RESOLVE
from torchscan.torch_versions import OpOverload, aten, one_hot

# fmt: off
_OF_SAME_SHAPE = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty",
)
# fmt: on
_AS_OTHER = ("expand_as", "view_as", "reshape_as", "type_as")
#: operators whose result has values even where this operand has none: only its spec matters
ONLY_SPEC_MATTERS: dict[OpOverload, int] = {aten.to.other: 1}
ONLY_SPEC_MATTERS |= {getattr(aten, name).default: 0 for name in _OF_SAME_SHAPE}
ONLY_SPEC_MATTERS |= {getattr(aten, name).default: 1 for name in _AS_OTHER}

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
#: operators whose shape functions read the values of integer operands, which stay on the CPU
READ_INTEGERS = frozenset(
    {
        aten._pack_padded_sequence.default,
        aten._pad_packed_sequence.default,
        aten.repeat_interleave.self_Tensor,
        aten.tensor_split.tensor_indices_or_sections,
        *(getattr(aten, name).data for name in _RECURRENT),
    }
)

#: functions that read values where no operator is called
READING_FUNCTIONS: Collection[Callable[..., object]] = frozenset({Tensor.tolist, Tensor.numpy})

#: what reads values only to refuse those that are out of range: as an operator, and as a function
CHECKING: Collection[Callable[..., object]] = frozenset({aten.one_hot.default, one_hot})


#: composites that compare the devices of their operands before any operator is called
COMPARING_DEVICES: Collection[Callable[..., object]] = frozenset(
    {torch.take_along_dim, Tensor.take_along_dim}
)


def begins_deepcopy(request: OpRequest) -> bool:
    """Return whether a call makes the tensor into which ``copy.deepcopy`` copies memory unseen."""
    if request.op is not aten.new_empty.default:
        return False
    return not request.args[1]


def is_mask(index: Tensor | None) -> bool:
    """Return whether an index is a mask, with one value per element."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def may_read(request: OpRequest) -> bool:
    """Return whether a call may read the values of an operand."""
    if request.traits.needs_values:
        return True
    return request.op in READ_INTEGERS


def reads(request: OpRequest, position: int) -> bool:
    """Return whether the values of this operand reach Python, or decide the shape of a result."""
    operand = request.tensors[position]
    if request.op is aten.index.Tensor:
        return position > 0 and is_mask(operand)
    if request.op is aten.masked_select.default:
        return position == 1
    if request.op in READ_INTEGERS:
        return not request.tracked[position].spec.is_arithmetic
    if request.op in RESOLVE:
        return not operand.is_complex()  # which is resolved for its own sake
    return request.traits.needs_values


def name_of_read(op: OpOverload) -> str:
    """Return the name under which users know an operator that reads values."""
    return "tolist or numpy" if op in RESOLVE else str(op.overloadpacket)
