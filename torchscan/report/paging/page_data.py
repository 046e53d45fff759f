"""Everything that the page of a model shows, as plain data."""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchscan import units
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.receptive_field import ReceptiveField
from torchscan.analyses.receptive_field.short_results import plain_short
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.measured import Measured
from torchscan.report.columns import field_text, sizes
from torchscan.report.info_data import InfoDict, data_of
from torchscan.report.paging.charts import memory_series, roofline_series
from torchscan.report.paging.layer_rows import Paging, Settings
from torchscan.report.paging.overlay_places import PlacedOverlay, overlay_data, overlay_remarks
from torchscan.report.paging.row_values import key_of, rounded, truncate_text
from torchscan.trace.trace import Trace

_DIGITS = 3
#: characters of the histories that a page unpacks at once, at least
_GROUP_SIZE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """The contents of a page. A missing answer is None, with its reason among the ``reasons``."""

    title: str
    #: what ran: "training step", "bf16-mixed", "AdamW"
    question: Sequence[str]
    trace: Trace
    info: InfoDict
    memory: MemoryEstimate | None = None
    roofline: Roofline | None = None
    fields: ReceptiveField | None = None
    settings: Settings = field(default_factory=dict)
    measured: Measured | None = None
    #: the user's own values
    overlays: Sequence[PlacedOverlay] = ()
    #: what could not be told, and why
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: the call of a module that the pass failed in, and the error
    failed: int | None = None
    error: str = ""


def page_data(shown: PageContent) -> dict[str, Any]:
    """Return the data of a page: heading, layers, time and memory."""
    info = data_of(shown.info)
    found = Paging(
        shown.trace,
        info,
        roofline=shown.roofline,
        settings=shown.settings,
        failed=shown.failed,
        fields=shown.fields,
    ).rows()
    memory = roofline = None
    if shown.memory is not None and shown.memory.timeline:
        memory = memory_series(shown.memory)
    if shown.roofline is not None and shown.roofline.operators:
        roofline = roofline_series(shown.roofline)
    remarks = [f"{name}: {printable(reason)}" for name, reason in shown.reasons.items()]
    remarks += overlay_remarks(shown.overlays, shown.trace)
    data = {
        "title": printable(shown.title),
        "question": list(map(printable, shown.question)),
        "verdicts": _verdicts(shown),
        "rows": found.rows,
        "levels": found.levels,
        "memory": memory,
        "roofline": roofline,
        "remarks": remarks,
        "error": "\n".join(map(printable, shown.error.splitlines())),
    }
    if shown.measured is not None:
        data["measured"] = by_key(shown.measured)
    if shown.overlays:
        data["overlays"] = overlay_data(shown.overlays, shown.trace)
    data["version"] = info["provenance"]["torchscan_version"]
    return data


def by_key(measured: Measured) -> dict[str, Any]:
    """Return the measured values of a run by the keys of rows."""
    values_by_key = {}
    for key, values in measured.figures.items():
        finite = {name: rounded(value) for name, value in values.items() if math.isfinite(value)}
        values_by_key[key_of(*key)] = finite
    data: dict[str, Any] = {"figures": values_by_key}
    if measured.histories:
        data["histories"] = _packed(measured.histories)
    producers = measured.producers.items()
    data["producers"] = {key_of(*key): truncate_text(text) for key, text in producers}
    return data


