"""Which of the processes that train together this one is, and how many there are."""

from __future__ import annotations

import os

import torch


def current_rank() -> int:
    """Of this process among those that train together. Some launchers set no ``RANK``, and some only that of the machine."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    if _has_group():
        return torch.distributed.get_rank()
    return int(os.environ.get("LOCAL_RANK", "0"))


def current_world_size() -> int:
    """How many train together, as far as it is known by now."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return torch.distributed.get_world_size() if _has_group() else 1


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
