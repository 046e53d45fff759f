"""Steps: functions, methods of tensors, views, writes, reductions, known masks and indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_modules.drawing import Draw, Layer, step

# -- views ---------------------------------------------------------------------------------------------------------------


@step()
def transpose(draw: Draw, x: Tensor) -> Layer:
    one, other = draw.dim(x), draw.dim(x)
    return lambda x: x.transpose(one, other)


@step()
def permute(draw: Draw, x: Tensor) -> Layer:
    order = draw.sample(range(x.dim()), x.dim())
    return draw.one_of(lambda x: x.permute(order), lambda x: torch.permute(x, order).contiguous())


@step()
def movedim(draw: Draw, x: Tensor) -> Layer:
    one, other = draw.dim(x), draw.dim(x)
    return lambda x: x.movedim(one, other)


@step()
def expand(draw: Draw, x: Tensor) -> Layer:
    count = draw.size(1, 3)
    return lambda x: x.unsqueeze(0).expand(count, *x.shape)


@step()
def expand_as(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return lambda x: x.narrow(dim, 0, 1).expand_as(x)


@step()
def unfold(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    size, by = draw.size(1, min(3, x.shape[dim])), draw.size(1, 2)
    return lambda x: x.unfold(dim, size, by)


@step()
def as_strided(draw: Draw, x: Tensor) -> Layer:
    rows = draw.size(1, 3)
    return lambda x: x.contiguous().as_strided((rows, max(1, x.numel() - rows)), (1, 1))


@step(2, 3, 4)
def diagonal(draw: Draw, x: Tensor) -> Layer:
    one, other = draw.sample(range(x.dim()), 2)
    by = draw.size(-1, 1)
    return lambda x: x.diagonal(by, one, other)


@step(1, 2)
def diagonal_embedded(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(lambda x: torch.diag_embed(x), lambda x: torch.diag(x))


@step()
def unbind(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return lambda x: torch.stack(list(reversed(x.unbind(dim))), dim)


@step()
def chunk(draw: Draw, x: Tensor) -> Layer:
    dim, count = draw.dim(x), draw.size(1, 3)
    return lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.chunk(count, dim))], dim)


@step()
def split(draw: Draw, x: Tensor) -> Layer:
    dim, size = draw.dim(x), draw.size(1, 3)
    return lambda x: x.split(size, dim)[-1]


@step()
def split_with_sizes(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    first = draw.size(0, x.shape[dim])
    return lambda x: torch.cat(list(x.split([first, x.shape[dim] - first], dim))[::-1], dim)


@step()
def tensor_split(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return lambda x: x.tensor_split(2, dim)[0]


@step()
def narrow(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    length = draw.size(1, x.shape[dim])
    return lambda x: x.narrow(dim, x.shape[dim] - length, length)


@step()
def select(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return lambda x: x.select(dim, -1)


@step()
def squeeze(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.squeeze(),
        lambda x: x[None, ..., None].squeeze(0),
        lambda x: torch.atleast_2d(x),
    )


@step()
def view(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.contiguous().view(-1, x.shape[-1]),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.ravel(),
        lambda x: x.flatten().view_as(x.flatten()),
        lambda x: x.view(x.shape).mT if x.dim() > 1 else x,
    )


@step()
def slices(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x[..., ::2],
        lambda x: x[1:] if x.shape[0] > 1 else x,
        lambda x: x[..., None, :],
        lambda x: x[:, -1],
        lambda x: x[..., :-1] if x.shape[-1] > 1 else x,
        lambda x: x[0],
        lambda x: x[None, ..., 0],
        lambda x: x[True],
    )


@step()
def view_of_view(draw: Draw, x: Tensor) -> Layer:
    count = draw.size(1, 3)
    return lambda x: (
        x.unsqueeze(1).expand(-1, count, *x.shape[1:]).transpose(0, -1)[..., ::2].unfold(0, 1, 1)
    )


@step(4)
def windows(draw: Draw, x: Tensor) -> Layer:
    return lambda x: (
        x.unfold(2, 2, 1)
        .unfold(3, 2, 2)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(x.shape[0], -1, x.shape[1] * 4)
    )


@step()
def memory_formats(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.contiguous(),
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.clone(),
    )


# -- writes --------------------------------------------------------------------------------------------------------------


@step()
def in_place(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.clone().add_(1),
        lambda x: x.mul_(2.0),
        lambda x: x.clone().clamp_(-1, 1),
        lambda x: x.tanh().neg_(),
        lambda x: x.sigmoid_(),
        lambda x: (x + 1).copy_(x[:1]),
        lambda x: (x * 1).fill_(0.5) + x,
        lambda x: (x * 2).zero_() + x,
        lambda x: (x + 0).transpose_(0, -1),
        lambda x: (x + 0).unsqueeze_(0).squeeze_(0),
        lambda x: x.clone().addcmul_(x, x, value=0.5),
        lambda x: x.clone().lerp_(x.flip(0), 0.3),
        lambda x: F.dropout(x.exp(), 0.1, inplace=True),
        lambda x: F.relu_(x - 0.1),
        lambda x: torch.empty_like(x).normal_() + x,
    )


def _filled(x: Tensor, at: Any) -> Tensor:
    y = x.clone()
    y[at] = y[at] * 2
    return y


def _halves(x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    out[: x.shape[0] // 2] += x[: x.shape[0] // 2]
    out[..., 0] = 1.0
    return out


def _written_view(x: Tensor) -> Tensor:
    y = x + 1
    y.transpose(0, -1)[0].mul_(3)
    y.view(-1)[::2] -= 1
    return y


@step()
def item_assignment(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: _filled(x, 0),
        lambda x: _filled(x, (..., -1)),
        lambda x: _filled(x, slice(None, None, 2)),
        lambda x: _filled(x, torch.arange(x.shape[0]) % 2 == 0),
        lambda x: _filled(x, torch.arange(x.shape[0]).flip(0)),
        _halves,
        _written_view,
    )


@step()
def scatter(draw: Draw, x: Tensor) -> Layer:
    def ids(x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=torch.long, device=x.device)

    return draw.one_of(
        lambda x: x.scatter(0, ids(x), x.flip(0)),
        lambda x: torch.zeros_like(x).scatter_add_(0, ids(x), x),
        lambda x: x.index_add(0, torch.arange(x.shape[0], device=x.device), x),
        lambda x: x.clone().index_fill_(0, torch.tensor([0], device=x.device), 1.5),
        lambda x: x.index_copy(0, torch.tensor([0], device=x.device), x[-1:]),
        lambda x: x.scatter_reduce(0, ids(x), x, "amax"),
        lambda x: x.slice_scatter(x[:1] * 2, 0, 0, 1),
        lambda x: x.select_scatter(x[0] + 1, 0, 0),
        lambda x: x.masked_fill(torch.arange(x.shape[-1], device=x.device) > 1, 0.0),
        lambda x: x.clone().masked_fill_(x > 0, -1.0),
        lambda x: x.index_put((torch.tensor([0], device=x.device),), x[:1], accumulate=True),
    )


def _out(x: Tensor, function: Callable[..., Any]) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    function(x, out=out)
    return out


@step()
def out_given(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: _out(x.detach(), torch.exp),
        lambda x: _out(x.detach(), lambda x, out: torch.add(x, 1, out=out)),
        lambda x: _out(x.detach(), lambda x, out: torch.mul(x, x, out=out)),
        lambda x: torch.cat([x.detach(), x.detach()], out=x.new_empty(0)),
        lambda x: torch.sum(x.detach(), 0, out=x.new_empty(0)),
        lambda x: torch.matmul(x.detach(), x.detach().transpose(-1, -2), out=x.new_empty(0)),
    )


# -- arithmetic ----------------------------------------------------------------------------------------------------------

UNARY: tuple[Callable[..., Tensor], ...] = (
    torch.abs, torch.exp, torch.expm1, torch.log1p, torch.sin, torch.cos, torch.tan, torch.atan, torch.sinh, torch.erf,
    torch.erfc, torch.floor, torch.ceil, torch.round, torch.trunc, torch.frac, torch.neg, torch.reciprocal, torch.rsqrt,
    torch.sign, torch.sgn, torch.square, torch.sigmoid, torch.sinc, torch.lgamma, torch.digamma, torch.logit, torch.nan_to_num,
    torch.special.i0, torch.special.entr, torch.deg2rad, torch.positive, torch.asinh, torch.exp2, torch.i0, torch.erfinv,
    torch.softmax, F.hardswish, F.tanh, F.silu, torch.log2, torch.log10, torch.sqrt,
)  # fmt: skip


@step()
def unary(draw: Draw, x: Tensor) -> Layer:
    function: Any = draw.choice(UNARY)
    return (lambda x: torch.softmax(x, -1)) if function is torch.softmax else function


BINARY: tuple[Callable[..., Tensor], ...] = (
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.atan2, torch.pow, torch.fmod,
    torch.remainder, torch.hypot, torch.copysign, torch.nextafter, torch.logaddexp, torch.fmax, torch.xlogy, torch.floor_divide,
    torch.heaviside, torch.dist, torch.rsub, torch.float_power, torch.ldexp, torch.true_divide,
)  # fmt: skip


@step()
def binary(draw: Draw, x: Tensor) -> Layer:
    function = draw.choice(BINARY)
    other: Callable[[Tensor], Tensor] = draw.one_of(
        lambda x: x,
        lambda x: x[:1],
        lambda x: x.flip(-1),
        lambda x: x.mean(-1, keepdim=True),
        lambda x: x.sum(),
    )
    return lambda x: function(x, other(x)).float() + 0 * x


@step()
def with_numbers(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: 2 * x + 1,
        lambda x: 1 - x / 3,
        lambda x: 1 / (x.abs() + 1),
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: x // 1,
        lambda x: x % 2,
        lambda x: -x,
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(-1, 1),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.addcdiv(x, x.abs() + 1),
        lambda x: torch.lerp(x, x.flip(0), 0.25),
        lambda x: x + x.shape[0],
        lambda x: x * torch.tensor(2.0),
        lambda x: x + torch.ones(x.shape[-1], device=x.device),
    )


@step()
def comparisons(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: (x > 0).float() * x,
        lambda x: x.eq(x.flip(0)).to(x.dtype),
        lambda x: torch.where(x > x.mean(), x, -x),
        lambda x: torch.where(
            torch.arange(x.shape[-1], device=x.device) % 2 == 0, x, x.new_zeros(())
        ),
        lambda x: (x.isnan() | ~x.isfinite()).float() + x,
        lambda x: (x.long() & 3).float(),
        lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])).float(),
        lambda x: x.gt(0).logical_and(x.lt(1)).type_as(x),
        lambda x: x * x.ge(0).all(-1, keepdim=True),
    )


# -- products ------------------------------------------------------------------------------------------------------------


@step(2, 3, 4)
def products(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x @ x.transpose(-1, -2),
        lambda x: torch.matmul(x.transpose(-1, -2), x),
        lambda x: x @ x.new_ones(x.shape[-1]),
        lambda x: x.reshape(-1, x.shape[-1]).mm(x.reshape(-1, x.shape[-1]).t()),
        lambda x: torch.bmm(x.reshape(1, -1, x.shape[-1]), x.reshape(1, -1, x.shape[-1]).mT),
        lambda x: torch.addmm(
            x.new_ones(3), x.reshape(-1, x.shape[-1]), x.new_ones(x.shape[-1], 3)
        ),
        lambda x: torch.outer(x.flatten()[:8], x.flatten()[:5]),
        lambda x: torch.tensordot(x, x, dims=([-1], [-1]))[..., 0],
        lambda x: torch.kron(x.reshape(-1, x.shape[-1])[:3], torch.eye(2)),
        lambda x: torch.inner(x, x[:1].reshape(-1, x.shape[-1])),
        lambda x: torch.cdist(x, x),
        lambda x: torch.baddbmm(
            x.new_zeros(()), x.reshape(1, -1, x.shape[-1]), x.new_ones(1, x.shape[-1], 2)
        ),
        lambda x: x.flatten().dot(x.flatten()) * x,
        lambda x: torch.linalg.multi_dot(
            [x.reshape(-1, x.shape[-1]), x.new_ones(x.shape[-1], 2), x.new_ones(2, 3)]
        ),
        lambda x: F.linear(x, x.new_ones(3, x.shape[-1])),
        lambda x: torch.linalg.norm(x, dim=-1),
        lambda x: torch.trace(x.reshape(-1, x.shape[-1])) + x,
    )


@step(3)
def einsum(draw: Draw, x: Tensor) -> Layer:
    equation = draw.one_of(
        "bij,bkj->bik",
        "bij->bji",
        "bij,bij->b",
        "bij,cij->bc",
        "bij->ij",
        "bij,bkl->ikjl",
        "b...,b...->...",
    )
    if "," in equation:
        return lambda x: torch.einsum(equation, x, x)
    return lambda x: torch.einsum(equation, x)


@step(4)
def functional_attention(draw: Draw, x: Tensor) -> Layer:
    causal = draw.flag()
    return draw.one_of(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=causal),
        lambda x: F.scaled_dot_product_attention(x, x[:, :, :2], x[:, :, :2]),
        lambda x: F.scaled_dot_product_attention(
            x, x, x, attn_mask=x.new_zeros(x.shape[2], x.shape[2])
        ),
        lambda x: F.scaled_dot_product_attention(
            x, x, x, attn_mask=torch.ones(x.shape[2], x.shape[2]).tril().bool()
        ),
        lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True),
        lambda x: (
            (x @ x.mT / 2)
            .masked_fill(torch.ones(x.shape[2], x.shape[2]).triu(1).bool(), -1e9)
            .softmax(-1)
            @ x
        ),
    )


@step(3, 4, 5)
def functional_convolution(draw: Draw, x: Tensor) -> Layer:
    rank = x.dim() - 2
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    transposed: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    weight = torch.ones(2, x.shape[1], *[1] * rank)
    return draw.one_of(
        lambda x: convolve(x, weight),
        lambda x: convolve(x, x[:2]),
        lambda x: transposed(x, weight.transpose(0, 1).contiguous(), stride=2),
    )


# -- reductions, order, sums ---------------------------------------------------------------------------------------------


@step()
def reduction(draw: Draw, x: Tensor) -> Layer:
    dims, keeps = draw.dims(x), draw.flag()
    function: Any = draw.one_of(
        torch.sum,
        torch.mean,
        torch.amax,
        torch.amin,
        torch.logsumexp,
        torch.var,
        torch.std,
        torch.nansum,
        torch.norm,
    )
    if function is torch.norm:
        return lambda x: torch.norm(x, 2, dims, keeps)
    return lambda x: function(x, dim=dims, keepdim=keeps)


@step()
def reduction_of_one(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return draw.one_of(
        lambda x: x.max(dim).values,
        lambda x: x.min(dim, keepdim=True)[0],
        lambda x: x.median(dim).values,
        lambda x: x.mode(dim).values,
        lambda x: x.prod(dim),
        lambda x: x.kthvalue(1, dim).values,
        lambda x: x.any(dim).float() + x,
        lambda x: x.argmax(dim).float(),
        lambda x: x.argmin(dim, keepdim=True) * x,
        lambda x: x.aminmax(dim=dim).max,
        lambda x: torch.var_mean(x, dim)[1],
        lambda x: x.quantile(0.5, dim),
        lambda x: x - x.mean(),
        lambda x: x / x.norm(),
        lambda x: x * x.sum().sqrt(),
        lambda x: x.count_nonzero(dim).float(),
        lambda x: F.normalize(x, dim=dim),
        lambda x: torch.renorm(x, 2, 0, 1.0),
    )


@step()
def order(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return draw.one_of(
        lambda x: x.sort(dim).values,
        lambda x: x.sort(dim, descending=True, stable=True)[0],
        lambda x: x.topk(1, dim).values,
        lambda x: x.topk(x.shape[dim], dim, largest=False)[0],
        lambda x: x.argsort(dim).float(),
        lambda x: x.msort(),
        lambda x: x.gather(dim, x.argsort(dim)),
        lambda x: x.take_along_dim(x.argmax(dim, keepdim=True), dim),
        lambda x: F.one_hot(x.argmax(dim), x.shape[dim]).float(),
    )


@step()
def running(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return draw.one_of(
        lambda x: x.cumsum(dim),
        lambda x: x.cumprod(dim),
        lambda x: x.cummax(dim).values,
        lambda x: x.cummin(dim)[0],
        lambda x: x.logcumsumexp(dim),
        lambda x: x.diff(dim=dim) if x.shape[dim] > 1 else x,
        lambda x: x.flip(dim).cumsum(dim).flip(dim),
        lambda x: torch.trapezoid(x, dim=dim),
        lambda x: torch.cumulative_trapezoid(x, dim=dim) if x.shape[dim] > 1 else x,
    )


# -- joining, moving, indexing -------------------------------------------------------------------------------------------


@step()
def joined(draw: Draw, x: Tensor) -> Layer:
    dim = draw.dim(x)
    return draw.one_of(
        lambda x: torch.cat([x, x.flip(0)], dim),
        lambda x: torch.stack([x, -x], dim),
        lambda x: torch.hstack([x, x]),
        lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
        lambda x: x.repeat_interleave(2, dim),
        lambda x: torch.tile(x, (2,)),
        lambda x: x.roll(1, dim),
        lambda x: x.flip(dim),
        lambda x: torch.rot90(x, 1, (0, x.dim() - 1)) if x.dim() > 1 else x,
        lambda x: torch.vstack([x, x]),
        lambda x: torch.cat([x, x.new_zeros(x.shape)], dim),
        lambda x: torch.column_stack([x, x]),
        lambda x: torch.block_diag(x.reshape(-1, x.shape[-1])[:2], torch.ones(1, 1)),
        lambda x: torch.cat(torch.broadcast_tensors(x, x[:1]), dim),
    )


@step()
def padded(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: F.pad(x, (1, 2)),
        lambda x: F.pad(x, (0, -1)) if x.shape[-1] > 1 else x,
        lambda x: F.pad(x, (1, 1, 0, 1), value=2.0),
        lambda x: F.pad(x, (1, 0), mode="replicate"),
        lambda x: F.pad(x, (1, 1), mode="circular"),
        lambda x: F.pad(x, (1, 1), mode="reflect"),
    )


@step()
def indexing(draw: Draw, x: Tensor) -> Layer:
    def ids(size: int) -> Tensor:
        return torch.arange(size) % 2

    return draw.one_of(
        lambda x: x[[0]],
        lambda x: x[ids(3) * 0],
        lambda x: x[..., torch.tensor([0, 0])],
        lambda x: x[ids(2) * 0, ids(2) * 0] if x.dim() > 1 else x,
        lambda x: x[torch.arange(x.shape[0]) % 2 == 0],
        lambda x: x[:, torch.arange(x.shape[1]) >= 0],
        lambda x: x.index_select(-1, torch.tensor([0, 0])),
        lambda x: x.gather(-1, torch.zeros(x.shape, dtype=torch.long)[..., :1]),
        lambda x: x.masked_select(torch.ones(x.shape, dtype=torch.bool)),
        lambda x: x.take(torch.tensor([[0, 0]])),
        lambda x: x[torch.tensor([[0], [0]]), None],
        lambda x: x.reshape(-1, x.shape[-1])[torch.tril_indices(2, 2).flatten() * 0],
        lambda x: x[torch.ones(x.shape[0], dtype=torch.bool).nonzero().squeeze(1)],
        lambda x: F.embedding(torch.tensor([0, 0]), x.reshape(-1, x.shape[-1])),
    )


@step(2, 3, 4)
def triangles(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.tril(),
        lambda x: x.triu(1),
        lambda x: x * torch.ones(x.shape[-2:]).tril(),
        lambda x: x.masked_fill(
            torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), float("-inf")
        ).softmax(-1),
    )


@step()
def positions(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x + torch.arange(x.shape[-1], device=x.device, dtype=x.dtype),
        lambda x: x * torch.linspace(0, 1, x.shape[-1], device=x.device),
        lambda x: x + torch.arange(x.shape[-1]).float().outer(torch.ones(2)).sin()[:, 0],
        lambda x: (
            x
            + torch.meshgrid(torch.arange(2.0), torch.arange(x.shape[-1]).float(), indexing="ij")[
                1
            ][0]
        ),
        lambda x: x * torch.full((x.shape[-1],), 2.0),
        lambda x: x + torch.randn_like(x) * torch.rand(x.shape[-1]),
        lambda x: x[..., torch.randperm(x.shape[-1])],
        lambda x: x + torch.eye(x.shape[-1])[0],
        lambda x: x * torch.hann_window(x.shape[-1]),
        lambda x: x + torch.logspace(0, 1, x.shape[-1]),
        lambda x: x * torch.bernoulli(torch.full(x.shape, 0.5)),
        lambda x: x + torch.tensor([[1.0]]).item(),
    )


# -- other types ---------------------------------------------------------------------------------------------------------


@step()
def types(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: x.double().sin().float(),
        lambda x: x.bfloat16().mul(2).to(torch.float32),
        lambda x: x.half().add(1).float(),
        lambda x: x.to(torch.int32).float(),
        lambda x: (x.long() + x).to(x.dtype),
        lambda x: x.type(torch.float64).to(x),
        lambda x: (x * 10).to(torch.uint8).float(),
        lambda x: x.bool().int().sum(-1).float(),
        lambda x: (x.double() @ x.double().mT).float() if x.dim() > 1 else x,
        lambda x: F.softmax(x, -1, dtype=torch.float64).float(),
        lambda x: x.sum(0, dtype=torch.float64).float(),
        lambda x: F.layer_norm(x.bfloat16(), x.shape[-1:]).float(),
        lambda x: x.contiguous().view(torch.int32).view(torch.float32),
        lambda x: torch.clamp(x.short(), 0, 3).float() / 2,
    )


@step(2, 3, 4)
def spectra(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: torch.fft.fft(x).real,
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]),
        lambda x: torch.fft.fft2(x).imag,
        lambda x: torch.view_as_real(torch.fft.ifft(x)),
        lambda x: torch.complex(x, -x).angle(),
        lambda x: (torch.polar(x.abs(), x) * torch.complex(x, x)).real,
        lambda x: torch.fft.fftshift(torch.fft.fftn(x)).abs(),
        lambda x: torch.fft.rfft2(x, norm="ortho").conj().real,
        lambda x: torch.fft.hfft(torch.complex(x, x), n=4),
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().mul(2).resolve_conj().imag,
    )


@step(1, 2)
def short_time_spectrum(draw: Draw, x: Tensor) -> Layer:
    return lambda x: torch.stft(
        x, 4, 2, window=torch.hann_window(4), return_complex=True, center=True
    ).abs()


@step(2, 3)
def linear_algebra(draw: Draw, x: Tensor) -> Layer:
    def square(x: Tensor) -> Tensor:
        return x @ x.mT + torch.eye(x.shape[-2])

    return draw.one_of(
        lambda x: torch.linalg.inv(square(x)),
        lambda x: torch.linalg.cholesky(square(x)),
        lambda x: torch.linalg.svdvals(x),
        lambda x: torch.linalg.qr(x)[0],
        lambda x: torch.linalg.solve(square(x), x),
        lambda x: torch.linalg.det(square(x)).reshape(-1, 1),
        lambda x: torch.linalg.eigh(square(x))[0],
        lambda x: torch.linalg.svd(x, full_matrices=False)[1],
        lambda x: torch.linalg.pinv(x),
        lambda x: torch.matrix_exp(square(x) / 100),
        lambda x: torch.linalg.matrix_power(square(x), 2),
        lambda x: torch.linalg.solve_triangular(square(x).triu(), x, upper=True),
    )


# -- functions of torch.nn.functional ------------------------------------------------------------------------------------


@step(4)
def images(draw: Draw, x: Tensor) -> Layer:
    grid = torch.zeros(1, 3, 4, 2)
    theta = torch.eye(2, 3)[None]
    return draw.one_of(
        lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
        lambda x: F.interpolate(x, scale_factor=(2, 1)),
        lambda x: F.interpolate(x, size=4, mode="area"),
        lambda x: F.grid_sample(x, grid.expand(x.shape[0], -1, -1, -1), align_corners=False),
        lambda x: F.grid_sample(
            x, F.affine_grid(theta.expand(x.shape[0], -1, -1), [*x.shape], align_corners=False)
        ),
        lambda x: F.avg_pool2d(x, (x.shape[2], 1)),
        lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        lambda x: F.adaptive_max_pool2d(x, (1, 2), return_indices=True)[0],
        lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
        lambda x: F.unfold(x, 2, dilation=1, padding=1, stride=2),
        lambda x: F.pixel_shuffle(x, 1),
        lambda x: x.mean((2, 3)),
        lambda x: F.group_norm(x, 1),
        lambda x: F.instance_norm(x),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])),
    )


@step()
def functional(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.glu(torch.cat([x, x], -1)),
        lambda x: F.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1])),
        lambda x: F.gumbel_softmax(x, hard=True),
        lambda x: F.dropout(x, 0.5, training=True),
        lambda x: F.log_softmax(x, 0),
        lambda x: F.mse_loss(x, x.flip(0)) + x,
        lambda x: F.cosine_similarity(x, x.flip(0), dim=-1),
        lambda x: F.softplus(x, 2, 10),
        lambda x: F.prelu(x, x.new_full((), 0.1).reshape(1)),
        lambda x: F.celu(x, 0.5) + F.selu(x),
        lambda x: F.rms_norm(x, x.shape[-1:]),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.logsigmoid(x),
        lambda x: F.hardtanh(x, -0.5, 0.5),
        lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
    )
