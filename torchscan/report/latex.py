"""A table in LaTeX, for a paper: booktabs, with a caption that says what was counted, and by what."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchscan.report.table import Row, Screen, Table, writes
from torchscan.units import printable

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    '"': r"\char34{}",  # to some languages of babel it is a command
    "[": "{[}",  # or it would be an option of the line before
    "*": "{*}",
    "-": "{}-",
    ",": "{},",
    " ": r"\mbox{ }",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "…": r"\dots{}",
    "µ": r"$\mu$",
}
#: of the signs below U+0180 those that the fonts of OT1, or of T1 too, do not have
_NO_FONT = frozenset("«»ÐðÞþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ")
_LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma "
    "sigma tau upsilon phi chi psi omega"
)
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
#: letters of formulas; those that look like Latin ones are these
_GREEK = {
    **{sign: rf"$\{name}$" for sign, name in zip("αβγδεζηθικλμνξπρςστυφχψω", _LETTERS.split(), strict=True)},
    **{sign: rf"$\{name}$" for sign, name in zip("ΓΔΘΛΞΠΣΥΦΨΩ", _CAPITALS.split(), strict=True)},
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True)),
}
#: of hyphens and commas the second, which would make another sign of both; of spaces those that would get lost
_ESCAPED = re.compile(r"[^A-Za-z0-9 ,-]|(?<=-)-|(?<=,),|^ | $|(?<= ) ")
#: rows that fit a page with the totals
_PAGE = 40
_NEEDS = r"\usepackage{booktabs}"


@writes("latex")
def latex_of(
    table: Table, _: Screen | None = None, *, caption: str | None = None, label: str | None = None, long: bool | None = None
) -> str:
    """A floating table, or a long one if it has more rows than a page. A ``caption`` is LaTeX already."""
    is_long = len(table.rows) > _PAGE if long is None else long
    said = [f"{printable(text).rstrip('.')}." for text in (*table.summary, *table.remarks, table.source) if text]
    words = " ".join([caption or escape(f"{printable(table.title)}."), *map(escape, said)])
    head = [rf"\caption{{{words}}}", *([rf"\label{{{label}}}"] if label else [])]
    titles = _line([escape(column.heading) for column in table.columns])
    body = [*(_row(row) for row in table.rows), *_totals(table)]
    specification = "".join("r" if column.is_number else "l" for column in table.columns)
    lines = (_over_pages if is_long else _floating)(specification, head, titles, body)
    return "\n".join([f"% needs {_NEEDS}{' and longtable' if is_long else ''}", *lines])


def _floating(specification: str, head: list[str], titles: str, body: list[str]) -> list[str]:
    opening = [r"\begin{table}", r"\centering", *head, r"\medskip", rf"\begin{{tabular}}{{{specification}}}", r"\toprule"]
    return [*opening, titles, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]


def _over_pages(specification: str, head: list[str], titles: str, body: list[str]) -> list[str]:
    opening = [rf"\begin{{longtable}}{{{specification}}}", *head[:-1], rf"{head[-1]} \\"]
    repeated = [r"\toprule", titles, r"\midrule"]
    heads = [*repeated, r"\endfirsthead", *repeated, r"\endhead", r"\bottomrule", r"\endfoot"]
    return [*opening, *heads, *body, r"\end{longtable}"]


def _totals(table: Table) -> list[str]:
    """Rows across the whole width, below a rule, kept on one page."""
    texts = [text for each in table.totals for text in (printable(each.title), *_sentences(each)) if text]
    rows = [_line([rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{escape(text)}}}"]) for text in texts]
    return [r"\midrule", *(f"{row}*" for row in rows[:-1]), *rows[-1:]] if rows else []


def _sentences(totals: Table) -> list[str]:
    """``MACs: before 16, after 20, +25.00 %``."""
    headings = [column.heading for column in totals.columns[1:]]
    figures = [zip(headings, row.texts[1:], strict=True) for row in totals.rows]
    said = [[f"{heading} {text}".strip() for heading, text in each if text] for each in figures]
    return [f"{row.name}: {', '.join(each)}" for row, each in zip(totals.rows, said, strict=True)]


def _row(row: Row) -> str:
    indent = rf"\hspace*{{{row.indent}em}}" if row.indent else ""
    return _line([indent + escape(row.name), *map(escape, row.texts[1:])])


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def escape(text: str) -> str:
    """Text that LaTeX sets as it is written. Characters that pdflatex has no font for are named by number."""
    return _ESCAPED.sub(lambda found: _sign(found[0]), text)


def _sign(sign: str) -> str:
    if sign in _GREEK:
        return _GREEK[sign]
    has_font = ord(sign) < 0x180 and sign.isprintable() and sign not in _NO_FONT
    return _SIGNS.get(sign, sign if has_font else f"{{[}}U+{ord(sign):04X}]")
