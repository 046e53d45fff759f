"""Models with a fault in a known place: a value that is not finite is made there first, forward or backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls

Model = Callable[[], nn.Module]


def _train(model: nn.Module, *inputs: Any) -> None:
    result = model(*inputs)
    (result[0] if isinstance(result, tuple) else result).float().square().mean().backward()


@dataclass(kw_only=True)
class Fault:
    """Where the first bad value is made, and how the step is run."""

    model: Model
    inputs: Callable[[], tuple[Any, ...]] = field(default=lambda: (torch.rand(2, 4) + 0.5,))
    path: str
    phase: str = "forward"
    #: part of the operator's name; None: it is not known
    operator: str | None = ""
    what: str = "NaN"
    invocation: int = 0
    #: names of parameters and buffers that are to blame
    weights: tuple[str, ...] = ()
    run: Callable[..., Any] = _train


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class MyLog(torch.autograd.Function):
    """Its gradient is wrong at zero, where the result is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.log1p(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] / (x - x)


def _linear(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(one, two) for one, two in itertools.pairwise(sizes)))


def _between(function: Callable[[Tensor], Tensor], before: int = 4, after: int = 4) -> Model:
    """``function``, as module 1, between two layers."""
    return lambda: nn.Sequential(nn.Linear(4, before), Of(function), nn.Linear(after, 2))


def _poisoned(make: Model, name: str, value: float = math.nan, *, index: int = 0) -> Model:
    """With one value of a parameter or buffer replaced."""

    def made() -> nn.Module:
        model = make()
        tensor: Tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
        with torch.no_grad():
            tensor.view(-1)[index] = value
        return model

    return made


def _with(model: nn.Module, **values: float) -> nn.Module:
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).fill_(value)
    return model


def _scaled(forward: Callable[..., Tensor]) -> Model:
    """With a parameter below 0."""
    return lambda: _with(
        Calls(forward, scale=nn.Linear(4, 1, bias=False)), **{"scale.weight": -1.0}
    )


def _zeros(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.zeros(shape),)


def _of(*values: float) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.tensor([values]),)


def _convolutional() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def _image() -> tuple[Tensor]:
    return (torch.rand(2, 3, 8, 8),)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
        2,
        enable_nested_tensor=False,
    )


def _sequence() -> tuple[Tensor]:
    return (torch.rand(2, 3, 8),)


class Attention(nn.Module):
    """Written by hand, with a softmax of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.softmax, self.out = nn.Linear(4, 12), nn.Softmax(-1), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 0.5) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) * scale
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        return self.out(self.softmax(scores) @ value)


def _masked(rows: slice) -> Callable[[], tuple[Tensor, Tensor]]:
    def inputs() -> tuple[Tensor, Tensor]:
        mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
        mask[rows] = True
        return torch.rand(2, 3, 4), mask

    return inputs


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module, *, use_reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.block, self.last, self.use_reentrant = (
            nn.Linear(4, 4),
            block,
            nn.Linear(4, 2),
            use_reentrant,
        )

    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.use_reentrant))


def _evaluated(model: nn.Module, *inputs: Any) -> None:
    with torch.no_grad():
        model.eval()(*inputs)


def _inferred(model: nn.Module, *inputs: Any) -> None:
    with torch.inference_mode():
        model.eval()(*inputs)


def _in_bf16(model: nn.Module, *inputs: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        result = model(*inputs)
    result.float().square().mean().backward()


def _step(lr: float, times: int = 1) -> Callable[..., None]:
    def run(model: nn.Module, *inputs: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(times):
            optimizer.zero_grad()
            _train(model, *inputs)
            optimizer.step()

    return run


def _loss(function: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    return lambda model, *inputs: function(model(*inputs)).backward()


def _summed_twice(self: Any, x: Tensor) -> Tensor:
    """Two gradients of 3e38 meet at the result of ``a``, and their sum is too large."""
    y = self.a(x)
    return torch.cat([self.b(y), self.c(y)])


class Scaled(nn.Module):
    """Multiplies the gradient, not the value."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Any:
        return _Scale.apply(x, self.scale)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None


def _residual(self: Any, x: Tensor) -> Tensor:
    x = self.first(x)
    x = x / (x.detach() - x.detach())  # 1 / 0 here, between two modules
    return self.last(x)


def _in_place(self: Any, x: Tensor) -> Tensor:
    y = self.first(x)
    y.sub_(1e9).log_()
    return self.last(y)


def _keywords(self: Any, x: Tensor) -> Tensor:
    return self.last(x=self.first(input=x).sub(1e9).sqrt())


def _dict(self: Any, x: Tensor) -> Tensor:
    return self.head(self.inner(x)["hidden"])


def _recursive(self: Any, x: Tensor, depth: int = 2) -> Any:
    return self(self.linear(x), depth - 1) if depth else self.log(x - 1e6)


