"""Shapes of results that torch's own shape functions refuse to give, or are slow to give.

Nearly each of torch's functions imports a computer algebra system on first use (0.6 s), many its
compiler, too (2 s): a rule for each operator of common models keeps the first call of a process
short. Later calls take 50 to 4,000 µs in Python, and a rule 10 to 40 µs.

A rule that does not fit a call returns None, and torch is asked; so no rule has to know what an
error is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import broadcast, has_floats, meta_empty, meta_like
from torchscan.recording.execution.norm_rules import NORM_RULES, dtype_of_sums, in_layout_of_images
from torchscan.recording.execution.product_rules import PRODUCT_RULES
from torchscan.recording.execution.row_rules import (
    averaged,
    catenated,
    compared_with_number,
    convolution,
    convolution_backward,
    convolution_of,
    decomposed_softmax,
    filled,
    gradient_of_highest,
    gradient_of_softmax,
    have_same_layout,
    highest,
    highest_and_where,
    layout_of_both,
    picked,
    pooled_to_size,
    powers,
    put_back,
    rolled,
    softmax,
    stacked,
    summed,
)
from torchscan.recording.execution.update_rules import UPDATE_RULES
from torchscan.torch_versions import BLOCKS_OF_WIDE_STATES, FUSES_GROUPED_QUERIES, OpOverload, aten

Rule = Callable[..., Tensor | tuple[Tensor | None, ...] | None]


def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """One product per group. torch's own shape function takes bfloat16 only, the operator other types too."""
    groups = (
        ()
        if left.dim() + right.dim() == 5
        else (len(offs) if offs is not None and left.dim() == 2 else left.shape[0],)
    )
    size = (*groups, left.shape[-2], right.shape[-1])
    return torch.empty(size, dtype=out_dtype or left.dtype, device="meta")


def _linear(source: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    fits = weight.dim() == 2 and source.dim() > 0 and source.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return torch.empty((*source.shape[:-1], weight.shape[0]), dtype=source.dtype, device="meta")


def runs_in_one_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    enable_gqa: bool = False,
    **_: Any,
) -> bool:
    """Return whether the CPU's fused attention kernel takes these operands."""
    alike = (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
    )
    alike = (
        alike
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and 0 not in (*query.shape, *key.shape)
    )
    heads = alike and (
        query.shape[1] == key.shape[1] or (enable_gqa and _may_be_grouped(query, key))
    )
    return (
        heads
        and not dropout_p
        and query.stride(-1) == 1
        and (attn_mask is None or not attn_mask.requires_grad)
    )


def _may_be_grouped(query: Tensor, key: Tensor) -> bool:
    return FUSES_GROUPED_QUERIES and query.shape[1] % key.shape[1] == 0


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Tensor | None:
    """The fused kernels return the layout of the query; without one torch computes step by step and returns another."""
    return _like_input(query) if runs_in_one_kernel(query, key, value, *args, **kwargs) else None


def _flash_attention_on_cpu(
    query: Tensor, *_args: Any, **_kwargs: Any
) -> tuple[Tensor, Tensor] | None:
    """And the logarithm of a sum for each query and head."""
    if query.dim() != 4 or not has_floats(query):
        return None
    batch, heads, length = query.shape[:3]
    sums = torch.empty((batch, length, heads), dtype=dtype_of_sums(query), device="meta").transpose(
        1, 2
    )
    return meta_like(query), sums


def _like_all(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Any, **_kwargs: Any
) -> tuple[Tensor, ...]:
    """A gradient each."""
    return meta_like(query), meta_like(key), meta_like(value)


