"""Reading elements by index costs traffic: the indices, and one element for each output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, traffic_of
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@traffic_of(aten.take)
def take(self: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """Read the indices and one element for each output."""
    return _read_work(self, [indices], out)


@traffic_of(aten.take_along_dim)
def take_along(
    self: TensorSpec,
    indices: TensorSpec,
    dim: int | None = None,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    if dim is None:
        return _read_work(self, [indices], out)
    return routed_work(self, dim, indices, out, routing)


@traffic_of(aten.gather)
def gather(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    return routed_work(self, dim, index, out, routing)


@traffic_of(aten.index_select)
def index_select(
    self: TensorSpec,
    dim: int,
    index: TensorSpec,
    *_: object,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    return routed_work(self, dim, index, out, routing)


@traffic_of(aten.index, aten._unsafe_index)
def index(
    self: TensorSpec,
    indices: Sequence[TensorSpec | None],
    *,
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Read the indices and one element for each output.

    If a router picks, each choice is read once.
    """
    given = without_none(indices)
    if len(given) != 1:
        return _read_work(self, given, out)
    return routed_work(self, list(indices).index(given[0]), given[0], out, routing)


@cost_of("aten::_unsafe_masked_index")
def masked_index(
    self: TensorSpec,
    mask: TensorSpec,
    indices: Sequence[TensorSpec | None],
    *_: object,
    out: TensorSpec,
) -> Work:
    """Return the cost of picking elements, and a selection per output."""
    return replace(_read_work(self, [mask, *without_none(indices)], out), other_flops=out.numel)


def _read_work(source: TensorSpec, indices: Sequence[TensorSpec], out: TensorSpec) -> Work:
    bytes_of_indices = sum(each.stored_bytes for each in indices)
    elements_read = out.numel + sum(each.numel for each in indices)
    bytes_read = min(out.numel, source.numel) * source.dtype.itemsize + bytes_of_indices
    return Work(elements_read=elements_read, bytes_read=bytes_read)


def routed_work(
    source: TensorSpec, dim: int, index: TensorSpec, out: TensorSpec, routing: Routing
) -> Work:
    """Return the cost of rows that a router picks.

    Of n choices, n·(1 − (1 − k/n)^rows) are expected among the indices, and at least k.
    """
    work = _read_work(source, [index], out)
    choices = source.shape[dim] if source.shape else 1
    size = source.numel // max(choices, 1)
    # Each slot takes a complete choice: with one index, or with an index per element.
    has_slots = out.numel == routing.slots * size and index.numel in (routing.slots, out.numel)
    if not has_slots or routing.choices != choices:
        return work
    bytes_of_choice = size * source.dtype.itemsize
    expected = round(routing.expected * bytes_of_choice)
    avoidable_bytes_read = expected - routing.fewest * bytes_of_choice
    return replace(
        work, bytes_read=expected + index.stored_bytes, avoidable_bytes_read=avoidable_bytes_read
    )


def is_mask(index: TensorSpec) -> bool:
    """Return whether an index is a mask, which covers as many dimensions as it has."""
    return index.dtype in (torch.bool, torch.uint8)


def without_none(indices: Sequence[TensorSpec | None]) -> list[TensorSpec]:
    """Return the indices of the dimensions that have one."""
    return [each for each in indices if each is not None]
