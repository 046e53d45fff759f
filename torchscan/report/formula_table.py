"""Costs as formulas, as a table."""

from __future__ import annotations

from torchscan.analyses.generation.formulas import Polynomial, SymbolicCosts
from torchscan.report.make_table import make_table, words
from torchscan.report.table import Cell, Table
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
    passes = {"prompt": costs.prompt, "token": costs.token}
    formulas = [(name, *each) for name in passes for each in passes[name].items()]
    columns = (
        words("pass", "Pass", lambda row: row[0]),
        words("figure", "Metric", lambda row: Cell(row[1], _NAMES[row[1]])),
        words("formula", "Formula", lambda row: _formula(row[2]), min_width=7, wrap=True),
    )
    return make_table(
        "Costs as formulas",
        columns,
        formulas,
        summary=["B sequences: a prompt of T tokens each, then one more token each"],
        remarks=_remarks(costs),
        noun="formulas",
    )


def _formula(polynomial: Polynomial | None) -> Cell:
    if polynomial is None:
        return Cell(None, "no polynomial")
    return Cell(polynomial.exact, str(polynomial))


def _remarks(costs: SymbolicCosts) -> list[str]:
    found = [each for of in (costs.prompt, costs.token) for each in of.values()]
    places = " and ".join(
        f"{batch} sequences of {length:,} tokens" for batch, length in costs.checked
    )
    said = [
        "Bytes read and written are those of eager PyTorch, which copies the growing cache for "
        "each token; a server does not."
    ]
    if any(found):
        said.append(
            f"Each formula was fitted from T = {costs.fitted[0][1]:,} on, and matches what was "
            f"recorded for {places}."
        )
    if not all(found):
        said.append(
            "There is no polynomial if control flow depends on the length, or if tokens share "
            "experts, of which each further token reaches fewer new ones. If a window is full at "
            "some length, start beyond it: near= of symbolic_costs, --near on the command line."
        )
    return said
