"""The time of collectives. Each rank is a device, several of which are in a machine.

A collective waits for its slowest link. With ``n`` devices in ``N`` machines, ``g`` in each, a
device sends ``b`` bytes: all of them over the links of its machine, and its share of the machine's
traffic over its network card::

    time = latency + pipeline + max(b / link, b · (N − 1)/N · n/(n − 1) / g / network)

The latency grows with the steps of a ring: ``2 (n − 1)`` of an all-reduce, ``n − 1`` of the others.
A pipeline of pieces takes a while until it is full; messages between two devices have none. Links
reach a smaller share with few devices, because each drives fewer of them; PCIe is shared by all.

In an all-gather, ``b`` is ``(n − 1)/n`` of the complete tensor, so the network carries ``(N −
1)/N`` of it into each machine. In an all-to-all, each byte is for one device only, so its time has
no ``g``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchscan.analyses.roofline.collective_constants import (
    LATENCY,
    LATENCY_CYCLES,
    LATENCY_OF_MACHINES,
    LATENCY_OF_STEP,
    LINK_SHARES,
    NETWORK,
    ONE_SHOT,
    ONE_SHOT_BYTES,
    PCIE_SHARES,
    PIPELINE,
    PIPELINE_BYTES,
    RINGS_ON_HOPPER,
    SEND_SHARE,
    STEP_BETWEEN,
    STEP_INSIDE,
    SWITCH_SHARE,
)
from torchscan.errors import Argument, InputError
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.ops.communication import COLLECTIVES, Kind, group_of, sent_bytes, whole_bytes
from torchscan.trace.events import GroupSpec, OpCall
from torchscan.trace.trace import Trace

#: between two devices, at once instead of in pieces
_MESSAGES: tuple[Kind, ...] = ("send", "receive")
#: in a single ring through all machines, where an all-reduce has trees
_RINGS: tuple[Kind, ...] = ("all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links between devices. Rates are bytes per second of one device, in one direction."""

    device: Device
    #: devices in a machine
    per_machine: int = 8
    network: float = 50e9
    #: links inside a machine, or None for those of the device's data sheet
    link: float | None = None
    #: True if an inference engine reduces small tensors in one step
    is_engine: bool = False
    #: True if collectives of tensor parallelism overlap with the products that they feed or follow
    overlaps_products: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no machine has."""
        is_number = isinstance(self.per_machine, int) and not isinstance(self.per_machine, bool)
        if not is_number or self.per_machine < 1:
            raise InputError.of_value(
                "per_machine",
                self.per_machine,
                "give the number of devices in a machine, 1 or more",
            )
        if not self.network > 0:
            raise InputError(
                Argument("network_gbs"),
                f" is {self.network / 1e9:g}: give the bandwidth of the network for each device, "
                "in 10^9 bytes per second",
            )

        if self.link is not None and not self.link > 0:
            raise InputError(
                Argument("link_gbs"),
                f" is {self.link / 1e9:g}: give the bandwidth of the links for each device, in "
                "10^9 bytes per second",
            )

    @property
    def assumption(self) -> Note:
        """The links and rates that are assumed, as a note."""
        is_linked = self.link is not None or (
            self.device.link_bytes_per_second is not None and self.device.link_devices is None
        )
        shares = LINK_SHARES if is_linked else PCIE_SHARES
        return Note.of(
            "fabric",
            per_machine=self.per_machine,
            joined_by="links" if is_linked else "PCIe",
            network_gbs=self.network / 1e9,
            link_share=shares[8],
            network_share=NETWORK,
        )

    def seconds(self, op: OpCall) -> float | None:
        """Return the seconds of a collective, or None for other calls and groups of one rank."""
        kind = COLLECTIVES.get(op.signature.operator)
        group = None if kind is None else group_of(op.signature)
        if kind is None or group is None or group.size < 2:
            return None
        return self.collective_time(kind, group, whole_bytes(op.signature))

    def collective_time(self, kind: Kind, group: GroupSpec, size: int) -> float:
        """Return the seconds of a collective; ``size`` is that of the complete tensor in bytes."""
        if group.size < 2:
            return 0.0
        sent = sent_bytes(kind, size, group.size)
        # an engine reads all other devices at once, instead of using a ring
        is_near = len(self._machines(group)) == 1 and self._has_links(group)
        if self.is_engine and kind == "all-reduce" and is_near and size <= ONE_SHOT_BYTES:
            return ONE_SHOT + sent / (LINK_SHARES[8] * self._link(group))
        return self._latency(group, kind) + self._transfer(kind, group, sent)

    def transfer_time(self, sender: int, receiver: int, size: int) -> float:
        """Return the seconds that this number of bytes takes from one device to another."""
        pair = GroupSpec(name="", purpose="", ranks=(sender, receiver))
        return self._latency(pair, "send") + self._transfer("send", pair, size)

    def _machines(self, group: GroupSpec) -> tuple[int, ...]:
        """Return the number of the group's devices in each machine."""
        return _count_by_island(group.ranks, self.per_machine, self.per_machine)

    def _latency(self, group: GroupSpec, kind: Kind) -> float:
        machines = self._machines(group)
        devices = max(machines)
        clock = self.device.clock_hz
        kernel = LATENCY_CYCLES / clock if clock else LATENCY
        if len(machines) > 1 and kind in _RINGS:
            inside = group.size - len(machines)
            return kernel + STEP_INSIDE * inside + STEP_BETWEEN * len(machines)
        steps = 1 if kind in _MESSAGES else devices - 1
        if kind == "all-reduce":
            steps *= 2
        return kernel + LATENCY_OF_STEP * steps + LATENCY_OF_MACHINES * math.log2(len(machines))

    def _transfer(self, kind: Kind, group: GroupSpec, sent: int) -> float:
        machines = self._machines(group)
        within = 0.0
        if max(machines) > 1:
            within = sent / (self._link_share(kind, group) * self._link(group))
            if kind not in _MESSAGES:
                within += PIPELINE * sent / (sent + PIPELINE_BYTES)
        num_bytes = _network_bytes(kind, machines, group.size, sent)
        return max(within, num_bytes / (NETWORK * self.network))

    def _link_share(self, kind: Kind, group: GroupSpec) -> float:
        """Return the share of the data sheet's rate that a collective reaches inside a machine."""
        devices = max(self._machines(group))
        if not self._has_links(group):
            return _share_of(PCIE_SHARES, devices)
        if kind in _MESSAGES:
            return SEND_SHARE
        has_switch = (self.device.capability or 0) >= 9 and devices >= 8
        if kind == "all-reduce" and has_switch:
            return SWITCH_SHARE
        is_faster = (self.device.capability or 0) >= 9 and kind in _RINGS
        return _share_of(LINK_SHARES, devices) * (RINGS_ON_HOPPER if is_faster else 1.0)

    def _has_links(self, group: GroupSpec) -> bool:
        """Return whether links join all devices of the group that are in one machine."""
        if self.link is not None:
            return True
        joined = self.device.link_devices or self.per_machine
        islands = _count_by_island(group.ranks, self.per_machine, joined)
        has_links = self.device.link_bytes_per_second is not None
        return has_links and len(islands) == len(self._machines(group))

    def _link(self, group: GroupSpec) -> float:
        """Return the rate of the slowest link that a device needs inside its machine."""
        device = self.device
        if self.link is not None:
            return self.link
        if device.link_bytes_per_second is not None and self._has_links(group):
            return device.link_bytes_per_second / 2
        if device.pcie_bytes_per_second is None:
            raise InputError(
                f"the links of {device.name} are not known: register it with register_device(..., "
                "link_gbs=...)"
            )
        return device.pcie_bytes_per_second


