"""Arrays of the training part of a page: curves and values of layers, compressed."""

from __future__ import annotations

import json
import math
import zlib
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from torchscan.report.paging.row_values import key_of, truncate_text
from torchscan.report.paging.training_record import CurveData, LayerData

#: points of a curve, at most; more are thinned out to the extremes of equal spans
_MAX_POINTS = 4096
#: significant digits of numbers, and of losses, which may change little
_DIGITS, _LOSS_DIGITS = 4, 6
#: codes of a value: none, zero, and then evenly spaced logarithms
_NONE, _ZERO, _FIRST, _LAST = 0, 1, 2, 65_535


def round_value(value: float | None, digits: int = _DIGITS) -> float | None:
    """Return a finite value with so many significant digits, else None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def to_json(value: float | None, digits: int = _DIGITS) -> float | str | None:
    """Return a rounded value; of one that is not finite, its name."""
    if value is None or math.isfinite(value):
        return round_value(value, digits)
    if math.isnan(value):
        return "NaN"
    return "Inf" if value > 0 else "-Inf"


def thin_out(curve: CurveData) -> CurveData:
    """Return at most so many points: of equal spans, the first, the extremes and the first NaN."""
    size = len(curve.steps)
    if size <= _MAX_POINTS:
        return curve
    width = -(-7 * size // _MAX_POINTS)
    kept = set(range(0, size, width))
    for start in range(0, size, width):
        for values in (curve.losses, curve.gradient_norms):
            finite, others = [], []
            for at in range(start, min(size, start + width)):
                value = values[at]
                if value is not None and math.isfinite(value):
                    finite.append((value, at))
                elif value is not None:
                    others.append(at)
            kept.update(others[:1])
            if finite:
                kept |= {min(finite)[1], max(finite)[1]}
    places = sorted(kept)
    columns: dict[str, list[Any]] = {}
    for name in ("steps", "times", "losses", "learning_rates", "gradient_norms"):
        values = getattr(curve, name)
        columns[name] = [values[at] for at in places]
    return CurveData(**columns)


def pack_training(curve: CurveData, layers: LayerData) -> str:
    """Return the arrays: a JSON text and its length, then codes of two bytes, all compressed."""
    header: dict[str, Any] = {"curve": _pack_curve(curve), "quantities": []}
    header["rows"] = []
    for row in layers.rows:
        names = [truncate_text(row.name), key_of(row.path, 0), truncate_text(row.type_name)]
        header["rows"].append([*names, row.parent, row.num_folded])
    header["first"] = _differences(layers.first)
    header["last"] = _differences(layers.last)
    header["until"] = _differences(layers.until)
    codes = bytearray()
    for name, rows in layers.values.items():
        known_rows = [row for row, values in enumerate(rows) if any(map(math.isfinite, values))]
        low, high = _find_range([rows[row] for row in known_rows])
        header["quantities"].append({"name": name, "rows": known_rows, "low": low, "high": high})
        for place in known_rows:
            codes += _encode(rows[place], low, high)
    header["wrong"] = [row for row, bits in enumerate(layers.not_finite) if any(bits)]
    for row in header["wrong"]:
        codes += bytes(layers.not_finite[row])
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    data = len(text).to_bytes(4, "little") + text + bytes(codes)
    return b64encode(zlib.compress(data, 9)).decode()


def pack_losses(run: str, curve: CurveData) -> dict[str, Any]:
    """Return the known losses of a run that another one is compared with."""
    known = [at for at, loss in enumerate(curve.losses) if loss is not None]
    steps = [curve.steps[at] for at in known]
    losses = [to_json(curve.losses[at], _LOSS_DIGITS) for at in known]
    return {"run": truncate_text(run), "steps": _differences(steps), "losses": losses}


def _pack_curve(curve: CurveData) -> dict[str, list[Any]]:
    start = curve.times[0] if curve.times else 0.0
    found: dict[str, list[Any]] = {"steps": _differences(curve.steps)}
    found["times"] = [round(time - start, 2) for time in curve.times]
    found["losses"] = [to_json(value, _LOSS_DIGITS) for value in curve.losses]
    found["rates"] = [to_json(value) for value in curve.learning_rates]
    found["norms"] = [to_json(value) for value in curve.gradient_norms]
    return found


def _differences(values: Sequence[int]) -> list[int]:
    before = [0, *values[:-1]]
    return [value - last for value, last in zip(values, before, strict=False)]


def _find_range(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range of the logarithms of all positive values."""
    low, high = math.inf, 0.0
    for row in rows:
        positive = [value for value in row if 0 < value < math.inf]
        low = min(low, *positive, math.inf)
        high = max(high, *positive, 0.0)
    if low > high:
        return 0.0, 1.0
    bottom = math.log10(low)
    return bottom, max(math.log10(high), bottom + 1e-6)


def _encode(row: Sequence[float], low: float, high: float) -> bytes:
    """Return the codes of a row: all low bytes, then all high bytes, which compresses well."""
    scale = (_LAST - _FIRST) / (high - low)
    codes = array("H", bytes(2 * len(row)))
    for at, value in enumerate(row):
        if not math.isfinite(value):
            codes[at] = _NONE
        elif value <= 0:
            codes[at] = _ZERO
        else:
            codes[at] = _FIRST + round(scale * (math.log10(value) - low))
    low_bytes = bytes(code & 255 for code in codes)
    return low_bytes + bytes(code >> 8 for code in codes)
