"""The table: an info dict as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

from tabulate import DataRow, Line, TableFormat, tabulate

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.info import Info, Layer

WrapMode = Literal["head", "mid", "tail"]


@dataclass(frozen=True, slots=True)
class _Column:
    """What a column shows: its heading, the text for a layer, and how much of that may be cut away."""

    heading: str
    text: Callable[[Layer], str]
    is_number: bool = True
    #: what must stay of a text that may be cut; None: a shape or a number that is cut says nothing
    narrowest: int | None = None


_COLUMNS: Mapping[str, _Column] = {
    "type": _Column("Type", lambda layer: str(layer["type"]), is_number=False, narrowest=8),
    "path": _Column("Path", lambda layer: str(layer["path"]), is_number=False, narrowest=12),
    "input_shape": _Column("Input shape", lambda layer: _shape_text(layer["input_shape"]), is_number=False),
    "output_shape": _Column("Output shape", lambda layer: _shape_text(layer["output_shape"]), is_number=False),
    "params": _Column("Params", lambda layer: _params_text(layer, layer["grad_params"] + layer["nograd_params"])),
    "grad_params": _Column("Trainable", lambda layer: _params_text(layer, layer["grad_params"])),
    "nograd_params": _Column("Frozen", lambda layer: _params_text(layer, layer["nograd_params"])),
    "param_size": _Column("Param size", lambda layer: _memory_text(layer["param_size"])),
    "buffers": _Column("Buffers", lambda layer: units.exact(layer["num_buffers"]) if layer["num_buffers"] else _NONE),
    "buffer_size": _Column("Buffer size", lambda layer: _memory_text(layer["buffer_size"])),
    "macs": _Column("MACs", lambda layer: _cost_text(layer, "macs")),
    "flops": _Column("FLOPs", lambda layer: _cost_text(layer, "flops")),
    "dmas": _Column("DMAs", lambda layer: _cost_text(layer, "dmas")),
    "bytes_read": _Column("Read", lambda layer: _memory_text(layer["bytes_read"])),
    "rf": _Column("RF", lambda layer: _field_text(layer["rf"])),
    "s": _Column("Stride", lambda layer: _field_text(layer["s"])),
    "p": _Column("Pad", lambda layer: _field_text(layer["p"])),
    "bytes_written": _Column("Written", lambda layer: _memory_text(layer["bytes_written"])),
}
_FIELDS = frozenset(("rf", "s", "p"))
_NOTES: Mapping[str, str] = {
    "norm-stats": "RF leaves out what the statistics of normalisations were made from (norm-stats).",
    "wraps": "Units near a border also see the far side, which RF leaves out (wraps).",
    "padded": "Units near a border see it once more, reflected or repeated (padded).",
    "hull": "Some RF may be larger than what is seen (hull).",
}
_NAME = _Column("Layer", lambda layer: str(layer["name"]), is_number=False, narrowest=16)
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs")

_NONE = "–"
_ELLIPSIS = "…"
_GAP = 2
_RULES = TableFormat(
    lineabove=Line("", "─", "──", ""),
    linebelowheader=None,
    linebetweenrows=None,
    linebelow=Line("", "─", "──", ""),
    headerrow=None,
    datarow=DataRow("", "  ", ""),
    padding=0,
    with_header_hide=None,
)


def format_info(
    info: Info,
    wrap_mode: WrapMode = "mid",
    *,
    columns: Sequence[str] | None = None,
    width: int = 80,
) -> str:
    """The table of layers and, below it, the totals.

    ``columns`` are the ones to show beside the layer's name. What does not fit ``width`` is cut at ``wrap_mode``:
    the head of a text, its middle or its tail.
    """
    check_layout(columns, wrap_mode, width)
    chosen = {"layer": _NAME} | {name: _COLUMNS[name] for name in (DEFAULT_COLUMNS if columns is None else columns)}
    table = _table(info["layers"], chosen, wrap_mode, width)
    rule = table.partition("\n")[0]
    return "\n".join([table, _totals(info), rule, *_remarks(info, width, with_fields=not _FIELDS.isdisjoint(chosen))])


def check_layout(columns: Sequence[str] | None, wrap_mode: str, width: int) -> None:
    """Refuse a layout that there is not."""
    if wrap_mode not in get_args(WrapMode):
        raise InputError(f"wrap_mode is {wrap_mode!r}: give one of {', '.join(get_args(WrapMode))}")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise InputError(f"width is {width!r}: give a number of characters")
    if isinstance(columns, str):
        raise InputError(f"columns is {columns!r}: give a list of names")
    unknown = [name for name in columns or () if name not in _COLUMNS]
    if unknown:
        raise InputError(f"unknown column {unknown[0]!r}: there are {', '.join(_COLUMNS)}")


# -- the table of layers -------------------------------------------------------------------------------------------------


def _table(layers: Sequence[Layer], columns: Mapping[str, _Column], wrap_mode: WrapMode, width: int) -> str:
    cells = {name: [column.text(layer) for layer in layers] for name, column in columns.items()} | {"layer": _tree(layers)}
    widths = _fitting_widths(cells, columns, width)
    fitted = {
        name: [cut(text, widths[name], wrap_mode, _indent_of(text) if name == "layer" else 0) for text in texts]
        for name, texts in cells.items()
    }
    headings = [column.heading for column in columns.values()]
    table = tabulate(
        [headings, *zip(*fitted.values(), strict=True)],  # tabulate would make columns wider for headings of its own
        tablefmt=_RULES,
        colalign=["right" if column.is_number else "left" for column in columns.values()],
        disable_numparse=True,
        preserve_whitespace=True,
    )
    rule, heading, *rows = table.split("\n")
    return "\n".join([rule, heading, rule, *rows])


def _tree(layers: Sequence[Layer]) -> list[str]:
    """The names, drawn as a tree: a layer hangs below the last one before it that is less deep."""
    last = _last_of_siblings(layers)
    open_at: dict[int, bool] = {}
    names = []
    for layer, is_last in zip(layers, last, strict=True):
        depth = layer["depth"]
        open_at[depth] = not is_last
        lines = "".join("│ " if open_at[level] else "  " for level in range(1, depth))
        branch = "" if depth == 0 else "└─" if is_last else "├─"
        names.append(f"{lines}{branch}{_name_of(layer)}")
    return names


def _last_of_siblings(layers: Sequence[Layer]) -> list[bool]:
    """For each layer whether none of its siblings follows; read from the end, where each depth is seen or not."""
    following: set[int] = set()
    last = []
    for layer in reversed(layers):
        depth = layer["depth"]
        last.append(depth not in following)
        following = {level for level in following if level < depth} | {depth}
    return last[::-1]


def _name_of(layer: Layer) -> str:
    repeated = f" ({layer['call'] + 1})" if layer["call"] else ""
    return f"{layer['name']}{repeated}"


def _indent_of(text: str) -> int:
    return len(text) - len(text.lstrip("│ └├─"))


def _fitting_widths(cells: Mapping[str, Sequence[str]], columns: Mapping[str, _Column], width: int) -> dict[str, int]:
    """Columns as wide as their texts; if that is too wide, what may be cut gives way, the widest first."""
    widths = {name: max(len(columns[name].heading), *map(len, texts)) for name, texts in cells.items()}
    spare = {name: widths[name] - column.narrowest for name, column in columns.items() if column.narrowest is not None}
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    while excess > 0 and max(spare.values()) > 0:
        widest = max(spare, key=lambda name: spare[name])
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1
    return widths


def cut(text: str, width: int, wrap_mode: WrapMode, indent: int = 0) -> str:
    """Shorten a text to ``width``, but keep the branches of the tree before it."""
    if len(text) <= width:
        return text
    prefix, text = text[:indent], text[indent:]
    room = max(width - indent - 1, 1)
    if wrap_mode == "head":
        return f"{prefix}{_ELLIPSIS}{text[len(text) - room :]}"
    if wrap_mode == "tail":
        return f"{prefix}{text[:room]}{_ELLIPSIS}"
    tail = room // 2
    return f"{prefix}{text[: room - tail]}{_ELLIPSIS}{text[len(text) - tail :]}"


def _shape_text(shapes: Any) -> str:
    if shapes is None:
        return _NONE
    if not shapes or not isinstance(shapes[0], list):
        return units.shape(shapes)
    return f"{units.shape(shapes[0])} +{len(shapes) - 1}"


def _params_text(layer: Layer, own: int) -> str:
    if own:
        return units.exact(own)
    return "shared" if layer["is_shared"] else _NONE


def _memory_text(size: int) -> str:
    return units.memory(size) if size else _NONE


def _cost_text(layer: Layer, key: str) -> str:
    bound = "" if layer["complete"] else "≥ "
    return f"{bound}{units.count(layer[key])}" if layer[key] or bound else _NONE


def _field_text(value: Any) -> str:
    """A number, one per axis, or in words; of several inputs one after the other."""
    if isinstance(value, dict):
        return ", ".join(_field_text(each) for each in value.values())
    if isinstance(value, list):
        return "×".join(_field_text(each) for each in value)
    return _NONE if value is None else str(Fraction(value).limit_denominator(1000) if isinstance(value, float) else value)


# -- the totals ----------------------------------------------------------------------------------------------------------


def _totals(info: Info) -> str:
    overall = info["overall"]
    bound = "" if overall["complete"] else "≥ "
    parameters = overall["grad_params"] + overall["nograd_params"]
    lines = [
        ("Trainable parameters", units.exact(overall["grad_params"])),
        ("Non-trainable parameters", units.exact(overall["nograd_params"])),
        ("Total parameters", units.exact(parameters)),
        ("Model size (parameters + buffers)", units.memory(overall["param_size"] + overall["buffer_size"])),
        *_overhead_lines(info["overheads"], overall["param_size"] + overall["buffer_size"]),
        ("Floating-point operations", f"{bound}{units.count(overall['flops'], 'FLOPs')}"),
        _macs_line(info["provenance"]["convention"], f"{bound}{units.count(overall['macs'], 'MACs')}"),
        ("Direct memory accesses", f"{bound}{units.count(overall['dmas'], 'DMAs')}"),
    ]
    return tabulate(lines, tablefmt="plain", disable_numparse=True)


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


def _remarks(info: Info, width: int, *, with_fields: bool) -> list[str]:
    """What a reader must know to read the figures right."""
    remarks = [_pass_text(info["provenance"])]
    if info["provenance"]["convention"] != "torchscan":
        tool = info["provenance"]["convention"]
        remarks.append(f"MACs are what {tool} would have reported, by its rules; all other figures are torchscan's.")
    remarks += [f"Assumed {text}." for text in info["provenance"]["assumptions"]]
    if info["unpriced"]:
        names = ", ".join(f"{name} ({calls}×)" for name, calls in info["unpriced"].items())
        remarks.append(f"≥: a lower bound, because the cost of these operators is not known: {names}.")
    if info["provenance"]["missed"]:
        names = ", ".join(info["provenance"]["missed"])
        remarks.append(f"≥: a lower bound, because modules ran in other threads, which are not recorded: {names}.")
    if info["unused_parameters"]:
        names = ", ".join(f"{path} ({units.exact(numel)})" for path, numel in info["unused_parameters"].items())
        remarks.append(f"Parameters that this pass did not use: {names}.")
    if with_fields:
        remarks += _field_remarks(info["layers"])
    return [line for remark in remarks for line in textwrap.wrap(textwrap.shorten(remark, 6 * width), width)]


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
