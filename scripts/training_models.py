"""Models that others trained, as they wrote them, with as few layers as are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it

# -- torchtitan's Llama ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """Sizes of a Llama."""

    dim: int
    heads: int
    key_heads: int
    inner: int
    layers: int
    vocab: int = 128256


LLAMA: Mapping[str, LlamaSizes] = {
    "8B": LlamaSizes(dim=4096, heads=32, key_heads=8, inner=14336, layers=32),
    "70B": LlamaSizes(dim=8192, heads=64, key_heads=8, inner=28672, layers=80),
}


class RmsNorm(nn.Module):
    """torch's RMS norm before it had a kernel: in single precision, operator by operator."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate pairs of a head's width as complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)


class TitanAttention(nn.Module):
    """Attention with grouped keys, which are repeated."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        width = sizes.dim // sizes.heads
        self.width, self.group = width, sizes.heads // sizes.key_heads
        self.wq = nn.Linear(sizes.dim, sizes.heads * width, bias=False)
        self.wk = nn.Linear(sizes.dim, sizes.key_heads * width, bias=False)
        self.wv = nn.Linear(sizes.dim, sizes.key_heads * width, bias=False)
        self.wo = nn.Linear(sizes.heads * width, sizes.dim, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return the mixed values."""
        batch, length, _ = x.shape
        query, key, value = (
            each(x).view(batch, length, -1, self.width) for each in (self.wq, self.wk, self.wv)
        )
        query, key = rotate(query, turns), rotate(key, turns)
        key, value = self._repeated(key), self._repeated(value)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(found.transpose(1, 2).contiguous().view(batch, length, -1))

    def _repeated(self, x: Tensor) -> Tensor:
        batch, length, heads, width = x.shape
        wide = x[:, :, :, None, :].expand(batch, length, heads, self.group, width)
        return wide.reshape(batch, length, heads * self.group, width)


class TitanFeedForward(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.dim, sizes.inner, bias=False)
        self.w2 = nn.Linear(sizes.inner, sizes.dim, bias=False)
        self.w3 = nn.Linear(sizes.dim, sizes.inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated values."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TitanBlock(nn.Module):
    """A layer of Llama."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.attention = TitanAttention(sizes)
        self.feed_forward = TitanFeedForward(sizes)
        self.attention_norm = RmsNorm(sizes.dim)
        self.ffn_norm = RmsNorm(sizes.dim)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return the states after the layer."""
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class TitanLlama(nn.Module):
    """Llama as torchtitan has it."""

    def __init__(self, sizes: LlamaSizes, layers: int, length: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab, sizes.dim)
        width = sizes.dim // sizes.heads
        turns = torch.zeros(length, width // 2, dtype=torch.complex64)
        self.register_buffer("freqs_cis", turns, persistent=False)
        self.layers = nn.ModuleList(TitanBlock(sizes) for _ in range(layers))
        self.norm = RmsNorm(sizes.dim)
        self.output = nn.Linear(sizes.dim, sizes.vocab, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        x = self.tok_embeddings(tokens)
        turns = self.freqs_cis
        for layer in self.layers:
            x = layer(x, turns)
        scores = self.output(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())


# -- llm-foundry's MPT ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MptSizes:
    """Sizes of an MPT."""

    dim: int
    heads: int
    vocab: int = 50368


class MptBlock(nn.Module):
    """A layer of MPT, whose layer norms compute in 16 bits."""

    def __init__(self, sizes: MptSizes) -> None:
        super().__init__()
        dim = sizes.dim
        self.heads = sizes.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.Wqkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up_proj, self.down_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after the layer."""
        batch, length, dim = x.shape
        joined = self.Wqkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = (each.transpose(1, 2) for each in joined.unbind(2))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out_proj(found.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class Mpt(nn.Module):
    """MPT with learned positions and shared embeddings."""

    def __init__(self, sizes: MptSizes, layers: int, length: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(sizes.vocab, sizes.dim)
        self.wpe = nn.Embedding(length, sizes.dim)
        self.layers = nn.ModuleList(MptBlock(sizes) for _ in range(layers))
        self.norm_f = nn.LayerNorm(sizes.dim)
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        x = self.wte(tokens) + self.wpe(self.positions)
        for layer in self.layers:
            x = layer(x)
        scores = F.linear(self.norm_f(x), self.wte.weight)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def inputs_of(batch: int, length: int, names: tuple[str, str]) -> dict[str, Any]:
    """Return tokens and labels."""
    tokens = torch.zeros(batch, length, dtype=torch.long)
    return dict.fromkeys(names, tokens)
