"""The training part of the page of a run as plain data: curves, layers, and what was found."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.report.paging.layer_findings import LayerValues
from torchscan.report.paging.row_values import key_of, truncate_text
from torchscan.report.paging.training_findings import (
    CurveValues,
    find_nonfinite_loss_before,
    find_problems,
)
from torchscan.report.paging.training_packing import (
    pack_training,
    round_value,
    thin_out,
    to_json,
)
from torchscan.report.paging.training_record import (
    CurveData,
    LayerData,
    NanData,
    TrainingRecord,
)

#: points from which the speed is computed
_RATE_POINTS = 100
#: a learning rate has changed if it has by this factor, and was or stays constant
_RATE_FACTOR, _CONSTANT = 2.0, 1e-3
#: quantities that findings are about
_OF_LAYERS = ("gradient", "update", "dead")
_EPOCH = re.compile(r"\bepoch\s*[:#=]?\s*(\d+)", re.IGNORECASE)


def training_data(record: TrainingRecord) -> dict[str, Any]:
    """Return the data that the page of a run shows of its training."""
    train = thin_out(record.train)
    notes = find_all(record, train)
    findings = [_finding(note) for note in notes]
    spikes = [dict(note.values) for note in notes if note.code == "loss-spike"]
    return {
        "facts": _facts(record),
        "findings": findings,
        "spike": next(iter(spikes), None),
        "marks": [*_marks_of_notes(record.notes), *_marks_of_rates(train)],
        "evaluations": _evaluations(record.evaluation),
        "nan": None if record.nan is None else _nan(record.nan, record.layers, train),
        "packed": pack_training(train, record.layers),
    }


def find_all(record: TrainingRecord, train: CurveData) -> list[Note]:
    """Return the first NaN or Inf, and what the curves and the layers show."""
    layers, nan = record.layers, record.nan
    curves = _values_of_curve(train)
    evaluations = [
        (each["step"], each["loss"])
        for each in _evaluations(record.evaluation)
        if isinstance(each["loss"], float)
    ]
    problems = find_problems(curves, _values_of_layers(layers), layers.first, evaluations)
    if nan is None:
        return problems
    loss = find_nonfinite_loss_before(curves, nan.step)
    if loss is None:
        first = Note.of(
            "first-nonfinite",
            step=nan.step,
            series=nan.series,
            path=nan.path,
            invocation=nan.invocation,
        )
        return [first, *problems]
    others = [note for note in problems if note.code != "loss-not-finite"]
    recorded = Note.of(
        "nonfinite-after-loss",
        step=nan.step,
        loss_step=loss.values["step"],
        has_weights=layers.has_nonfinite_weights(nan.step),
    )
    return [loss, recorded, *others]


def _values_of_curve(curve: CurveData) -> CurveValues:
    return CurveValues(
        steps=curve.steps,
        losses=curve.losses,
        gradient_norms=curve.gradient_norms,
        learning_rates=curve.learning_rates,
    )


# -- text and numbers ------------------------------------------------------------------------------


def _facts(record: TrainingRecord) -> dict[str, Any]:
    about = record.about
    batch = about.get("batch")
    steps = [*record.train.steps[-1:], *record.layers.last[-1:]]
    speed = round_value(_steps_per_second(record.train))
    step = max(steps, default=None)
    shape = " × ".join(map(str, batch)) if isinstance(batch, list) else ""
    return {
        "run": truncate_text(record.run),
        "state": record.state,
        "step": step,
        "speed": speed,
        "optimizer": _text_of(about.get("optimizer")),
        "batch": shape,
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
    durations = []
    for (step, time), (next_step, next_time) in pairwise(places):
        if next_step > step and next_time > time:
            durations.append((next_time - time) / (next_step - step))
    return 1 / statistics.median(durations) if durations else None


def _finding(note: Note) -> dict[str, Any]:
    found: dict[str, Any] = {"code": note.code, "text": printable(note.sentence)}
    path, step = note.values.get("path"), note.values.get("step")
    if path is not None:
        found["key"] = key_of(str(path), 0)
    if step is not None:
        found["step"] = step
    return found


def _marks_of_notes(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """Return the user's notes and the pauses, for the axis."""
    marks = []
    for note in notes:
        step = note.values.get("step")
        if type(step) is not int:
            continue
        if note.code == "user-note":
            text = truncate_text(str(note.values.get("text", "")))
            mark: dict[str, Any] = {"step": step, "text": text, "kind": "note"}
            epoch = _EPOCH.search(text)
            if epoch is not None:
                mark |= {"kind": "epoch", "epoch": int(epoch[1])}
            marks.append(mark)
        elif note.code in ("paused", "resumed"):
            marks.append({"step": step, "text": note.code, "kind": "pause"})
    return marks


