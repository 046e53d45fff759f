"""What a version of torch can't do, for tests to be skipped with the reason."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch
from torch.torch_version import TorchVersion


def lacks(path: str) -> bool:
    """Whether this version of torch has nothing of this name: ``"optim.Muon"``, ``"ops.aten._grouped_mm"``."""
    try:
        attrgetter(path)(torch)
    except AttributeError:
        return True
    return False


def needs(path: str) -> pytest.MarkDecorator:
    """Skip a test where torch lacks it."""
    return pytest.mark.skipif(lacks(path), reason=f"this version of torch has no torch.{path}")


def before(version: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test of how things look, or of what torch gets wrong, in older versions."""
    return pytest.mark.skipif(
        TorchVersion(torch.__version__) < version, reason=f"before torch {version}, {reason}"
    )


def skip_without(path: str) -> None:
    """The same, inside a test."""
    if lacks(path):
        pytest.skip(f"this version of torch has no torch.{path}")


def skip_before(version: str, reason: str) -> None:
    """The same, inside a test."""
    if TorchVersion(torch.__version__) < version:
        pytest.skip(f"before torch {version}, {reason}")
