"""Writing files so that nothing is lost: write a new file, then rename it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from torchscan.errors import InputError


def read_text(path: Path, what: str) -> str:
    """The text of a file. ``what`` names it in the error."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file completely, or leave it as it is. Links and permissions are kept; a pipe is written to directly."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, text)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{str(path)!r} cannot be written: {error}") from error


def _replace(target: Path, text: str) -> None:
    """Write by way of a new file, never through one that already exists."""
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if target.exists():
            beside.chmod(target.stat().st_mode)
        beside.replace(target)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
