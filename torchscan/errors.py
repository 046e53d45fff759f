"""Everything that torchscan raises: one tree, so that one ``except`` catches it."""

from __future__ import annotations

import sys
import warnings


class TorchscanError(Exception):
    """Base of all errors of torchscan. Its text says what, where and what to try."""


class InputError(TorchscanError, ValueError):
    """What was passed to torchscan cannot be used: not a module, a malformed shape, an unknown option."""


class RecordError(TorchscanError, RuntimeError):
    """The model raised while its pass was recorded; the original exception is chained as the cause."""


class UnpricedError(TorchscanError):
    """``strict=True`` and the pass holds operators whose cost is not known."""


class NeedsValuesError(TorchscanError):
    """The pass asked for a value that a shape-only pass does not have. Caught by ``execute="auto"``."""


class BudgetError(TorchscanError, AssertionError):
    """A model costs more than it may. The text says what, by how much, and which layers to look at."""


def warn_user(message: str) -> None:
    """Warn at the line outside of torchscan that asked, however deep inside the reason was found."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torchscan", "functools"):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, stacklevel=depth)
