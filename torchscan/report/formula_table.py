"""Costs as formulas, as a table."""

from __future__ import annotations

from torchscan.analyses.generation.formulas import Polynomial, SymbolicCosts
from torchscan.report.table import Cell, Column, Row, Table
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
    """What a prompt costs, and a token after it: a figure a row.

    Args:
        costs: of ``symbolic_costs``.
    """
    passes = {"prompt": costs.prompt, "token": costs.token}
    return Table(
        title="Costs as formulas",
        columns=[
            Column(key="pass", heading="Pass", is_number=False),
            Column(key="figure", heading="Figure", is_number=False),
            Column(key="formula", heading="Formula", is_number=False, min_width=7, wrap=True),
        ],
        rows=[
            _row(name, figure, each) for name, of in passes.items() for figure, each in of.items()
        ],
        summary=["B sequences: a prompt of T tokens each, and one more token each after T"],
        remarks=_remarks(costs),
        noun="formulas",
    )


def _row(name: str, figure: str, polynomial: Polynomial | None) -> Row:
    formula = (
        Cell(None, "no polynomial")
        if polynomial is None
        else Cell(polynomial.exact, str(polynomial))
    )
    return Row(cells=(Cell(name, name), Cell(figure, _NAMES[figure]), formula))


def _remarks(costs: SymbolicCosts) -> list[str]:
    found = [each for of in (costs.prompt, costs.token) for each in of.values()]
    places = " and ".join(
        f"{batch} sequences of {length:,} tokens" for batch, length in costs.checked
    )
    said = [
        "Bytes read and written are those of plain PyTorch, operator by operator, which copies a cache that grows for each "
        "token; a server does not."
    ]
    if any(found):
        said.append(
            f"Each formula was fitted from T = {costs.fitted[0][1]:,} on, and equals what was recorded for {places}."
        )
    if not all(found):
        said.append(
            "No polynomial: the flow of the pass depends on its length, or experts are shared: more tokens hit more of them, "
            "by ever fewer. If it is a window that is full at some length, start beyond it: near= of symbolic_costs, --near in "
            "a shell."
        )
    return said
