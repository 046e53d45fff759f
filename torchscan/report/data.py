"""Info dicts as data for other programs: JSON with a schema, CSV, and a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.report.columns import COLUMNS
from torchscan.report.info import Info
from torchscan.report.info_data import InfoDict, Layer, data_of, with_notes
from torchscan.report.layer_table import check_columns, check_estimates
from torchscan.report.saved import REPORT, content_of, read_saved
from torchscan.report.schema_validation import mismatch
from torchscan.report.table import Column, Table
from torchscan.report.table_rows import Cell, Row
from torchscan.wrong_arguments import explain_wrong_types

#: keys that identify a layer, beside the columns of the table
_IDENTITY = ("path", "call", "name", "depth")
_FLAGS = ("is_shared", "is_leaf", "complete")


def info_document(info: InfoDict) -> dict[str, Any]:
    """Return the info dict with the name of its schema, as JSON holds it."""
    return {"schema": REPORT.schema_id, **data_of(info)}


@explain_wrong_types
def from_json(text: str) -> Info:
    """Return the info dict that ``info.to_json()`` wrote.

    Raise an InputError for other files, newer schemas and broken reports.
    """
    return info_of(content_of(text))


def info_of(content: Any) -> Info:
    """Return the info dict that a report holds."""
    REPORT.require(content)
    content = with_notes(content)
    wrong = _wrong(content)
    if wrong is not None:
        raise InputError(f"it is a broken report: {wrong}")
    return Info({key: value for key, value in content.items() if key != "schema"})


def require_info(given: object, what: str = "the report") -> None:
    """Raise an InputError for what is not an info dict."""
    content = given
    if isinstance(given, Mapping):
        content = {"schema": REPORT.schema_id, **with_notes(given)}
    wrong = _wrong(content)
    if wrong is not None:
        raise InputError(f"{what} is not an info dict of crawl_module: {wrong}")


def _wrong(content: Any) -> str | None:
    """Return the error in a stored info, by its schema and by checks that no schema can express."""
    error = mismatch(content, REPORT.schema)
    if error:
        return error
    if "selection" in content:
        return None

    # In the order of the calls, each layer is at most one level below the one before.
    max_depth = 0
    for index, layer in enumerate(content["layers"]):
        depth = layer["depth"]
        if depth > max_depth:
            return f"the report.layers[{index}].depth is {depth}, not {max_depth} or less"
        max_depth = depth + 1
    return None


@explain_wrong_types
def info_data_table(info: InfoDict, columns: Sequence[str] | None = None) -> Table:
    """Return the layers for CSV and pandas, with ``columns`` after ``path`` and ``call``.

    None: with all columns.
    """
    data = data_of(info)
    keys = _keys(columns, data["layers"])
    layers: Sequence[Mapping[str, Any]] = data["layers"]
    cells_by_column = []
    for key in keys:
        if key in COLUMNS:
            values = COLUMNS[key].values(layers, data["overall"])
        else:
            values = [layer[key] for layer in layers]
        cells_by_column.append([Cell(value, str(value)) for value in values])
    rows = [Row(cells=cells) for cells in zip(*cells_by_column, strict=True)]
    headings = [Column(key=key, heading=key) for key in keys]
    return Table(title="Layers", columns=headings, rows=rows)


def _keys(columns: Sequence[str] | None, layers: Sequence[Layer]) -> list[str]:
    """Return the keys of columns; by default those of every value that the layers have."""
    if columns is not None:
        check_columns(columns)
        check_estimates(columns, layers)
        return list(dict.fromkeys(["path", "call", *columns]))
    keys = [*_IDENTITY]
    for name, column in COLUMNS.items():
        if name in _IDENTITY or column.is_derived:
            continue
        if column.needs is None or any(column.needs in layer for layer in layers):
            keys.append(name)
    return [*keys, *_FLAGS]


def read_report(path: Path) -> Info:
    """Return the report in a file; errors name the file."""
    return read_saved(path, REPORT.noun, info_of)
