"""Small models for questions that are refused."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Bessel(nn.Module):
    """A model whose operator has no cost formula."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a Bessel function."""
        return torch.special.bessel_j0(x)


class Limited(nn.Module):
    """A language model of 256 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=256)
        self.embedding = nn.Embedding(32, 8)
        self.layer = nn.Linear(8, 32)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the scores, which need no labels."""
        return self.layer(self.embedding(input_ids))
