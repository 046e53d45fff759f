"""Collectives that run behind the products beside them, in calls made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.traces import call_of, trace_of
from torchscan.analyses.roofline import Fabric
from torchscan.analyses.roofline.async_products import overlap_with_products
from torchscan.analyses.roofline.collective_constants import ASYNC_TP_GAIN
from torchscan.hardware.device_specs import device_named
from torchscan.trace.events import GroupSpec, OpCall

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
FOUR = GroupSpec("0", "mesh_tp", (0, 1, 2, 3))


def _waits(calls: list[OpCall], times: dict[int, float], seconds: dict[int, float]) -> Any:
    fabric = Fabric(device=device_named("H100"), overlaps_products=True)
    return overlap_with_products(trace_of(calls, {}), fabric, times, seconds)


def test_an_all_gather_runs_behind_the_products_that_read_its_result() -> None:
    """Of a product of 4 s, all but the first of four pieces can run beside a collective of 8 s.

    The product reads what was waited for and cast. The last one reads something else.
    """
    calls = [
        call_of(c10d.all_gather_into_tensor.default, [0], [1], arguments=[FOUR]),
        call_of(c10d.wait_tensor.default, [1], [2]),
        call_of(aten._to_copy.default, [2], [3]),
        call_of(aten.mm.default, [3, 4], [5]),
        call_of(aten.mm.default, [6, 7], [8]),
    ]
    waits = _waits(calls, times={0: 8.0}, seconds={3: 4.0, 4: 100.0})
    assert waits == {0: pytest.approx(8 - ASYNC_TP_GAIN * 3)}


def test_a_reduce_scatter_runs_behind_the_product_that_it_follows() -> None:
    """A collective of 2 s is shorter than the 3 s of a product that can run beside it."""
    calls = [
        call_of(aten.mm.default, [0, 1], [2]),
        call_of(aten.view.default, [2], [3]),
        call_of(c10d.reduce_scatter_tensor.default, [3], [4], arguments=[FOUR]),
        call_of(aten.mm.default, [4, 5], [6]),
    ]
    waits = _waits(calls, times={2: 2.0}, seconds={0: 4.0, 3: 100.0})
    assert waits == {2: pytest.approx(2 - ASYNC_TP_GAIN * 2)}


def test_products_of_another_phase_hide_no_collective() -> None:
    calls = [
        call_of(c10d.all_gather_into_tensor.default, [0], [1], arguments=[FOUR]),
        call_of(aten.mm.default, [1, 2], [3], phase="backward"),
    ]
    assert _waits(calls, times={0: 8.0}, seconds={1: 4.0}) == {0: 8.0}
