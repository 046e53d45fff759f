"""Saved runs: JSON with a schema, which is made from the dataclasses and checked on reading."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Literal

from torchscan.errors import InputError
from torchscan.files import path_of
from torchscan.inspecting.run import RunFacts
from torchscan.notes import Note
from torchscan.plain import from_plain
from torchscan.report.data import info_of
from torchscan.report.info import Info
from torchscan.report.saved import REPORT, RUN, is_run, read_saved
from torchscan.report.schema_validation import mismatch
from torchscan.wrong_arguments import explain_wrong_types

#: keys of version 1 -> those of version 2
_NEW_KEYS = {
    "storing": "storing_gradients",
    "unowned": "outside_modules",
    "differing": "num_differing",
    "trained": "trained_modules",
    "share_off": "error_share",
    "then": "nan_operator",
    "is_given": "is_user_gradient",
    "others": "num_others",
}
#: entries of a finding that are notes, and were sentences in version 1
_NOTES = ("mask", "unknown", "unsure", "cause", "checked")


def open_run(path: str | os.PathLike[str]) -> RunFacts:
    """Return the run that ``run.save(path)`` wrote.

    Raise an InputError for a report, a newer schema or a broken file.
    """
    return read_saved(path_of(path), RUN.noun, _run_of)


@explain_wrong_types
def json_schema(kind: Literal["info", "run"] = "info") -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of an info dict, or of an inspected run.

    In a run, numbers that are not finite are texts: "NaN", "Infinity", "-Infinity".
    """
    kinds = {"info": REPORT, "run": RUN}
    if kind not in kinds:
        raise InputError.of_choice("kind", kind, kinds)
    return copy.deepcopy(kinds[kind].schema)


def run_document(run: RunFacts) -> dict[str, Any]:
    """Return a run with the name of its schema, as ``run.save`` writes it."""
    return {"schema": RUN.schema_id, **run.to_dict()}


def open_run_or_report(path: Path) -> RunFacts | Info:
    """Return what a file holds; errors are those of a report unless it says that it is a run."""
    return read_saved(
        path, "report", lambda content: _run_of(content) if is_run(content) else info_of(content)
    )


def _run_of(content: Any) -> RunFacts:
    RUN.require(content)
    _upgrade(content)
    wrong = mismatch(content, RUN.schema, "the run") or _hanging(content)
    if wrong is not None:
        raise InputError(f"it is a broken run: {wrong}")
    run: RunFacts = from_plain(RunFacts, content)
    return run


def _upgrade(content: Any) -> None:
    """Turn a file of version 1 into one of version 2, in place: new keys, notes for sentences.

    Its entry ``then`` of a gradient that was written to is the line of the backward pass.
    """
    if content["schema"] != f"{RUN.name}/1":
        return
    findings = content.get("nonfinite", [])
    findings = findings if isinstance(findings, list) else []
    for part in (content, content.get("device"), content.get("expected"), *findings):
        _rename_keys(part)
    for found in findings:
        if not isinstance(found, dict):
            continue
        if found.get("phase") == "gradient" and not found.get("cause"):
            note = Note.of("written-after-backward", line=found.pop("nan_operator", None))
            found["cause"] = note.to_data()
        for name in _NOTES:
            if isinstance(found.get(name), str):
                found[name] = Note.from_text(found[name]).to_data()


def _rename_keys(part: Any) -> None:
    for old, new in _NEW_KEYS.items():
        if isinstance(part, dict) and old in part:
            part[new] = part.pop(old)


def _hanging(content: Any) -> str | None:
    """Return the error that no schema can express: calls must be inside earlier ones.

    The timeline may only refer to known calls.
    """
    calls, timeline = content["calls"], content.get("timeline", {})
    references = []
    for number, call in enumerate(calls):
        references.append((f".calls[{number}].parent", call["parent"], number))
    for track in ("forward", "backward"):
        for number, each in enumerate(timeline.get(track, ())):
            references.append((f".timeline.{track}[{number}].call", each["call"], len(calls)))
    for place, index, end in references:
        if index is not None and not 0 <= index < end:
            return f"the run{place} is {index}, which is not an earlier call"
    return None
