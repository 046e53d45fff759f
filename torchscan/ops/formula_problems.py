"""Formulas for an operator that do not give its cost, or only a lower bound."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from torchscan.notes import Note
from torchscan.ops.formula_calls import apply_formula, describe_error
from torchscan.ops.op_costs import complete_work
from torchscan.ops.registry import formula_of, names_of_own_formulas
from torchscan.trace.events import OpSignature

_KERNELS = "triton."
#: similarity of names from which one may be meant for the other
_MIN_SIMILARITY = 0.75


def find_formula_problem(signature: OpSignature, used: Collection[str]) -> Note | None:
    """Return why the cost of a call is unknown although a formula was meant for it, or None.

    The formula raises an error, returns a lower bound because values decide the cost, or is for a
    Triton kernel with a similar name, which is not among the ``used`` operators of the pass. Other
    operators cannot have this problem, because they have a schema.
    """
    formula = formula_of(signature.op)
    if formula is None:
        return _find_similar_kernel(str(signature.op.overloadpacket), used)
    try:
        work = apply_formula(formula, signature)
        if work is None:
            return None
        complete_work(work, signature)
    except Exception as error:
        text = describe_error(error)
        return Note.of("formula-failed", operator=signature.full_name, error=text)
    return Note.of("formula-bounds", operator=signature.full_name) if work.is_lower_bound else None


def operators_with_problem(problems: Iterable[Note]) -> set[str]:
    """Return the operators with a formula that does not give their cost."""
    return {note.values["operator"] for note in problems if "operator" in note.values}


def _find_similar_kernel(name: str, used: Collection[str]) -> Note | None:
    """Return a note on a formula of the user that the pass has no kernel for."""
    if not name.startswith(_KERNELS):
        return None
    kernel = name.removeprefix(_KERNELS)
    unused = [each for each in names_of_own_formulas() if each not in used]
    known = [each.removeprefix(_KERNELS) for each in unused if each.startswith(_KERNELS)]
    near = difflib.get_close_matches(kernel, known, 1, _MIN_SIMILARITY)
    if not near:
        return None
    return Note.of("formula-unused", formula=f"triton::{near[0]}", meant=f"triton::{kernel}")