def _like_input(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """One result per element, laid out as the input is."""
    return meta_like(source) if has_floats(source) else None


def _written(target: Tensor, *others: Any, **_kwargs: Any) -> Tensor | None:
    """In place, every operand of the target's shape and type, or a real number."""
    fits = all(_fits(other, target) for other in others) and 0 not in target.stride()
    return target if fits and target.is_floating_point() else None


def _like_both(left: Any, right: Any, *_rest: Any, **kwargs: Any) -> Tensor | None:
    """Two tensors of one type, or one and a number."""
    if any(isinstance(each, complex) for each in kwargs.values()):
        return None
    if isinstance(right, int | float) and isinstance(left, Tensor):
        return _like_input(left)
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or left.dtype != right.dtype:
        return None
    is_alike = left.shape == right.shape and left.stride() == right.stride()
    return _like_input(left) if is_alike else broadcast(left, right)


def _shuffled(source: Tensor, *_groups: int) -> Tensor:
    return in_layout_of_images(source)


def _fits(other: Any, target: Tensor) -> bool:
    if isinstance(other, Tensor):
        return other.dtype == target.dtype and other.shape == target.shape
    return not isinstance(other, complex)


def _in_layout_of_operands(op: OpOverload) -> Rule:
    """Convolutions work channels-last where their input or their weight is, and so are the results; torch takes no notice."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        layout = layout_of_both(*args[:2])
        if layout is torch.contiguous_format:
            return None
        made = op(*args, **kwargs)
        results = made if isinstance(made, tuple) else (made,)
        laid_out = tuple(
            _laid_out(each, layout) if isinstance(each, Tensor) and each.dim() > 1 else each
            for each in results
        )
        return laid_out if isinstance(made, tuple) else laid_out[0]

    return rule


def _first_that_fits(*rules: Rule) -> Rule:
    """Return a rule that gives the first result of several rules."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return next((made for each in rules if (made := each(*args, **kwargs)) is not None), None)

    return rule


def _laid_out(result: Tensor, layout: torch.memory_format) -> Tensor:
    return torch.empty_like(result, memory_format=layout)


def _lstm_layer(
    source: Tensor,
    weight: Tensor,
    _hidden_weight: Tensor,
    _b1: Tensor,
    _b2: Tensor,
    hidden: Tensor,
    cell: Tensor,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    """One layer of oneDNN's, of which torch does not tell how much memory it keeps for its gradient."""
    steps, batch, width = source.shape
    size, train = rest[3], rest[-1]
    made = torch.empty(steps, batch, size, dtype=source.dtype, device="meta")
    kept = _lstm_workspace(steps, batch, width, size)
    workspace = torch.empty(kept, dtype=torch.uint8, device="meta") if train else None
    return made, meta_like(hidden), meta_like(cell), workspace


def _lstm_layer_backward(source: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """A gradient each, also for the two biases, to which torch's own shape function gives one in common."""
    of_input, of_state, *_biases = rest[:4]
    bias = of_input.shape[:1]  # also where zeros as large as the weights stand for biases
    shapes = (
        source.shape,
        of_input.shape,
        of_state.shape,
        bias,
        bias,
        rest[4].shape,
        rest[5].shape,
    )
    return tuple(torch.empty(shape, dtype=torch.float32, device="meta") for shape in shapes)


def _lstm_workspace(steps: int, batch: int, width: int, size: int) -> int:
    """Return the bytes of oneDNN's workspace for rows of single precision.

    It has seven blocks of whole pages, nine in older versions: the gates (steps rows), three or
    five of states as wide as the wider of input and state (2·(steps+1) rows), two of states
    (2·(steps+1) rows) and one of outputs (steps rows). Rows are padded to 64 bytes, and away from
    multiples of 1 KiB.
    """

    def pages(rows: int, columns: int) -> int:
        return -(-rows * batch * columns * 4 // 4096) * 4096

    def padded(columns: int) -> int:
        columns = -(-columns // 16) * 16
        return columns + 16 if columns % 256 == 0 else columns

    gates, states = pages(steps, padded(4 * size)), pages(2 * (steps + 1), padded(max(width, size)))
    return (
        gates
        + BLOCKS_OF_WIDE_STATES * states
        + 2 * pages(2 * (steps + 1), size)
        + pages(steps, padded(size))
    )


def _recurrent(gates: int) -> Rule:
    """Layers of recurrence: torch's own function takes each step, and imports a computer algebra system for it."""

    def rule(
        source: Tensor,
        state: Tensor | Sequence[Tensor],
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        _dropout: float,
        _train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...] | None:
        states = [state] if isinstance(state, Tensor) else state
        shapes = [tuple(each.shape) for each in states]
        directions = 2 if bidirectional else 1
        if (
            not has_floats(source)
            or source.dim() != 3
            or 0 in source.shape
            or any(
                each[:-1] != (layers * directions, source.shape[1 - batch_first]) for each in shapes
            )
        ):
            return None
        size, shown = shapes[-1][-1], shapes[0][-1]
        first, later = (
            _shapes_of_recurrence(gates, size, shown, each, has_biases)
            for each in (source.shape[-1], directions * shown)
        )
        alike = all(each.dtype is source.dtype for each in (*states, *weights))
        if not alike or [
            tuple(each.shape) for each in weights
        ] != first * directions + later * directions * (layers - 1):
            return None
        made = meta_empty(
            (source.shape[batch_first], source.shape[1 - batch_first], directions * shown), source
        )
        return made.transpose(0, 1) if batch_first else made, *(
            meta_empty(each, source) for each in shapes
        )

    return rule


def _shapes_of_recurrence(
    gates: int, size: int, shown: int, width: int, has_biases: bool
) -> list[tuple[int, ...]]:
    """Return the shapes of the weights of one layer in one direction.

    The visible state may be projected to another size.
    """
    rows = gates * size
    biases = [(rows,), (rows,)] if has_biases else []
    return [(rows, width), (rows, shown), *biases, *([(shown, size)] if shown != size else [])]


def _cudnn_rnn(
    source: Tensor,
    weights: list[Tensor],
    _: int,
    buffer: Tensor | None,
    hidden: Tensor,
    cell: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Return the results of cuDNN's recurrent layers.

    The memory that cuDNN keeps for the gradient is not documented. It is assumed to be all gates,
    the cell and the output of every step.
    """
    mode, size, projected, layers, _batch_first, _dropout, train, bidirectional, *_rest = rest
    directions = 2 if bidirectional else 1
    rows = source.shape[:-1]  # one dimension of them if they are packed
    made = source.new_empty(*rows, (projected or size) * directions)
    gates = (1, 1, 4, 3)[mode]
    kept = math.prod(rows) * size * layers * directions * (gates + 2) if train else 0
    reserve = torch.empty(kept * source.element_size(), dtype=torch.uint8, device="meta")
    none = source.new_empty(0)
    cells = none if cell is None else meta_like(cell)
    return made, meta_like(hidden), cells, reserve, none if buffer is None else buffer


def _cudnn_rnn_backward(
    source: Tensor,
    weights: list[Tensor],
    _: int,
    _buffer: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    *_rest: Any,
) -> tuple[Any, ...]:
    none = source.new_empty(0)
    cells = none if cell is None else meta_like(cell)
    return meta_like(source), meta_like(hidden), cells, [meta_like(each) for each in weights]


def _dropout_in_one(source: Tensor, _p: float, _train: bool | None) -> tuple[Tensor, Tensor] | None:
    """And a mask of booleans."""
    return (meta_like(source), meta_like(source, dtype=torch.bool)) if has_floats(source) else None


def _reduced_loss(source: Tensor, target: Tensor, *rest: Any, reduction: int = 1) -> Tensor | None:
    """A loss that torch computes per element and then reduces into the same memory, which is not made smaller."""
    reduction = next((each for each in rest if isinstance(each, int)), reduction)
    if not reduction:
        return None
    size = torch.broadcast_shapes(source.shape, target.shape)
    return torch.empty(size, dtype=source.dtype, device="meta").as_strided((), ())


#: updates in place that return nothing, of which torch has no shape function
UPDATES_WITHOUT_SHAPE_FUNCTION = frozenset(
    getattr(update, name)
    for update in (aten._fused_sgd_, aten._fused_adagrad_)
    for name in update.overloads()
) | {aten._fused_adam_.tensor_lr, aten._fused_adamw_.tensor_lr}


def _nothing(*_args: Any, **_kwargs: Any) -> tuple[Tensor, ...]:
    return ()


_ACTIVATIONS = (
    aten.relu,
    aten.gelu,
    aten.silu,
    aten.sigmoid,
    aten.tanh,
    aten.hardswish,
    aten.hardsigmoid,
    aten.hardtanh,
)
_UNARY = (*_ACTIVATIONS, aten.neg, aten.cos, aten.sin, aten.exp, aten.sqrt, aten.rsqrt)
_DRAWN = (aten._sample_dirichlet, aten._dirichlet_grad, aten._standard_gamma_grad)
_UNARY_IN_PLACE = (
    aten.relu_,
    aten.silu_,
    aten.sigmoid_,
    aten.tanh_,
    aten.hardswish_,
    aten.hardsigmoid_,
    aten.hardtanh_,
)

_GRADIENTS = (
    "threshold_backward",
    "gelu_backward",
    "silu_backward",
    "hardswish_backward",
    "hardsigmoid_backward",
)
_TRANSPOSED = (aten.conv_transpose2d.input, aten.conv_transpose3d.input)

SHAPE_RULES: Mapping[OpOverload, Rule] = {
    **{op: _in_layout_of_operands(op) for op in _TRANSPOSED},
    aten.conv2d.default: convolution_of(2),
    aten.conv3d.default: convolution_of(3),
    aten.convolution.default: _first_that_fits(
        convolution, _in_layout_of_operands(aten.convolution.default)
    ),
    aten.stack.default: stacked,
    aten.cat.default: catenated,
    aten.roll.default: rolled,
    aten.masked_fill.Scalar: filled,
    aten.index.Tensor: picked,
    **dict.fromkeys((aten.select_backward.default, aten.slice_backward.default), put_back),
    aten.pow.Tensor_Scalar: powers,
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), decomposed_softmax),
    **dict.fromkeys(
        (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
        gradient_of_softmax,
    ),
    **dict.fromkeys((aten.softmax.int, aten._safe_softmax.default), softmax),
    **{
        getattr(aten, name).Scalar: compared_with_number
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **dict.fromkeys(
        (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim), summed
    ),
    aten.max_pool2d.default: highest,
    aten.max_pool2d_with_indices.default: highest_and_where,
    aten.max_pool2d_with_indices_backward.default: gradient_of_highest,
    aten.avg_pool2d.default: averaged,
    **dict.fromkeys(
        (aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default), have_same_layout
    ),
    aten.adaptive_avg_pool2d.default: pooled_to_size,
    aten.convolution_backward.default: convolution_backward,
    aten._grouped_mm.default: _grouped_mm,
    **NORM_RULES,
    **PRODUCT_RULES,
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), _reduced_loss),
    **dict.fromkeys(
        (aten.soft_margin_loss.default, aten.binary_cross_entropy.default), _reduced_loss
    ),
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.mkldnn_rnn_layer_backward.default: _lstm_layer_backward,
    **{
        getattr(aten, name).input: _recurrent(gates)
        for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))
    },
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    aten.native_dropout.default: _dropout_in_one,
    **dict.fromkeys(UPDATES_WITHOUT_SHAPE_FUNCTION, _nothing),
    **UPDATE_RULES,
    aten.linear.default: _linear,
    aten.scaled_dot_product_attention.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention_on_cpu,
    aten._scaled_dot_product_flash_attention_backward.default: _like_all,
    **dict.fromkeys((aten.channel_shuffle.default, aten.native_channel_shuffle.default), _shuffled),
    **{op.default: _like_input for op in (*_UNARY, *_DRAWN)},
    **{getattr(aten, name).default: _like_both for name in _GRADIENTS},
    **{getattr(aten, name).Scalar: _written for name in ("add_", "sub_", "mul_", "div_")},
    **{op.default: _written for op in _UNARY_IN_PLACE},
    **dict.fromkeys(
        (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _like_both
    ),
    **{getattr(aten, name).Scalar: _like_both for name in ("add", "sub", "mul", "div")},
    **dict.fromkeys(
        (aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor), _written
    ),
}