def _packed(histories: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the histories in compressed groups: a page unpacks those with calls that it shows.

    Their order is kept, as neighbors often have equal values: a tensor that two modules share.
    """
    groups = []
    texts: list[str] = []
    calls: dict[str, None] = {}
    size = 0
    for number, each in enumerate(histories, 1):
        key = key_of(*each["call"])
        found = {**each, "call": key, "name": printable(each["name"])}
        text = json.dumps(found, separators=(",", ":"), allow_nan=False)
        texts.append(text)
        calls[key] = None
        size += len(text)
        if size >= _GROUP_SIZE or number == len(histories):
            # More effort makes the data 5 % smaller and takes four times as long.
            data = zlib.compress(f"[{','.join(texts)}]".encode(), 6)
            groups.append({"calls": list(calls), "data": b64encode(data).decode()})
            texts, calls, size = [], {}, 0
    return groups


def question_of(trace: Trace, **asked: Any) -> list[str]:
    """Return a description of the pass, for the line at the top."""
    named = [(each.name, list(each.shape)) for each in trace.provenance.inputs]
    purpose = "training step" if asked.get("has_backward") else "inference"
    options = [asked.get(name) for name in ("precision", "optimizer", "device")]
    inputs = describe_inputs(trace.provenance.batch_size, named)
    return [purpose, *inputs, *(str(option) for option in options if option)]


def describe_inputs(batch_size: int | None, named: Sequence[tuple[str, list[int]]]) -> list[str]:
    """Return the shapes of inputs: by name, or of a batch that torchscan made."""
    if batch_size is None:
        return [f"{name} {sizes(shape)}" for name, shape in named]
    samples = ", ".join(sizes(shape[1:]) for _, shape in named)
    return [f"batch {batch_size} of {samples}"]


# -- verdicts ------------------------------------------------------------------------------------


def _verdicts(shown: PageContent) -> list[dict[str, Any]]:
    """Return the values at the top of the page."""
    verdicts = []
    if shown.measured is not None:
        for label, value, text, place in shown.measured.verdicts:
            verdict = verdict_of(label, value, text)
            if place is not None:
                verdict["path"] = key_of(*place)
            verdicts.append(verdict)
    if shown.memory is not None:
        verdicts.append(_memory_verdict(shown.memory))
    if shown.roofline is not None and shown.roofline.time_estimate:
        verdicts += _time_verdicts(shown.roofline)
    verdicts += _count_verdicts(shown)
    if shown.fields is not None:
        verdicts += _field_verdicts(shown.fields)
    return verdicts


def _memory_verdict(memory: MemoryEstimate) -> dict[str, Any]:
    peak = units.memory(memory.peak_bytes)
    facts = [f"peak in {memory.peak_layer or 'the model itself'}"]
    verdict = memory.verdict
    if verdict is None:
        return verdict_of("Peak memory", peak, *facts)

    label, kind = "Does not fit", "temporary"
    if verdict.fits:
        label, kind = "Fits", "activations"
        if verdict.is_close:
            label = "Fits, but it is close"
    label = f"{label} in {units.memory(verdict.capacity_bytes, 0)}"
    share = (verdict.reserved_bytes + verdict.cuda_context_bytes) / verdict.capacity_bytes
    return {**verdict_of(label, peak, *facts), "bar": [[kind, min(share, 1.0)]]}


def _time_verdicts(roofline: Roofline) -> list[dict[str, Any]]:
    time = roofline.time_estimate
    label = "One step" if "backward" in roofline.time_by_phase else "One pass"
    facts = [f"± {100 * roofline.error_margin.share:.0f} %"]
    if roofline.batch_size is not None:
        facts.append(f"{units.count(roofline.batch_size / time, '', 1)} samples per second")
    duration = verdict_of(label, units.duration(time), *facts)

    limits = [(name, spent) for name, spent in roofline.time_by_limiter.items() if spent]
    shares: list[tuple[str, float]] = [(name, spent / time) for name, spent in limits]
    texts = [f"{name} {units.share(share)}" for name, share in shares]
    first, _ = limits[0]
    bar = [list(each) for each in shares]
    return [duration, {**verdict_of("Limited by", first, *texts), "bar": bar}]


def _count_verdicts(shown: PageContent) -> list[dict[str, Any]]:
    info = data_of(shown.info)
    overall = info["overall"]
    bound = "" if overall["complete"] else "≥ "
    step = ", forward and backward" if info["provenance"]["backward"] else ""
    if shown.failed is not None:
        bound, step = "≥ ", ", up to the failure"
    macs = f"{bound}{three_digits(overall['macs'], 'MACs')}"
    flops = f"{three_digits(overall['flops'], 'FLOPs')}{step}"

    parameters = overall["grad_params"] + overall["nograd_params"]
    size = units.memory(overall["param_size"] + overall["buffer_size"], 1)
    facts = [f"{size} with buffers"]
    if overall["nograd_params"]:
        facts.append(f"{units.count(overall['nograd_params'])} frozen")
    return [
        verdict_of("Arithmetic", macs, flops),
        verdict_of("Parameters", three_digits(parameters), *facts),
    ]


def _field_verdicts(fields: ReceptiveField) -> list[dict[str, Any]]:
    """Return the receptive field of the output, or of the last layer with a local one."""
    text = field_text(plain_short(fields.output.rf))
    if not text or text == "–":
        return []
    place = "of a unit of the output"
    if text == "global":
        for layer in fields:
            statuses = {axis.status for axis in layer.axes}
            if layer.rf != 1 and statuses == {"local"}:
                text = field_text(plain_short(layer.rf))
                place = f"in {layer.path}; then global"
    return [verdict_of("Receptive field", text, place)]


def three_digits(value: float, unit: str = "") -> str:
    """Return a count with three significant digits: ``4.09 G MACs``."""
    for decimals in (2, 1, 0):
        text = units.count(value, unit, decimals)
        number, _, _ = text.partition(" ")
        if len(number.replace(".", "")) <= _DIGITS:
            break
    return text


def verdict_of(label: str, value: str, *facts: str) -> dict[str, Any]:
    """Return a value at the top of a page, with the facts below it."""
    return {"label": label, "value": value, "said": ", ".join(map(printable, facts))}
