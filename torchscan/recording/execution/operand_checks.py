"""Checks that operators make on data but their shape functions omit: mixed types, index ranges.

The exceptions are of torch's classes: a model may catch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torchscan.ops.einsum import products
from torchscan.recording.execution.calls import OpRequest
from torchscan.torch_versions import OpOverload, aten

_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})


def check(request: OpRequest) -> None:
    """Raise what the operator would raise on data."""
    is_write = request.traits.written and torch.Tag.inplace_view not in request.op.tags
    for tensor in request.written_tensors() if is_write else ():
        spec = request.table.find(tensor).spec
        if spec.numel and any(
            step == 0 and size > 1 for size, step in zip(spec.shape, spec.stride, strict=False)
        ):
            raise RuntimeError(
                f"an expanded tensor {list(spec.shape)} is written to: some of its elements share memory"
            )
    rule = _CHECKS.get(request.op)
    if rule is not None:
        rule(request)


def _one_type(request: OpRequest) -> None:
    """Contractions multiply equals with equals."""
    _require_equal(tracked.spec.dtype for tracked in request.tracked)


def _einsum_types(request: OpRequest) -> None:
    """Require equal types in products that sum over an index; element-wise ones promote them."""
    specs = [tracked.spec for tracked in request.tracked]
    dtypes = [spec.dtype for spec in specs]
    shapes = [spec.shape for spec in specs]
    path = request.kwargs.get("path")
    for left, right, is_summed in products(request.args[0], shapes, path):
        pair = [dtypes.pop(position) for position in sorted((left, right), reverse=True)]
        if is_summed:
            _require_equal(pair)
        dtypes.append(torch.promote_types(*pair))


def _attention(request: OpRequest) -> None:
    """Queries, keys and values of one type; a mask that broadcasts to the scores; as many heads, unless they are grouped."""
    query, key = (request.tracked[position].spec for position in (0, 1))
    _require_equal(tracked.spec.dtype for tracked in request.tracked[:3])
    if len(request.tracked) > 3:
        scores = (*query.shape[:-1], key.shape[-2])
        mask = request.tracked[3].spec.shape
        if len(mask) > len(scores) or any(
            size not in (1, full) for size, full in zip(mask[::-1], scores[::-1], strict=False)
        ):
            raise RuntimeError(f"the mask {list(mask)} does not fit the scores {list(scores)}")
    grouped = request.kwargs.get("enable_gqa", False)
    if (
        not grouped
        and len(query.shape) == len(key.shape) == 4
        and query.shape[1] != key.shape[1] != 1
    ):
        raise RuntimeError(
            f"{query.shape[1]} query heads, {key.shape[1]} key heads: pass enable_gqa=True"
        )


def _norm_types(request: OpRequest) -> None:
    """Normalisations keep 32-bit parameters beside 16-bit activations; else they want one type."""
    activation, *parameters = (tracked.spec.dtype for tracked in request.tracked)
    others = {torch.float32} if activation in _SIXTEEN_BITS else set()
    _require_equal((activation, *(dtype for dtype in parameters if dtype not in others)))


def _require_equal(dtypes: Iterable[torch.dtype]) -> None:
    names = sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})
    if len(names) > 1:
        raise RuntimeError(f"the operands have different dtypes: {' and '.join(names)}")


def _transposed_channels(request: OpRequest) -> None:
    _one_type(request)
    source, weight = request.tracked[0].spec.shape, request.tracked[1].spec.shape
    channels = source[-(len(weight) - 1)] if len(source) >= len(weight) - 1 else None
    if channels != weight[0]:
        raise RuntimeError(
            f"the input has {channels} channels where the weight {list(weight)} expects {weight[0]}"
        )


def _embedding_range(request: OpRequest) -> None:
    weight, indices = request.tensors[:2]
    _require_integers(request, indices)
    _require_in_range(
        request, indices, request.table.find(weight).spec.shape[0], from_the_end=False
    )


def _gather_range(request: OpRequest) -> None:
    source, indices = request.tensors[:2]
    dim = request.args[1]
    shape = request.table.find(source).spec.shape
    _require_integers(request, indices)
    if isinstance(dim, int) and shape:
        _require_in_range(request, indices, shape[dim], from_the_end=False, otherwise=RuntimeError)


def _take_range(request: OpRequest) -> None:
    source, indices = request.tensors
    _require_in_range(request, indices, request.table.find(source).spec.numel)


def _require_integers(request: OpRequest, indices: Tensor) -> None:
    if request.table.find(indices).spec.is_arithmetic:
        raise RuntimeError("the index is floating-point, but must be of integers")


def _index_range(request: OpRequest) -> None:
    sizes = request.tracked[0].spec.shape
    indices: Sequence[Tensor | None] = request.args[1]
    for size, index in zip(sizes, indices, strict=False):
        if index is not None and index.is_floating_point():
            raise IndexError("the index is floating-point, but must be of integers")
        if index is not None and index.dtype in (torch.int64, torch.int32):
            _require_in_range(request, index, size)


def _require_in_range(
    request: OpRequest,
    indices: Tensor,
    size: int,
    *,
    from_the_end: bool = True,
    otherwise: type[Exception] = IndexError,
) -> None:
    if not request.table.find(indices).is_concrete or indices.numel() == 0:
        return
    low, high = (int(extreme) for extreme in request.operand(indices).aminmax())
    if high >= size or low < (-size if from_the_end else 0):
        raise otherwise(
            f"index {high if high >= size else low} is out of range for a dimension of {size}"
        )


_CHECKS: Mapping[OpOverload, Callable[[OpRequest], None]] = {
    **dict.fromkeys(
        (aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default), _one_type
    ),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default, aten.bilinear.default), _one_type),
    **dict.fromkeys((aten.mv.default, aten.addbmm.default, aten.linalg_cross.default), _one_type),
    **dict.fromkeys((aten.cdist.default, aten._cdist_forward.default), _one_type),
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), _one_type),
    **dict.fromkeys((aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding), _one_type),
    **dict.fromkeys((aten.lstm.input, aten.gru.input), _one_type),
    aten.einsum.default: _einsum_types,
    aten.scaled_dot_product_attention.default: _attention,
    **dict.fromkeys((aten.gather.default, aten.index_select.default), _gather_range),
    **dict.fromkeys(
        (aten.scatter.src, aten.scatter.value, aten.scatter_.src, aten.scatter_.value),
        _gather_range,
    ),
    **dict.fromkeys((aten.scatter_add.default, aten.scatter_add_.default), _gather_range),
    **dict.fromkeys((aten.index_add.default, aten.index_add_.default), _gather_range),
    aten.take.default: _take_range,
    **dict.fromkeys((aten.batch_norm.default, aten.instance_norm.default), _norm_types),
    **dict.fromkeys((aten.layer_norm.default, aten.group_norm.default), _norm_types),
    aten.conv_transpose1d.default: _transposed_channels,
    aten.conv_transpose2d.input: _transposed_channels,
    aten.conv_transpose3d.input: _transposed_channels,
    aten.embedding.default: _embedding_range,
    aten.index.Tensor: _index_range,
}
