"""What stands below the layers: the totals, and what a reader must know to read the figures right."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from torchscan import units
from torchscan.report.columns import printable
from torchscan.report.info import InfoDict, Layer

_NOTES: Mapping[str, str] = {
    "norm-stats": "RF leaves out what the statistics of normalisations were made from (norm-stats).",
    "wraps": "Units near a border also see the far side, which RF leaves out (wraps).",
    "padded": "Units near a border see it once more, reflected or repeated (padded).",
    "hull": "Some RF may be larger than what is seen (hull).",
}


def totals_of(info: InfoDict) -> list[tuple[str, str]]:
    """The figures of the whole model, each with what it is."""
    overall = info["overall"]
    bound = "" if overall["complete"] else "≥ "
    parameters = overall["grad_params"] + overall["nograd_params"]
    return [
        ("Trainable parameters", units.exact(overall["grad_params"])),
        ("Non-trainable parameters", units.exact(overall["nograd_params"])),
        ("Total parameters", units.exact(parameters)),
        ("Model size (parameters + buffers)", units.memory(overall["param_size"] + overall["buffer_size"])),
        *_overhead_lines(info["overheads"], overall["param_size"] + overall["buffer_size"]),
        ("Floating-point operations", f"{bound}{units.count(overall['flops'], 'FLOPs')}"),
        _macs_line(info["provenance"]["convention"], f"{bound}{units.count(overall['macs'], 'MACs')}"),
        ("Direct memory accesses", f"{bound}{units.count(overall['dmas'], 'DMAs')}"),
    ]


def _macs_line(convention: str, text: str) -> tuple[str, str]:
    if convention == "torchscan":
        return "Multiply-accumulations", text
    return f"What {convention} reports", text.removesuffix("MACs").rstrip()


def _overhead_lines(overheads: Mapping[str, Mapping[str, float | None]], model_size: int) -> list[tuple[str, str]]:
    """What the process holds on the GPU beside the model, if it was measured."""
    cuda, framework = overheads["cuda"]["fwd"], overheads["framework"]["fwd"] or 0.0
    if cuda == framework == 0:
        return [("Framework & CUDA overhead", "not measured")]
    bound = "≥ " if cuda is None else ""
    total = model_size + int(((cuda or 0.0) + framework) * 2**20)
    return [
        ("CUDA overhead", "not known" if cuda is None else units.memory(cuda * 2**20)),
        ("Framework overhead", units.memory(framework * 2**20)),
        ("Model and overhead on the GPU", f"{bound}{units.memory(total)}"),
    ]


def remarks_of(info: InfoDict, *, with_fields: bool) -> list[str]:
    """How the pass ran, what was assumed and what is missing, a sentence or two each."""
    remarks = [*_selection_texts(info), _pass_text(info["provenance"])]
    if info["provenance"]["convention"] != "torchscan":
        tool = info["provenance"]["convention"]
        remarks.append(f"MACs are what {tool} would have reported, by its rules; all other figures are torchscan's.")
    remarks += [f"Assumed {text}." for text in info["provenance"]["assumptions"]]
    if info["unpriced"]:
        names = ", ".join(f"{name} ({calls}×)" for name, calls in info["unpriced"].items())
        remarks.append(unpriced_text(names))
    if info["provenance"]["missed"]:
        names = ", ".join(info["provenance"]["missed"])
        remarks.append(missed_text(names))
    if info["unused_parameters"]:
        names = ", ".join(f"{path} ({units.exact(numel)})" for path, numel in info["unused_parameters"].items())
        remarks.append(f"Parameters that this pass did not use: {names}.")
    if with_fields:
        remarks += _field_remarks(info["layers"])
    return [printable(text) for text in remarks]


def unpriced_text(names: str, when: str = "") -> str:
    """Why some figures are lower bounds: operators without a price."""
    return f"≥: a lower bound{when}, because the cost of these operators is not known: {names}."


def missed_text(names: str, when: str = "") -> str:
    """Why some figures are lower bounds: modules that no record follows."""
    return f"≥: a lower bound{when}, because modules ran in other threads, which are not recorded: {names}."


def _selection_texts(info: InfoDict) -> list[str]:
    """What is not shown."""
    chosen = info.get("selection")
    if chosen is None:
        return []
    which = f", of those that match {chosen['match']}" if chosen["match"] else ""
    order = f", ordered by {chosen['sort']}" if chosen["sort"] else ""
    return [f"{len(info['layers'])} of {chosen['layers']} layers{which}{order}; the totals are those of the whole model."]


def _field_remarks(layers: Sequence[Layer]) -> list[str]:
    """Why something is global, and where the receptive fields are not the whole truth."""
    axes = [axis for layer in layers for axes in layer["receptive_field"] or () for axis in axes]
    if not axes:
        return []
    reasons = dict.fromkeys(reason["operator"] for axis in axes for reason in axis["reasons"])
    beside = "global: all of the input is seen, by {}; stride and padding are of what is seen besides."
    noted = {note for axis in axes for note in axis["notes"]}
    remarks = [beside.format(", ".join(reasons))] if reasons else []
    return remarks + [text for note, text in _NOTES.items() if note in noted]


def _pass_text(provenance: Mapping[str, Any]) -> str:
    inputs = ", ".join(f"{each['dtype']} {units.shape(each['shape'])}" for each in provenance["inputs"]) or "no tensor"
    how = "on shapes alone" if provenance["execution"] == "abstract" else "run for real"
    mode = {"eval": "in evaluation mode", "train": "in training mode", "same": "as the modules are set"}[provenance["mode"]]
    why = textwrap.shorten(provenance["reason"].partition("\n")[0], 200, placeholder=" …")
    reason = f" ({why})" if provenance["execution"] == "real" else ""
    passes = "One pass, forward and backward," if provenance["backward"] else "One pass"
    return f"{passes} {mode}, {how}{reason}, of {inputs}."
