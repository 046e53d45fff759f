"""Small models that generate, whose costs can be derived by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Echo(nn.Module):
    """One head that attends to all tokens so far; it returns the cache that it takes."""

    def __init__(self, vocabulary: int = 10, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, object]:
        """Scores of the next token, and keys and values."""
        x = self.embedding(tokens)
        key, value = self.key(x), self.value(x)
        if cache is not None:
            key, value = torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)
        seen = functional.softmax(x @ key.transpose(1, 2), -1) @ value
        return {"scores": self.out(seen), "cache": (key, value)}


class Window(nn.Module):
    """It remembers no more than the last ``size`` tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(10, 8)

    def forward(self, tokens: Tensor, cache: Tensor | None = None) -> dict[str, Tensor]:
        """What it remembers, twice."""
        x = self.embedding(tokens)
        seen = x if cache is None else torch.cat([cache, x], 1)
        return {"scores": seen.sum(1), "cache": seen[:, -self.size :]}


class Recurrent(nn.Module):
    """Its state is as large as ever, and is returned in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.memory = nn.GRU(8, 16, batch_first=True)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states of the last layer, and the last state of all layers."""
        outputs, state = self.memory(self.embedding(tokens), state)
        return outputs, state


class InPlace(nn.Module):
    """It has room for ``room`` tokens from the beginning, and writes each to its place."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.embedding = nn.Embedding(10, 8)

    def forward(
        self, tokens: Tensor, cache: Tensor | None = None, at: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The sum of what was written, and all that is remembered."""
        x = self.embedding(tokens)
        cache = x.new_zeros(len(x), self.room, 8) if cache is None else cache
        cache[:, at : at + tokens.shape[1]] = x
        return cache.sum(1), cache


class Adapted(nn.Module):
    """What wraps a model, and hands on what it does not know."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: object, **kwargs: object) -> object:
        """What the model returns."""
        return self.model(*args, **kwargs)


class Seeing(nn.Module):
    """Tokens below zero are places of an image, of which each patch takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(12, 8, bias=False)
        self.text = Echo()

    def forward(
        self,
        tokens: Tensor,
        cache: tuple[Tensor, Tensor] | None = None,
        image: Tensor | None = None,
    ) -> dict[str, object]:
        """Scores of the next token, and keys and values."""
        is_image = tokens < 0
        if image is not None:
            seen = self.patches(image)
            if int(is_image.sum()) != seen.shape[0] * seen.shape[1]:
                raise ValueError("as many places as patches")
        return self.text(tokens.clamp(min=0), cache)
