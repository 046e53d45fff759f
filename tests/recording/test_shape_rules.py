"""Shapes, strides and types that torchscan works out by itself are those that the operators have on data, in any layout."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.versions import skip_before
from torchscan import RecordError, Scan, record
from torchscan.recording.execution import meta_calls
from torchscan.recording.execution.shape_rules import SHAPE_RULES
from torchscan.recording.request import Execute
from torchscan.types import Trace

F = nn.functional
Drawn = tuple[tuple[Any, ...], Callable[..., Tensor]]


class Applied(nn.Module):
    """One function of its arguments."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Tensor:
        """What it returns."""
        return self.function(*args)


def _laid_out(shape: tuple[int, ...], draw: random.Random) -> Tensor:
    """Plain, every other element of a larger one, swapped or stretched. Its values are unknown on shapes alone."""
    how = draw.choice(
        ["plain", "plain", "plain", "swapped", "sliced", "stretched", "channels last"]
    )
    if how == "swapped" and len(shape) > 1:
        one, other = draw.sample(range(len(shape)), 2)
        turned = list(shape)
        turned[one], turned[other] = turned[other], turned[one]
        made = torch.rand(turned).transpose(one, other)
    elif how == "sliced":
        made = torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2]
    elif how == "stretched":
        made = torch.rand(1, *shape[1:]).expand(shape)
    elif how == "channels last" and len(shape) == 4:
        made = torch.rand(shape).contiguous(memory_format=torch.channels_last)
    else:
        made = torch.rand(shape)
    return made.requires_grad_()


def _size(draw: random.Random) -> int:
    return draw.choice([1, 1, 2, 3, 5])


def _images(draw: random.Random, channels: int = 0) -> Tensor:
    return _laid_out(
        (_size(draw), channels or _size(draw), draw.choice([1, 6, 7]), draw.choice([1, 7, 8])), draw
    )


def _convolution(draw: random.Random) -> Drawn:
    groups = draw.choice([1, 1, 2])
    inside, outside, kernel = groups * _size(draw), groups * _size(draw), draw.choice([1, 3])
    options: tuple[Any, ...] = (
        draw.choice([1, 2, (2, 1)]),
        draw.choice([1, 2, (2, 3)]),
        draw.choice([1, 2]),
        groups,
    )
    weight, bias = (
        _laid_out((outside, inside // groups, kernel, kernel), draw),
        torch.rand(outside) if draw.random() < 0.5 else None,
    )
    images = _images(draw, inside)
    if min(images.shape[2:]) + 2 < 2 * kernel:
        kernel, weight = 1, _laid_out((outside, inside // groups, 1, 1), draw)
    return (images, weight), lambda x, w: F.conv2d(x, w, bias, *options)


def _cat(draw: random.Random) -> Drawn:
    shape, dim = tuple(_size(draw) for _ in range(draw.choice([1, 3, 4]))), draw.choice([0, -1])
    others = [list(shape) for _ in range(draw.choice([1, 2]))]
    for each in others:
        each[dim] = _size(draw)
    return (
        _laid_out(shape, draw),
        *(_laid_out(tuple(each), draw) for each in others),
    ), lambda *each: torch.cat(each, dim)


def _pool(draw: random.Random) -> Drawn:
    size: Any = draw.choice([1, 2, (1, 3)])
    return (_images(draw),), lambda x: F.adaptive_avg_pool2d(x, size)


def _broadcast(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([1, 2, 4])))
    narrow = tuple(draw.choice([1, each]) for each in shape)[draw.randrange(len(shape)) :]
    operands = [_laid_out(shape, draw), _laid_out(narrow, draw)]
    draw.shuffle(operands)
    functions: list[Callable[..., Tensor]] = [torch.add, torch.sub, torch.mul, torch.div]
    return tuple(operands), draw.choice(functions)


def _each_element(draw: random.Random) -> Drawn:
    functions: list[Callable[..., Tensor]] = [
        torch.neg,
        torch.cos,
        torch.rsqrt,
        torch.sigmoid,
        F.gelu,
        F.silu,
        torch.relu,
        lambda x: torch.roll(x.contiguous(), 1, -1),
    ]
    return (
        _laid_out(tuple(_size(draw) for _ in range(draw.choice([1, 2, 4]))), draw),
    ), draw.choice(functions)


def _same_type(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([1, 2, 4])))
    dim = draw.randrange(len(shape))
    functions: list[Callable[..., Tensor]] = [
        lambda x: x**2,
        lambda x: x.softmax(dim),
        lambda x: x > 0.5,
        lambda x: x == 1,
    ]
    return (_laid_out(shape, draw),), draw.choice(functions)


def _pooled(draw: random.Random) -> Drawn:
    kernel: Any = draw.choice([1, 2, 3, (1, 2)])
    options: dict[str, Any] = {
        "stride": draw.choice([None, 1, 2]),
        "ceil_mode": draw.random() < 0.2,
    }
    functions: list[Callable[..., Tensor]] = [F.max_pool2d, F.avg_pool2d]
    function = draw.choice(functions)
    images = _laid_out((_size(draw), _size(draw), draw.choice([6, 7]), draw.choice([7, 8])), draw)
    return (images,), lambda x: function(x, kernel, **options)


def _picked(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([1, 2, 3])))
    places = torch.zeros([_size(draw) for _ in range(draw.choice([1, 2]))], dtype=torch.long)
    return (_laid_out(shape, draw),), lambda x: x[places]


def _product(draw: random.Random) -> Drawn:
    batch = [_size(draw) for _ in range(draw.choice([0, 1, 2]))]
    left, inner, right = (_size(draw) for _ in range(3))
    operands = (_laid_out((*batch, left, inner), draw), _laid_out((*batch, inner, right), draw))
    return operands, torch.matmul


def _recurrent(draw: random.Random) -> Drawn:
    width, size = _size(draw), draw.choice([2, 3])
    options: dict[str, Any] = {
        name: draw.random() < 0.5 for name in ("bias", "batch_first", "bidirectional")
    }
    kinds: list[Callable[..., nn.Module]] = [
        nn.RNN,
        nn.GRU,
        nn.LSTM,
        lambda *of, **how: nn.LSTM(*of, **how, proj_size=1),
    ]
    layers = draw.choice(kinds)(width, size, draw.choice([1, 2]), **options)
    return (_laid_out((_size(draw), _size(draw), width), draw),), layers


def _filled(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([1, 2, 4])))
    mask = torch.zeros(
        tuple(draw.choice([1, each]) for each in shape)[draw.randrange(len(shape)) :],
        dtype=torch.bool,
    )
    return (_laid_out(shape, draw),), lambda x: x.masked_fill(mask, 1.0)


