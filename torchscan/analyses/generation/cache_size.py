"""The size of a cache as a function of the number of tokens in it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from torchscan.analyses.generation.stored import Stored
from torchscan.errors import RecordError
from torchscan.once import once
from torchscan.recording.generation_passes import Generating, Length
from torchscan.recording.kept_passes import Kept

#: lengths at which it shows what grows with the length
_SHORTEST = (2, 3)
#: tokens up to which caches are recorded: the mask of attention takes the square of it
_FAR = 8192


class CacheSize:
    """Bytes of the cache of one sequence, read from passes.

    Beyond the longest pass, it grows on as at its end.
    """

    def __init__(
        self,
        passes: Generating,
        length: Length,
        format_: Stored | None,
        limit: int | None,
        *,
        is_loop: bool | None = None,
    ) -> None:
        """Prepare to record passes.

        Args:
            passes: the passes of one sequence.
            length: the requested length.
            format_: the format in which keys and values are stored, or None for the model's own.
            limit: the number of tokens that the model has positions for, or None.
            is_loop: True if the model runs a prompt token by token, or None if that is not known.
        """
        self._known_loop = is_loop
        self._far = _FAR if limit is None else min(_FAR, limit)
        self._passes = passes
        self._prompt = length.prompt
        self._generated = length.generated
        self._asked = length.prompt + length.generated
        self._format = format_

    def __call__(self, tokens: int) -> int:
        """Return the bytes after this number of tokens."""
        reach = self.reach
        if tokens > reach:
            return self(reach) + (tokens - reach) * self._growth
        if tokens < self._prompt or not self._is_even:
            return self._recorded_bytes(tokens)

        begin = self._recorded_bytes(self._prompt)
        end = self._recorded_bytes(reach)
        return begin + (end - begin) * (tokens - self._prompt) // (reach - self._prompt)

    @once
    def _is_even(self) -> bool:
        """True if each recorded token takes the same number of bytes.

        A token never takes more than the one before, so three sizes decide.
        """
        begin = self._prompt
        middle = begin + self._generated // 2
        end = self.reach
        if not begin < middle < end:
            return False
        at_begin, at_middle, at_end = (self._recorded_bytes(each) for each in (begin, middle, end))
        return (at_middle - at_begin) * (end - middle) == (at_end - at_middle) * (middle - begin)

    @once
    def _growth(self) -> int:
        """Bytes that a token adds at the end of the recorded lengths.

        Growth never accelerates: if the rate was constant so far, it stays constant.
        """
        before = self(self._asked)
        at_end = self(self.reach)
        growth = before - self(self._asked - 1)
        if at_end - before == (self.reach - self._asked) * growth:
            return growth
        return at_end - self(self.reach - 1)

    @once
    def reach(self) -> int:
        """The number of tokens of the longest pass."""
        if self._asked >= self._far or self.is_loop:
            return self._asked
        try:
            self._recorded_bytes(self._far)
        except RecordError:
            return self._asked
        return self._far

    @property
    def may_go_on(self) -> bool:
        """True if sizes beyond the requested length are available."""
        return self.reach >= self._far or self.is_loop

    @once
    def is_loop(self) -> bool:
        """True if the model runs a prompt token by token, so that a long one is slow to record."""
        if self._known_loop is not None:
            return self._known_loop
        one, other = (self._short_pass(length).operators for length in _SHORTEST)
        return one != other

    def _recorded_bytes(self, tokens: int) -> int:
        prompt = min(self._prompt, tokens)
        kept = self._passes.prompted(Length(prompt, tokens - prompt))
        size = Fraction(0)
        for name, tensor in kept.tensors.items():
            # Fixed states keep all bytes.
            share = Fraction(1)
            if self._format is not None and name in self._growing_tensors:
                share = self._format.share(tensor.shape[-1], tensor.element_size())
            num_bytes = tensor.numel() * tensor.element_size()
            size += kept.times.get(name, 1) * share * num_bytes
        return ceil(size) // self._passes.batch_size

    @once
    def _growing_tensors(self) -> frozenset[str]:
        """Names of the tensors of the cache that hold values of each token."""
        one, other = (self._short_pass(length).tensors for length in _SHORTEST)
        growing = set()
        for name, tensor in other.items():
            if name not in one or one[name].shape != tensor.shape:
                growing.add(name)
        return frozenset(growing)

    def _short_pass(self, length: int) -> Kept:
        if self._passes.is_translated:
            return self._passes.prompted(Length(_SHORTEST[0], length))
        return self._passes.prompted(Length(length))
