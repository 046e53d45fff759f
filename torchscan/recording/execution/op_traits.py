"""Traits of operators, read from their schemas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchscan.torch_versions import OpOverload, aten, function_of_triton_op, has_cpu_kernel

_RUNNING_STATISTICS = (3, 4)
# fmt: off
_NORMALIZATIONS = (
    "batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
)
# fmt: on

#: operators that write to arguments without saying so in their schema
_SILENT_WRITES: Mapping[OpOverload, tuple[int, ...]] = {
    getattr(aten, name).default: _RUNNING_STATISTICS for name in _NORMALIZATIONS
}

#: what tolist() and numpy() call before they read
RESOLVE = frozenset({aten.resolve_conj.default, aten.resolve_neg.default})

#: operators whose result has no values yet
ALLOCATIONS = frozenset({aten.empty.memory_format, aten.empty_strided.default})

# fmt: off
_GROWING = (
    "new_zeros", "new_ones", "new_full", "new_empty", "repeat", "tile", "pad", "constant_pad_nd",
)
# fmt: on
#: operators whose result can be larger than all their operands together
MAY_GROW = frozenset(getattr(aten, name).default for name in _GROWING)
MAY_GROW |= {aten.repeat_interleave.self_int}

#: operators that Python's ``if`` calls, and comparisons of tensors
_TRUTH = frozenset(
    {
        aten.is_nonzero.default,
        aten._local_scalar_dense.default,
        aten.item.default,
        aten.equal.default,
    }
)

#: creates a tensor from a Python number or list
LIFT = aten.lift_fresh.default
_BOOKKEEPING = frozenset({LIFT, aten.detach_.default, aten.scalar_tensor.default})

_WRAPPER = "_c10d_functional._wrap_tensor_autograd.default"

#: operators that need values without a tag that says so, by name: their library may not be there
_NEED_VALUES = frozenset({"torchvision.nms.default", "aten.is_nonzero.default", *map(str, RESOLVE)})
_VALUE_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Traits of an operator, read from its schema."""

    #: positions, or names for keyword-only arguments, of the arguments that it writes to
    written: tuple[int | str, ...]
    #: those of them that it does not return
    written_only: tuple[int | str, ...]
    #: those that it writes to without saying so
    silently_written: tuple[int, ...]
    #: makes a tensor from no tensor, on a device that an argument names
    is_factory: bool
    #: its result or its result's shape depends on values
    needs_values: bool
    #: implemented in terms of other operators
    is_composite: bool
    #: takes objects that hold weights in a kernel's own format
    takes_packed: bool
    #: has a kernel for tensors on the CPU
    has_cpu_kernel: bool
    #: draws random numbers, unless its arguments say that it doesn't
    may_draw: bool
    #: what torch does besides, no part of a pass: ask about an assignment to ``.data``, or measure
    #: itself
    is_aside: bool
    #: what torch does about a Python number or list that becomes a tensor: no part of the model
    is_bookkeeping: bool
    #: asks whether something is true of values, which may be assumed
    asks_truth: bool
    #: makes of what other processes send a tensor by whose use this one waits for it
    is_wrapper: bool
    #: function of a Triton operator, which launches kernels, or None
    launches_kernels: Callable[..., Any] | None


@functools.cache
def traits_of(op: OpOverload) -> OpTraits:
    """Read the schema of an operator."""
    arguments = op._schema.arguments
    written, written_only = _find_written(op)
    types = [str(argument.type) for argument in arguments]
    takes_tensors = any("Tensor" in each for each in types)
    takes_device = any(argument.name == "device" for argument in arguments)
    # Objects of torch's classes hold weights, or are groups of processes.
    takes_packed = any("__torch__" in each and ".c10d." not in each for each in types)
    has_value_tag = not _VALUE_TAGS.isdisjoint(op.tags)
    return OpTraits(
        written=written,
        written_only=written_only,
        silently_written=_SILENT_WRITES.get(op, ()),
        is_factory=takes_device and not takes_tensors,
        needs_values=has_value_tag or str(op) in _NEED_VALUES,
        is_composite=op._can_decompose(),
        takes_packed=takes_packed,
        has_cpu_kernel=has_cpu_kernel(op),
        may_draw=torch.Tag.nondeterministic_seeded in op.tags,
        is_aside=op is aten._has_compatible_shallow_copy_type.default or op.namespace == "profiler",
        is_bookkeeping=op in _BOOKKEEPING,
        asks_truth=op in _TRUTH,
        is_wrapper=str(op) == _WRAPPER,
        launches_kernels=function_of_triton_op(op),
    )


def _find_written(op: OpOverload) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """Return where the arguments are that an operator writes to, and those it does not return."""
    aliases = [result.alias_info for result in op._schema.returns]
    returned = [alias.before_set for alias in aliases if alias is not None]
    written: list[int | str] = []
    written_only: list[int | str] = []
    for position, argument in enumerate(op._schema.arguments):
        alias = argument.alias_info
        if alias is None or not alias.is_write:
            continue
        where = argument.name if argument.kwarg_only else position
        written.append(where)
        if alias.before_set not in returned:
            written_only.append(where)
    return tuple(written), tuple(written_only)