def _sum(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([1, 2, 4])))
    dims, keepdim = (
        draw.sample(range(len(shape)), draw.randrange(len(shape)) + 1),
        draw.random() < 0.5,
    )
    functions: list[Callable[..., Tensor]] = [
        lambda x: x.sum(dims, keepdim),
        lambda x: x.mean(dims, keepdim),
        torch.sum,
        torch.ones_like,
    ]
    return (_laid_out(shape, draw),), draw.choice(functions)


def _view(draw: random.Random) -> Drawn:
    functions: list[Callable[..., Tensor]] = [
        lambda x: x[:, 1:],
        lambda x: x.permute(3, 0, 2, 1),
        lambda x: x.unsqueeze(1),
        lambda x: x[..., -1],
    ]
    function = draw.choice(functions)
    return (_images(draw),), lambda x: function(function(x.permute(0, 2, 3, 1)[..., None, -1]))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize(
    "kind",
    [
        _convolution,
        _cat,
        _pool,
        _pooled,
        _broadcast,
        _each_element,
        _same_type,
        _filled,
        _picked,
        _product,
        _recurrent,
        _sum,
        _view,
    ],
)
def test_as_on_data(kind: Callable[[random.Random], Drawn], number: int) -> None:
    if kind is _picked:
        skip_before("2.7", "strides of what is picked differ on shapes")
    args, function = kind(random.Random(number))  # noqa: S311
    abstract, real = (
        record(Applied(function), args=args, execute=way) for way in ("abstract", "real")
    )
    assert _outputs(abstract) == _outputs(real)


