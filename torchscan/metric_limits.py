"""Limits of metrics, which budgets give as numbers or as texts such as "25M"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchscan import units
from torchscan.errors import Argument, InputError
from torchscan.measures import Measure
from torchscan.metrics import METRICS

#: more than any model costs
_ENDLESS = 10**30
#: bare numbers above which a limit is more likely to be of another unit: bytes, and a share of all
_MAX_BARE_BYTES = 2.0**50
_MAX_BARE_SHARE = 1.0


def limits_in(metrics: Mapping[str, Measure[Any]]) -> dict[str, str]:
    """Return the names of limits, each with the metric that it limits.

    ``max_params`` limits ``params``, and ``min_context`` limits ``context``.
    """
    limits = {}
    for name, metric in metrics.items():
        if metric.parse is not None:
            prefix = "min" if metric.is_min else "max"
            limits[f"{prefix}_{name}"] = name
    return limits


def limits_of(
    given: Mapping[str, float | str | None], metrics: Mapping[str, Measure[Any]] = METRICS
) -> dict[str, float]:
    """Return limits as numbers by their metrics, without limits that are None.

    ``given`` has them by the names of the limits.
    """
    known = limits_in(metrics)
    for name in given:
        if name not in known:
            raise InputError(f"{name} is not a limit: choose from {', '.join(known)}")

    limits = {}
    for name, value in given.items():
        if value is not None:
            metric = known[name]
            limits[metric] = _number(name, value, metrics[metric])
    return limits


def _number(name: str, value: Any, metric: Measure[Any]) -> float:
    if isinstance(value, str) and metric.parse is not None:
        return units.parse_argument(name, value, metric.parse)
    # NumPy's numbers, too.
    is_number = hasattr(type(value), "__float__") and not isinstance(value, bool)
    if not is_number or not 0 <= value < _ENDLESS:
        raise InputError.of_value(name, value, "give a number, or a text such as '25M'")
    number = float(value)
    if metric.parse is units.parse_duration:
        return units.checked_seconds(name, number)
    meant = _with_units(number, metric)
    if meant:
        raise InputError(Argument(name), f" is {value}, a number without a unit: give {meant}")
    return number


def _with_units(number: float, metric: Measure[Any]) -> str:
    """Return what may have been meant by a number above any sense, or "" if it makes sense."""
    if metric.parse is units.parse_memory and number > _MAX_BARE_BYTES:
        return "bytes, or a text such as '16 GiB'"
    if metric.parse is units.parse_share and number > _MAX_BARE_SHARE:
        return f"'{number:g} %', or a share from 0 to 1"
    return ""
