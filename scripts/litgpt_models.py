"""Language models as LitGPT computes them, for published memory of training steps.

LitGPT adds adapters to one product for queries, keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class LitSizes:
    """The sizes and kinds of layers of a LitGPT model."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    rotated: float
    is_llama: bool
    is_parallel: bool
    has_shared_norm: bool = False
    has_head_bias: bool = False


LIT_MODELS = {
    "1.3B phi-1.5": LitSizes(layers=24, width=2048, heads=32, inner=8192, vocabulary=51200,
                             rotated=0.5, is_llama=False, is_parallel=True, has_shared_norm=True,
                             has_head_bias=True),
    "3B StableLM Alpha": LitSizes(layers=16, width=4096, heads=32, inner=16384, vocabulary=50688,
                                  rotated=0.25, is_llama=False, is_parallel=True),
    "7B Llama 2": LitSizes(layers=32, width=4096, heads=32, inner=11008, vocabulary=32000,
                           rotated=1.0, is_llama=True, is_parallel=False),
    "13B Llama 2": LitSizes(layers=40, width=5120, heads=40, inner=13824, vocabulary=32000,
                            rotated=1.0, is_llama=True, is_parallel=False),
}  # fmt: skip


class LitNorm(nn.Module):
    """LitGPT's RMS norm, in 32 bits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, given: Tensor) -> Tensor:
        """Return the normalized tensor."""
        wide = given.float()
        normed = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)
        return (normed * self.weight.float()).to(dtype=given.dtype)


class LitAdapter(nn.Module):
    """LitGPT's adapters of rank 8 for queries and values, beside one product for all three."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3 * width, bias=bias)
        self.lora_A = nn.Parameter(torch.zeros(16, width))
        self.lora_B = nn.Parameter(torch.zeros(2 * width, 8))
        self.dropout = nn.Dropout(0.05)
        places = [each for each in range(3 * width) if not width <= each < 2 * width]
        self.register_buffer("lora_ind", torch.tensor(places, device="cpu"), persistent=False)

    def forward(self, given: Tensor) -> Tensor:
        """Return the product and the adapters' part."""
        plain = self.linear(given)
        after_a = F.linear(self.dropout(given), self.lora_A)
        after_b = F.conv1d(
            after_a.transpose(-2, -1), self.lora_B.unsqueeze(-1), groups=2
        ).transpose(-2, -1)
        padded = after_b.new_zeros(after_b.shape[0], after_b.shape[1], plain.shape[-1])
        # one assignment for queries and values: the same elements as an index copy
        padded = padded.index_copy(2, self.lora_ind.to(padded.device), after_b)
        return plain + padded * 2.0


def _rotate_half(tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = tensor.size(-1) // 2
    rotated = torch.cat((-tensor[..., half:], tensor[..., :half]), dim=-1)
    return ((tensor * cos) + (rotated * sin)).to(dtype=tensor.dtype)


class LitAttention(nn.Module):
    """Causal attention."""

    def __init__(self, sizes: LitSizes) -> None:
        super().__init__()
        self.heads, self.size = sizes.heads, sizes.width // sizes.heads
        self.rotated = int(sizes.rotated * self.size)
        bias = not sizes.is_llama
        self.attn = LitAdapter(sizes.width, bias=bias)
        self.proj = nn.Linear(sizes.width, sizes.width, bias=bias)

    def forward(self, given: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attention's result."""
        batch, tokens, width = given.shape
        packed = self.attn(given).view(batch, tokens, self.heads, 3, self.size)
        queries, keys, values = (
            each.reshape(batch, -1, tokens, self.size)
            for each in packed.permute(0, 2, 3, 1, 4).split((1, 1, 1), dim=2)
        )
        part = self.rotated
        queries, keys = (
            torch.cat((_rotate_half(each[..., :part], cos, sin), each[..., part:]), dim=-1)
            for each in (queries, keys)
        )
        found = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.proj(found.transpose(1, 2).reshape(batch, tokens, width))


class LitBlock(nn.Module):
    """One layer."""

    def __init__(self, sizes: LitSizes) -> None:
        super().__init__()
        norm: Any = LitNorm if sizes.is_llama else nn.LayerNorm
        bias = not sizes.is_llama
        self.norm_1 = norm(sizes.width)
        self.attn = LitAttention(sizes)
        self.norm_2 = None if sizes.has_shared_norm else norm(sizes.width)
        self.fc_1 = nn.Linear(sizes.width, sizes.inner, bias=bias)
        self.fc_2 = nn.Linear(sizes.width, sizes.inner, bias=bias) if sizes.is_llama else None
        self.proj = nn.Linear(sizes.inner, sizes.width, bias=bias)
        self.is_parallel = sizes.is_parallel

    def forward(self, given: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's result."""
        first = self.norm_1(given)
        attended = self.attn(first, cos, sin)
        if self.is_parallel:
            second = first if self.norm_2 is None else self.norm_2(given)
            return self._mlp(second) + attended + given
        middle = attended + given
        second = middle if self.norm_2 is None else self.norm_2(middle)
        return self._mlp(second) + middle

    def _mlp(self, given: Tensor) -> Tensor:
        if self.fc_2 is None:
            return self.proj(F.gelu(self.fc_1(given)))
        return self.proj(F.silu(self.fc_1(given)) * self.fc_2(given))


class LitGpt(nn.Module):
    """A LitGPT model with adapters, whose head is computed in chunks of 128 tokens."""

    def __init__(self, sizes: LitSizes, tokens: int) -> None:
        super().__init__()
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=sizes.has_head_bias)
        self.wte = nn.Embedding(sizes.vocabulary, sizes.width)
        self.h = nn.ModuleList(LitBlock(sizes) for _ in range(sizes.layers))
        norm: Any = LitNorm if sizes.is_llama else nn.LayerNorm
        self.ln_f = norm(sizes.width)
        part = int(sizes.rotated * sizes.width // sizes.heads)
        self.register_buffer("cos", torch.zeros(tokens, part), persistent=False)
        self.register_buffer("sin", torch.zeros(tokens, part), persistent=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Return the scores of the next tokens, chunk by chunk."""
        hidden = self.wte(tokens)
        for block in self.h:
            hidden = block(hidden, self.cos, self.sin)
        hidden = self.ln_f(hidden)
        scores = [self.lm_head(each) for each in hidden.split(128, dim=1)]
        return [each.float() for each in scores]  # Fabric returns outputs in 32 bits


def loss_of_chunks(labels: Tensor, scores: list[Tensor]) -> Tensor:
    """Return the cross entropy as LitGPT computes it: of each chunk, then the mean of all."""
    scores[-1] = scores[-1][:, :-1, :]
    parts = [each.reshape(-1, each.size(-1)) for each in scores]
    targets = [each.reshape(-1) for each in labels[:, 1:].split(128, dim=1)]
    losses = [
        F.cross_entropy(each, target, ignore_index=-1, reduction="none")
        for each, target in zip(parts, targets, strict=True)
    ]
    return torch.cat(losses).sum() / labels[:, 1:].numel()
