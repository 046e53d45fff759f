"""Limits and types of the content of a run's file, which may be broken or malicious."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from torchscan.notes import Note
from torchscan.watching.schema import KINDS, CurvePoint, RunEvent, Series

#: bytes of one value: the data of the model's page are the longest
MAX_VALUE = 2**28
#: rows of a table
MAX_ROWS = 200_000
#: steps of SQLite's virtual machine that one question may take: a row takes some ten
MAX_INSTRUCTIONS = 200_000_000
#: bytes of a step when it is not compressed, and of the header of these
MAX_STEP, MAX_HEADER = 2**27, 2**20
#: a whole number that JavaScript still tells from the next one
MAX_INTEGER = 2**53
#: seconds since 1970: the end of the year 9999
_MAX_TIME = 253_402_300_799
#: ranks that train together
_MAX_RANKS = 2**20
#: characters of a name, of a text about the run, and of the JSON of an event
_MAX_NAME, _MAX_TEXT, _MAX_EVENT = 4096, 4096, 2**17
#: characters of a note's code
_MAX_CODE = 64

#: beside a file of SQLite's
_SIDECARS = ("-wal", "-shm", "-journal")
#: the columns of each table
_COLUMNS = {
    "about": ("name", "value"),
    "series": ("number", "path", "type_name", "kind", "name", "invocation"),
    "steps": ("phase", "written", "step", "number", "time", "data"),
    "events": ("time", "what"),
    "curves": ("phase", "step", "number", "time", "loss", "learning_rate", "gradient_norm"),
    "layers": ("phase", "first", "last", "step", "num_steps", "data"),
}
#: the tables that only newer versions have, with the first version
_SINCE = {"curves": 4, "layers": 4}
#: a value that is not a number: SQLite would store it as NULL
NOT_A_NUMBER = "NaN"


class BrokenRunError(Exception):
    """Content of a run's file that torchscan does not write; the text describes it."""


def require_file(path: Path) -> None:
    """Refuse what is not a database in a plain file: reading a pipe or a device may never end."""
    if not is_plain_file(path):
        raise BrokenRunError("is not a file" if os.path.lexists(path) else "does not exist")
    # Its header is left to SQLite: closing a file that the process has opened by itself takes
    # SQLite's locks away.
    for each in _SIDECARS:
        beside = path.with_name(path.name + each)
        if os.path.lexists(beside) and not is_plain_file(beside):
            raise BrokenRunError(f"has {beside.name!r} next to it, which is not a file")


def is_plain_file(path: Path) -> bool:
    """Return whether a path leads to a regular file, which can be opened without waiting."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # not there, or a name that no file has
        return False


def require_tables(
    kinds: Mapping[str, tuple[str, int]],
    columns_of: Callable[[str], list[tuple[str, int]]],
    version: int,
) -> None:
    """Refuse what computes its rows: views, virtual tables, generated columns, triggers.

    ``kinds`` has the kind of everything in the database and the page where it begins, which is 0
    for what has no rows of its own; ``columns_of`` the columns of a table, and whether each is
    hidden. ``version`` is that of the file's schema.
    """
    for name, (kind, _) in kinds.items():
        if kind not in ("table", "index"):
            raise BrokenRunError(f"has a {kind} {name!r}, which torchscan does not write")
    for name, columns in _COLUMNS.items():
        if version < _SINCE.get(name, 0):
            continue
        kind, page = kinds.get(name, ("", 0))
        if kind != "table" or not page:
            raise BrokenRunError(f"has no table {name!r}")
        found = columns_of(name)
        has_hidden = any(hidden for _, hidden in found)
        if has_hidden or [each for each, _ in found] != list(columns):
            raise BrokenRunError(f"has unexpected columns in its table {name!r}")


def json_of(text: object) -> Any:
    """Return what JSON holds, with finite numbers and texts that can be printed."""
    if not isinstance(text, str):
        raise BrokenRunError(f"has a value {_describe(text)} where JSON is expected")
    try:
        content = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
        return _to_printable(content)
    except (ValueError, RecursionError) as error:
        raise BrokenRunError(f"has JSON that cannot be read ({str(error)[:80]})") from error


def about_of_run(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked description of a run; names that this version does not know stay."""
    for name, is_right in _ABOUT.items():
        if name in content and not is_right(content[name]):
            raise BrokenRunError(f"has {str(content[name])[:40]!r} as its {name!r}")
    return dict(content)


