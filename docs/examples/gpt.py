"""A small GPT, whose training step ran out of memory in ``oom.pickle``."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Attention(nn.Module):
    """Attention of all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / 8).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two products with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(x))
        return self.down(hidden)


class Block(nn.Module):
    """A layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """The model, for tokens."""

    def __init__(
        self, layers: int = 12, width: int = 768, vocabulary: int = 50_257
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, width // 64) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model: GPT, batch_size: int, steps: int, device: str = "cuda") -> None:
    """Take steps on sequences of 256 tokens."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.zeros(batch_size, 256, dtype=torch.long, device=device)
        logits = model(tokens)
        loss = cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
