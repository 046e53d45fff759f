"""Totals and notes below the table of layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from torchscan import units
from torchscan.notes import Note
from torchscan.ops import operators_with_problem
from torchscan.plain import from_plain
from torchscan.report.info_data import (
    InfoData,
    Layer,
    NoteData,
    Overheads,
    ProvenanceData,
    Selection,
)
from torchscan.report.make_table import total, totals_table
from torchscan.report.table import ColumnRemark, Table
from torchscan.report.table_rows import Cell

_NOTES: Mapping[str, str] = {
    "norm-stats": "RF excludes the inputs of normalization statistics (norm-stats).",
    "wraps": (
        "RF excludes the opposite side of the input, which units near a border also see (wraps)."
    ),
    "padded": "Units near a border see its elements again, reflected or repeated (padded).",
    "hull": "Some RF are upper bounds: a unit may see less (hull).",
}


_MODES = {
    "eval": "in evaluation mode",
    "train": "in training mode",
    "same": "as the modules are set",
}


def totals_of(info: InfoData) -> Table:
    """Return the values of the whole model."""
    overall, convention = info["overall"], info["provenance"]["convention"]
    bound = "" if overall["complete"] else "≥ "
    unread = "≥ " if info["provenance"].get("unreadable_weights") else ""
    trainable, fixed = overall["grad_params"], overall["nograd_params"]
    params = trainable + fixed
    size = overall["param_size"] + overall["buffer_size"]
    flops, macs, dmas = overall["flops"], overall["macs"], overall["dmas"]
    macs_name, macs_text = f"MACs by {convention}", units.count(macs)
    if convention == "torchscan":
        macs_name, macs_text = "Multiply-accumulations", units.count(macs, "MACs")
    flops_text, dmas_text = units.count(flops, "FLOPs"), units.count(dmas, "DMAs")
    size_text = f"{unread}{units.memory(size)}"
    fixed_text = f"{unread}{units.exact(fixed)}"
    params_text = f"{unread}{units.exact(params)}"
    rows = [
        total("grad_params", "Trainable parameters", trainable, units.exact),
        total("nograd_params", "Non-trainable parameters", fixed, fixed_text),
        total("params", "Total parameters", params, params_text),
        total("model_size", "Model size (parameters + buffers)", size, size_text),
        *_overhead_rows(info["overheads"], size),
        total("flops", "Floating-point operations", flops, f"{bound}{flops_text}"),
        total("macs", macs_name, macs, f"{bound}{macs_text}"),
        total("dmas", "Direct memory accesses", dmas, f"{bound}{dmas_text}"),
    ]
    return totals_table(rows, ("Total", ""))


def _overhead_rows(overheads: Overheads, model_size: int) -> list[list[Cell]]:
    """Return what the process holds on the GPU beside the model, if it was measured."""
    cuda = overheads["cuda"]["fwd"]
    framework = overheads["framework"]["fwd"] or 0.0
    if cuda == framework == 0:
        text = "not measured: the model is not on the GPU"
        row = total("overhead", "Framework & CUDA overhead", None, text)
        return [row] if torch.cuda.is_available() else []
    bound, cuda_text = "", "not known"
    if cuda is None:
        bound = "≥ "
    else:
        cuda_text = units.memory(cuda * 2**20)
    framework_text = units.memory(framework * 2**20)
    on_gpu = model_size + int(((cuda or 0.0) + framework) * 2**20)
    return [
        total("cuda_overhead", "CUDA overhead", cuda, cuda_text),
        total("framework_overhead", "Framework overhead", framework, framework_text),
        total("on_gpu", "Model and overhead on the GPU", on_gpu, f"{bound}{units.memory(on_gpu)}"),
    ]


def remarks_of(info: InfoData, *, fields: Collection[str]) -> list[str]:
    """Return how the pass ran, what was assumed and what is missing, a sentence or two each.

    ``fields`` are the columns of receptive fields that the table has.
    """
    provenance = info["provenance"]
    remarks = []
    if "selection" in info:
        remarks.append(_selection_text(info, info["selection"]))
    remarks.append(_pass_text(provenance))
    remarks += map(_sentence, info.get("estimates", ()))
    if provenance["convention"] != "torchscan":
        tool = provenance["convention"]
        remarks.append(f"MACs follow the rules of {tool}; all other values are torchscan's.")
    remarks += map(_sentence, provenance["assumptions"])
    if info["without_formula"]:
        labels = {name: f"{name} ({calls}×)" for name, calls in info["without_formula"].items()}
        notes = [from_plain(Note, each) for each in info.get("formula_problems", ())]
        remarks += unknown_cost_texts(labels, notes)
    if provenance["unrecorded_modules"]:
        remarks.append(unrecorded_text(", ".join(provenance["unrecorded_modules"])))
    if info["unused_parameters"]:
        unused = info["unused_parameters"].items()
        names = ", ".join(f"{path} ({units.exact(numel)})" for path, numel in unused)
        remarks.append(f"Parameters that this pass did not use: {names}.")
    if fields:
        remarks += [ColumnRemark(text, fields) for text in _field_remarks(info["layers"])]
    return remarks


def _sentence(note: NoteData) -> str:
    return from_plain(Note, note).sentence  # type: ignore[no-any-return]


def unknown_cost_texts(
    labels: Mapping[str, str], problems: Sequence[Note], when: str = ""
) -> list[str]:
    """Return remarks on operators without a cost, which have labels by their names.

    Those whose formulas failed have a remark each, and are not listed as without a formula.
    ``when`` is the side of a comparison: "before" or "now".
    """
    others = [labels[name] for name in _names_without_formula(labels, problems)]
    texts = _problem_texts(problems, when)
    if others:
        side = f" {when}" if when else ""
        texts.insert(0, unknown_cost_text(", ".join(others), side))
    return texts


def lower_bound_texts(info: InfoData, when: str) -> list[str]:
    """Return the remarks of a page on operators without a cost, on one side of a comparison."""
    problems = [from_plain(Note, each) for each in info.get("formula_problems", ())]
    texts = _problem_texts(problems, when)
    names = ", ".join(_names_without_formula(info["without_formula"], problems))
    if names:
        texts.insert(0, f"MACs and FLOPs {when} are lower bounds: no formula for {names}.")
    return texts


def _names_without_formula(unknown: Collection[str], problems: Sequence[Note]) -> list[str]:
    """Return the operators without a cost that have no formula, or one that was not used."""
    with_problem = operators_with_problem(problems)
    return [name for name in unknown if name not in with_problem]


def _problem_texts(problems: Sequence[Note], when: str = "") -> list[str]:
    """Return a remark on each formula that gives no cost, with the side of a comparison."""
    if not when:
        return [note.sentence for note in problems]
    return [f"{when.capitalize()}: {note}." for note in problems]


def unknown_cost_text(names: str, when: str = "") -> str:
    """Return the note on lower bounds that are due to operators without a cost formula."""
    return f"≥ marks a lower bound{when}, because these operators have no cost formula: {names}."


def unrecorded_text(names: str, when: str = "") -> str:
    """Return the note on lower bounds that are due to modules in other threads."""
    return (
        f"≥ marks a lower bound{when}, because modules ran in other threads, which are not "
        f"recorded: {names}."
    )


def _selection_text(info: InfoData, chosen: Selection) -> str:
    """Return the note about layers that were left out."""
    which = f" that match {chosen['match']}" if chosen["match"] else ""
    order = f", sorted by {chosen['sort']}" if chosen["sort"] else ""
    num_shown = f"{len(info['layers'])} of {chosen['layers']} layers"
    return (
        f"Shown are {num_shown}{which}{order}, each with its own values; "
        "totals are of the entire model."
    )


def _field_remarks(layers: Sequence[Layer]) -> list[str]:
    """Return why fields are global, and what RF excludes."""
    operators: dict[str, None] = {}
    codes: set[str] = set()
    for layer in layers:
        for axes in layer["receptive_field"] or ():
            for axis in axes:
                operators |= dict.fromkeys(reason["operator"] for reason in axis["reasons"])
                codes.update(axis["notes"])
    remarks = [text for code, text in _NOTES.items() if code in codes]
    if operators:
        seen = f"global: the entire input is seen, by {', '.join(operators)}"
        remarks.insert(0, f"{seen}; stride and padding describe the windows.")
    return remarks


def _pass_text(provenance: ProvenanceData) -> str:
    given = provenance["inputs"]
    inputs = [f"{each['dtype']} {units.shape(each['shape'])}" for each in given]
    how = "on shapes alone"
    if provenance["execution"] != "abstract":
        how = "on data"
    if provenance["execution"] == "real":
        reasons = [str(from_plain(Note, each)) for each in provenance["reasons"]]
        how += f" ({'; '.join(reasons)})"
    mode = _MODES[provenance["mode"]]
    passes = "One pass, forward and backward," if provenance["backward"] else "One pass"
    return f"{passes} {mode}, {how}, of {', '.join(inputs) or 'no tensor'}."


def source_of(provenance: ProvenanceData) -> str:
    """Return the versions and the counting convention."""
    counter = f"torchscan {provenance['torchscan_version']}"
    if provenance["convention"] != "torchscan":
        counter += f", MACs by the rules of {provenance['convention']}"
    return f"Counted by {counter} with torch {provenance['torch_version']}."
