"""The figures as data for other programs: JSON with a schema, CSV, and a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from torchscan.errors import InputError
from torchscan.report.columns import COLUMNS, check_columns, check_estimates
from torchscan.report.info import Info
from torchscan.report.info_data import InfoDict, Layer, Sums, data_of, with_notes
from torchscan.report.saved import REPORT, content_of, read_saved
from torchscan.report.schema_validation import mismatch
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

#: what says which layer it is, beside the columns of the table
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
    """The info dict that a report holds."""
    REPORT.require(content)
    content = with_notes(content)
    wrong = _wrong(content)
    if wrong is not None:
        raise InputError(f"it is a broken report: {wrong}")
    return Info({key: value for key, value in content.items() if key != "schema"})


def require_info(given: object, what: str = "the report") -> None:
    """Refuse what is not an info dict, and say what is wrong with it."""
    wrong = (
        _wrong({"schema": REPORT.schema_id, **with_notes(given)})
        if isinstance(given, Mapping)
        else _wrong(given)
    )
    if wrong is not None:
        raise InputError(f"{what} is not an info dict of crawl_module: {wrong}")


def _wrong(content: Any) -> str | None:
    """Return the error in a stored info, by its schema and by checks that no schema can express."""
    return mismatch(content, REPORT.schema) or (
        None if "selection" in content else _hanging(content["layers"])
    )


def _hanging(layers: Sequence[Layer]) -> str | None:
    """The first layer that nothing calls: in the order of the calls, each is at most one level below the one before."""
    depths = [-1, *(layer["depth"] for layer in layers)]
    too_deep = (index for index, (above, depth) in enumerate(pairwise(depths)) if depth > above + 1)
    index = next(too_deep, None)
    if index is None:
        return None
    return f"the report.layers[{index}].depth is {layers[index]['depth']}, not {depths[index] + 1} or less"


@explain_wrong_types
def info_data_table(info: InfoDict, columns: Sequence[str] | None = None) -> Table:
    """Return the layers for CSV and pandas: ``path`` and ``call``, then ``columns`` (by default all)."""
    layers, whole = data_of(info)["layers"], data_of(info)["overall"]
    keys = _keys(columns, layers)
    return Table(
        title="Layers",
        columns=[Column(key=key, heading=key) for key in keys],
        rows=[Row(cells=[_cell(layer, key, whole) for key in keys]) for layer in layers],
    )


def _keys(columns: Sequence[str] | None, layers: Sequence[Layer]) -> list[str]:
    check_columns(columns)
    if columns is None:
        known = [
            name
            for name, column in COLUMNS.items()
            if column.needs is None or any(column.needs in each for each in layers)
        ]
        return [
            *_IDENTITY,
            *(name for name in known if not (name in _IDENTITY or COLUMNS[name].is_derived)),
            *_FLAGS,
        ]
    check_estimates(columns, layers)
    return list(dict.fromkeys(["path", "call", *columns]))


def _cell(layer: Layer, key: str, whole: Sums) -> Cell:
    value = (
        COLUMNS[key].value((layer, whole))
        if key in COLUMNS
        else cast("Mapping[str, Any]", layer)[key]
    )
    return Cell(value, str(value))


def read_report(path: Path) -> Info:
    """The report in a file; errors name the file."""
    return read_saved(path, REPORT.noun, info_of)
