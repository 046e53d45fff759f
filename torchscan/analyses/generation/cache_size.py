"""The size of a cache as a function of the number of tokens in it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from torch import Tensor

from torchscan.analyses.generation.stored import Stored
from torchscan.errors import RecordError
from torchscan.once import once
from torchscan.recording.generation_passes import Generating, Kept, Length

#: lengths at which it shows what grows with the length
_SHORTEST = (2, 3)
#: up to so many tokens caches are recorded: the mask of attention takes the square of it
_FAR = 8192


class CacheSize:
    """Bytes of the cache of one sequence, read from records; beyond those, it grows on as at their end."""

    def __init__(
        self,
        passes: Generating,
        length: Length,
        format_: Stored | None,
        limit: int | None,
        *,
        is_loop: bool | None = None,
    ) -> None:
        """``length`` is what is asked for, and ``limit`` how many tokens there are positions for.

        ``is_loop``: whether the model runs a prompt token by token, if that is known.
        """
        self._known_loop = is_loop
        self._far = _FAR if limit is None else min(_FAR, limit)
        self._passes = passes
        self._prompt = length.prompt
        self._generated = length.generated
        self._asked = length.prompt + length.generated
        self._format = format_

    def __call__(self, tokens: int) -> int:
        """After so many tokens."""
        if self._prompt <= tokens <= self.reach and self._is_even:
            begin, end = self._recorded(self._prompt), self._recorded(self.reach)
            return begin + (end - begin) * (tokens - self._prompt) // (self.reach - self._prompt)
        if tokens <= self.reach:
            return self._recorded(tokens)
        return self(self.reach) + (tokens - self.reach) * self._growth

    @once
    def _is_even(self) -> bool:
        """Return whether each recorded token takes the same number of bytes.

        A token never takes more than the one before, so three sizes decide.
        """
        begin, middle, end = self._prompt, self._prompt + self._generated // 2, self.reach
        sizes = (
            [self._recorded(each) for each in (begin, middle, end)]
            if begin < middle < end
            else [0, 1, 0]
        )
        return (sizes[1] - sizes[0]) * (end - middle) == (sizes[2] - sizes[1]) * (middle - begin)

    @once
    def _growth(self) -> int:
        """Return the bytes that a token adds at the end of the recorded lengths.

        Growth never accelerates: if the rate was constant so far, it stays constant.
        """
        before, at_end = self(self._asked), self(self.reach)
        growth = before - self(self._asked - 1)
        return (
            growth
            if at_end - before == (self.reach - self._asked) * growth
            else at_end - self(self.reach - 1)
        )

    @once
    def reach(self) -> int:
        """So many tokens are recorded."""
        if self._asked >= self._far or self.is_loop:
            return self._asked
        try:
            self._recorded(self._far)
        except RecordError:
            return self._asked
        return self._far

    @property
    def may_go_on(self) -> bool:
        """Return whether sizes beyond the requested length are available."""
        return self.reach >= self._far or self.is_loop

    @once
    def is_loop(self) -> bool:
        """True if the model runs a prompt token by token, so that a long one is slow to record."""
        if self._known_loop is not None:
            return self._known_loop
        one, other = (self._shortest(length).operators for length in _SHORTEST)
        return one != other

    def _recorded(self, tokens: int) -> int:
        prompt = min(self._prompt, tokens)
        kept = self._passes.prompted(Length(prompt, tokens - prompt))
        sizes = [
            kept.times.get(name, 1) * self._share(name, each) * each.numel() * each.element_size()
            for name, each in kept.tensors.items()
        ]
        return ceil(sum(sizes)) // self._passes.batch_size

    def _share(self, name: str, tensor: Tensor) -> Fraction:
        """Return the share of bytes that the cache's format leaves. Fixed states keep all."""
        if self._format is None or name not in self._growing:
            return Fraction(1)
        return self._format.share(tensor.shape[-1], tensor.element_size())

    @once
    def _growing(self) -> frozenset[str]:
        """The tensors of the cache that hold something of each token, by their names."""
        one, other = (self._shortest(length).tensors for length in _SHORTEST)
        return frozenset(
            name
            for name, tensor in other.items()
            if name not in one or one[name].shape != tensor.shape
        )

    def _shortest(self, length: int) -> Kept:
        is_translated = self._passes.is_translated
        return self._passes.prompted(
            Length(length) if not is_translated else Length(_SHORTEST[0], length)
        )
