"""Types of the info dict, as ``info.schema.json`` describes it; a test compares the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.plain import to_plain

Shape = list[int]
Shapes = Shape | list[Shape] | None
#: a number for all axes, or one for each
ShortData = float | str | list[float | str | None] | None
#: by input, where there are several
FieldData = ShortData | dict[str, ShortData]

ParameterKey = Literal["grad_params", "nograd_params", "param_size", "num_buffers", "buffer_size"]
CostKey = Literal["flops", "macs", "dmas", "bytes_read", "bytes_written"]
FigureKey = Literal[ParameterKey, CostKey]
#: the figures of a layer that add up
PARAMETER_SUMS: tuple[ParameterKey, ...] = get_args(ParameterKey)
COST_SUMS: tuple[CostKey, ...] = get_args(CostKey)
SUMS: tuple[FigureKey, ...] = (*PARAMETER_SUMS, *COST_SUMS)


class Sums(TypedDict):
    """Figures that add up."""

    grad_params: int
    nograd_params: int
    param_size: int
    num_buffers: int
    buffer_size: int
    flops: int
    macs: int
    dmas: int
    bytes_read: int
    bytes_written: int


class ReasonData(TypedDict):
    """An operator that sees everything, and the layer that calls it."""

    operator: str
    path: str


class AxisData(TypedDict):
    """The part of ``AxisField.to_dict()`` that reports need."""

    input: str
    axis: int
    status: str
    reasons: list[ReasonData]
    notes: list[str]


class Layer(Sums):
    """One call of one module."""

    #: with everything that the layer calls; the module's first call has those of all its calls
    activation_bytes: NotRequired[int | None]
    peak_bytes: NotRequired[int | None]
    #: for a device: seconds
    time_estimate: NotRequired[float]

    name: str
    path: str
    depth: int
    type: str
    call: int
    input_shape: Shapes
    output_shape: Shapes
    rf: FieldData
    s: FieldData
    p: FieldData
    receptive_field: list[list[AxisData]] | None
    is_shared: bool
    is_leaf: bool
    complete: bool


class Overall(Sums):
    """The whole model."""

    peak_bytes: NotRequired[int | None]
    time_estimate: NotRequired[float]
    complete: bool


class OverheadData(TypedDict):
    """MiB before the forward pass and after it; None: not known."""

    pre: float | None
    fwd: float | None


class Overheads(TypedDict):
    """Memory of the process on the GPU besides the model."""

    cuda: OverheadData
    framework: OverheadData


class InputData(TypedDict):
    """One input tensor."""

    name: str
    shape: Shape
    dtype: str


class NoteData(TypedDict):
    """A note: a fact as its code and its values."""

    code: str
    values: dict[str, Any]


class ProvenanceData(TypedDict):
    """Facts about the pass: the way it ran and the versions that counted it."""

    execution: Literal["abstract", "real"]
    #: why it ran in this way
    reasons: list[NoteData]
    mode: Literal["eval", "train", "same"]
    backward: bool
    batch_size: int | None
    inputs: list[InputData]
    assumptions: list[NoteData]
    unrecorded_modules: list[str]
    #: weights that cannot be read; not there in older reports
    unreadable_weights: NotRequired[list[NoteData]]
    torchscan_version: str
    torch_version: str
    convention: str


class Selection(TypedDict):
    """The selection of layers, and their number before it."""

    match: str | None
    sort: str | None
    layers: int


class InfoData(TypedDict):
    """The result of :func:`torchscan.crawl_module`."""

    overheads: Overheads
    layers: list[Layer]
    overall: Overall
    #: operator -> calls
    without_formula: dict[str, int]
    #: why some of these have no cost although a formula was meant for them
    formula_problems: NotRequired[list[NoteData]]
    #: path -> elements
    unused_parameters: dict[str, int]
    provenance: ProvenanceData
    #: what memory and times are estimates of
    estimates: NotRequired[list[NoteData]]
    selection: NotRequired[Selection]
    max_depth: NotRequired[int]


#: made here, or read from a file
InfoDict = Mapping[str, Any]


def data_of(info: InfoDict) -> InfoData:
    """Return the same object with its types; of an older version, a copy in today's form."""
    if not isinstance(info, Mapping) or "layers" not in info:
        raise InputError(
            f"a {type(info).__name__} is not an info dict: give what crawl_module() returns"
        )
    provenance = info.get("provenance")
    if isinstance(provenance, Mapping) and "reason" in provenance:
        info = with_notes(info)
    return cast("InfoData", info)


#: keys of schema 1 -> those of schema 2
_NEW_KEYS = {
    "unpriced": "without_formula",
    "reason": "reasons",
    "missed": "unrecorded_modules",
    "unread": "unreadable_weights",
}


def with_notes(info: InfoDict) -> InfoDict:
    """Return a dict of schema 1 as one of schema 2: with notes for sentences, and with new keys.

    Other dicts, among them broken ones, are returned as they are.
    """
    provenance = info.get("provenance")
    if not isinstance(provenance, Mapping) or not isinstance(provenance.get("reason"), str):
        return info
    info = {_NEW_KEYS.get(key, key): value for key, value in info.items()}
    provenance = {_NEW_KEYS.get(key, key): value for key, value in provenance.items()}
    upgraded = {
        **provenance,
        "reasons": _notes_of([provenance["reasons"]]),
        "assumptions": _notes_of(provenance.get("assumptions"), "assumed "),
        "unreadable_weights": _notes_of(provenance.get("unreadable_weights", [])),
    }
    if "estimates" not in info:
        return {**info, "provenance": upgraded}
    return {**info, "provenance": upgraded, "estimates": _notes_of(info["estimates"])}


def _notes_of(texts: Any, before: str = "") -> Any:
    """Return plain notes of sentences; what is not a list of texts is left to the schema."""
    if not isinstance(texts, list):
        return texts
    notes = []
    for text in texts:
        if isinstance(text, str):
            text = to_plain(Note.from_text(before + text.removesuffix(".")))
        notes.append(text)
    return notes


def summed(layer: Sums, keys: Iterable[str]) -> int:
    """The sum of these figures of one layer, or of all."""
    figures = cast("Mapping[str, int]", layer)
    return sum([figures[key] for key in keys])
