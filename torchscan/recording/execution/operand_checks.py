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
from torchscan.trace.events import TensorSpec

_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})


def check(request: OpRequest) -> None:
    """Raise what the operator would raise on data."""
    if request.traits.written and torch.Tag.inplace_view not in request.op.tags:
        for tensor in request.written_tensors():
            _refuse_expanded(request.table.find(tensor).spec)
    rule = _CHECKS.get(request.op)
    if rule is not None:
        rule(request)


def _refuse_expanded(spec: TensorSpec) -> None:
    if not spec.numel:
        return
    for size, step in zip(spec.shape, spec.stride, strict=False):
        if step == 0 and size > 1:
            raise RuntimeError(
                f"an expanded tensor {list(spec.shape)} is written to: "
                "some of its elements share memory"
            )


def _one_type(request: OpRequest) -> None:
    """Require one type: contractions multiply equals with equals."""
    dtypes = {tracked.spec.dtype for tracked in request.tracked}
    if len(dtypes) > 1:
        _require_equal(dtypes)


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
    """Require operands of attention that fit each other.

    Queries, keys and values have one type and as many heads, unless they are grouped; a mask
    broadcasts to the scores.
    """
    operands = [tracked.spec for tracked in request.tracked]
    query, key = operands[:2]
    _require_equal(spec.dtype for spec in operands[:3])
    if len(operands) > 3:
        scores = (*query.shape[:-1], key.shape[-2])
        _require_broadcast(operands[3].shape, scores)
    if request.kwargs.get("enable_gqa", False) or not len(query.shape) == len(key.shape) == 4:
        return
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads != 1:
        raise RuntimeError(f"{heads} query heads, {key_heads} key heads: pass enable_gqa=True")


def _require_broadcast(mask: Sequence[int], scores: Sequence[int]) -> None:
    """Require that a mask broadcasts to the scores."""
    does_fit = len(mask) <= len(scores)
    for size, full in zip(mask[::-1], scores[::-1], strict=False):
        if size not in (1, full):
            does_fit = False
    if not does_fit:
        raise RuntimeError(f"the mask {list(mask)} does not fit the scores {list(scores)}")


def check_norm_types(request: OpRequest) -> None:
    """Require one type, but allow 32-bit parameters beside 16-bit activations."""
    activation, *parameters = (tracked.spec.dtype for tracked in request.tracked)
    if activation in _SIXTEEN_BITS:
        parameters = [dtype for dtype in parameters if dtype is not torch.float32]
    _require_equal((activation, *parameters))


def _require_equal(dtypes: Iterable[torch.dtype]) -> None:
    names = sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})
    if len(names) > 1:
        raise RuntimeError(f"the operands have different dtypes: {' and '.join(names)}")


def _transposed_channels(request: OpRequest) -> None:
    _one_type(request)
    source, weight = (tracked.spec.shape for tracked in request.tracked[:2])
    rank = len(weight) - 1  # of an example without a batch dimension
    channels = source[-rank] if len(source) >= rank else None
    if channels != weight[0]:
        raise RuntimeError(
            f"the input has {channels} channels where the weight {list(weight)} expects {weight[0]}"
        )


def check_embedding_range(request: OpRequest) -> None:
    """Require indices of rows of the weight."""
    weight, indices = request.tensors[:2]
    _require_integers(request, indices)
    num_rows = request.table.find(weight).spec.shape[0]
    _require_in_range(request, indices, num_rows, from_the_end=False)


def _gather_range(request: OpRequest) -> None:
    source, indices = request.tensors[:2]
    dim = request.args[1]
    shape = request.table.find(source).spec.shape
    _require_integers(request, indices)
    if isinstance(dim, int) and shape:
        _require_in_range(request, indices, shape[dim], from_the_end=False, otherwise=RuntimeError)


def check_take_range(request: OpRequest) -> None:
    """Require indices of elements of the source."""
    source, indices = request.tensors
    _require_in_range(request, indices, request.table.find(source).spec.numel)


def _require_integers(request: OpRequest, indices: Tensor) -> None:
    if request.table.find(indices).spec.is_arithmetic:
        raise RuntimeError("the index is floating-point, but must be of integers")


def _index_range(request: OpRequest) -> None:
    sizes = request.tracked[0].spec.shape
    indices: Sequence[Tensor | None] = request.args[1]
    for size, index in zip(sizes, indices, strict=False):
        if index is None:
            continue
        if index.is_floating_point():
            raise IndexError("the index is floating-point, but must be of integers")
        if index.dtype in (torch.int64, torch.int32):
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
    lowest = -size if from_the_end else 0
    if high >= size or low < lowest:
        index = high if high >= size else low
        raise otherwise(f"index {index} is out of range for a dimension of {size}")


# fmt: off
_CONTRACTIONS = (
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addbmm", "bilinear", "linalg_cross",
    "cdist", "_cdist_forward", "conv1d", "conv2d", "conv3d",
)
_PADDED_CONVOLUTIONS = (aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
_RECURRENT = (aten.lstm.input, aten.gru.input)
_GATHERING = ("gather", "index_select", "scatter_add", "scatter_add_", "index_add", "index_add_")
_SCATTERING = (
    aten.scatter.src, aten.scatter.value, aten.scatter_.src, aten.scatter_.value,
)
_NORMALIZATIONS = ("batch_norm", "instance_norm", "layer_norm", "group_norm")
# fmt: on
_TRANSPOSED = (
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
)

_CHECKS_BY_NAME: Mapping[str, Callable[[OpRequest], None]] = {
    "embedding": check_embedding_range,
    "take": check_take_range,
    **dict.fromkeys(_CONTRACTIONS, _one_type),
    **dict.fromkeys(_GATHERING, _gather_range),
    **dict.fromkeys(_NORMALIZATIONS, check_norm_types),
}
_CHECKS_BY_DEFAULT = {getattr(aten, name).default: rule for name, rule in _CHECKS_BY_NAME.items()}

_CHECKS: Mapping[OpOverload, Callable[[OpRequest], None]] = {
    **_CHECKS_BY_DEFAULT,
    **dict.fromkeys(_PADDED_CONVOLUTIONS, _one_type),
    **dict.fromkeys(_RECURRENT, _one_type),
    **dict.fromkeys(_SCATTERING, _gather_range),
    **dict.fromkeys(_TRANSPOSED, _transposed_channels),
    aten.einsum.default: _einsum_types,
    aten.scaled_dot_product_attention.default: _attention,
    aten.index.Tensor: _index_range,
}
