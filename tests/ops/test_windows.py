"""Window rules against gradients: which elements of an operand one element of the result depends on, element by element."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from torchscan import receptive_field, record, window_of
from torchscan.analyses.receptive_field.envelope_steps import shape_after
from torchscan.ops import formula_calls, registry
from torchscan.ops.windows import (
    Along,
    At,
    EachOutput,
    Look,
    Looks,
    Piece,
    Reshape,
    Unfold,
    UpTo,
    Way,
    Ways,
)
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.trace.events import OpCall

aten = torch.ops.aten
Index = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A call of an operator on tensors of these shapes."""

    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    #: the gradient shows less than what is looked at: only the largest, say
    may_be_less: bool = False
    #: the rule leaves out what is beyond a border
    border: bool = False
    #: operands that are looked at as a whole, though an element of the result needs less of them
    weights: tuple[int, ...] = ()


def case(call: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Case:
    return Case(call, shapes, **options)


def picked(indices: Sequence[Any]) -> Tensor:
    return torch.tensor(indices)


SIGNAL, VOLUME, IMAGE = (2, 3, 8), (2, 2, 4, 4, 4), (2, 4, 7, 6)
CASES: dict[str, Case] = {
    "add": case(lambda x, y: x + y, (2, 3), (3,)),
    "add a column": case(lambda x, y: x + y, (2, 3), (2, 1)),
    "relu": case(torch.relu, (2, 3)),
    "where": case(lambda x, y: torch.where(x > 0.1, x, y), (3, 2), (2,), may_be_less=True),
    "clamp": case(lambda x: x.clamp(0.1, 9), (3, 2)),
    "dropout": case(lambda x: F.dropout(x, training=False), (3, 2)),
    "dropout with its mask": case(lambda x: torch.native_dropout(x, 0.5, False)[0], (3, 2)),
    "view as real": case(lambda x: torch.view_as_real(torch.complex(x, x)), (3, 2)),
    "view as complex": case(lambda x: torch.view_as_complex(x).real, (3, 4, 2), may_be_less=True),
    "softmax": case(lambda x: x.softmax(1), SIGNAL),
    "glu": case(lambda x: F.glu(x, 1), (2, 6, 3)),
    "view": case(lambda x: x.view(6, 4, 2), SIGNAL),
    "unsqueeze": case(lambda x: x.unsqueeze(1), SIGNAL),
    "squeeze": case(lambda x: x.squeeze(), (2, 1, 3)),
    "expand": case(lambda x: x.expand(4, 2, 3), (2, 1)),
    "type as": case(lambda x, y: x.type_as(y.float()), (2, 3), (2,)),
    "permute": case(lambda x: x.permute(2, 0, 1), SIGNAL),
    "transpose": case(lambda x: x.transpose(0, -1), SIGNAL),
    "t": case(lambda x: x.t(), (2, 3)),
    "t of a vector": case(lambda x: x.t(), (3,)),
    "mT": case(lambda x: x.mT, SIGNAL),
    "T": case(lambda x: aten.numpy_T(x), SIGNAL),
    "movedim": case(lambda x: x.movedim((0, 2), (1, 0)), SIGNAL),
    "select": case(lambda x: x[:, -1], SIGNAL),
    "unbind": case(lambda x: x.unbind(1), SIGNAL),
    "slice": case(lambda x: x[..., 1:-1:2], SIGNAL),
    "slice from behind": case(lambda x: x[:, -2:], SIGNAL),
    "narrow": case(lambda x: x.narrow(2, -3, 2), SIGNAL),
    "split": case(lambda x: x.split(3, 2), SIGNAL),
    "split with sizes": case(lambda x: x.split([1, 5, 2], -1), SIGNAL),
    "chunk": case(lambda x: x.chunk(3, 2), SIGNAL),
    "vsplit": case(lambda x: x.vsplit(2), (4, 3)),
    "hsplit": case(lambda x: x.hsplit([1]), (4, 3)),
    "diagonal": case(lambda x: x.diagonal(1, 0, 2), (3, 2, 4)),
    "diagonal below": case(lambda x: x.diagonal(-1), (3, 4)),
    "unfold": case(lambda x: x.unfold(1, 3, 2), (2, 8, 2)),
    "contiguous": case(lambda x: x.mT.contiguous(), SIGNAL),
    "tril": case(lambda x: x.tril(), (4, 4), may_be_less=True),
    "zeros like": case(lambda x: torch.zeros_like(x) + x, (3, 2)),
    "full like": case(lambda x: torch.full_like(x, 2) + x, (3, 2)),
    "copy": case(lambda x, y: x.clone().copy_(y), (3, 2), (2,)),
    "fill": case(lambda x, y: x.clone().fill_(y), (3, 2), ()),
    "meshgrid": case(lambda x, y: torch.meshgrid(x, y, indexing="ij"), (3,), (2,)),
    "meshgrid by columns": case(lambda x, y: torch.meshgrid(x, y, indexing="xy"), (3,), (2,)),
    "broadcast tensors": case(lambda x, y: torch.broadcast_tensors(x, y), (3, 1), (2,)),
    "rot90": case(lambda x: x.rot90(1, (1, 2)), SIGNAL),
    "rot90 twice": case(lambda x: x.rot90(2, (0, 2)), SIGNAL),
    "rot90 back": case(lambda x: x.rot90(-1, (0, 1)), SIGNAL),
    "roll": case(lambda x: x.roll((2, -1), (2, 1)), SIGNAL, border=True),
    "flip": case(lambda x: x.flip(0, 2), SIGNAL),
    "zero padding": case(lambda x: F.pad(x, (1, 2, 0, -1)), SIGNAL),
    "constant pad": case(lambda x: aten.constant_pad_nd(x, [1, 0, 2, 1]), SIGNAL),
    "reflection pad": case(lambda x: aten.reflection_pad1d(x, [2, 1]), SIGNAL, border=True),
    "replication pad": case(lambda x: aten.replication_pad1d(x, [2, 1]), SIGNAL, border=True),
    "reflecting pad": case(lambda x: F.pad(x, (2, 1), mode="reflect"), SIGNAL, border=True),
    "circular pad": case(lambda x: aten._pad_circular(x, [2, 1]), SIGNAL, border=True),
    "cat": case(lambda x, y: torch.cat([x, y, x], 1), (2, 3), (2, 2)),
    "cat with an empty vector": case(
        lambda x: torch.cat([torch.empty(0, dtype=x.dtype), x]), (2, 3)
    ),
    "stack": case(lambda x, y: torch.stack([x, y], 1), (2, 3), (2, 3)),
    "hstack": case(lambda x, y: torch.hstack([x, y]), (2, 3), (2, 1)),
    "vstack": case(lambda x, y: torch.vstack([x, y]), (2, 3), (1, 3)),
    "repeat": case(lambda x: x.repeat(2, 3, 2), (2, 1)),
    "tile": case(lambda x: x.tile(2), (2, 3)),
    "repeat interleave": case(lambda x: x.repeat_interleave(2, 1), (2, 3)),
    "repeat interleave of all": case(lambda x: x.repeat_interleave(3), (2, 3)),
    "pixel shuffle": case(lambda x: F.pixel_shuffle(x, 2), (2, 8, 2, 3)),
    "pixel unshuffle": case(lambda x: F.pixel_unshuffle(x, 2), (2, 2, 4, 6)),
    "channel shuffle": case(lambda x: F.channel_shuffle(x, 2), (2, 6, 2)),
    "im2col": case(lambda x: F.unfold(x, (2, 3), (1, 2), (1, 0), (2, 1)), (1, 2, 5, 7)),
    "col2im": case(lambda x: F.fold(x, (5, 6), (2, 3), 1, (1, 0), (2, 1)), (1, 12, 12)),
    "conv1d": case(lambda x, w: F.conv1d(x, w, None, 2, 1, 2), SIGNAL, (4, 3, 3), weights=(1,)),
    "conv2d in groups": case(
        lambda x, w: F.conv2d(x, w, None, (1, 2), (0, 1), groups=2),
        IMAGE,
        (6, 2, 2, 3),
        weights=(1,),
    ),
    "depthwise conv2d": case(
        lambda x, w: F.conv2d(x, w, None, groups=4), IMAGE, (8, 1, 2, 3), weights=(1,)
    ),
    "conv3d": case(lambda x, w: F.conv3d(x, w), VOLUME, (2, 2, 1, 2, 3), weights=(1,)),
    "same padding": case(
        lambda x, w: F.conv1d(x, w, padding="same"), SIGNAL, (2, 3, 5), weights=(1,)
    ),
    "conv of one sample": case(lambda x, w: F.conv1d(x, w), (3, 8), (4, 3, 3), weights=(1,)),
    "transposed conv1d": case(
        lambda x, w: F.conv_transpose1d(x, w, None, 3, 1, 1, 1, 2), SIGNAL, (3, 2, 2), weights=(1,)
    ),
    "transposed conv2d in groups": case(
        lambda x, w: F.conv_transpose2d(x, w, None, 2, groups=2), IMAGE, (4, 3, 3, 2), weights=(1,)
    ),
    "convolution": case(
        lambda x, w: aten.convolution(x, w, None, [2], [1], [1], False, [0], 1),
        SIGNAL,
        (4, 3, 3),
        weights=(1,),
    ),
    "transposed convolution": case(
        lambda x, w: aten.convolution(x, w, None, [2], [1], [1], True, [0], 1),
        SIGNAL,
        (3, 4, 3),
        weights=(1,),
    ),
    "max pool": case(lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE, may_be_less=True),
    "max pool with indices": case(
        lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE, may_be_less=True
    ),
    "mean pool": case(lambda x: F.avg_pool2d(x, (2, 3), (1, 2), (1, 0), ceil_mode=True), IMAGE),
    "mean pool with its own stride": case(lambda x: F.avg_pool1d(x, 2), SIGNAL),
    "adaptive pool": case(lambda x: F.adaptive_avg_pool2d(x, (3, 1)), IMAGE),
    "nearest": case(lambda x: F.interpolate(x, scale_factor=1.5), SIGNAL),
    "exactly nearest": case(lambda x: F.interpolate(x, size=11, mode="nearest-exact"), SIGNAL),
    "linear resize": case(lambda x: F.interpolate(x, scale_factor=2, mode="linear"), SIGNAL),
    "bilinear with aligned corners": case(
        lambda x: F.interpolate(x, size=(13, 3), mode="bilinear", align_corners=True), IMAGE
    ),
    "bicubic": case(
        lambda x: F.interpolate(x, size=(9, 12), mode="bicubic"), IMAGE, may_be_less=True
    ),
    "bilinear against aliasing": case(
        lambda x: F.interpolate(x, size=(2, 3), mode="bilinear", antialias=True), IMAGE
    ),
    "linear": case(lambda x, w: F.linear(x, w), SIGNAL, (5, 8), weights=(1,)),
    "matmul": case(lambda x, y: x @ y, (2, 1, 3, 4), (5, 4, 2)),
    "matmul of vectors": case(lambda x, y: aten.matmul(x, y), (4,), (4,)),
    "matmul with a vector": case(lambda x, y: aten.matmul(x, y), (2, 3, 4), (4,)),
    "mv": case(lambda x, y: x.mv(y), (3, 4), (4,)),
    "addmm": case(lambda b, x, y: torch.addmm(b, x, y), (2,), (3, 4), (4, 2)),
    "outer": case(lambda x, y: aten.outer(x, y), (3,), (2,)),
    "vecdot": case(lambda x, y: torch.linalg.vecdot(x, y, dim=1), SIGNAL, SIGNAL),
    "einsum": case(lambda x, y: torch.einsum("bik,jk->bji", x, y), (2, 3, 4), (5, 4)),
    "einsum that broadcasts": case(
        lambda x, y: torch.einsum("...ik,...jk->...ij", x[:1], y), SIGNAL, SIGNAL
    ),
    "einsum of many dimensions": case(lambda x, y: torch.einsum("...k,...k", x, y), SIGNAL, (3, 8)),
    "embedding": case(lambda w: F.embedding(picked([[1, 0]]), w), (3, 4), may_be_less=True),
    "sum over a dimension": case(lambda x: x.sum(1), SIGNAL),
    "sum with kept dimensions": case(lambda x: x.sum((0, -1), keepdim=True), SIGNAL),
    "mean": case(lambda x: x.mean(), SIGNAL),
    "prod": case(lambda x: x.prod(1), SIGNAL),
    "norm": case(lambda x: torch.linalg.vector_norm(x, dim=(1, 2)), SIGNAL),
    "largest over a dimension": case(lambda x: x.max(1), SIGNAL, may_be_less=True),
    "larger": case(lambda x, y: aten.max.other(x, y), SIGNAL, SIGNAL, may_be_less=True),
    "largest": case(lambda x: x.max(), SIGNAL, may_be_less=True),
    "cumsum": case(lambda x: x.cumsum(1), SIGNAL),
    "topk": case(lambda x: x.topk(2, 1), SIGNAL, may_be_less=True),
    "renorm": case(lambda x: x.renorm(2, 1, 0.1), SIGNAL),
    "msort": case(lambda x: x.msort(), SIGNAL, may_be_less=True),
    "index": case(lambda x: x[:, picked([0, 2])], SIGNAL, may_be_less=True),
    "index with a gap": case(
        lambda x: x[picked([0, 1]), :, picked([3, 5])], SIGNAL, may_be_less=True
    ),
    "index by matrices": case(
        lambda x: x[:, picked([[0, 1, 2]]), picked([[3], [5]])], SIGNAL, may_be_less=True
    ),
    "gather": case(
        lambda x: x.gather(1, torch.zeros(2, 2, 8, dtype=torch.long)), SIGNAL, may_be_less=True
    ),
    "take along a dimension": case(
        lambda x: torch.take_along_dim(x, torch.zeros(2, 2, 1, dtype=torch.long), 1),
        SIGNAL,
        may_be_less=True,
    ),
    "prelu": case(lambda x, w: F.prelu(x - 0.5, w), (2, 2, 3), (2,), may_be_less=True),
    "index select": case(lambda x: x.index_select(2, picked([1, 1])), SIGNAL, may_be_less=True),
    "index add": case(
        lambda x, y: x.index_add(2, picked([1, 4]), y), SIGNAL, (2, 3, 2), may_be_less=True
    ),
    "scatter": case(
        lambda x, y: x.scatter(1, torch.zeros(2, 3, 8, dtype=torch.long), y),
        SIGNAL,
        SIGNAL,
        may_be_less=True,
    ),
    "index put": case(
        lambda x, y: x.index_put((picked([1]),), y), (3, 2), (1, 2), may_be_less=True
    ),
    "attention": case(F.scaled_dot_product_attention, (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)),
    "attention with a mask": case(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (2, 3, 4),
        (2, 5, 4),
        (2, 5, 6),
        (3, 5),
    ),
    "attention of grouped queries": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        *((1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)),
        may_be_less=True,
    ),
    "causal attention": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *((2, 4, 3), (2, 5, 3), (2, 5, 6)),
        may_be_less=True,  # the first query has one key: its scores do not matter
    ),
    "fft": case(lambda x: torch.fft.fft(x, dim=1).real, SIGNAL),
    "real fft": case(lambda x: torch.fft.rfft(x).real, SIGNAL, may_be_less=True),
    "batch norm in evaluation": case(
        lambda x: F.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double()), SIGNAL
    ),
    "batch norm in training": case(lambda x: F.batch_norm(x, None, None, training=True), SIGNAL),
    "batch norm without statistics": case(
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 0.1)[0], SIGNAL
    ),
    "batch norm without training": case(
        lambda x: aten._native_batch_norm_legit_no_training(
            x, None, None, torch.zeros(3).double(), torch.ones(3).double(), 0.1, 0.1
        )[0],
        SIGNAL,
    ),
    "layer norm": case(lambda x: F.layer_norm(x, (3, 8)), SIGNAL),
    "rms norm": case(lambda x: F.rms_norm(x, (8,)), SIGNAL),
    "group norm": case(lambda x: F.group_norm(x, 2), (2, 4, 3)),
    "instance norm": case(lambda x: F.instance_norm(x), SIGNAL),
    "loss without reduction": case(lambda x, y: F.mse_loss(x, y, reduction="none"), SIGNAL, SIGNAL),
    "loss": case(lambda x, y: F.mse_loss(x, y), SIGNAL, SIGNAL),
    "lstm": case(nn.LSTM(3, 2).double(), (5, 2, 3)),
    "gru, the batch first": case(nn.GRU(3, 2, batch_first=True).double(), (2, 5, 3)),
    "gru in both directions": case(
        nn.GRU(3, 2, bidirectional=True).double(), (4, 2, 3), may_be_less=True
    ),
    "lstm cell": case(nn.LSTMCell(3, 2).double(), (2, 3)),
}


