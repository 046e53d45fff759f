"""Operators of expert parallelism that a record follows: the picks that a device has to compute.

Which rows pick a device's experts is decided by values. Their number on the device with the most
follows from :class:`torchscan.ops.routing.Routing`. Kernels of experts select rows while they read
and write them, so both operators stand for no kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchscan.ops.routing import Routing

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("own_picks(Tensor picks, int choices, int num_devices) -> Tensor")
_library.define("all_rows(Tensor rows, int number) -> Tensor")


def own_picks(picks: Tensor, choices: int, num_devices: int) -> Tensor:
    """Return picks of the device with the most, of ``choices`` experts, in rows of equal length."""
    found: Tensor = torch.ops.torchscan.own_picks(picks, choices, num_devices)
    return found


def all_rows(rows: Tensor, number: int) -> Tensor:
    """Return as many rows as there are tokens, zeros for those that picked other devices."""
    found: Tensor = torch.ops.torchscan.all_rows(rows, number)
    return found


def picks_in_turn(picks: Tensor, choices: int, num_devices: int) -> Tensor:
    """Return picks that hit as many experts as are expected, one after the other."""
    rows, number = picks.shape
    routing = Routing(choices, number, rows, num_devices)
    hit = max(routing.picks_per_row, round(routing.expected))
    slots = torch.arange(routing.slots, device=picks.device, dtype=picks.dtype)
    return (slots % hit).view(routing.rows_with_picks, routing.picks_per_row)


_library.impl("own_picks", picks_in_turn, "CompositeExplicitAutograd")
_library.impl(
    "all_rows",
    lambda rows, number: rows.new_zeros(number, rows.shape[1]),
    "CompositeExplicitAutograd",
)
