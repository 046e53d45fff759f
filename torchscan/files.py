"""Writing files so that nothing is lost: write a new file, then rename it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchscan.errors import InputError

#: size of a file that is read as text; devices such as /dev/zero never end
_MAX_MIB = 512
_MAX_SHOWN = 100


def path_of(given: str | os.PathLike[str]) -> Path:
    """Return the path, or raise an InputError if nothing can have that name."""
    try:
        path = Path(given)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # unlike exists() of Python 3.14, it raises if a name is too long
        if "\0" in str(path):
            raise ValueError("it contains a NUL character")
    except (TypeError, ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{shortened(given)} is not a path: {reason}") from error
    return path


def shortened(given: object) -> str:
    """Return a value as it is shown in an error."""
    text = repr(os.fspath(given) if isinstance(given, os.PathLike) else given)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def read_text(path: Path, what: str, max_mib: int = _MAX_MIB) -> str:
    """Return the text of a file. ``what`` names it in the error."""
    limit = max_mib * 2**20
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(limit)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{what} {shortened(str(path))} cannot be read: {reason}") from error
    if len(text) == limit:
        name = shortened(str(path))
        raise InputError(f"{what} {name} is larger than {max_mib} MiB: give another file")
    return text


def write_text(path: Path, text: str) -> None:
    """Replace a file completely, or leave it as it is, and create its folder if it is missing.

    Links and permissions are kept; a pipe is written to directly.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        _require_folder(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, text)
    except InputError:  # which is a ValueError
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{shortened(str(path))} cannot be written: {reason}") from error


def _require_folder(path: Path) -> None:
    """Raise an InputError if a file is where a folder of this path should be."""
    for parent in path.parents:
        if parent.is_dir():
            return
        if parent.exists():
            raise InputError(
                f"{shortened(str(path))} cannot be written, since {shortened(str(parent))} is a "
                "file: give a path in a folder"
            )


def _replace(target: Path, text: str) -> None:
    """Write by way of a new file, never through one that already exists."""
    beside = target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}.new")
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
