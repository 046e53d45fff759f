"""A memory estimate as a table, and as text with a chart."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchscan import units
from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.memory_estimate import LARGEST_BATCH, MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import LayerMemory, Moment
from torchscan.analyses.parameters import enclosing_modules
from torchscan.report.chart import SIGNS, axis, stacked, ticks
from torchscan.report.colours import in_colour
from torchscan.report.make_table import make_table, sizes, total, totals_table, words
from torchscan.report.table import Cell, Screen, Table, check_width
from torchscan.report.text import fit_columns, format_rows, format_totals, wrap_paragraphs
from torchscan.wrong_arguments import explain_wrong_types

_MIN_WIDTH, _PLOT_HEIGHT, _LABEL_WIDTH, _LAYERS = 40, 12, 12, 8

#: the number of a block in its list, as a part of a path
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")

#: from the bottom up: what is always there first
STACK: Sequence[MemoryKind] = (
    "parameters",
    "buffers",
    "optimizer",
    "inputs",
    "cache",
    "gradients",
    "gathered",
    "activations",
    "temporary",
)


@explain_wrong_types
def memory_table(estimate: MemoryEstimate) -> Table:
    """Return the layers that keep the most, equal ones in one row, and the layer that peaks.

    The totals are the peak by kind and, for a device, the verdict.
    """
    groups = _groups_of(_keeping(estimate.layers))
    shown = _shown_groups(groups, estimate)
    totals = [_by_kind(estimate)]
    if estimate.verdict is not None:
        totals.append(_verdict(estimate.verdict))
    return make_table(
        "Layers that keep the most",
        _COLUMNS,
        shown,
        [{"repeats": len(group.paths)} for group in shown],
        summary=[_peak(estimate)],
        totals=totals,
        totals_first=True,
        remarks=[
            *_left_out(groups, shown),
            *closeness(estimate.verdict),
            *(note.sentence for note in estimate.assumptions),
        ],
        noun="layers",
    )


@explain_wrong_types
def format_memory(estimate: MemoryEstimate, width: int = 80, *, colours: bool = False) -> str:
    """Return the estimate as text, with ``colours`` for a terminal.

    It has the peak by kind, memory over time, the layers that keep the most, and the verdict.
    """
    check_width(width)
    screen = Screen(max(width, _MIN_WIDTH), colours)
    width = screen.width
    table = fit_columns(memory_table(estimate), width)
    by_kind, *verdict = table.totals
    blocks = [*wrap_paragraphs(table.summary, width), _legend(by_kind, screen)]
    if estimate.timeline:
        blocks.append(_chart(estimate, screen))
    if table.rows:
        blocks.append(format_rows(table, screen))
    blocks += [format_totals(each, width) for each in verdict]
    blocks += wrap_paragraphs(table.remarks, width)
    return "\n\n".join(blocks)


# -- table ---------------------------------------------------------------------------------------


def _peak(estimate: MemoryEstimate) -> str:
    place = f"in {_layer_name(estimate.peak_layer)}, {estimate.peak_phase}"
    if estimate.peak_phase == "optimizer":
        place = "in the step of the optimizer"
    batch = "" if estimate.batch_size is None else f", batch size {estimate.batch_size}"
    peak = units.memory(estimate.peak_bytes)
    return f"Peak memory {peak} at {estimate.peak_operator} {place}{batch}"


def _by_kind(estimate: MemoryEstimate) -> Table:
    peak = estimate.peak_bytes
    sizes_by_kind = {kind: estimate.by_kind[kind] for kind in STACK if estimate.by_kind[kind]}
    rows = [
        [*total(kind, kind, size, units.memory), Cell(size / peak, units.share(size / peak))]
        for kind, size in sizes_by_kind.items()
    ]
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


def _groups_of(layers: Sequence[LayerMemory]) -> list[_LayerGroup]:
    """Return the groups of layers, those that keep the most first."""
    alike: dict[tuple[str, str, int], list[LayerMemory]] = defaultdict(list)
    for layer in layers:
        alike[_INDEX.sub("*", layer.path), layer.type_name, layer.activation_bytes].append(layer)
    groups = [_group_of(members) for members in alike.values()]
    return sorted(groups, key=lambda group: -group.activation_bytes)


def _group_of(layers: Sequence[LayerMemory]) -> _LayerGroup:
    names = zip(*(layer.path.split(".") for layer in layers), strict=True)
    path = ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in names)
    return _LayerGroup(
        path=path,
        type_name=layers[0].type_name,
        activation_bytes=sum(layer.activation_bytes for layer in layers),
        peak_bytes=max(layer.peak_bytes for layer in layers),
        paths=tuple(layer.path for layer in layers),
    )


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
    return [f"{layers} {units.memory(kept)}; --format json and to_dict() list all."]


def _layer_name(path: str) -> str:
    return path or "the model itself"


_COLUMNS = (
    words("path", "Layer", text=_layer_name, min_width=5),
    words("type", "Type", "type_name", min_width=4, priority=1),
    sizes("activation_bytes", "Activations", summable=True),
    sizes("peak_bytes", "Peak"),
)


# -- chart in a terminal -------------------------------------------------------------------------


def _legend(by_kind: Table, screen: Screen) -> str:
    """Return the bytes of each kind beside its symbol in the chart."""
    rows = format_totals(by_kind, screen.width - 2).split("\n")
    kinds = [row.cells[0].value for row in by_kind.rows]
    if screen.has_colours:
        signs = [in_colour("█", kind) for kind in kinds]
    else:
        signs = [SIGNS[kind] for kind in kinds]
    return "\n".join(f"{sign} {row}" for sign, row in zip(signs, rows, strict=True))


def _chart(estimate: MemoryEstimate, screen: Screen) -> str:
    """Return memory over time; a column shows the largest of several moments."""
    columns = list(columns_of(estimate.timeline, screen.width - _LABEL_WIDTH))
    sizes = [[moment.by_kind[kind] for kind in STACK] for moment in columns]
    labels = _labels(max(moment.total for moment in columns))
    rows = stacked(sizes, STACK, _PLOT_HEIGHT, has_colours=screen.has_colours)
    lines = [_peak_mark(estimate, columns, screen.width)]
    for label, row in zip(labels, rows, strict=True):
        lines.append(f"{label:>{_LABEL_WIDTH - 1}} {row}".rstrip())
    lines.append(" " * _LABEL_WIDTH + axis([moment.phase for moment in columns]))
    return "\n".join(lines)


def _labels(top: int) -> list[str]:
    """Return a label for each row from the top down: the round number that it reaches, or ""."""
    size, unit = units.unit_of_memory(top)
    labels: dict[int, str] = {}
    for tick in ticks(top / size, 4):
        row = math.ceil(_PLOT_HEIGHT * tick * size / top) - 1
        labels[row] = f"{tick:g} {unit}"
    return [labels.get(row, "") for row in reversed(range(_PLOT_HEIGHT))]


def _peak_mark(estimate: MemoryEstimate, columns: Sequence[Moment], width: int) -> str:
    """Return ``▼ peak, layer4.2.relu`` above the column, with the text where there is room."""
    place = _LABEL_WIDTH + max(range(len(columns)), key=lambda column: columns[column].total)
    label = f"peak, {_layer_name(estimate.peak_layer)}"
    if place + 2 + len(label) <= width:
        return " " * place + f"▼ {label}"
    if len(label) + 2 <= place:
        return f"{label} ▼".rjust(place + 1)
    return " " * place + "▼"


def columns_of(timeline: Sequence[Moment], count: int) -> Iterator[Moment]:
    """Yield the largest moment of each of ``count`` stretches."""
    count = min(count, len(timeline))
    for column in range(count):
        begin = column * len(timeline) // count
        end = (column + 1) * len(timeline) // count
        yield max(timeline[begin:end], key=lambda moment: moment.total)
