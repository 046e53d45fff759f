"""A table in LaTeX, for a paper: booktabs, a short caption, and a note that says what was counted, and by what."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchscan.escapes import printable
from torchscan.report.table import Column, Row, Screen, Table, writes

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
    "·": r"$\cdot$",
    **{sign: f"$^{{{power}}}$" for power, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
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
    **{
        sign: rf"$\{name}$"
        for sign, name in zip("αβγδεζηθικλμνξπρςστυφχψω", _LETTERS.split(), strict=True)
    },
    **{sign: rf"$\{name}$" for sign, name in zip("ΓΔΘΛΞΠΣΥΦΨΩ", _CAPITALS.split(), strict=True)},
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True)),
}
#: of hyphens and commas the second, which would make another sign of both; of spaces those that would get lost
_ESCAPED = re.compile(r"[^A-Za-z0-9 ,-]|(?<=-)-|(?<=,),|^ | $|(?<= ) ")
#: rows that fit a page with the totals
_PAGE = 40
_NEEDS = r"\usepackage{booktabs}"
#: characters of \footnotesize that one column of a two-column page has room for
_COLUMN = 55
_FIGURE = re.compile(r"(\d+)(?:\.(\d+))?")


@writes("latex")
def latex_of(
    table: Table,
    _: Screen | None = None,
    *,
    caption: str | None = None,
    label: str | None = None,
    long: bool | None = None,
    wide: bool | None = None,
    siunitx: bool = False,
) -> str:
    r"""A floating table with a short caption, and a note below it that says what was counted, and by what.

    Args:
        table: what is written.
        caption: LaTeX already; by default what the table shows.
        label: what ``\ref`` calls it.
        long: over several pages, which also needs longtable; by default with more rows than a page.
        wide: over both columns of a two-column page, ``table*``; by default where one column has no room for it.
        siunitx: align figures at their points, which also needs siunitx.
    """
    is_long = len(table.rows) > _PAGE if long is None else long
    is_wide = _characters(table) > _COLUMN if wide is None else wide
    said = [
        f"{printable(text).rstrip('.')}."
        for text in (*table.summary, *table.remarks, table.source)
        if text
    ]
    head = [
        rf"\caption{{{caption or escape(f'{printable(table.title)}.')}}}",
        *([rf"\label{{{label}}}"] if label else []),
    ]
    titles = _line([_heading(column, siunitx) for column in table.columns])
    body = [*(_row(row, table.columns, siunitx) for row in table.rows), *_totals(table)]
    specification = f"@{{}}{''.join(_alignments(table, siunitx))}@{{}}"
    note = (
        [rf"\par\smallskip{{\footnotesize\raggedright {' '.join(map(escape, said))}\par}}"]
        if said
        else []
    )
    lines = (
        _over_pages(specification, head, titles, body, note)
        if is_long
        else _floating(specification, head, titles, body, note, "table*" if is_wide else "table")
    )
    needs = [
        _NEEDS,
        *([r"\usepackage{longtable}"] if is_long else []),
        *([r"\usepackage{siunitx}"] if siunitx else []),
    ]
    return "\n".join([f"% needs {' '.join(needs)}", *lines])


def _floating(
    specification: str, head: list[str], titles: str, body: list[str], note: list[str], kind: str
) -> list[str]:
    opening = [
        rf"\begin{{{kind}}}",
        r"\centering",
        *head,
        r"\medskip\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{{specification}}}",
    ]
    return [
        *opening,
        r"\toprule",
        titles,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *note,
        rf"\end{{{kind}}}",
    ]


def _over_pages(
    specification: str, head: list[str], titles: str, body: list[str], note: list[str]
) -> list[str]:
    opening = [
        r"{\footnotesize",
        rf"\begin{{longtable}}{{{specification}}}",
        *head[:-1],
        rf"{head[-1]} \\",
    ]
    repeated = [r"\toprule", titles, r"\midrule"]
    heads = [*repeated, r"\endfirsthead", *repeated, r"\endhead", r"\bottomrule", r"\endfoot"]
    return [*opening, *heads, *body, r"\end{longtable}", *(f"{each}}}" for each in note or [""])]


def _characters(table: Table) -> int:
    """Return the approximate width of a table, in characters with the space between columns."""
    texts = [[column.heading for column in table.columns], *(row.texts for row in table.rows)]
    indents = [0, *(row.indent for row in table.rows)]
    names = [len(each[0]) + 2 * indent for each, indent in zip(texts, indents, strict=True)]
    return max(names) + sum(
        2 + max(len(each[at]) for each in texts) for at in range(1, len(table.columns))
    )


def _alignments(table: Table, siunitx: bool) -> list[str]:
    """Figures to the right, or at their points."""
    return [
        "l" if not column.is_number else _at_points(table, at) if siunitx else "r"
        for at, column in enumerate(table.columns)
    ]


def _at_points(table: Table, at: int) -> str:
    """``S[table-format=5.1]``: with the most digits that there are before the point and after it."""
    figures = filter(
        None, (_FIGURE.fullmatch(row.texts[at].replace(",", "")) for row in table.rows)
    )
    digits = [(len(each[1]), len(each[2] or "")) for each in figures]
    if not digits:
        return "r"
    before, after = (max(each[place] for each in digits) for place in (0, 1))
    return f"S[table-format={before}.{after}]" if after else f"S[table-format={before}]"


def _heading(column: Column, siunitx: bool) -> str:
    text = escape(column.heading)
    return f"{{{text}}}" if siunitx and column.is_number else text


def _totals(table: Table) -> list[str]:
    """Rows across the whole width, below a rule, kept on one page."""
    texts = [
        text for each in table.totals for text in (printable(each.title), *_sentences(each)) if text
    ]
    rows = [
        _line([rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{escape(text)}}}"]) for text in texts
    ]
    return [r"\midrule", *(f"{row}*" for row in rows[:-1]), *rows[-1:]] if rows else []


def _sentences(totals: Table) -> list[str]:
    """``MACs: before 16, after 20, +25.00 %``."""
    headings = [column.heading for column in totals.columns[1:]]
    figures = [zip(headings, row.texts[1:], strict=True) for row in totals.rows]
    said = [[f"{heading} {text}".strip() for heading, text in each if text] for each in figures]
    return [f"{row.name}: {', '.join(each)}" for row, each in zip(totals.rows, said, strict=True)]


def _row(row: Row, columns: Sequence[Column], siunitx: bool) -> str:
    indent = rf"\hspace*{{{row.indent}em}}" if row.indent else ""
    cells = [
        _cell(text, siunitx and column.is_number)
        for text, column in zip(row.texts[1:], columns[1:], strict=True)
    ]
    return _line([indent + escape(row.name), *cells])


def _cell(text: str, is_aligned: bool) -> str:
    """Siunitx takes a figure as it is, and all else in braces."""
    if not is_aligned:
        return escape(text)
    figure = text.replace(",", "")
    return figure if _FIGURE.fullmatch(figure) else f"{{{escape(text)}}}"


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
