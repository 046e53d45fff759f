"""The device file of the package, and that of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.hardware.device import Device
from torchscan.hardware.device_entries import to_device

#: the environment variable that names the user's device file
USER_FILE = "TORCHSCAN_DEVICES"


def user_file() -> Path:
    """Return the user's device file.

    It is ``$TORCHSCAN_DEVICES``, or ``torchscan/devices.json`` in the configuration folder.
    """
    if USER_FILE in os.environ:
        return Path(os.environ[USER_FILE])
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "torchscan" / "devices.json"


def save_entry(name: str, entry: Mapping[str, Any]) -> Path:
    """Add an entry to the user's device file.

    A new file replaces the old one, so that nothing is lost.
    """
    path = user_file()
    to_device(name, entry, str(path))
    entries = {**read_entries(path), name: dict(entry)}
    require_writable(path)
    write_text(path, json.dumps({"devices": entries}, indent=2) + "\n")
    return path


def require_writable(path: Path) -> None:
    """Raise unless the file can be written or created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error}): set {USER_FILE} to another file"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: set {USER_FILE} to another file")


def known_entry(name: str) -> dict[str, Any]:
    """Return the package's entry for a device, as in its file; empty if there is none."""
    return dict(_content()["devices"].get(name, {}))


@cache
def _content() -> dict[str, Any]:
    file = resources.files("torchscan.hardware").joinpath("devices.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@cache
def package_devices() -> dict[str, Device]:
    """Return the devices of the package by their names."""
    sources = _content()["sources"]
    devices = {}
    for name, entry in _content()["devices"].items():
        source = {key: sources[number] for key, number in entry.get("source", {}).items()}
        devices[name] = to_device(name, {**entry, "source": source}, "devices.json")
    return devices


def read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a device file by name; none if there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        entries: dict[str, Any] = content["devices"]
        is_object = isinstance(entries, dict)
        if not is_object or not all(isinstance(each, dict) for each in entries.values()):
            raise TypeError("'devices' is not an object of objects")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'{path} is not a device file, {{"devices": {{"my GPU": {{…}}}}}}: {error!r}'
        ) from error
    return entries
