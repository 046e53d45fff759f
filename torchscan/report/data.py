"""The figures as data for other programs: JSON with a schema, CSV, and a pandas DataFrame."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchscan.errors import InputError
from torchscan.report.columns import COLUMNS, check_columns, check_estimates
from torchscan.report.csv import csv_of
from torchscan.report.info import Info
from torchscan.report.info_data import InfoDict, Layer, Sums, data_of
from torchscan.report.saved import REPORT, content_of, read_saved
from torchscan.report.schema_validation import mismatch
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    import pandas as pd

#: what says which layer it is, beside the columns of the table
_IDENTITY = ("path", "call", "name", "depth")
_FLAGS = ("is_shared", "is_leaf", "complete")


@explain_wrong_types
def to_json(info: InfoDict, *, indent: int | None = 2) -> str:
    """The info dict as JSON, with the schema that it follows: ``json_schema()`` has it. :func:`from_json` reads it back."""
    return json.dumps({"schema": REPORT.schema_id, **data_of(info)}, indent=indent, allow_nan=False)


@explain_wrong_types
def from_json(text: str) -> Info:
    """The info dict that :func:`to_json` wrote. Anything else is refused: another file, a newer schema, a broken report."""
    return info_of(content_of(text))


def info_of(content: Any) -> Info:
    """The info dict that a report holds."""
    REPORT.require(content)
    wrong = _wrong(content)
    if wrong is not None:
        raise InputError(f"this report is broken: {wrong}")
    return Info({key: value for key, value in content.items() if key != "schema"})


@explain_wrong_types
def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what :func:`to_json` writes."""
    return copy.deepcopy(REPORT.schema)


def require_info(given: object, what: str = "the report") -> None:
    """Refuse what is not an info dict, and say what is wrong with it."""
    wrong = _wrong({"schema": REPORT.schema_id, **given} if isinstance(given, Mapping) else given)
    if wrong is not None:
        raise InputError(f"{what} is not an info dict of crawl_module: {wrong}")


def _wrong(content: Any) -> str | None:
    """What is wrong with a report, by its schema and then by what no schema can say."""
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
    return f"the report.layers[{index}].depth is {layers[index]['depth']}, and not {depths[index] + 1} or less"


@explain_wrong_types
def to_csv(
    info: InfoDict, columns: Sequence[str] | None = None, *, escape_formulas: bool = False
) -> str:
    """The layers as comma-separated values, one per row, with a header. Numbers are in full, shapes are JSON.

    After the layer's ``path`` and ``call`` (0 for the first of a module) come the ``columns``, by default all.
    With ``escape_formulas``, names that a spreadsheet would run as a formula (``=1+1``) have an apostrophe before them.
    """
    return csv_of(_data_table(info, columns), escape_formulas=escape_formulas) + "\n"


@explain_wrong_types
def to_pandas(info: InfoDict, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The layers as a DataFrame, with the columns of :func:`to_csv`; ``frame.attrs`` has the totals and everything else."""
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError("to_pandas needs pandas: pip install 'torchscan[pandas]'") from error
    table = _data_table(info, columns)
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, [cell.value for cell in row.cells], strict=True)) for row in table.rows]
    frame = pd.DataFrame(rows, columns=keys)
    frame.attrs = copy.deepcopy({key: value for key, value in info.items() if key != "layers"})
    return frame


def _data_table(info: InfoDict, columns: Sequence[str] | None) -> Table:
    """For programs: path, call, name and depth have columns of their own."""
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
        COLUMNS[key].value(layer, whole)
        if key in COLUMNS
        else cast("Mapping[str, Any]", layer)[key]
    )
    return Cell(value, str(value))


def read_report(path: Path) -> Info:
    """The report in a file; errors name the file."""
    return read_saved(path, REPORT.noun, info_of)