def _shared(self: Any, x: Tensor) -> Tensor:
    """The second call of the same module is the one."""
    return self.log(self.log(x + 3) - 1e3)


def _hidden(self: Any, x: Tensor) -> Tensor:
    """What ``log`` makes is replaced before anybody returns it."""
    return torch.nan_to_num(self.log(self.first(x) - 1e6))


def _causal_but_one(size: int) -> Tensor:
    mask = torch.full((size, size), -math.inf).triu(1)
    mask[1] = -math.inf
    return mask


def _with_bias(self: Any, x: Tensor) -> Tensor:
    x = self.first(x)
    return self.softmax(x @ x.transpose(-1, -2) + self.mask(x.shape[1])) @ x


def _embedded(self: Any, tokens: Tensor) -> Tensor:
    return self.head(self.table(tokens))


def _loop(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x) * 1e19
    return self.head(x)


def _variance(self: Any, x: Tensor) -> Tensor:
    """The standard deviation of one value, of which there is none."""
    return self.head((self.first(x) - 1) / self.first(x)[:1].std(0))


def _distance(self: Any, x: Tensor) -> Tensor:
    """The norm of zero has no gradient if it is written like this."""
    y = self.first(x)
    return self.root((y - y).square().sum(-1))


def _mixture(self: Any, x: Tensor) -> Tensor:
    gates = self.gate(x).softmax(-1)
    gates = gates * (gates > 2)
    return self.expert(x) * self.norm(gates)[:, :1]


LSTM: Model = lambda: nn.LSTM(4, 4, batch_first=True)  # noqa: E731 - a table of models
GRU: Model = lambda: nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True))  # noqa: E731
_STEPS: Callable[[], tuple[Tensor]] = lambda: (torch.rand(2, 3, 4),)  # noqa: E731