class Calls(nn.Module):
    """A module that runs a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Tensor) -> Any:
        return self.function(*operands)


def operands_of(each: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()
        for shape in each.shapes
    ]


Elements = dict[Index, frozenset[tuple[int, Index]]]


@pytest.mark.slow
@pytest.mark.few(60)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("name", CASES)
def test_a_result_depends_on_what_it_looks_at(name: str) -> None:
    each = CASES[name]
    operands = operands_of(each)
    trace = record(Calls(each.call), args=operands, execute="real")
    results = each.call(*operands)
    results = tensors_in(results)
    looked_at = _followed(trace, len(operands))
    for result, index in zip(results, trace.root.outputs, strict=True):
        if result.requires_grad and index in looked_at:
            for place in _places(result.shape):
                _compare(each, looked_at[index][place], _depends_on(result[place], operands))
            if each.border:  # inside, each element is looked at by some result
                middle = math.prod(operands[0].shape) // 2
                assert len(frozenset[Any]().union(*looked_at[index].values())) >= middle


def _compare(each: Case, said: frozenset[tuple[int, Index]], true: set[tuple[int, Index]]) -> None:
    if each.border:
        assert said <= true
        return
    assert true <= said
    if not each.may_be_less:
        assert true >= {(number, place) for number, place in said if number not in each.weights}


def _depends_on(result: Tensor, operands: Sequence[Tensor]) -> set[tuple[int, Index]]:
    gradients = torch.autograd.grad(result, operands, retain_graph=True, allow_unused=True)
    return {
        (number, tuple(place))
        for number, gradient in enumerate(gradients)
        if gradient is not None
        for place in gradient.nonzero().tolist()
    }


def _followed(trace: torchscan.types.Trace, count: int) -> dict[int, Elements]:
    """Of each tensor and element of it, all elements of the inputs that it was made from, by the rules alone."""
    inputs = [
        index
        for index, tensor in enumerate(trace.tensors)
        if tensor.kind == "input" and tensor.producer is None
    ]
    assert len(inputs) == count
    known: dict[int, Elements] = {}
    for number, index in enumerate(inputs):
        known[index] = {
            place: frozenset({(number, place)})
            for place in _places(trace.tensors[index].spec.shape)
        }
    for op in trace.ops:
        rule = registry.windows(op.signature)
        if known.keys().isdisjoint(op.inputs):
            continue
        assert rule is not None, f"no rule for {op.signature.op}"
        for position, (index, spec) in enumerate(
            zip(op.outputs, op.signature.outputs, strict=True)
        ):
            looks = _looks_of(rule, position, op)
            known[index] = {
                place: _seen(op, looks, place, spec.shape, known) for place in _places(spec.shape)
            }
    return known


def _looks_of(rule: Looks | EachOutput, position: int, op: OpCall) -> Looks:
    if isinstance(rule, EachOutput):
        return rule.looks[position]
    return rule if op.signature.outputs[position].shape == op.signature.outputs[0].shape else ()


def _seen(
    op: OpCall, looks: Looks, place: Index, shape: Index, known: dict[int, Elements]
) -> frozenset[tuple[int, Index]]:
    found: set[tuple[int, Index]] = set()
    for position, (index, spec) in enumerate(zip(op.inputs, op.signature.inputs, strict=False)):
        if index in known:
            for source in _sources(
                looks[position] if position < len(looks) else None, place, spec.shape
            ):
                found |= known[index][source]
    return frozenset(found)


def _sources(ways: Ways, place: Index, shape: Index) -> set[Index]:
    """The elements of an operand that one element of the result looks at."""
    if ways is None:
        return set(_places(shape))
    return {source for way in ways for source in _along(way, place, shape)}


def _along(way: Way, place: Index, shape: Index) -> set[Index]:
    shapes = [shape]
    for step in way.steps:
        shapes.append(shape_after(shapes[-1], step))
    places = {place}
    for step, before in zip(reversed(way.steps), reversed(shapes[:-1]), strict=True):
        sources = (source for each in places for source in _before(step, each, before))
        places = {
            each
            for each in sources
            if all(0 <= at < size for at, size in zip(each, before, strict=True))
        }
    return places


def _before(step: Look | Reshape | Unfold | Piece, place: Index, shape: Index) -> Iterator[Index]:
    if isinstance(step, Piece):
        if step.start <= place[step.dim] < step.stop:
            yield (*place[: step.dim], place[step.dim] - step.start, *place[step.dim + 1 :])
    elif isinstance(step, Unfold):
        *rest, tap = place
        rest[step.dim] = step.step * rest[step.dim] + step.spacing * tap
        yield tuple(rest)
    elif isinstance(step, Reshape):
        yield _unravelled(_ravelled(place, step.shape), shape)
    else:
        yield from itertools.product(
            *(_read(how, place, size) for how, size in zip(step.dims, shape, strict=True))
        )


def _read(how: object, place: Index, size: int) -> Sequence[int]:
    if isinstance(how, At):
        return (how.index,)
    if isinstance(how, Along):
        blocks, phase = divmod(place[how.dim], len(how.taps.table))
        return [tap + blocks * how.taps.rise for tap in how.taps.table[phase]]
    if isinstance(how, UpTo):
        return range(min(place[how.dim] + 1, size))
    return range(size)


def _ravelled(place: Index, shape: Index) -> int:
    flat = 0
    for at, size in zip(place, shape, strict=True):
        flat = flat * size + at
    return flat


def _unravelled(flat: int, shape: Index) -> Index:
    place: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        place.append(at)
    return tuple(reversed(place))


def _places(shape: Sequence[int]) -> Iterator[Index]:
    return itertools.product(*map(range, shape))


def test_a_meshgrid_by_columns_reads_its_first_operand_along_the_second_dimension() -> None:
    """In row 1 and column 2 are element 2 of the first operand, and element 1 of the second."""
    operands = [torch.rand(3), torch.rand(2)]
    trace = record(Calls(lambda x, y: torch.meshgrid(x, y, indexing="xy")), args=operands)
    looked_at = _followed(trace, 2)
    first, second = (looked_at[index] for index in trace.root.outputs)
    assert first[1, 2] == {(0, (2,))}
    assert second[1, 2] == {(1, (1,))}


def test_a_row_that_is_taken_along_many_is_read_at_its_only_place() -> None:
    """Means over 8 rows are a single row, so each of 5 results sees these 8, in any column."""
    columns = torch.zeros(1, 3, 5, 2, dtype=torch.long, device="meta")

    def take(x: Tensor) -> Tensor:
        return torch.take_along_dim(F.avg_pool2d(x, (8, 1)), columns, 3)

    height, width = receptive_field(Calls(take), (3, 8, 8)).output.axes
    assert (height.status, height.size) == ("local", 8)
    assert width.status == "global"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_every_rule_of_ours_for_torchs_operators_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: set[object] = set()
    apply = formula_calls.apply_formula

    def noting(rule: Callable[..., Any], signature: torchscan.types.OpSignature) -> Any:
        used.add(rule.__code__)
        return apply(rule, signature)

    for each in CASES.values():
        trace = record(Calls(each.call), args=operands_of(each), execute="real")
        monkeypatch.setattr(registry, "apply_formula", noting)
        for op in trace.ops:
            registry.windows(op.signature)
        monkeypatch.undo()
    rules = {
        rule.__code__
        for name, rule in registry._window_rules.items()
        if "torchscan.ops" in rule.__module__ and "aten" in name
    }
    assert sorted(code.co_qualname for code in rules - used) == []


def test_every_rule_fits_the_schema_of_every_overload_that_it_is_for() -> None:
    for name, rule in registry._window_rules.items():
        namespace, packet, *overload = name.split(".")
        operator = getattr(getattr(torch.ops, namespace), packet, None)
        if namespace != "aten" or operator is None:
            continue
        for each in overload or operator.overloads():
            arguments = getattr(operator, each)._schema.arguments
            for position, parameter in enumerate(inspect.signature(rule).parameters.values()):
                if (
                    parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                    and parameter.default is parameter.empty
                ):
                    assert position < len(arguments), (name, each, parameter.name)


def test_a_rule_that_fails_is_no_rule() -> None:
    @window_of("torchscan_tests::failing")
    def failing(x: torchscan.types.TensorSpec, *, out: torchscan.types.TensorSpec) -> Looks:
        raise ZeroDivisionError

    with torch.library._scoped_library("torchscan_tests", "FRAGMENT") as library:
        library.define("failing(Tensor x) -> Tensor")
        library.impl("failing", torch.clone, "CompositeExplicitAutograd")
        with pytest.warns(
            UserWarning, match="window rule .*failing failed on torchscan_tests.failing"
        ):
            field = receptive_field(Calls(torch.ops.torchscan_tests.failing), (1, 9))
    assert field.output.rf == "global"
    assert field.output.axes[0].reasons[0].operator == "torchscan_tests.failing"


def test_a_second_rule_is_an_error_unless_it_is_meant() -> None:
    @window_of("torchscan_tests::twice")
    def once(*, out: torchscan.types.TensorSpec) -> Looks:
        return ()

    with pytest.raises(ValueError, match="already has a window rule"):
        window_of("torchscan_tests::twice")(once)
    assert window_of("torchscan_tests::twice", replace=True)(once) is once
