"""Embeddings and bags of them: rows of a table are read, and a bag adds them up."""

from __future__ import annotations

from torchscan.ops.indexing import routed_work
from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import cost_of, traffic_of, window_of
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.ops.windows import Looks, here, look
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

_SUM, _MEAN, _MAX = 0, 1, 2  # torch's numbers for the modes of a bag


@traffic_of(aten.embedding)
def embedding(
    weight: TensorSpec, indices: TensorSpec, *_: object, routing: Routing = UNKNOWN, out: TensorSpec
) -> Work:
    """Read the indices and one row for each of them, at most the whole table.

    If a router picks, each row is read once.
    """
    return routed_work(weight, 0, indices, out, routing)


@window_of(aten.embedding)
def embedding_window(weight: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """Read one row for each index."""
    return (None, look(out, *map(here, range(len(indices.shape)))))


@cost_of(aten._embedding_bag, aten._embedding_bag_forward_only, aten.embedding_bag)
def embedding_bag(
    weight: TensorSpec,
    indices: TensorSpec,
    offsets: TensorSpec,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: TensorSpec | None = None,
    *_: object,
    out: Output,
) -> Work:
    """Return the cost of n − 1 sums (or comparisons) per element of a bag of n rows.

    A mean takes 1 more, weights n more.
    """
    read = indices.numel * weight.shape[1]
    results = first_output(out).numel
    flops = max(read - results, 0)
    if mode == _MEAN:
        flops += results
    others = [indices, offsets]
    if per_sample_weights is not None:
        flops += read
        others.append(per_sample_weights)
    # The other results are for the backward pass, and differ from kernel to kernel.
    bags = first_output(out)
    elements_read = read + sum(spec.numel for spec in others)
    bytes_of_rows = min(read, weight.numel) * weight.dtype.itemsize
    bytes_read = bytes_of_rows + sum(spec.stored_bytes for spec in others)
    return Work(
        other_flops=flops,
        elements_read=elements_read,
        bytes_read=bytes_read,
        elements_written=bags.numel,
        bytes_written=bags.stored_bytes,
    )


@cost_of(aten.embedding_dense_backward)
def embedding_backward(
    grad_output: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the FLOPs of adding each gradient to its row."""
    return Work(other_flops=grad_output.numel)


@traffic_of(aten.embedding_sparse_backward)
def sparse_embedding_backward(*_: object, out: Output) -> Work:
    """Return no arithmetic: the gradients are the result, together with their indices."""
    return Work()


@cost_of(aten._embedding_bag_dense_backward, aten._embedding_bag_backward)
def embedding_bag_backward(
    grad: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the FLOPs of adding the gradient of a bag to each of its rows."""
    return Work(other_flops=indices.numel * grad.shape[-1])


@cost_of(aten._embedding_bag_per_sample_weights_backward)
def embedding_bag_weights_backward(
    grad: TensorSpec, weight: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the MACs of the gradient of a bag times each of its rows: indices · width."""
    return Work(macs=indices.numel * grad.shape[-1])


@cost_of("aten::embedding_renorm")
def embedding_renorm(self: TensorSpec, indices: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """Return the cost of the norm of each row and of a product: 3 per element of it."""
    rows = min(indices.numel, self.shape[0]) * self.shape[1]
    bytes_read = rows * self.dtype.itemsize + indices.stored_bytes
    bytes_written = rows * self.dtype.itemsize
    return Work(
        other_flops=3 * rows,
        elements_read=rows + indices.numel,
        bytes_read=bytes_read,
        elements_written=rows,
        bytes_written=bytes_written,
    )