FAULTS: dict[str, Fault] = {
    # weights
    "NaN in a weight": Fault(model=_poisoned(lambda: _linear(4, 4, 4, 2), "1.weight"), path="1", weights=("weight",)),
    "root of a parameter": Fault(model=_scaled(lambda self, x: torch.sqrt(self.scale.weight) * x), path="", operator="sqrt"),
    "logarithm of a view of a parameter": Fault(
        model=_scaled(lambda self, x: x @ torch.log(self.scale.weight.t())), path="", operator="log"
    ),
    "Inf in a bias": Fault(
        model=_poisoned(lambda: _linear(4, 4, 2), "0.bias", math.inf), path="0", what="Inf", weights=("bias",)
    ),
    "NaN in a convolution": Fault(
        model=_poisoned(_convolutional, "1.0.weight"), inputs=_image, path="1.0", operator="conv", weights=("weight",)
    ),
    "NaN in an embedding": Fault(
        model=_poisoned(lambda: Calls(_embedded, table=nn.Embedding(5, 4), head=nn.Linear(4, 2)), "table.weight", index=8),
        inputs=lambda: (torch.tensor([[1, 2]]),),
        path="table",
        operator="embedding",
        weights=("weight",),
    ),
    "NaN in recurrent weights": Fault(
        model=_poisoned(GRU, "1.weight_hh_l0"), inputs=_STEPS, path="1", operator="", weights=("weight_hh_l0",)
    ),
    "NaN in a norm's scale": Fault(
        model=_poisoned(lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "1.weight"), path="1", weights=("weight",)
    ),
    "NaN in an attention's projection": Fault(
        model=_poisoned(_encoder, "layers.1.self_attn.in_proj_weight", index=-1),  # of the values: kernels hide NaN in scores
        inputs=_sequence,
        path="layers.1.self_attn",
        weights=("in_proj_weight",),
    ),
    "NaN in a feed-forward layer": Fault(
        model=_poisoned(_encoder, "layers.0.linear2.weight"), inputs=_sequence, path="layers.0.linear2", weights=("weight",)
    ),
    # statistics
    "negative running variance": Fault(
        model=_poisoned(_convolutional, "1.1.running_var", -1.0),
        inputs=_image,
        path="1.1",
        operator="batch_norm",
        run=_evaluated,
    ),
    "NaN in running statistics": Fault(
        model=_poisoned(_convolutional, "1.1.running_mean"),
        inputs=_image,
        path="1.1",
        operator="batch_norm",
        weights=("running_mean",),
        run=_evaluated,
    ),
    "running statistics spoiled by a step": Fault(
        model=_poisoned(_convolutional, "1.1.running_var"), inputs=_image, path="1.1", phase="update", operator=None,
        weights=("running_var",),
    ),
    "a standard deviation of one value": Fault(
        model=lambda: Calls(_variance, first=nn.Linear(4, 4), head=nn.Linear(4, 2)), path="", operator="std"
    ),
    "a norm without epsilon, of zero": Fault(
        model=lambda: nn.Sequential(nn.LayerNorm(4, eps=0.0), nn.Linear(4, 2)), inputs=_zeros(2, 4), path="0"
    ),
    # domains
    "log of 0": Fault(model=_between(lambda x: torch.log(x - x)), path="1", operator="log", what="Inf"),
    "log of less than 0": Fault(model=_between(lambda x: torch.log(x - 1e6)), path="1", operator="log"),
    "root of less than 0": Fault(model=_between(lambda x: torch.sqrt(x - 1e6)), path="1", operator="sqrt"),
    "0 / 0": Fault(model=_between(lambda x: (x - x) / (x - x)), path="1", operator="div"),
    "1 / 0": Fault(model=_between(lambda x: 1 / (x - x)), path="1", operator="reciprocal", what="Inf"),
    "arcsine of more than 1": Fault(model=_between(lambda x: torch.asin(x + 1e6)), path="1", operator="asin"),
    "power of less than 0": Fault(model=_between(lambda x: (x - 1e6) ** 0.5), path="1", operator="pow"),
    "Inf less Inf": Fault(model=_between(lambda x: torch.exp(x + 1e4) - torch.exp(x + 1e4)), path="1", operator="exp"),
    "cosine of an infinite angle": Fault(model=_between(lambda x: torch.cos(x * 1e38 * 10 * 1e6)), path="1", operator="mul"),
    "normalised vector of zeros": Fault(
        model=lambda: nn.Sequential(Of(lambda x: x / x.norm(dim=-1, keepdim=True)), nn.Linear(4, 2)),
        inputs=_zeros(2, 4),
        path="0",
        operator="div",
    ),
    "gates that are all 0": Fault(
        model=lambda: Calls(
            _mixture, gate=nn.Linear(4, 3), expert=nn.Linear(4, 4), norm=Of(lambda g: g / g.sum(-1, keepdim=True))
        ),
        path="norm",
        operator="div",
    ),
    "mean of nothing": Fault(model=_between(lambda x: x + x[x > 1e9].mean()), path="1", operator="mean"),
    # overflows
    "overflow of half precision": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), Of(lambda x: (x.detach() * 0 + 300).half() ** 2), Of(Tensor.float)),
        path="1",
        operator="pow",
        what="Inf",
        run=_evaluated,
    ),
    "overflow of exp": Fault(model=_between(lambda x: torch.exp(x + 100)), path="1", operator="exp", what="Inf"),
    "overflow in a product": Fault(
        model=lambda: nn.Sequential(_with(nn.Linear(4, 4), weight=3e38), nn.Linear(4, 2)), path="0", what="Inf",
        inputs=_of(1e3, 1e3, 1e3, 1e3),
    ),
    "growth over layers": Fault(
        model=lambda: Calls(_loop, layers=nn.ModuleList(nn.Identity() for _ in range(4)), head=nn.Linear(4, 2)),
        path="",
        operator="mul",
        what="Inf",
    ),
    "overflow in bf16, under autocast": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), Of(lambda x: x * 0 + 3.3e38), Of(lambda x: x * 2), nn.Linear(4, 2)),
        path="2",
        operator="mul",
        what="Inf",
        run=_in_bf16,
    ),
    # attention
    "softmax of nothing but -inf": Fault(model=Attention, inputs=_masked(slice(0, 1)), path="softmax", operator="softmax"),
    "a mask made by a module": Fault(
        model=lambda: Calls(_with_bias, mask=Of(_causal_but_one), first=nn.Linear(4, 4), softmax=nn.Softmax(-1)),
        inputs=_STEPS,
        path="softmax",
        operator="softmax",
    ),
    "scores that overflow": Fault(
        model=Attention, inputs=lambda: (torch.full((2, 3, 4), 1e20), None, 1e5), path="", what="Inf", operator="mm",
    ),
    "log of a softmax with a 0": Fault(
        model=_between(lambda x: torch.log(torch.softmax(x * torch.tensor([1e6, 1, 1, 1]), -1)) * 0),
        path="1",
        operator="log",
    ),
    # recurrent
    "NaN in an LSTM": Fault(model=_poisoned(LSTM, "bias_ih_l0"), inputs=_STEPS, path="", weights=("bias_ih_l0",)),
    "a cell that grows": Fault(
        model=lambda: Calls(
            lambda self, x: self.head(self.cell(self.cell(self.cell(x)))),
            cell=Of(lambda x: x * 1e15),
            head=nn.Linear(4, 2),
        ),
        path="cell",
        invocation=2,
        operator="mul",
        what="Inf",
    ),
    # structure
    "between two modules": Fault(
        model=lambda: Calls(_residual, first=nn.Linear(4, 4), last=nn.Linear(4, 2)), path="", operator="div", what="Inf"
    ),
    "in place": Fault(
        model=lambda: Calls(_in_place, first=nn.Linear(4, 4), last=nn.Linear(4, 2)), path="", operator="log_", run=_evaluated
    ),
    "given by keyword": Fault(
        model=lambda: Calls(_keywords, first=nn.Linear(4, 4), last=Of(lambda x: x * 2)), path="", operator="sqrt"
    ),
    "in a dict": Fault(
        model=lambda: Calls(_dict, inner=Of(lambda x: {"hidden": (x - 1e6).sqrt()}), head=nn.Linear(4, 2)),
        path="inner",
        operator="sqrt",
    ),
    "in recursion": Fault(model=lambda: Calls(_recursive, linear=nn.Linear(4, 4), log=Log()), path="log", operator="log"),
    "in the second call of a module": Fault(
        model=lambda: Calls(_shared, log=Log()), path="log", invocation=1, operator="log", run=_evaluated
    ),
    "hidden before it is returned": Fault(
        model=lambda: Calls(_hidden, first=nn.Linear(4, 4), log=Log()), path="log", operator="log"
    ),
    "in a checkpointed block": Fault(
        model=lambda: Checkpointed(nn.Sequential(nn.Linear(4, 4), Of(lambda x: torch.log(x - 1e6)))),
        path="block.1",
        operator="log",
    ),
    "in a module that writes to what it is given": Fault(
        model=lambda: Calls(
            lambda self, x: self.last(self.log(self.first(x))), first=nn.Linear(4, 4), log=Of(Tensor.log_), last=nn.Linear(4, 2)
        ),
        inputs=_of(-1.0, -1.0, -1.0, -1.0),
        path="log",
        operator=None,
        run=_evaluated,
    ),
    "in inference mode": Fault(model=_between(lambda x: torch.sqrt(x - 1e6)), path="1", operator="sqrt", run=_inferred),
    # not the model's
    "NaN in the input": Fault(model=lambda: _linear(4, 2), inputs=_of(1.0, math.nan, 1.0, 1.0), path="", phase="input",
                              operator=None),
    "a loss of 0 / 0": Fault(
        model=lambda: _linear(4, 2), path="", phase="loss", operator="div", run=_loss(lambda y: ((y - y) / (y - y)).sum())
    ),
    # only in the backward pass
    "gradient of a root at 0": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), Of(lambda x: torch.sqrt(x - x.detach())), nn.Linear(4, 2)),
        path="1", phase="backward", operator="Sqrt", what="Inf",
    ),
    "gradient of a distance of 0": Fault(
        model=lambda: Calls(_distance, first=nn.Linear(4, 4), root=Of(torch.sqrt)),
        path="root", phase="backward", operator="Sqrt", what="NaN",
    ),
    "gradient of where": Fault(
        model=_between(lambda x: torch.where(x > 1e9, torch.log(x - x.detach()), x)),
        path="1", phase="backward", operator="Log", what="NaN",
    ),
    "gradient of a function of one's own": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), Of(MyLog.apply), nn.Linear(4, 2)),
        inputs=_of(0.5, 0.5, 0.5, 0.5), path="1", phase="backward", operator="MyLog", what="Inf",
    ),
    "exploding gradient": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), *(Scaled(1e15) for _ in range(4)), nn.Linear(4, 2)),
        path="2", phase="backward", operator="_Scale", what="Inf",
    ),
    "gradients whose sum overflows": Fault(
        model=lambda: Calls(_summed_twice, a=nn.Linear(4, 4), b=Of(torch.clone), c=Of(torch.clone)),
        path="a", phase="backward", operator="sum", what="Inf",
        run=_loss(lambda y: (y * 3e38).sum() * 1.0),
    ),
    "gradient in a checkpointed block": Fault(
        model=lambda: Checkpointed(nn.Sequential(nn.Linear(4, 4), Of(lambda x: torch.sqrt(x - x.detach())))),
        path="block.1", phase="backward", operator="Sqrt", what="Inf",
    ),
    "gradient in a reentrant checkpoint": Fault(
        model=lambda: Checkpointed(
            nn.Sequential(nn.Linear(4, 4), Of(lambda x: torch.sqrt(x - x.detach()))), use_reentrant=True
        ),
        path="block.1", phase="backward", operator="Sqrt", what="Inf", invocation=1,  # its graph is that of the second call
    ),
    "gradient of a norm of zeros": Fault(
        model=lambda: nn.Sequential(nn.Linear(4, 4), Of(lambda x: (x - x.detach()).square().sum(-1, keepdim=True) ** 0.5)),
        path="1", phase="backward", operator="Pow",
    ),
    # the optimizer
    "a step that is too large": Fault(
        model=lambda: _with(nn.Linear(4, 1), weight=1e18), path="", phase="optimizer", operator="SGD", what="Inf",
        run=_step(1e30), weights=("weight", "bias"),
    ),
}  # fmt: skip
