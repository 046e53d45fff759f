"""Writing files so that nothing is lost: beside, and renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchscan.errors import InputError


def read_text(path: Path, what: str) -> str:
    """The text of a file. ``what`` it is says the error."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Replace the file as a whole, or leave it as it is. A link stays one, and permissions stay."""
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        if target.exists():
            beside.chmod(target.stat().st_mode)
        beside.replace(target)
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
