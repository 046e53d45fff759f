"""A memory estimate as a table, and as text with a chart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torchscan import units
from torchscan.analyses.memory_estimate import LARGEST_BATCH, MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import LayerMemory
from torchscan.analyses.parameters import enclosing_modules
from torchscan.report.make_table import make_table, sizes, total, totals_table, words
from torchscan.report.memory_chart import STACK, format_chart, format_legend
from torchscan.report.table import Screen, Table
from torchscan.report.table_rows import Cell
from torchscan.report.text import format_rows, format_totals, wrap_paragraphs
from torchscan.report.text_columns import distinct_width, fit_columns
from torchscan.terminal import check_width
from torchscan.wrong_arguments import explain_wrong_types

_MIN_WIDTH, _LAYERS = 40, 8

#: the number of a block in its list, as a part of a path
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


@explain_wrong_types
def memory_table(estimate: MemoryEstimate) -> Table:
    """Return the layers that keep the most, equal ones in one row, and the layer that peaks.

    The totals are the peak by kind and, for a device, the verdict.
    """
    alike: dict[tuple[str, str, int], list[LayerMemory]] = defaultdict(list)
    for layer in _keeping(estimate.layers):
        alike[_INDEX.sub("*", layer.path), layer.type_name, layer.activation_bytes].append(layer)
    groups = [_group_of(members) for members in alike.values()]
    groups.sort(key=lambda group: -group.activation_bytes)
    shown = _shown_groups(groups, estimate)
    totals = [_by_kind(estimate)]
    if estimate.verdict is not None:
        totals.append(_verdict(estimate.verdict))
    remarks = [*_left_out(groups, shown), *closeness(estimate.verdict)]
    remarks += [note.sentence for note in estimate.assumptions]
    table = make_table(
        "Memory",
        _COLUMNS,
        shown,
        [{"repeats": len(group.paths)} for group in shown],
        summary=[_peak(estimate)],
        totals=totals,
        totals_first=True,
        remarks=remarks,
        noun="layers",
    )
    names, *others = table.columns
    min_width = distinct_width(table.rows, names)
    return replace(table, columns=(replace(names, min_width=min_width), *others))


@explain_wrong_types
def format_memory(estimate: MemoryEstimate, width: int = 80, *, colours: bool = False) -> str:
    """Return the estimate as text, with ``colours`` for a terminal.

    It has the peak by kind, memory over time, the layers that keep the most, and the verdict.
    """
    check_width(width)
    screen = Screen(max(width, _MIN_WIDTH), colours)
    width = screen.width
    table, texts = fit_columns(memory_table(estimate), width)
    by_kind, *verdict = table.totals
    blocks = [*wrap_paragraphs(table.summary, width), format_legend(by_kind, screen)]
    if estimate.timeline:
        blocks.append(format_chart(estimate, screen))
    if table.rows:
        blocks.append(format_rows(table, texts, screen))
    blocks += [format_totals(each, width) for each in verdict]
    blocks += wrap_paragraphs(table.remarks, width)
    return "\n\n".join(blocks)


# -- table ---------------------------------------------------------------------------------------


def _peak(estimate: MemoryEstimate) -> str:
    place = f"in {layer_name(estimate.peak_layer)}, {estimate.peak_phase}"
    if estimate.peak_phase == "optimizer":
        place = "in the step of the optimizer"
    batch = "" if estimate.batch_size is None else f", batch size {estimate.batch_size}"
    peak = units.memory(estimate.peak_bytes)
    return f"Peak memory {peak} at {estimate.peak_operator} {place}{batch}"


def _by_kind(estimate: MemoryEstimate) -> Table:
    rows = []
    for kind in STACK:
        size = estimate.by_kind[kind]
        if size:
            share = size / estimate.peak_bytes
            rows.append([*total(kind, kind, size, units.memory), Cell(share, units.share(share))])
    return totals_table(rows, ("", "", ""))


def _verdict(verdict: Verdict) -> Table:
    fits, left = verdict.fits, verdict.left_bytes
    context = _range_text(verdict.cuda_context_bytes, verdict.cuda_context_range)
    reserved = _range_text(verdict.reserved_bytes, verdict.reserved_range)
    left_name, left_text = "Left", units.memory(left)
    if not fits:
        left_name, left_text = "Short by at least", units.memory(-left)
    batch, sequence = verdict.largest_batch_size, verdict.longest_sequence
    rows = [
        total("capacity_bytes", "Usable memory", verdict.capacity_bytes, units.memory),
        total("context_bytes", "Context and kernels", verdict.cuda_context_bytes, context),
        total("allocated_bytes", "Tensors and workspaces", verdict.allocated_bytes, units.memory),
        total("reserved_bytes", "Reserved by the allocator", verdict.reserved_bytes, reserved),
        total("left_bytes", left_name, left, left_text),
    ]
    if batch is not None:
        text = _searched(batch, verdict.safe_batch_size)
        rows.append(total("largest_batch_size", "Largest batch size", batch, text))
    if sequence is not None:
        text = _searched(sequence, verdict.safe_sequence)
        rows.append(total("longest_sequence", "Longest sequence", sequence, text))
    judgement = "fits" if fits else "does not fit"
    doubt = ", but it is close" if verdict.is_close else ""
    return totals_table(rows, title=f"{verdict.device}: {judgement}{doubt}")


def closeness(verdict: Verdict | None) -> list[str]:
    """Return the context size that would change the verdict, if there is one."""
    if verdict is None or not verdict.is_close:
        return []
    least, most = map(units.memory, verdict.cuda_context_range)
    if verdict.fits:
        return [f"With a context of {most} it would not fit."]
    return [f"With a context of {least} it would fit."]


def _range_text(size: int, least_and_most: tuple[int, int]) -> str:
    least, most = least_and_most
    scope = "" if least == most else f" ({_roughly(least)} … {_roughly(most)})"
    return f"{units.memory(size)}{scope}"


def _roughly(size: int) -> str:
    return units.memory(size, 0 if size < 2**30 else 1)


def _searched(largest: int, safe: int | None) -> str:
    """Return the size that fits within the error margin, then the one without the margin."""
    text = units.exact(largest)
    if largest == LARGEST_BATCH:
        text += " or more"
    if safe is None or safe == largest:
        return text
    return f"{units.exact(safe)}, or {text} if the estimate is exact"


class _LayerGroup(NamedTuple):
    """One row: layers that keep equally much, in equal blocks of the model."""

    #: path of the layer; with several, stars replace numbers that differ: "layer1.*.bn3"
    path: str
    type_name: str
    #: bytes that all of them keep
    activation_bytes: int
    #: the largest of their peaks
    peak_bytes: int
    paths: tuple[str, ...]


def _keeping(layers: Sequence[LayerMemory]) -> list[LayerMemory]:
    """Return the layers that keep something and contain no other such layer."""
    keeping = [layer for layer in layers if layer.activation_bytes]
    outer: set[str] = set()
    for layer in keeping:
        if layer.path:
            outer.update(("", *enclosing_modules(layer.path)))
    return [layer for layer in keeping if layer.path not in outer]


def _group_of(layers: Sequence[LayerMemory]) -> _LayerGroup:
    paths = tuple(layer.path for layer in layers)
    pattern = []
    for names in zip(*(path.split(".") for path in paths), strict=True):
        name, *_ = names
        pattern.append(name if len(set(names)) == 1 else "*")
    activation_bytes = sum(layer.activation_bytes for layer in layers)
    peak_bytes = max(layer.peak_bytes for layer in layers)
    type_name = layers[0].type_name
    return _LayerGroup(".".join(pattern), type_name, activation_bytes, peak_bytes, paths)


def _shown_groups(groups: Sequence[_LayerGroup], estimate: MemoryEstimate) -> list[_LayerGroup]:
    """Return the groups that keep the most, and the layer at the peak, which may keep nothing."""
    shown = list(groups[:_LAYERS])
    peak = estimate.peak_layer
    if not peak or any(peak in group.paths for group in shown):
        return shown
    is_innermost = any(peak in group.paths for group in groups)
    for layer in estimate.layers:
        if layer.path == peak:
            # A layer's bytes include those of the layers inside it, which have separate rows.
            own = layer.activation_bytes if is_innermost else 0
            shown.append(_group_of([replace(layer, activation_bytes=own)]))
    return shown


def _left_out(groups: Sequence[_LayerGroup], shown: Sequence[_LayerGroup]) -> list[str]:
    """Return a remark on the layers that have no row, if there are any."""
    shown_paths = {path for group in shown for path in group.paths}
    number = kept = 0
    for group in groups:
        hidden = [path for path in group.paths if path not in shown_paths]
        number += len(hidden)
        kept += len(hidden) * (group.activation_bytes // len(group.paths))
    if not number:
        return []
    layers = "1 more layer keeps" if number == 1 else f"{number:,} more layers keep"
    return [f"{layers} {units.memory(kept)}; the JSON output lists all."]


def layer_name(path: str) -> str:
    """Return how a text names the module at this path."""
    return path or "the model itself"


_COLUMNS = (
    words("path", "Layer", text=layer_name, min_width=5),
    words("type", "Type", "type_name", min_width=4, priority=2),
    sizes("activation_bytes", "Activations", summable=True),
    sizes("peak_bytes", "Peak", priority=1),
)
