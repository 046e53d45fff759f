"""The user's own values of modules, by path: from CSV and JSON files, or from mappings."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchscan.errors import Argument, InputError, Value, naming
from torchscan.files import path_of, read_text
from torchscan.report.paging.overlay_values import (
    HasItems,
    NamedValues,
    Values,
    label_of_path,
    leave_out,
    named_values,
)

#: values by path, several overlays by name, or a file with them
OneOverlay = Values | Mapping[str, Values] | HasItems | str | os.PathLike[str]
Overlay = OneOverlay | Sequence[OneOverlay]

_MAX_MIB = 32
_PATH = "path"
#: a name that says nothing: the file's name stands for it
_VALUE = "value"
_HOW = "give numbers by path, {'layer1.0': 0.3}, or the path of a CSV or JSON file"
_HEADER = "begin with a header such as path,sensitivity, with commas"


def read_overlays(given: object) -> NamedValues:
    """Return the overlays of files or mappings: for each name, values by path."""
    if not isinstance(given, list | tuple):
        return _read_overlay(given)
    found: NamedValues = {}
    sources: dict[str, str] = {}
    for number, each in enumerate(given):
        is_file = isinstance(each, str | os.PathLike)
        source = str(each) if is_file else f"overlay[{number}]"
        for name, values in _read_overlay(each).items():
            if name in found:
                places = f" is in {sources[name]} and in {source}"
                advice = ": give each overlay its own name"
                raise InputError(Argument("overlay"), f": {label_of_path(name)}", places, advice)
            found[name] = values
            sources[name] = source
    if not found:
        raise InputError.of_value("overlay", given, _HOW)
    with naming("overlay"):
        return leave_out([], found, _HOW)


def _read_overlay(given: object) -> NamedValues:
    if isinstance(given, HasItems):
        with naming("overlay"):
            return named_values(given, _VALUE)
    if not isinstance(given, str | os.PathLike):
        raise InputError.of_value("overlay", given, _HOW)
    path = path_of(given)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".json"):
        advice = ": give a file whose name ends in .csv or .json"
        raise InputError(Argument("overlay"), " is ", Value(str(path)), advice)
    text = read_text(path, "the overlay", _MAX_MIB).removeprefix("\ufeff")
    with naming(str(path)):
        if suffix == ".csv":
            return _Sheet(text).overlays(path.stem)
        return named_values(_parse_json(text), path.stem)


@dataclass(slots=True)
class _ValueColumn:
    """A column of a CSV file: its cells that are not empty, with line and path."""

    name: str
    cells: list[tuple[int, str, str]] = field(default_factory=list)

    def values(self) -> dict[str, float] | None:
        """Return the values by path, or None if most cells are text, such as names."""
        numbers: dict[str, float] = {}
        wrong = []
        for line, path, text in self.cells:
            try:
                numbers[path] = float(text)
            except ValueError:
                wrong.append((line, path, text))
                continue
            if not math.isfinite(numbers[path]):
                wrong.append((line, path, text))
        num_texts = len(self.cells) - len(numbers)
        if num_texts > len(numbers) or not numbers:
            return None
        for line, path, text in wrong:
            place = f"line {line}: {label_of_path(self.name)} of {label_of_path(path)} is "
            advice = ": give a finite number, or leave it or its column out"
            raise InputError(place, Value(text), advice)
        return numbers


class _Sheet:
    """A CSV file: a header, paths, and a column for each overlay."""

    def __init__(self, text: str) -> None:
        self._reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def overlays(self, stem: str) -> NamedValues:
        """Return the columns that have numbers."""
        try:
            columns = self._columns()
        except csv.Error as error:
            raise InputError(f"line {self._reader.line_num}: it is not CSV: {error}") from error
        names = [column.name for column in columns]
        found: NamedValues = {}
        others = []
        for column in columns:
            values = column.values()
            if values is None:
                others.append(column.name)
                continue
            is_unnamed = column.name == _VALUE and stem not in names
            found[stem if is_unnamed else column.name] = values
        return leave_out(others, found, "give numbers in a column beside path")

    def _columns(self) -> list[_ValueColumn]:
        header = self._header()
        place = header.index(_PATH)
        columns = {at: _ValueColumn(name) for at, name in enumerate(header) if name}
        del columns[place]

        lines: dict[str, int] = {}
        for line, row in self._rows(len(header)):
            path = row[place].strip()
            before = lines.setdefault(path, line)
            if before != line:
                label = label_of_path(path)
                raise InputError(
                    f"line {line}: {label} is also in line {before}: give each path once"
                )
            for at, column in columns.items():
                text = row[at].strip()
                if text:
                    column.cells.append((line, path, text))
        return list(columns.values())

    def _header(self) -> list[str]:
        header = [cell.strip() for cell in next(self._reader, [])]
        if _PATH not in header:
            shown = ",".join(header)
            raise InputError("line 1 is ", Value(shown), f", without a column path: {_HEADER}")
        for name, number in Counter(filter(None, header)).items():
            if number > 1:
                raise InputError(
                    f"the header has {label_of_path(name)} twice: give each column its own name"
                )
        return header

    def _rows(self, width: int) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield each row that is not empty, with its line."""
        for row in self._reader:
            line = self._reader.line_num
            if not any(row):
                continue
            if len(row) != width:
                raise InputError(
                    f"line {line} has {len(row)} cells, and the header {width}: "
                    "give each line as many as the header"
                )
            yield line, row


def _parse_json(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text, object_pairs_hook=_to_dict)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise InputError(
            'it is not an object of numbers by path: give {"layer1.0": 0.3}, or several by name'
        )
    return content


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise InputError(f"{label_of_path(name)} has two values: give each path once")
        content[name] = value
    return content
