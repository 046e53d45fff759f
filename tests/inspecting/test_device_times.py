"""What a device would have done without us, from moments that are written down by hand."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.recording.test_record import Calls
from torchscan.inspecting import device_times
from torchscan.inspecting.device_times import DeviceMark, DeviceTimes, EventPool, undisturbed
from torchscan.inspecting.timing import StepTimes
from torchscan.recording.module_calls import Call


def took(*moments: tuple[int, int, int], ours: frozenset[int] = frozenset()) -> list[int]:
    """From each mark to the next."""
    return [
        two - one
        for one, two in pairwise(undisturbed([DeviceMark(*each) for each in moments], ours))
    ]


def test_a_busy_device_takes_what_it_takes() -> None:
    """The host has put all of it there, and has looked for 300, when the device comes to the second mark.

    What it did before the host put the second mark, at 10, nobody knows.
    """
    assert took((0, 0, 0), (10, 0, 1000), (320, 300, 1400), (330, 300, 2000)) == [990, 400, 600]


def test_a_device_that_waits_does_not_wait_for_our_looking() -> None:
    """It passes each mark at once. Of the 500 between the second and the third the host has looked for 450."""
    assert took((0, 0, 0), (100, 0, 100), (600, 450, 600), (700, 450, 700)) == [100, 50, 100]


def test_what_was_not_hidden_is_hidden_without_us() -> None:
    """Looking for 1,000 lets the device run dry, which is seen at 800 and goes on at 1,250 or before, for 300 at least.

    Without us the host puts the third mark at 250, long before the device is done with the first 700.
    """
    assert took((0, 0, 0), (100, 0, 800), (1250, 1000, 1550)) == [700, 300]


def test_clocks_need_not_start_together() -> None:
    assert took((50, 0, 0), (150, 0, 100), (650, 450, 600)) == [100, 50]


def test_what_is_ours_is_no_work() -> None:
    """The device is busy with our kernels for 300, between two pieces of 500."""
    moments = (0, 0, 0), (10, 0, 500), (40, 30, 800), (50, 30, 1300)
    assert took(*moments) == [490, 300, 500]
    assert took(*moments, ours=frozenset({1})) == [490, 0, 500]


def test_no_marks() -> None:
    assert undisturbed([]) == []


def test_what_other_streams_did_before_counts_once() -> None:
    """The third mark is in another stream, which passed it long before: no time goes back."""
    assert took((0, 0, 0), (10, 0, 1000), (20, 0, 200), (30, 0, 1100)) == [990, 0, 100]


class Clocked(EventPool):
    """Events of a device that passes one every millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.num_recorded = 0
        self.given_back: list[Any] = []

    def record(self, device: torch.device) -> Any:
        assert device == torch.device("cpu")
        self.num_recorded += 1
        passed = self.num_recorded

        def elapsed_time(other: Any) -> float:
            return float(other.passed - passed)

        return SimpleNamespace(passed=passed, elapsed_time=elapsed_time, synchronize=lambda: None)

    def give_back(self, event: Any) -> None:
        self.given_back.append(event)


def test_a_call_and_its_nodes_take_what_the_device_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host sets all marks at once, so the device is busy from the first to the last.

    Marks: the call from 1 to 2 ms, and its nodes from 3 to 4 and from 5 to 6 ms.
    """
    monkeypatch.setattr(device_times, "perf_counter_ns", lambda: 7)
    pool = Clocked()
    device = DeviceTimes(pool, torch.device("cpu"))
    times = StepTimes(device)
    call = Call(Calls(lambda *_: None), "", 0, 0, None, None)
    times.note_start(call)
    times.note_end(call)
    for _ in range(2):
        start = times.note_node_start(call.index)
        times.note_node(call.index, start, inside=0)
    device.read()
    assert device.forward == {0: 1_000_000}
    assert device.backward == {0: 2_000_000}
    assert device.backward_span == 3_000_000
    assert len(pool.given_back) == pool.num_recorded == 6
