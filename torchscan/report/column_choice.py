"""Columns to show in the layer table, and what they need."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from torchscan.errors import Give, InputError
from torchscan.report.columns import COLUMNS, DEFAULT_COLUMNS, FIELDS
from torchscan.report.info_data import Layer

#: the default columns if there is a device
_WITH_TIMES = (*DEFAULT_COLUMNS[:-1], "latency", "latency_share")


def usual_columns(
    receptive_field: bool, effective_rf_stats: bool, has_device: bool = False
) -> list[str]:
    """Return the default columns and those asked for, before the bars."""
    *names, bars = _WITH_TIMES if has_device else DEFAULT_COLUMNS
    if receptive_field:
        names.append("rf")
    if effective_rf_stats:
        names += ["s", "p"]
    return [*names, bars]


def needed_for(columns: Sequence[str]) -> dict[str, bool]:
    """Return what columns need besides counts, as arguments of :meth:`Scan.describe`."""
    needs = {COLUMNS[name].needs for name in columns}
    memory = not needs.isdisjoint(("activation_bytes", "peak_bytes"))
    return {
        "receptive_field": not FIELDS.isdisjoint(columns),
        "memory": memory,
        "times": "time_estimate" in needs,
    }


def require_device(columns: Sequence[str], *, has_device: bool) -> None:
    """Refuse times on no device before anything is recorded."""
    times = [name for name in columns if COLUMNS[name].needs == "time_estimate"]
    if times and not has_device:
        raise InputError(
            f"the column {times[0]!r} needs a device: give ",
            Give("device", "RTX 4090"),
            ", for example (`torchscan devices` lists all)",
        )


def check_columns(columns: Sequence[str] | None) -> None:
    """Refuse a column that does not exist."""
    if isinstance(columns, str):
        names = [each for each in re.split(r"[,\s]+", columns) if each] or ["params"]
        raise InputError.of_value(
            "columns", columns, "give a list of names, ", Give("columns", names)
        )
    unknown = [name for name in columns or () if name not in COLUMNS]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), COLUMNS, 1)
        meant = f"did you mean {near[0]!r}? Choose from" if near else "choose from"
        raise InputError(f"{unknown[0]!r} is not a column: {meant} {', '.join(COLUMNS)}")


def check_estimates(columns: Sequence[str], layers: Sequence[Layer]) -> None:
    """Refuse columns of estimates that an info dict does not have."""
    for name in columns:
        needs = COLUMNS[name].needs
        if not needs or not layers or needs in layers[0]:
            continue
        how = Give("memory", True)
        if needs == "time_estimate":
            how = Give("device", "RTX 4090")
        raise InputError(f"these layers have no {name!r}: give crawl_module ", how)
