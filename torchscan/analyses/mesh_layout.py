"""Sizes of a mesh for training, and the ranks along each dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torchscan.trace.events import GroupSpec

#: "pp": stages of a pipeline; "replicate": copies of what is sharded (HSDP); "dp": FSDP; "cp":
#: parts of a sequence, over which FSDP shards too; "ep": parts of the experts, and other sequences;
#: "tp": tensor parallelism. Neighbors in the last one are in one machine.
MeshDimension = Literal["pp", "replicate", "dp", "cp", "ep", "tp"]
DIMENSIONS: tuple[MeshDimension, ...] = ("pp", "replicate", "dp", "cp", "ep", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLayout:
    """The size of each dimension."""

    pp: int = 1
    replicate: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    @classmethod
    def of(cls, mesh: Mapping[str, int]) -> MeshLayout:
        """Return the layout of a mesh."""
        return cls(**{name: mesh.get(name, 1) for name in DIMENSIONS})

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(size for _, size in self.sizes())

    @property
    def copies(self) -> int:
        """Number of groups of ranks that work on different sequences."""
        return self.replicate * self.dp * self.ep

    @property
    def mesh(self) -> dict[str, int]:
        """The dimensions with several ranks.

        FSDP shards along the last of two dimensions, so "dp" is present if there are copies.
        It shards experts along "dp".
        """
        mesh: dict[str, int] = dict(self.sizes())
        for name, size in self.sizes():
            is_kept = name == "dp" and self.replicate * self.ep > 1
            if size == 1 and not is_kept:
                del mesh[name]
        return mesh or {"dp": 1}

    @property
    def is_sharded(self) -> bool:
        """True if FSDP runs."""
        return self.replicate * self.dp * self.cp * self.ep > 1

    def sizes(self) -> Iterator[tuple[MeshDimension, int]]:
        """Yield each dimension with its size, the outermost first."""
        for name in DIMENSIONS:
            yield name, getattr(self, name)

    @property
    def shards(self) -> GroupSpec:
        """The first rank's group of FSDP, which shards over "dp", "cp" and "ep"."""
        return self._group("dp", "ep")

    @property
    def expert_shards(self) -> GroupSpec:
        """The first rank's group of FSDP for experts that are divided along "ep"."""
        return self._group("dp", "dp")

    @property
    def replicas(self) -> GroupSpec:
        """The first rank's group of copies."""
        return self._group("replicate", "replicate")

    @property
    def tensor_parts(self) -> GroupSpec:
        """The first rank's group for parts of layers."""
        return self._group("tp", "tp")

    @property
    def stage_size(self) -> int:
        """Number of ranks of a pipeline stage."""
        return self.size // self.pp

    def _group(self, first: MeshDimension, last: MeshDimension) -> GroupSpec:
        """Return the first rank's group along these dimensions and those between them."""
        sizes = [size for _, size in self.sizes()]
        begin, end = DIMENSIONS.index(first), DIMENSIONS.index(last) + 1
        size, step = math.prod(sizes[begin:end]), math.prod(sizes[end:])
        ranks = tuple(range(0, size * step, step))
        return GroupSpec(name=first, purpose=f"mesh_{first}", ranks=ranks)


def format_mesh(mesh: Mapping[str, int]) -> str:
    """Return the mesh as text, such as ``dp 8 × tp 8``."""
    return " × ".join(f"{name} {size}" for name, size in mesh.items())
