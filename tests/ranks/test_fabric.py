"""Times of messages over links, PCIe and the network, from data sheets."""

from __future__ import annotations

import pytest

from torchscan.analyses.roofline import Fabric
from torchscan.hardware.device_specs import device_named

#: bytes of a message
SIZE = 2**26
#: bytes per second of PCIe 4.0 with 16 lanes, whose packets carry 128 bits in 130
PCIE = 16 * 16e9 * 128 / 130 / 8


@pytest.mark.parametrize(
    ("device", "receiver", "rate"),
    [
        # NVLink has 900 and 112.5 GB/s in both directions; a message reaches 95 % of one
        ("NVIDIA H100 80GB HBM3", 7, 0.95 * 450e9),
        ("NVIDIA RTX A6000", 1, 0.95 * 56.25e9),
        # bridges join pairs: the next one is reached over PCIe, of which two get 62 %
        ("NVIDIA RTX A6000", 2, 0.62 * PCIE),
        # the next machine, over a network of 50 GB/s
        ("NVIDIA H100 80GB HBM3", 8, 0.9 * 50e9),
    ],
)
def test_messages_go_over_links_where_they_join_both_devices(
    device: str, receiver: int, rate: float
) -> None:
    """A message of twice the size takes longer by its bytes: latency is the same."""
    fabric = Fabric(device=device_named(device))
    once, twice = (fabric.transfer_time(0, receiver, size) for size in (SIZE, 2 * SIZE))
    assert twice - once == pytest.approx(SIZE / rate)
