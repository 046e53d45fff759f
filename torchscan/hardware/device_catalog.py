"""The catalog of devices: those of the package, of the user's file and registered ones."""

from __future__ import annotations

from torchscan.hardware.device import Device
from torchscan.hardware.device_entries import to_device
from torchscan.hardware.device_files import package_devices, read_entries, user_file

_registered: dict[str, Device] = {}


def known_devices() -> dict[str, Device]:
    """Return all devices: the package's, those in the user's file and registered ones.

    Later ones replace earlier ones.
    """
    path = user_file()
    entries = read_entries(path)
    of_user = {name: to_device(name, entry, str(path)) for name, entry in entries.items()}
    return {**package_devices(), **of_user, **_registered}


def register(device: Device) -> None:
    """Make a device known to this process. It replaces any device of that name."""
    _registered[device.name] = device