@lru_cache(maxsize=1024)
def _count_by_island(ranks: tuple[int, ...], per_machine: int, joined: int) -> tuple[int, ...]:
    """Return the number of devices in each part of a machine that links join."""
    islands = [divmod(rank, per_machine) for rank in ranks]
    counts = Counter((machine, place // joined) for machine, place in islands)
    return tuple(counts.values())


def _share_of(shares: Mapping[int, float], devices: int) -> float:
    """Return the share for a number of devices, interpolated between those that were measured."""
    known = sorted(shares)
    if devices >= known[-1]:
        return shares[known[-1]]
    above = next(each for each in known if each >= devices)
    below = max([each for each in known if each < above], default=above)
    if below == above:
        return shares[above]
    part = math.log(devices / below) / math.log(above / below)
    return float(shares[below] * (shares[above] / shares[below]) ** part)


def _network_bytes(kind: Kind, machines: Sequence[int], size: int, sent: int) -> float:
    """Return the bytes that the network carries for one device."""
    if len(machines) == 1:
        return 0.0
    if kind in _MESSAGES:
        return sent
    crossing = sent * (1 - 1 / len(machines)) * size / (size - 1)
    return crossing if kind == "all-to-all" else crossing / min(machines)


def link_times(trace: Trace, fabric: Fabric) -> dict[int, float]:
    """Return the seconds of each collective, by the index of its call."""
    times = ((index, fabric.seconds(op)) for index, op in enumerate(trace.ops))
    return {index: time for index, time in times if time is not None}
