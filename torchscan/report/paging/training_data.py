"""The training part of a run's page as plain data: curves, layers over the steps, and what was found."""

from __future__ import annotations

import json
import math
import re
import statistics
import zlib
from array import array
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.report.paging.layer_rows import key_of, truncate_text
from torchscan.report.paging.training_findings import (
    CurveValues,
    LayerValues,
    find_problems,
)

#: points of a curve, at most; more are thinned out to the extremes of equal spans
_MAX_POINTS = 4096
#: significant digits of numbers
_DIGITS = 4
#: and of losses, which may change little
_LOSS_DIGITS = 6
#: codes of a value: none, zero, and then evenly spaced logarithms
_NONE, _ZERO, _FIRST, _LAST = 0, 1, 2, 65_535
#: points from which the speed is computed
_RATE_POINTS = 100
#: a learning rate has changed if it has by this factor, and was or stays constant
_RATE_FACTOR, _CONSTANT = 2.0, 1e-3
_EPOCH = re.compile(r"\bepoch\s*[:#=]?\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CurveData:
    """The curve of one phase. A value is None where it is not known."""

    steps: Sequence[int] = ()
    times: Sequence[float] = ()
    losses: Sequence[float | None] = ()
    learning_rates: Sequence[float | None] = ()
    gradient_norms: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class RowData:
    """A row of the heat map: a module, or a range of neighboring modules."""

    path: str
    name: str
    type_name: str
    parent: int | None
    depth: int
    #: number of modules in a range; 0 for a module
    num_folded: int


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """Values of rows in columns of steps; NaN where there is none."""

    rows: Sequence[RowData]
    first: Sequence[int]
    last: Sequence[int]
    until: Sequence[int]
    num_sampled: int
    #: quantity -> row -> values by column
    values: Mapping[str, Sequence[Sequence[float]]]
    #: where values are not finite: 1 for outputs, 2 for gradients, 4 for weights, added up
    not_finite: Sequence[Sequence[int]]

    def is_inner(self, row: int) -> bool:
        """Return whether a row has rows inside it."""
        return row + 1 < len(self.rows) and self.rows[row + 1].depth > self.rows[row].depth


@dataclass(frozen=True, kw_only=True)
class NanData:
    """The first value that is not finite."""

    step: int
    series: str
    path: str
    invocation: int
    #: estimated number of such values in the tensor, and its size; None if they are not known
    count: int | None = None
    numel: int | None = None
    #: largest absolute value of the input in this step, and some steps before it
    input_largest: float | None = None
    input_before: float | None = None
    before_step: int | None = None
    #: True if the input is finite: then the module produced the value
    is_input_finite: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What is known of a run's training."""

    run: str
    #: "finished", "stopped" or "recording"
    state: str
    about: Mapping[str, Any] = field(default_factory=dict)
    num_dropped: int = 0
    train: CurveData = CurveData()
    evaluation: CurveData = CurveData()
    layers: LayerData
    notes: Sequence[Note] = ()
    nan: NanData | None = None


def training_data(record: TrainingRecord) -> dict[str, Any]:
    """Return the data that the page of a run shows of its training."""
    train = thin_out(record.train)
    layers = record.layers
    seen = [note for note in record.notes if note.code == "nan-seen"][:1]
    findings = [
        *seen,
        *find_problems(
            CurveValues(
                steps=train.steps,
                losses=train.losses,
                gradient_norms=train.gradient_norms,
            ),
            _values_of_layers(layers),
            layers.first,
        ),
    ]
    return {
        "facts": _facts(record),
        "findings": [_finding(note) for note in findings],
        "spike": next((dict(note.values) for note in findings if note.code == "loss-spike"), None),
        "marks": [*_marks_of_notes(record.notes), *_marks_of_rates(train)],
        "evaluations": _evaluations(record.evaluation),
        "nan": None if record.nan is None else _nan(record.nan, layers),
        "packed": _pack(train, layers),
    }


# -- text and numbers ------------------------------------------------------------------------------


def _facts(record: TrainingRecord) -> dict[str, Any]:
    about = record.about
    batch = about.get("batch")
    steps = record.train.steps or record.layers.last
    return {
        "run": truncate_text(record.run),
        "state": record.state,
        "step": steps[-1] if steps else None,
        "speed": round_value(_steps_per_second(record.train)),
        "optimizer": _text_of(about.get("optimizer")),
        "batch": " × ".join(map(str, batch)) if isinstance(batch, list) else "",
        "precision": _text_of(about.get("precision")),
        "device": _text_of(about.get("device")),
        "dropped": record.num_dropped,
        "passes": len(record.train.steps),
        "sampled": record.layers.num_sampled,
    }


def _text_of(value: object) -> str:
    return truncate_text(value) if isinstance(value, str) else ""


def _steps_per_second(curve: CurveData) -> float | None:
    """Return the speed of the last steps; a pause does not count."""
    places = list(zip(curve.steps, curve.times, strict=True))[-_RATE_POINTS - 1 :]
    durations = [
        (after_time - time) / (after - step)
        for (step, time), (after, after_time) in pairwise(places)
        if after > step and after_time > time
    ]
    return 1 / statistics.median(durations) if durations else None


def _finding(note: Note) -> dict[str, Any]:
    path = note.values.get("path")
    link = {} if path is None else {"key": key_of(str(path), 0)}
    step = note.values.get("step")
    place = {} if step is None else {"step": step}
    return {"code": note.code, "text": printable(note.sentence), **link, **place}


def _marks_of_notes(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """Return the user's notes and the pauses, for the axis."""
    marks = []
    for note in notes:
        step = note.values.get("step")
        if type(step) is not int:
            continue
        if note.code == "user-note":
            text = truncate_text(str(note.values.get("text", "")))
            epoch = _EPOCH.search(text)
            kind = {"kind": "note"} if epoch is None else {"kind": "epoch", "epoch": int(epoch[1])}
            marks.append({"step": step, "text": text, **kind})
        elif note.code in ("paused", "resumed"):
            marks.append({"step": step, "text": note.code, "kind": "pause"})
    return marks


def _marks_of_rates(curve: CurveData) -> list[dict[str, Any]]:
    """Return the steps in which the learning rate has changed at once."""
    known = [
        (step, rate)
        for step, rate in zip(curve.steps, curve.learning_rates, strict=True)
        if rate is not None and rate > 0
    ]
    marks = []
    for at in range(1, len(known)):
        step, rate = known[at]
        before = known[at - 1][1]
        if max(rate, before) < _RATE_FACTOR * min(rate, before):
            continue
        if _is_constant(known[max(0, at - 3) : at]) or _is_constant(known[at : at + 3]):
            text = "lr drop" if rate < before else "lr rise"
            marks.append({"step": step, "text": text, "kind": "rate"})
    return marks


def _is_constant(points: Sequence[tuple[int, float]]) -> bool:
    rates = [rate for _, rate in points]
    return len(rates) > 1 and max(rates) - min(rates) <= _CONSTANT * max(rates)


def _evaluations(curve: CurveData) -> list[dict[str, Any]]:
    """Return the mean loss of each evaluation: of all its passes after the same training step."""
    found: dict[int, list[float]] = defaultdict(list)
    for step, loss in zip(curve.steps, curve.losses, strict=True):
        if loss is not None:
            found[step].append(loss)
    return [
        {"step": step, "loss": to_json(statistics.fmean(losses)), "passes": len(losses)}
        for step, losses in sorted(found.items())
    ]


def _nan(nan: NanData, layers: LayerData) -> dict[str, Any]:
    first_steps = [
        next((layers.first[at] for at, bits in enumerate(row) if bits), None)
        for row in layers.not_finite
    ]
    leaves = [row for row in range(len(layers.rows)) if not layers.is_inner(row)]
    reached = [step for row in leaves if (step := first_steps[row]) is not None]
    return {
        "step": nan.step,
        "series": truncate_text(nan.series),
        "path": truncate_text(nan.path),
        "key": key_of(nan.path, nan.invocation),
        "count": nan.count,
        "numel": nan.numel,
        "isInputFinite": nan.is_input_finite,
        "inputLargest": to_json(nan.input_largest),
        "inputBefore": to_json(nan.input_before),
        "beforeStep": nan.before_step,
        "modules": len(reached),
        "atOnce": sum(step <= nan.step for step in reached),
        "later": min((step for step in reached if step > nan.step), default=None),
    }


def _values_of_layers(layers: LayerData) -> list[LayerValues]:
    """Return the modules without modules inside them."""
    return [
        LayerValues(
            path=row.path,
            name=_name_of(row),
            gradient=layers.values["gradient"][number],
            update=layers.values["update"][number],
            dead=layers.values["dead"][number],
        )
        for number, row in enumerate(layers.rows)
        if not layers.is_inner(number)
    ]


def _name_of(row: RowData) -> str:
    """Return the path of a module; of one with a number, the type, too."""
    path = printable(row.path or row.name)
    return f"{path} ({printable(row.type_name)})" if path.rpartition(".")[2].isdigit() else path


def round_value(value: float | None, digits: int = _DIGITS) -> float | None:
    """Return a finite value with so many significant digits, else None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def to_json(value: float | None, digits: int = _DIGITS) -> float | str | None:
    """Return a rounded value; of one that is not finite, its name."""
    if value is None or math.isfinite(value):
        return round_value(value, digits)
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"


# -- packing ---------------------------------------------------------------------------------------


def thin_out(curve: CurveData) -> CurveData:
    """Return at most so many points: of equal spans, the first one and the extremes."""
    size = len(curve.steps)
    if size <= _MAX_POINTS:
        return curve
    width = -(-4 * size // _MAX_POINTS)
    kept = set()
    for start in range(0, size, width):
        span = range(start, min(size, start + width))
        kept.add(start)
        losses = [(loss, at) for at in span if (loss := curve.losses[at]) is not None]
        norms = [(norm, at) for at in span if (norm := curve.gradient_norms[at]) is not None]
        kept |= {extreme(each)[1] for each in (losses, norms) if each for extreme in (min, max)}
    places = sorted(kept)
    return CurveData(
        steps=[curve.steps[at] for at in places],
        times=[curve.times[at] for at in places],
        losses=[curve.losses[at] for at in places],
        learning_rates=[curve.learning_rates[at] for at in places],
        gradient_norms=[curve.gradient_norms[at] for at in places],
    )


def _pack(curve: CurveData, layers: LayerData) -> str:
    """Return the arrays: a JSON text and its length, then codes of two bytes, all compressed."""
    codes = bytearray()
    quantities = []
    for name, rows in layers.values.items():
        with_values = [
            number for number, row in enumerate(rows) if any(math.isfinite(value) for value in row)
        ]
        low, high = _range_of([rows[number] for number in with_values])
        quantities.append({"name": name, "rows": with_values, "low": low, "high": high})
        for number in with_values:
            codes += _encode(rows[number], low, high)
    wrong = [number for number, row in enumerate(layers.not_finite) if any(row)]
    for number in wrong:
        codes += bytes(layers.not_finite[number])
    start = curve.times[0] if curve.times else 0.0
    header = {
        "curve": {
            "steps": _differences(curve.steps),
            "times": [round(time - start, 2) for time in curve.times],
            "losses": [to_json(value, _LOSS_DIGITS) for value in curve.losses],
            "rates": [to_json(value) for value in curve.learning_rates],
            "norms": [to_json(value) for value in curve.gradient_norms],
        },
        "rows": [_row(row) for row in layers.rows],
        "first": _differences(layers.first),
        "last": _differences(layers.last),
        "until": _differences(layers.until),
        "quantities": quantities,
        "wrong": wrong,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    data = len(text).to_bytes(4, "little") + text + bytes(codes)
    return b64encode(zlib.compress(data, 9)).decode()


def _row(row: RowData) -> list[Any]:
    return [
        truncate_text(row.name),
        key_of(row.path, 0),
        truncate_text(row.type_name),
        row.parent,
        row.num_folded,
    ]


def _differences(values: Sequence[int]) -> list[int]:
    before = [0, *values[:-1]]
    return [value - last for value, last in zip(values, before, strict=False)]


def _range_of(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range of the logarithms of all positive values."""
    low, high = math.inf, -math.inf
    for row in rows:
        positive = [value for value in row if value > 0 and math.isfinite(value)]
        if positive:
            low, high = min(low, *positive), max(high, *positive)
    if low > high:
        return 0.0, 1.0
    bottom = math.log10(low)
    return bottom, max(math.log10(high), bottom + 1e-6)


def _encode(row: Sequence[float], low: float, high: float) -> bytes:
    """Return the codes of a row: first all low bytes, then all high bytes, which compresses well."""
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
