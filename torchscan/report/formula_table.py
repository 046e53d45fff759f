"""Costs as formulas, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchscan.analyses.generation.formulas import Polynomial, SymbolicCosts
from torchscan.report.make_table import ColumnOf, make_table, words
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

_NAMES = {
    "macs": "MACs",
    "flops": "FLOPs",
    "bytes_read": "Bytes read",
    "bytes_written": "Bytes written",
    "cache_bytes": "Bytes cached",
}


@explain_wrong_types
def formula_table(costs: SymbolicCosts) -> Table:
    """Return the costs of a prompt, and of a token after it, one value per row.

    Args:
        costs: of ``symbolic_costs``.
    """
    formulas = [_Formula("prompt", *each) for each in costs.prompt.items()]
    formulas += [_Formula("token", *each) for each in costs.token.items()]
    return make_table(
        "Costs as formulas",
        _COLUMNS,
        formulas,
        summary=["B sequences: a prompt of T tokens each, then one more token each"],
        remarks=_remarks(costs),
        noun="formulas",
    )


class _Formula(NamedTuple):
    """A metric of the pass for the prompt, or of one for a token after it."""

    stage: str
    metric: str
    polynomial: Polynomial | None

    def to_cell(self) -> Cell:
        if self.polynomial is None:
            return Cell(None, "no polynomial")
        return Cell(self.polynomial.exact, str(self.polynomial))


_PASS = words("pass", "Pass", "stage")
_METRIC = words("figure", "Metric", "metric", _NAMES.__getitem__)
_FORMULA = words("formula", "Formula", _Formula.to_cell, min_width=7, wrap=True)
_COLUMNS: Sequence[ColumnOf[_Formula]] = (_PASS, _METRIC, _FORMULA)


def _remarks(costs: SymbolicCosts) -> list[str]:
    remarks = [
        "Bytes read and written are those of eager PyTorch, which copies the growing cache for "
        "each token; a server does not."
    ]
    formulas = [*costs.prompt.values(), *costs.token.values()]
    if any(formulas):
        _, shortest = costs.fitted[0]
        checked = [f"{batch} sequences of {length:,} tokens" for batch, length in costs.checked]
        remarks.append(
            f"Each formula was fitted from T = {shortest:,} on, and matches what was "
            f"recorded for {' and '.join(checked)}."
        )
    if not all(formulas):
        remarks.append(
            "There is no polynomial if control flow depends on the length, or if tokens share "
            "experts, of which each further token reaches fewer new ones. If a window is full at "
            "some length, start beyond it: near= of symbolic_costs, --near on the command line."
        )
    return remarks
