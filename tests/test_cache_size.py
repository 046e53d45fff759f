"""The size of a cache at any length, from few recorded passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from torchscan.analyses.generation.cache_size import CacheSize
from torchscan.recording.generation_passes import Length


class Passes:
    """Passes whose cache has 8 numbers of 4 bytes for each of the last ``size`` tokens."""

    batch_size = 1
    is_translated = False

    def __init__(self, size: int) -> None:
        self.size = size
        self.recorded: set[Length] = set()

    def prompted(self, length: Length) -> Any:
        """Return a pass, and note that it was recorded."""
        self.recorded.add(length)
        kept = min(self.size, length.prompt + length.generated)
        tensors = {"keys": torch.empty(1, kept, 8, device="meta")}
        return SimpleNamespace(tensors=tensors, times={}, operators=3)


def _sizes(passes: Any, lengths: range) -> list[int]:
    size = CacheSize(passes, Length(4, 100), None, None)
    return [size(tokens) for tokens in lengths]


def test_an_even_cache_is_recorded_at_few_lengths() -> None:
    """Shorter and longer prompts, the ends and the middle: no length that was asked for alone."""
    passes = Passes(10**6)
    assert _sizes(passes, range(10, 90)) == [tokens * 32 for tokens in range(10, 90)]
    assert len(passes.recorded) <= 6


def test_a_cache_that_fills_up_is_recorded_at_each_length() -> None:
    passes = Passes(50)
    assert _sizes(passes, range(40, 60)) == [min(50, tokens) * 32 for tokens in range(40, 60)]
