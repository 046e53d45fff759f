"""Sizes of calls of fused attention, and the share of their scores that kernels compute."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchscan.analyses.roofline.attention_constants import ATTENTION_BLOCK
from torchscan.trace.events import OpSignature

#: attention with the kernels of inference engines
OF_ENGINES = "torchscan.fused_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes of a call of fused attention."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    #: widths of a key and of a value; kernels of torch pad the smaller one
    width: int
    value_width: int
    is_causal: bool
    #: number of keys that a query sees at most, or None
    window: int | None = None

    @classmethod
    def of(cls, signature: OpSignature, first: int = 0) -> AttentionShape:
        """Return the sizes of a call. Operands from ``first`` on are queries, keys and values."""
        query, key, value = (each.shape for each in signature.inputs[first : first + 3])
        *outer, queries, width = query
        *key_outer, keys, _ = key
        value_width = width
        if signature.operator == OF_ENGINES:
            value_width = value[-1]
        *batch, heads = outer or (1,)
        *_, key_heads = key_outer or (1,)
        return cls(
            batch=math.prod(batch),
            heads=heads,
            key_heads=key_heads,
            queries=queries,
            keys=keys,
            width=width,
            value_width=value_width,
            is_causal=bool(signature.arguments.get("is_causal", False)),
            window=signature.arguments.get("window"),
        )

    @classmethod
    def of_latents(cls, signature: OpSignature) -> AttentionShape:
        """Return the sizes of a call whose keys are latents with a rotary part, for all heads."""
        query, rotary_query, latent, _ = (each.shape for each in signature.inputs)
        batch, heads, queries, width = query
        width += rotary_query[3]
        keys, latent_width = latent[2:4]
        return cls(
            batch=batch,
            heads=heads,
            key_heads=1,
            queries=queries,
            keys=keys,
            width=width,
            value_width=latent_width,
            is_causal=False,
        )

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return max(1, self.heads // max(self.key_heads, 1))

    @property
    def mean_width(self) -> float:
        """Mean width of keys and values."""
        return (self.width + self.value_width) / 2

    @property
    def seen(self) -> int:
        """Number of keys that are counted for each query."""
        return self.keys if self.window is None else min(self.keys, self.window)

    @property
    def skips_blocks(self) -> bool:
        """True if the blocks beyond the diagonal are not computed."""
        return self.is_causal and self.queries == self.keys

    @property
    def min_share(self) -> float:
        """Share of the counted scores that has to be computed.

        The first queries of a text see fewer keys than there are in a window.
        """
        if not self.skips_blocks:
            return 1.0
        return (2 * self.keys - self.seen + 1) / (2 * self.keys)

    @property
    def longest_tile(self) -> int:
        """Number of keys that the longest tile goes through, in whole blocks."""
        if not self.skips_blocks:
            return self.keys
        return min(self.keys, self.seen + ATTENTION_BLOCK)

    @property
    def mean_tile(self) -> float:
        """Mean number of keys that a tile goes through: few at the beginning of a text."""
        if not self.skips_blocks:
            return self.keys
        longest = self.longest_tile
        first = min(longest, (longest + ATTENTION_BLOCK) / 2)
        return (longest * first + (self.keys - longest) * longest) / self.keys

    @property
    def computed_share(self) -> float:
        """Scores that are computed, in whole blocks, as a share of the counted ones."""
        return self.mean_tile / self.seen

    @property
    def computed_flops(self) -> float:
        """Operations of the two products."""
        scores = self.batch * self.heads * self.queries * self.seen
        return 4 * scores * self.mean_width * self.computed_share
