"""Rank of this process, and number of ranks."""

from __future__ import annotations

import os

import torch


def current_rank() -> int:
    """Return the rank of this process.

    Some launchers set no ``RANK``, and some only the rank in the machine.
    """
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    if _has_group():
        return torch.distributed.get_rank()
    return int(os.environ.get("LOCAL_RANK", "0"))


def current_world_size() -> int:
    """Return the number of ranks, as far as it is known."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return torch.distributed.get_world_size() if _has_group() else 1


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