def _marks_of_rates(curve: CurveData) -> list[dict[str, Any]]:
    """Return the steps in which the learning rate has changed at once."""
    known = []
    for step, rate in zip(curve.steps, curve.learning_rates, strict=True):
        if rate is not None and rate > 0:
            known.append((step, rate))
    marks = []
    for at in range(1, len(known)):
        step, rate = known[at]
        before = known[at - 1][1]
        if max(rate, before) < _RATE_FACTOR * min(rate, before):
            continue
        start = max(0, at - 3)
        if _is_constant(known[start:at]) or _is_constant(known[at : at + 3]):
            text = "lr drop" if rate < before else "lr rise"
            marks.append({"step": step, "text": text, "kind": "rate"})
    return marks


def _is_constant(points: Sequence[tuple[int, float]]) -> bool:
    rates = [rate for _, rate in points]
    if len(rates) < 2:
        return False
    highest = max(rates)
    return highest - min(rates) <= _CONSTANT * highest


def _evaluations(curve: CurveData) -> list[dict[str, Any]]:
    """Return the mean loss of each evaluation: of all its passes after the same training step."""
    found: dict[int, list[float]] = defaultdict(list)
    for step, loss in zip(curve.steps, curve.losses, strict=True):
        if loss is not None:
            found[step].append(loss)
    evaluations = []
    for step, losses in sorted(found.items()):
        mean = to_json(statistics.fmean(losses))
        evaluations.append({"step": step, "loss": mean, "passes": len(losses)})
    return evaluations


def _nan(nan: NanData, layers: LayerData, train: CurveData) -> dict[str, Any]:
    reached = []
    for number, bits in enumerate(layers.not_finite):
        if not layers.is_inner(number) and any(bits):
            column = list(map(bool, bits)).index(True)
            reached.append(layers.first[column])
    later = [step for step in reached if step > nan.step]
    carried = {"modules": len(reached), "atOnce": len(reached) - len(later)}
    carried["later"] = min(later, default=0)
    about_input = {"isInputFinite": nan.is_input_finite, "beforeStep": nan.before_step}
    loss = find_nonfinite_loss_before(_values_of_curve(train), nan.step)
    cause = {
        "wereWeightsFinite": nan.were_weights_finite,
        "isProducer": nan.is_producer and loss is None,
        "isSource": nan.were_weights_finite is not False and loss is None,
        "lossStep": None if loss is None else loss.values["step"],
    }
    largest, before = to_json(nan.input_largest), to_json(nan.input_before)
    return {
        "step": nan.step,
        "series": truncate_text(nan.series),
        "path": truncate_text(nan.path),
        "key": key_of(nan.path, nan.invocation),
        "count": nan.count,
        "numel": nan.numel,
        "inputLargest": largest,
        "inputBefore": before,
        **about_input,
        **cause,
        **carried,
    }


def _values_of_layers(layers: LayerData) -> list[LayerValues]:
    """Return the modules without modules inside them."""
    found = []
    for number, row in enumerate(layers.rows):
        if layers.is_inner(number):
            continue
        gradient, update, dead = (layers.values[name][number] for name in _OF_LAYERS)
        name = printable(row.path or row.name)
        if name.rpartition(".")[2].isdigit():
            name = f"{name} ({printable(row.type_name)})"
        values = LayerValues(
            path=row.path,
            name=name,
            type_name=row.type_name,
            gradient=gradient,
            update=update,
            dead=dead,
        )
        found.append(values)
    return found
