"""Equal layers are run a few times, and written down as often as they are there.

Language models repeat a layer up to a hundred times. Four of each kind are run and compared, the
others hand on what they are given; their record is then that of an equal layer that was run.
Whether that gives the trace of the complete model is not taken on trust: one pass is recorded both
ways; unless the two are alike in every call, tensor and byte, no layer is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from torchscan.recording.folding.emptied import Slots, emptied, slots_of, with_parameters
from torchscan.recording.folding.layer_folds import folds_of
from torchscan.recording.folding.layer_repeats import Repeats
from torchscan.recording.folding.left_out_layers import times_of_caches
from torchscan.recording.folding.thinned import UnfoldableError, thinned
from torchscan.recording.folding.unfolded import require_equal_layers, unfolded
from torchscan.trace.trace import Trace
from torchscan.user_warnings import warn_user

_T = TypeVar("_T")

__all__ = ["Folded", "Repeats", "UnfoldableError", "without_equal_layers"]


@dataclass(frozen=True, slots=True)
class Folded:
    """A model in which some layers hand on what they are given, and which ones they are."""

    module: nn.Module
    #: by the path of a layer that was left out that of an equal one
    stands_in: dict[str, str]
    #: the paths of equal layers that are run
    run: list[list[str]]
    #: the parameters of the model if layers that are left out have none, or None
    slots: Slots | None

    @classmethod
    def of(cls, module: nn.Module, like: nn.Module | None = None) -> Folded | None:
        """Return the model without layers that are equal to others, or None if there are none.

        Those are equal that are in another model like it: this one before it was spread.
        """
        return _unless_it_fails(lambda: cls._of(module, like or module))

    @classmethod
    def _of(cls, module: nn.Module, like: nn.Module) -> Folded | None:
        folds = folds_of(like)
        if not folds:
            return None
        slots = slots_of(like, folds)
        if slots is not None and module is like:
            module = emptied(module, folds)
        stands_in = {path: other for fold in folds for path, other in fold.stands_in.items()}
        run = [each for fold in folds for each in fold.run]
        return cls(thinned(module, folds), stands_in, run, slots)

    def completed(self, trace: Trace) -> Trace:
        """Return the trace with the parameters of all layers."""
        return trace if self.slots is None else with_parameters(trace, self.slots)

    def unfolded(self, trace: Trace) -> Trace:
        """Return the trace of the complete model."""
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


def without_equal_layers(module: nn.Module) -> nn.Module | None:
    """Return a copy in which layers that are equal to others are empty, or None if it has none.

    It cannot run as it is: see :meth:`Folded.of`.
    """

    def empty() -> nn.Module | None:
        folds = folds_of(module)
        if not folds or slots_of(module, folds) is None:
            return None
        return emptied(module, folds)

    return _unless_it_fails(empty)


def _unless_it_fails(leave_out: Callable[[], _T | None]) -> _T | None:
    """Return the result, or None if layers cannot be left out; warn if that was not foreseen."""
    try:
        return leave_out()
    except UnfoldableError:
        return None
    except Exception as error:
        warn_user(
            "torchscan hit an internal error and records all layers, which takes longer; results "
            f"are not affected: {type(error).__name__}: {error}"
        )
        return None


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise an UnfoldableError if a layer lacks what its equal has, such as a shared parameter."""
    try:
        yield
    except (LookupError, ValueError) as error:
        raise UnfoldableError("the layers that were left out cannot be told") from error