class Usual(nn.Module):
    """Images, tokens, recurrence, attention and norms, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1)),
            nn.Flatten(),
        )
        self.tokens = nn.Embedding(10, 8)
        self.recurrence = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss."""
        hidden, _ = self.recurrence(self.images(images)[:, None] + self.tokens(tokens))
        hidden = self.attention(hidden)
        hidden = self.norm(hidden * hidden.sigmoid()) - hidden.mean(1, keepdim=True)
        scores: Tensor = self.head(hidden)
        return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def test_rules_answer_for_the_operators_of_usual_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch, which is slow, need not be asked for any shape that a rule is there for."""
    answers: dict[str, bool] = {}

    def noting(operator: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            found = rule(*args, **kwargs)
            answers[str(operator)] = answers.get(str(operator), True) and found is not None
            return found

        return answer

    rules = {operator: noting(operator, rule) for operator, rule in SHAPE_RULES.items()}
    monkeypatch.setattr(meta_calls, "SHAPE_RULES", rules)
    given = {"images": torch.rand(2, 3, 8, 8), "tokens": torch.zeros(2, 4, dtype=torch.long)}
    _ = Scan(Usual(), kwargs=given, training=True, optimizer="AdamW", device="H100").steps
    assert {"aten.add.Tensor", "aten.convolution.default", "aten.mm.default"} <= answers.keys()
    assert [operator for operator, has_answered in answers.items() if not has_answered] == []


MAP = torch.rand(2, 3, 8, 8)
REFUSED: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "a mask of integers": ((MAP,), lambda x: x.masked_fill((x[0] > 0).long(), 0.0)),
    "filled with a complex number": ((MAP,), lambda x: x.masked_fill(x > 0, 1j)),
    "rolled along a dimension that is not there": ((MAP,), lambda x: torch.roll(x, 1, 7)),
    "rolled by more numbers than dimensions": ((MAP,), lambda x: torch.roll(x, (1, 2), (0,))),
    "a complex factor": ((MAP,), lambda x: torch.add(x, x, alpha=1j)),
    "an image convolved along three axes": ((MAP, torch.rand(4, 3, 3, 3)), F.conv3d),
    "a volume convolved along two": ((MAP[..., None], torch.rand(4, 3, 3, 3, 1)), F.conv2d),
    "a sequence convolved along two": ((MAP[..., 0], torch.rand(4, 3, 3)), F.conv2d),
    "a window without places": ((MAP,), lambda x: F.max_pool2d(x, 0, 1)),
    "an average over none": ((MAP,), lambda x: F.avg_pool2d(x, 0, 1)),
    "a sequence without steps": ((torch.rand(0, 3, 4),), nn.LSTM(4, 5)),
}


@pytest.mark.parametrize("how", ["abstract", "real"])
@pytest.mark.parametrize("what", REFUSED)
def test_refused_as_on_data(what: str, how: Execute) -> None:
    args, function = REFUSED[what]
    with pytest.raises(RecordError):
        record(Applied(function), args=args, execute=how)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_many_integers_are_filled_as_on_data(dtype: torch.dtype) -> None:
    args = (torch.ones(3, 200, 200, dtype=dtype), torch.rand(200))
    abstract, real = (
        record(Applied(lambda x, y: x.masked_fill(y > 0.5, 1)), args=args, execute=how)
        for how in ("abstract", "real")
    )
    assert _outputs(abstract) == _outputs(real)


@pytest.mark.parametrize("empty", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize(
    "other", [torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.bool]
)
def test_types_of_empty_lists_count(empty: torch.dtype, other: torch.dtype) -> None:
    args = (torch.ones(3, 5, dtype=other),)
    made = [
        record(
            Applied(lambda x: torch.cat([torch.tensor([], dtype=empty), x])), args=args, execute=how
        )
        for how in ("abstract", "real")
    ]
    assert _outputs(made[0]) == _outputs(made[1])


def _norm(draw: random.Random) -> Drawn:
    shape = tuple(draw.choice([2, 3, 5]) for _ in range(4))
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm2d(shape[1]),
        lambda: nn.LayerNorm(shape[2:]),
        lambda: nn.LayerNorm(shape[-1], bias=False),
        lambda: nn.GroupNorm(1, shape[1]),
    ]
    return (_laid_out(shape, draw),), draw.choice(kinds)()


def _activation(draw: random.Random) -> Drawn:
    shape = tuple(_size(draw) for _ in range(draw.choice([2, 4])))
    kinds: list[Callable[..., Tensor]] = [
        F.relu,
        F.gelu,
        F.silu,
        F.hardswish,
        F.hardsigmoid,
        lambda x: x[0] / 2,
        lambda x: x[:, -1:],
    ]
    kinds += [
        lambda x: x.softmax(0),
        lambda x: x.log_softmax(-1),
        lambda x: torch.stack([x, 2 * x], 1),
    ]
    return (_laid_out(shape, draw),), draw.choice(kinds)


def _attention(draw: random.Random) -> Drawn:
    batch, length, heads, size = (draw.choice([2, 4]) for _ in range(4))
    operands = [
        torch.rand(batch, length, heads, size).transpose(1, 2).requires_grad_() for _ in range(3)
    ]
    return tuple(operands), F.scaled_dot_product_attention


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize(
    "kind", [_convolution, _pool, _pooled, _product, _norm, _activation, _attention]
)
def test_gradients_as_on_data(kind: Callable[[random.Random], Drawn], number: int) -> None:
    args, function = kind(random.Random(number))  # noqa: S311
    options: dict[str, Any] = {"args": args, "training": True}
    abstract, real = (
        record(Applied(function), **options, execute=way) for way in ("abstract", "real")
    )
    assert _produced_by_op(abstract) == _produced_by_op(real)


def _produced_by_op(trace: Trace) -> list[Any]:
    """What each operator made."""
    return [
        (
            op.signature.operator,
            [(each.shape, each.stride, each.dtype) for each in op.signature.outputs],
        )
        for op in trace.ops
    ]


def _outputs(trace: Trace) -> list[Any]:
    """Along a dimension of one element any stride is right."""
    specs = [trace.tensors[index].spec for index in trace.root.outputs]
    steps = [
        [step for size, step in zip(spec.shape, spec.stride, strict=True) if size > 1]
        for spec in specs
    ]
    return [(spec.shape, spec.dtype, step) for spec, step in zip(specs, steps, strict=True)]
