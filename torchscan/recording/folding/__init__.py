"""Equal layers are run a few times, and written down as often as they are there.

Language models repeat a layer up to a hundred times. Four of each kind are run and compared, the others hand on what they are
given; their record is then that of an equal layer that was run. Whether that gives the record of the whole model is not taken
on trust: one pass is recorded both ways; unless the two are alike in every call, tensor and byte, no layer is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from torchscan.recording.folding.layer_folds import Fold, folds_of
from torchscan.recording.folding.repeats import Repeats
from torchscan.recording.folding.thinned import UnfoldableError, thinned
from torchscan.recording.folding.unfolded import require_equal_layers, times_of_caches, unfolded
from torchscan.trace.trace import Trace

__all__ = ["Folded", "Repeats", "UnfoldableError"]


@dataclass(frozen=True, slots=True)
class Folded:
    """A model in which some layers hand on what they are given, and which ones they are."""

    module: nn.Module
    #: by the path of a layer that was left out that of an equal one
    stands_in: dict[str, str]
    #: the paths of equal layers that are run
    run: list[list[str]]

    @classmethod
    def of(cls, module: nn.Module, like: nn.Module | None = None) -> Folded | None:
        """None: no layer can be left out. Those are equal that are in another model like it: this one before it was spread."""
        try:
            return cls._of(module, folds_of(like or module))
        except Exception:  # a model's own attributes and copies may raise whatever they like
            return None

    @classmethod
    def _of(cls, module: nn.Module, folds: Sequence[Fold]) -> Folded | None:
        stands_in = {path: other for fold in folds for path, other in fold.stands_in.items()}
        return (
            cls(thinned(module, folds), stands_in, [each for fold in folds for each in fold.run])
            if folds
            else None
        )

    def unfolded(self, trace: Trace) -> Trace:
        """The record of the whole model."""
        with _refusing():
            require_equal_layers(trace, self.run)
            return unfolded(trace, self.stands_in)

    def repeats(self, trace: Trace, unfold: Callable[[], Trace]) -> Repeats:
        """Return the layers of the whole model that the trace lacks."""
        with _refusing():
            require_equal_layers(trace, self.run)
            return Repeats(trace, self.stands_in, unfold)

    def times(self, trace: Trace) -> Mapping[int, int]:
        """Return the number of layers that each cache represents, if several, by its storage."""
        with _refusing():
            require_equal_layers(trace, self.run)
            return times_of_caches(trace, self.stands_in)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise an UnfoldableError if a layer lacks what its equal has, such as a shared parameter."""
    try:
        yield
    except (LookupError, ValueError) as error:
        raise UnfoldableError("the layers that were left out cannot be told") from error
