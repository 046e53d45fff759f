"""``torchscan devices``: list known devices, show one in full, or measure this machine's."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.answers import terminal_width
from torchscan.cli.option_table import add_option
from torchscan.cli.options import add_command
from torchscan.cli.output import print_answer, print_written
from torchscan.errors import InputError

_EXAMPLES = """\
examples
  torchscan devices
  torchscan devices "H100 PCIe"
  torchscan devices --measure"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "List devices with their peak rates, or measure this machine's."
    parser = add_command(commands, "devices", help_, _EXAMPLES, run=_run)
    help_ = "Show the specification of this device, with sources."
    name: Any = parser.add_argument("name", metavar="NAME", nargs="?", help=help_)
    name.parameter = "device"
    add_option(parser, "measure")


def _run(options: argparse.Namespace) -> None:
    from torchscan.hardware.device_catalog import known_devices
    from torchscan.hardware.device_specs import device_named
    from torchscan.report.device_table import device_list, device_text

    if options.measure and options.name:
        raise InputError(
            f"NAME is {options.name!r}, and --measure measures this machine's device: leave out "
            "one of them"
        )
    if options.measure:
        text = _measured()
    else:
        width = terminal_width()
        text = (
            device_text(device_named(options.name), width)
            if options.name
            else device_list(known_devices(), width)
        )
    print_answer(text)


def _measured() -> str:
    from torchscan.hardware.device_catalog import known_devices
    from torchscan.hardware.device_files import require_writable, save_entry, user_file
    from torchscan.hardware.measuring import measure
    from torchscan.report.device_table import device_text

    require_writable(user_file())
    name, entry = measure()
    path = save_entry(name, entry)
    print_written(path)
    return device_text(known_devices()[name], terminal_width())
