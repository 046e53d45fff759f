"""Chunks of sequences and decays, which the Triton kernels of linear attention share.

A decay is the exponential of a sum of gates. There is one decay per head, per key channel
(``by_key``) or per value channel (``by_value``); a constant decay depends only on the head and on
the number of positions.

Docstrings of these kernels state MACs, and FLOPs besides them. A *position* is a token of one head,
a *pair* any two positions of a chunk, *K* and *V* are the widths of keys and values, *∂x* is the
gradient of x. A mask, scale, beta (a product with it), sign (negation), choice (``where``), sum or
product is one FLOP for each element; *a pair takes 3* means 3 FLOPs per pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchscan.trace.events import TensorSpec

#: an optional tensor argument of a kernel
Pointer = TensorSpec | None

#: FLOPs of the decay between two positions: difference, exponential, product
PAIR_DECAY = 3


def count_chunks(positions: int, length: int, width: int, chunk_indices: Pointer = None) -> int:
    """Return the number of chunks of this width in sequences of this length, for all heads.

    Packed sequences have ``chunk_indices``, with a row for each chunk. In a CUDA graph it has as
    many rows as sequences of this total length can have chunks.
    """
    if chunk_indices is not None:
        return positions // length * chunk_indices.shape[0]
    return positions // length * -(-length // width)


def count_sequences(positions: int, length: int, cu_seqlens: Pointer) -> int:
    """Return the number of sequences for all heads; ``cu_seqlens`` are starts of packed ones."""
    sequences = positions // length
    if cu_seqlens is not None:
        sequences *= cu_seqlens.numel - 1
    return sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Decays:
    """The decays that a kernel applies to states of ``keys`` · ``values`` elements."""

    keys: int
    values: int
    #: ``USE_G``
    by_head: bool = False
    #: ``USE_G_GAMMA``
    is_constant: bool = False
    #: ``USE_GK``
    by_key: bool = False
    #: ``USE_GV``
    by_value: bool = False

    def flops_per_state(self) -> int:
        """Return the FLOPs that a state takes: a product per element, and the exponentials.

        A constant decay also takes a product with the number of positions.
        """
        size = self.keys * self.values
        flops = 0
        if self.by_head:
            flops += size + 1
        if self.is_constant:
            flops += size + 2
        if self.by_key:
            flops += size + self.keys
        if self.by_value:
            flops += size + self.values
        return flops

    def flops_per_position(self, width: int, exponential: int) -> int:
        """Return the FLOPs that a position takes.

        A decay by head multiplies ``width`` elements, one by key or value each key or value.
        ``exponential`` is what a decay takes: 1, or 2 with a difference of two sums of gates.
        """
        flops = 0
        if self.by_head:
            flops += width + exponential
        if self.is_constant:
            flops += width + exponential + 1
        if self.by_key:
            flops += self.keys * (1 + exponential)
        if self.by_value:
            flops += self.values * (1 + exponential)
        return flops


def flops_of_decayed_states(states: TensorSpec, keys: int, values: int) -> int:
    """Return the FLOPs of states that are decayed by key, and to which something is added."""
    decays = Decays(keys=keys, values=values, by_key=True)
    chunks = states.numel // (keys * values)
    per_chunk = keys * values + decays.flops_per_state()
    return chunks * per_chunk
