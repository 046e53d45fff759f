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
from torchscan.analyses.receptive_field.receptive_field_result import plain_short
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.measured import Key, Measured
from torchscan.report.columns import field_text, sizes
from torchscan.report.info_data import InfoDict, data_of
from torchscan.report.paging.charts import memory_series, roofline_series
from torchscan.report.paging.layer_rows import Paging, Settings, key_of, rounded, truncate_text
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
    return {
        "title": printable(shown.title),
        "question": [printable(each) for each in shown.question],
        "verdicts": [
            *_measured(shown),
            *_fits(shown),
            *_time(shown),
            *_counts(shown),
            *_field(shown),
        ],
        "rows": found.rows,
        "levels": found.levels,
        "memory": None
        if shown.memory is None or not shown.memory.timeline
        else memory_series(shown.memory),
        "roofline": None
        if shown.roofline is None or not shown.roofline.operators
        else roofline_series(shown.roofline),
        "remarks": [*(f"{name}: {printable(reason)}" for name, reason in shown.reasons.items())],
        "error": "\n".join(map(printable, shown.error.splitlines())),
        **({} if shown.measured is None else {"measured": by_key(shown.measured)}),
        "version": info["provenance"]["torchscan_version"],
    }


def _measured(shown: PageContent) -> list[dict[str, Any]]:
    return [] if shown.measured is None else [_of_run(*each) for each in shown.measured.verdicts]


def by_key(measured: Measured) -> dict[str, Any]:
    """Return the measured values of a run by the keys of rows."""
    return {
        "figures": {
            key_of(*key): {
                name: rounded(value) for name, value in figures.items() if math.isfinite(value)
            }
            for key, figures in measured.figures.items()
        },
        **({"histories": _packed(measured.histories)} if measured.histories else {}),
        "producers": {
            key_of(*key): truncate_text(said) for key, said in measured.producers.items()
        },
    }


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
            groups.append({"calls": list(calls), "data": _compress(texts)})
            texts, calls, size = [], {}, 0
    return groups


def _compress(texts: Sequence[str]) -> str:
    """Return a list of JSON texts. More effort makes it 5 % smaller and takes four times as long."""
    data = f"[{','.join(texts)}]".encode()
    return b64encode(zlib.compress(data, 6)).decode()


def _of_run(label: str, value: str, said: str, place: Key | None) -> dict[str, Any]:
    """A verdict; a call that it is about can be gone to."""
    link = {} if place is None else {"path": key_of(*place)}
    return {**_verdict(label, value, said), **link}


def _fits(shown: PageContent) -> list[dict[str, Any]]:
    memory = shown.memory
    if memory is None:
        return []
    verdict, said = memory.verdict, [f"peak in {memory.peak_layer or 'the model itself'}"]
    if verdict is None:
        return [_verdict("Peak memory", units.memory(memory.peak_bytes), *said)]
    label = (
        "Fits"
        if verdict.fits and not verdict.is_close
        else "Fits, but it is close"
        if verdict.fits
        else "Does not fit"
    )
    share = (verdict.reserved_bytes + verdict.cuda_context_bytes) / verdict.capacity_bytes
    bar = [["activations" if verdict.fits else "temporary", min(share, 1.0)]]
    if verdict.largest_batch_size is not None:
        said.append(
            f"largest batch {units.exact(verdict.safe_batch_size or verdict.largest_batch_size)}"
        )
    if verdict.longest_sequence is not None:
        said.append(
            f"longest sequence {units.exact(verdict.safe_sequence or verdict.longest_sequence)}"
        )
    where = f"{label} in {units.memory(verdict.capacity_bytes, 0)}"
    return [{**_verdict(where, units.memory(memory.peak_bytes), *said), "bar": bar}]


def _time(shown: PageContent) -> list[dict[str, Any]]:
    roofline = shown.roofline
    if roofline is None or not roofline.time_estimate:
        return []
    shares = [
        (name, time / roofline.time_estimate)
        for name, time in roofline.time_by_limiter.items()
        if time
    ]
    step = "One step" if "backward" in roofline.time_by_phase else "One pass"
    rate = (
        []
        if roofline.batch_size is None
        else [
            f"{units.count(roofline.batch_size / roofline.time_estimate, '', 1)} samples per second"
        ]
    )
    said = [f"{name} {units.share(share)}" for name, share in shares]
    return [
        _verdict(
            step,
            units.duration(roofline.time_estimate),
            f"± {100 * roofline.error_margin.share:.0f} %",
            *rate,
        ),
        {**_verdict("Limited by", shares[0][0], *said), "bar": [list(each) for each in shares]},
    ]


def _counts(shown: PageContent) -> list[dict[str, Any]]:
    overall, bound = (
        data_of(shown.info)["overall"],
        "" if data_of(shown.info)["overall"]["complete"] else "≥ ",
    )
    parameters = overall["grad_params"] + overall["nograd_params"]
    size = units.memory(overall["param_size"] + overall["buffer_size"], 1)
    step = ", forward and backward" if data_of(shown.info)["provenance"]["backward"] else ""
    if shown.failed is not None:
        bound, step = "≥ ", ", up to the failure"
    frozen = [f"{units.count(overall['nograd_params'])} frozen"] if overall["nograd_params"] else []
    return [
        _verdict(
            "Arithmetic",
            f"{bound}{_three(overall['macs'], 'MACs')}",
            f"{_three(overall['flops'], 'FLOPs')}{step}",
        ),
        _verdict("Parameters", _three(parameters), f"{size} with buffers", *frozen),
    ]


def _field(shown: PageContent) -> list[dict[str, Any]]:
    """Return the receptive field of the output, or of the last layer with a local one."""
    if shown.fields is None:
        return []
    last = field_text(plain_short(shown.fields.output.rf))
    if not last or last == "–":
        return []
    local = [
        each
        for each in shown.fields
        if each.rf != 1 and {axis.status for axis in each.axes} == {"local"}
    ]
    if last == "global" and local:
        return [
            _verdict(
                "Receptive field",
                field_text(plain_short(local[-1].rf)),
                f"in {local[-1].path}; then global",
            )
        ]
    return [_verdict("Receptive field", last, "of a unit of the output")]


def _three(value: float, unit: str = "") -> str:
    """With three digits."""
    for digits in (2, 1, 0):
        said = units.count(value, unit, digits)
        if len(said.partition(" ")[0].replace(".", "")) <= _DIGITS:
            break
    return said


def _verdict(label: str, value: str, *said: str) -> dict[str, Any]:
    return {"label": label, "value": value, "said": ", ".join(printable(each) for each in said)}


def question_of(trace: Trace, **asked: Any) -> list[str]:
    """Return a description of the pass, for the line at the top."""
    given = trace.provenance.inputs
    batch = trace.provenance.batch_size
    inputs = (
        [f"batch {batch} of {', '.join(sizes(list(each.shape[1:])) for each in given)}"]
        if batch is not None
        else [f"{each.name} {sizes(list(each.shape))}" for each in given]
    )
    said = ["training step" if asked.get("has_backward") else "inference", *inputs]
    return [
        *said,
        *(str(asked[name]) for name in ("precision", "optimizer", "device") if asked.get(name)),
    ]
