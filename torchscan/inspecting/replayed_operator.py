"""The operator that a replay has found, and masks that it wrote."""

from __future__ import annotations

from dataclasses import dataclass

from torchscan.notes import Note

#: operators that create tensors of constants, or return their operand
_CREATING = (
    *("full", "lift_fresh", "scalar_tensor", "fill", "_to_copy", "clone", "detach", "alias"),
    *("expand", "view", "triu"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator that produced the first non-finite value."""

    name: str | None = None
    line: str | None = None
    #: operator that made NaN of the infinities, or None
    nan_operator: str | None = None
    #: operator that wrote the intended infinities that became NaN, and its place, or None
    mask: Note | None = None
    #: True if all infinities of the result are intended: then this operator wrote them
    is_on_purpose: bool = False
    #: True for a logarithm that made only -Inf: it belongs to a probability of 0, for example
    is_log: bool = False
    #: path of the module that ran it in another thread, from the module of the call, or None
    inside: str | None = None
    #: reason why it is not known, or None
    unknown: Note | None = None
    #: reason why it may be another one, or None
    unsure: Note | None = None

    @property
    def creates(self) -> bool:
        """True if it only creates a constant, which another operator puts into other values."""
        return (self.name or "").removeprefix("aten.").startswith(_CREATING)


def mask_note(path: str | None, type_name: str | None, operator: Operator) -> Note:
    """Return the note about what wrote intended infinities: a module, an operator or both."""
    return Note.of(
        "mask-written",
        path=path,
        type_name=type_name,
        operator=operator.name,
        line=operator.line,
    )