def series_of_row(row: Sequence[Any]) -> tuple[int, Series]:
    """Return a series and its number."""
    number, path, type_name, kind, name, invocation = row
    are_counts = is_count(number) and is_count(invocation)
    are_names = all(_is_text(each, _MAX_NAME) for each in (path, type_name, name))
    if not are_counts or not are_names or kind not in KINDS:
        raise BrokenRunError(f"has an invalid series {str(row)[:80]}")
    series = Series(path=path, type_name=type_name, kind=kind, name=name, invocation=invocation)
    return number, series


def integer_of(value: object, what: str) -> int:
    """Return a whole number from 0 to what JavaScript can count."""
    if not is_count(value):
        raise BrokenRunError(f"has an invalid {what} {_describe(value)}")
    return value


def time_of(value: object) -> float:
    """Return seconds since 1970, if it is a time that a calendar has."""
    if not _is_time(value):
        raise BrokenRunError(f"has an invalid time {_describe(value)}")
    return float(value)


def curve_point_of(row: Sequence[Any]) -> CurvePoint:
    """Return a point of the curves."""
    step, number, when, *values = row
    known: list[float | None] = []
    for value in values:
        if not (value is None or value == NOT_A_NUMBER or isinstance(value, float)):
            raise BrokenRunError(f"has an invalid value {_describe(value)} in its curves")
        known.append(None if value is None else float(value))
    return CurvePoint(
        integer_of(step, "step"), integer_of(number, "step number"), time_of(when), *known
    )


def event_of(row: Sequence[Any], *, is_text: bool) -> RunEvent:
    """Return an event of a run; ``is_text`` if the file is of a version that stored sentences."""
    when, what = row
    if not isinstance(what, str) or len(what) > _MAX_EVENT:
        raise BrokenRunError(f"has an invalid event {_describe(what)}")
    if is_text:
        text = what if len(what) <= _MAX_TEXT else f"{what[:_MAX_TEXT]} …"
        return RunEvent(time=time_of(when), rank=None, note=Note.from_text(text))
    data = json_of(what)
    rank = data.get("rank") if isinstance(data, dict) else None
    if not _is_note(data) or not (rank is None or is_count(rank, _MAX_RANKS)):
        raise BrokenRunError(f"has an invalid event {_describe(what)}")
    return RunEvent(time=time_of(when), rank=rank, note=Note.from_data(data))


def is_count(value: object, limit: int = MAX_INTEGER) -> TypeGuard[int]:
    """Return whether it is a whole number from 0 to a limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def _is_time(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _MAX_TIME  # also not NaN


def _is_text(value: object, limit: int = _MAX_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= limit


def _is_note(value: object) -> bool:
    """Return whether it is the plain data of a note."""
    if not isinstance(value, dict):
        return False
    return _is_text(value.get("code"), _MAX_CODE) and isinstance(value.get("values"), dict)


def are_texts(value: object) -> bool:
    """Return whether it is a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _describe(value: object) -> str:
    return f"of type {type(value).__name__}" if isinstance(value, bytes) else f"{str(value)[:40]!r}"


def _optional(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_session(session: object) -> bool:
    """Return whether it counts the steps of a session; in earlier versions it has fewer entries."""
    if not isinstance(session, dict):
        return False
    last = session.get("last")
    if last is not None:
        if not isinstance(last, list) or len(last) != 2:
            return False
        phase, number = last
        if phase not in ("train", "eval") or not is_count(number):
            return False
    return all(is_count(session.get(name, 0)) for name in ("handled", "written", "lost"))


def _is_number_of_ranks(value: object) -> bool:
    return is_count(value, _MAX_RANKS) and value > 0


#: checks of a run's description, by the name of an entry
_ABOUT: Mapping[str, Callable[[Any], bool]] = {
    "model": _is_text,
    "parameters": lambda value: is_count(value, 2**63),
    "fingerprint": _optional(_is_text),
    "log": are_texts,
    "torchscan": _is_text,
    "torch": _is_text,
    "processes": _is_number_of_ranks,
    "ranks": _is_number_of_ranks,
    # notes, or the sentences that files of version 2 have
    "missing": lambda value: (
        isinstance(value, list) and all(_is_text(each) or _is_note(each) for each in value)
    ),
    "closed": lambda value: isinstance(value, bool),
    "ended": _optional(_is_time),
    "raised": _optional(_is_text),
    "reached": is_count,
    "session": _is_session,
    "optimizer": _optional(_is_text),
    "batch": _optional(lambda value: isinstance(value, list) and all(map(is_count, value))),
    "precision": _optional(_is_text),
    "device": _optional(_is_text),
}


def _to_printable(value: Any) -> Any:
    """Return the same with a question mark for each half of a character: terminals refuse it."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_to_printable(each) for each in value]
    if isinstance(value, dict):
        return {_to_printable(name): _to_printable(each) for name, each in value.items()}
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    return value
