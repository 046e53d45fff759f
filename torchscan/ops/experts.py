"""Products of many matrices at once: the experts of a mixture, each with the tokens routed to it.

The MACs are the same however tokens are routed. What is read is not: an expert that no token picks
stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchscan.ops.op_costs import Work, elements, stored_bytes
from torchscan.ops.registry import cost_of, traffic_of
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.trace.events import TensorSpec


@cost_of("aten::_grouped_mm")
def grouped_mm(
    self: TensorSpec,
    mat2: TensorSpec,
    *_: object,
    inputs: tuple[TensorSpec, ...],
    routing: Routing = UNKNOWN,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """Return one product per group: MACs = numel(out) · k.

    If the groups divide k itself, each product sums over its share. Only the matrices of experts
    that some row picks are read: E·(1 − (1 − k/E)^rows) of E are expected, and at least k. If the
    number of experts per row is unknown, each slot counts as a row that picks one expert.
    """
    work = Work(macs=_count_products(self, mat2, out))
    return _with_reads_of_hit_experts(self, mat2, inputs, routing, work)


@cost_of("aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm(
    self: TensorSpec,
    mat2: TensorSpec,
    *_: object,
    inputs: tuple[TensorSpec, ...],
    routing: Routing = UNKNOWN,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """Return the cost of ``grouped_mm`` in 8 bits, with a product with the scales per output."""
    macs = _count_products(self, mat2, out)
    work = Work(macs=macs, other_flops=out.numel)
    return _with_reads_of_hit_experts(self, mat2, inputs, routing, work)


@cost_of("torchao::emulated_blockwise_scaled_grouped_mm")
def emulated_grouped_mm_of_blocks(
    a: TensorSpec, b: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """Return the MACs of ``grouped_mm``, after a product of each element with its block's scale.

    The matrices of all experts are scaled, so all are read.
    """
    macs = _count_products(a, b, out)
    return Work(macs=macs, other_flops=a.numel + b.numel)


@cost_of("transformers::grouped_mm_fallback")
def fallback_of_transformers(
    input: TensorSpec,
    weight: TensorSpec,
    offs: TensorSpec,
    *,
    inputs: tuple[TensorSpec, ...],
    routing: Routing = UNKNOWN,
    out: TensorSpec,
) -> Work:
    """Return the cost of ``grouped_mm``, which this operator replaces where torch has none."""
    return grouped_mm(input, weight, inputs=inputs, routing=routing, out=out)


@cost_of("transformers::grouped_mm_fallback_backward")
def gradients_of_the_fallback(
    input: TensorSpec,
    weight: TensorSpec,
    offs: TensorSpec,
    grad_output: TensorSpec,
    *,
    inputs: tuple[TensorSpec, ...],
    routing: Routing = UNKNOWN,
    **_: object,
) -> Work:
    """MACs = 2 · numel(grad_output) · k: each operand's gradient takes those of the product."""
    inner = input.shape[-1]
    work = Work(macs=2 * grad_output.numel * inner)
    # without the gradient, which with as many rows as experts would pass for theirs
    operands = inputs[:3]
    work = _with_reads_of_hit_experts(input, weight, operands, routing, work)
    elements_read = (work.elements_read or 0) + grad_output.numel
    bytes_read = (work.bytes_read or 0) + grad_output.stored_bytes
    return replace(work, elements_read=elements_read, bytes_read=bytes_read)


@traffic_of("torchscan::own_picks", "torchscan::all_rows")
def rows_of_experts(**_: object) -> Work:
    """Return no traffic: kernels of experts select rows while they read and write them."""
    return Work(elements_read=0, bytes_read=0, elements_written=0, bytes_written=0)


@cost_of("aten::_foreach_mm")
def foreach_mm(
    self: Sequence[TensorSpec], *_: object, out: TensorSpec | tuple[TensorSpec, ...]
) -> Work:
    """One product for each entry of a list: MACs = Σ numel(out_i) · k_i."""
    results = out if isinstance(out, tuple) else (out,)
    macs = 0
    for left, result in zip(self, results, strict=True):
        inner = left.shape[-1]
        macs += result.numel * inner
    return Work(macs=macs)


def _count_products(left: TensorSpec, right: TensorSpec, out: TensorSpec) -> int:
    """Return numel(out) · k, or with the share of k that a group has if groups divide it."""
    divides_inner = len(left.shape) == len(right.shape) == 2
    num_groups = out.shape[0] if divides_inner else 1
    products = out.numel * left.shape[-1]
    return products // max(num_groups, 1)


def _with_reads_of_hit_experts(
    left: TensorSpec,
    right: TensorSpec,
    inputs: tuple[TensorSpec, ...],
    routing: Routing,
    work: Work,
) -> Work:
    """Return the work with reads of the expected experts only, for operands with a slice each."""
    if len(left.shape) == len(right.shape):
        return work
    experts, rows, slots = right, left, left.shape[0]
    if len(left.shape) == 3:
        experts, rows, slots = left, right, right.shape[1]
    routing = routing.of(experts.shape[0], slots)
    others = [spec for spec in inputs if spec is not rows and spec.is_arithmetic]
    by_expert = [spec for spec in others if spec.shape[:1] == experts.shape[:1]]

    num_elements = elements(by_expert)
    num_bytes = stored_bytes(by_expert)
    expected_elements = round(routing.expected_share * num_elements)
    expected_bytes = round(routing.expected_share * num_bytes)
    fewest_bytes = round(routing.fewest_share * num_bytes)
    return replace(
        work,
        elements_read=elements(inputs) - num_elements + expected_elements,
        bytes_read=stored_bytes(inputs) - num_bytes + expected_bytes,
        avoidable_bytes_read=expected_bytes - fewest_bytes,
    )
