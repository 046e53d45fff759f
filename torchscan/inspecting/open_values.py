"""Values of a call that goes on: its inputs, and what it is suspected of."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.inspecting.finiteness import NonFiniteCount, check_values, version_of
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.bookkeeping.containers import named_tensors
from torchscan.recording.module_calls import Given
from torchscan.torch_versions import without_tracing


class CallInput(NamedTuple):
    """A tensor that a call was given, with its version and counts at the start."""

    tensor: Tensor
    version: int
    look: NonFiniteCount

    @property
    def is_written_to(self) -> bool:
        """True if the tensor was written to since the call started."""
        version = version_of(self.tensor)
        return version != self.version or (version < 0 and check_values(self.tensor) != self.look)


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """Something that is not finite, of which it is not certain yet what made it."""

    order: int
    look: NonFiniteCount
    numel: int
    #: of infinities: "+", "-" or both
    signs: str
    #: which they are of, and which are not kept for this
    tensors: list[weakref.ref[Tensor]]

    @classmethod
    def of(cls, order: int, look: NonFiniteCount, tensors: Sequence[Tensor]) -> Suspicion:
        """Return the suspicion of tensors with these counts in all."""
        signs = signs_of(tensors) if look.inf and not look.nan else ""
        return cls(
            order=order,
            look=look,
            numel=size_of(tensors),
            signs=signs,
            tensors=[weakref.ref(each) for each in tensors],
        )


@dataclass(slots=True)
class OpenValues:
    """A call that goes on: what it was given, and what it is suspected of."""

    given: Given
    inputs: list[CallInput]
    #: the module's own buffers, with their versions when the call started
    buffers: Sequence[tuple[str, Tensor, int]]
    suspicions: list[Suspicion] = field(default_factory=list)

    def find_written_buffers(self, module: nn.Module) -> set[str]:
        """Return the names of buffers that the module has written to."""
        written = {name for name, each, version in self.buffers if version_of(each) != version}
        # Their operator leaves versions as they are.
        if hasattr(module, "running_mean") and module.training:
            written |= {"running_mean", "running_var"}
        return written


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in arguments that can be read, with their names."""
    arguments = [(f"input {index}", each) for index, each in enumerate(args)]
    arguments += kwargs.items()
    for name, value in arguments:
        for path, each in named_tensors(value, name):
            if is_readable(each):
                yield path, each


def signs_of(tensors: Iterable[Tensor]) -> str:
    """Return the signs of the infinities, "+", "-" or "+-", or "" if there are none to read."""
    real = [each for each in tensors if is_plain(each) and not each.is_complex()]
    with without_tracing():
        has_plus = any(bool(torch.isposinf(each).any()) for each in real)
        has_minus = any(bool(torch.isneginf(each).any()) for each in real)
    signs = "+" if has_plus else ""
    return f"{signs}-" if has_minus else signs


def size_of(tensors: Iterable[Tensor | None]) -> int:
    """Return the number of values of all tensors."""
    return sum(each.numel() for each in tensors if each is not None)
