"""Tables in LaTeX, for a paper: with booktabs, a short caption, and notes on what was counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchscan.escapes import printable
from torchscan.report.table import Column, Screen, Table, writes
from torchscan.report.table_rows import Row

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
#: characters below U+0180 that the fonts of OT1, or of T1 too, do not have
_NO_FONT = frozenset("«»ÐðÞþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ")
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma "
    "sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_NAMES_BY_LETTER = dict(
    zip("αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ", _GREEK_NAMES.split(), strict=True)
)
#: Greek letters, in formulas; for those that look like Latin ones, these
_GREEK = {
    **{letter: rf"$\{name}$" for letter, name in _NAMES_BY_LETTER.items()},
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True)),
}
#: characters to escape; second hyphens and commas, which would form a ligature; spaces that TeX
#: drops
_ESCAPED = re.compile(r"[^A-Za-z0-9 ,-]|(?<=-)-|(?<=,),|^ | $|(?<= ) ")
#: rows that fit a page with the totals
_PAGE_ROWS = 40
#: characters of \footnotesize that fit one column of a two-column page
_COLUMN_WIDTH = 55
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?")


class _Parts(NamedTuple):
    """The parts of a table as LaTeX."""

    specification: str
    #: the caption, and the label if there is one
    head: list[str]
    headings: str
    body: list[str]
    #: what was counted, or nothing
    note: list[str]


@writes("latex")
def format_latex(
    table: Table,
    _: Screen | None = None,
    *,
    caption: str | None = None,
    label: str | None = None,
    long: bool | None = None,
    wide: bool | None = None,
    siunitx: bool = False,
) -> str:
    r"""Return a floating table with a short caption, and a note below it on what was counted.

    Args:
        table: the table to write.
        caption: in LaTeX; by default the title of the table.
        label: the name for ``\ref``.
        long: over several pages, which needs longtable; by default with more rows than a page.
        wide: over both columns of a two-column page, ``table*``; by default if it does not fit one.
        siunitx: align numbers at their points, which needs siunitx.
    """
    if long is None:
        long = len(table.rows) > _PAGE_ROWS
    if wide is None:
        wide = _count_characters(table) > _COLUMN_WIDTH
    title = caption or escape(f"{printable(table.title)}.")
    head = [rf"\caption{{{title}}}"]
    if label:
        head.append(rf"\label{{{label}}}")
    headings = []
    for column in table.columns:
        text = escape(column.heading)
        headings.append(f"{{{text}}}" if siunitx and column.is_number else text)
    rows = [_row(row, table.columns, siunitx) for row in table.rows]
    parts = _Parts(
        specification=f"@{{}}{''.join(_alignments(table, siunitx))}@{{}}",
        head=head,
        headings=_line(headings),
        body=[*rows, *_totals(table)],
        note=_write_note(table),
    )
    packages = [r"\usepackage{booktabs}"]
    if long:
        packages.append(r"\usepackage{longtable}")
        lines = _write_long_table(parts)
    else:
        lines = _write_floating_table(parts, "table*" if wide else "table")
    if siunitx:
        packages.append(r"\usepackage{siunitx}")
    return "\n".join([f"% needs {' '.join(packages)}", *lines])


def _write_note(table: Table) -> list[str]:
    """Return the sentences above and below the table as one paragraph, if there are any."""
    texts = [*table.summary, *table.remarks]
    if table.source:
        texts.append(table.source)
    sentences = [escape(f"{printable(text).rstrip('.')}.") for text in texts if text]
    if not sentences:
        return []
    return [rf"\par\smallskip{{\footnotesize\raggedright {' '.join(sentences)}\par}}"]


def _write_floating_table(parts: _Parts, environment: str) -> list[str]:
    return [
        rf"\begin{{{environment}}}",
        r"\centering",
        *parts.head,
        r"\medskip\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{{parts.specification}}}",
        r"\toprule",
        parts.headings,
        r"\midrule",
        *parts.body,
        r"\bottomrule",
        r"\end{tabular}",
        *parts.note,
        rf"\end{{{environment}}}",
    ]


def _write_long_table(parts: _Parts) -> list[str]:
    *first, last = parts.head
    repeated = [r"\toprule", parts.headings, r"\midrule"]
    (note,) = parts.note or [""]
    return [
        r"{\footnotesize",
        rf"\begin{{longtable}}{{{parts.specification}}}",
        *first,
        rf"{last} \\",
        *repeated,
        r"\endfirsthead",
        *repeated,
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *parts.body,
        r"\end{longtable}",
        f"{note}}}",
    ]


def _count_characters(table: Table) -> int:
    """Return the approximate width of a table, in characters with the space between columns."""
    names = [len(row.name) + 2 * row.indent for row in table.rows]
    width = max([len(table.columns[0].heading), *names])
    rows = [row.texts for row in table.rows]
    for index, column in enumerate(table.columns[1:], start=1):
        texts = [row[index] for row in rows]
        width += 2 + max(map(len, [column.heading, *texts]))
    return width


def _alignments(table: Table, siunitx: bool) -> list[str]:
    """Return the alignment of each column: numbers to the right, or at their points."""
    alignments = []
    rows = [row.texts for row in table.rows]
    for index, column in enumerate(table.columns):
        if not column.is_number:
            alignments.append("l")
        elif siunitx:
            alignments.append(_align_at_points([row[index] for row in rows]))
        else:
            alignments.append("r")
    return alignments


def _align_at_points(texts: Iterable[str]) -> str:
    """Return the column for the most digits before and after the point, ``S[table-format=5.1]``."""
    numbers = filter(None, (_NUMBER.fullmatch(text.replace(",", "")) for text in texts))
    digits = [(len(match[1]), len(match[2] or "")) for match in numbers]
    if not digits:
        return "r"
    before, after = map(max, zip(*digits, strict=True))
    if not after:
        return f"S[table-format={before}]"
    return f"S[table-format={before}.{after}]"


def _totals(table: Table) -> list[str]:
    """Return totals as lines across all columns, below a rule, kept on one page."""
    texts: list[str] = []
    for each in table.totals:
        texts += filter(None, (printable(each.title), *_sentences(each)))
    if not texts:
        return []
    span = rf"\multicolumn{{{len(table.columns)}}}{{l}}"
    *lines, last = [_line([f"{span}{{{escape(text)}}}"]) for text in texts]
    return [r"\midrule", *(f"{line}*" for line in lines), last]


def _sentences(totals: Table) -> list[str]:
    """Return a sentence for each row: ``MACs: before 16, after 20, +25.00 %``."""
    sentences = []
    for row in totals.rows:
        cells = zip(totals.columns[1:], row.texts[1:], strict=True)
        values = [f"{column.heading} {text}".strip() for column, text in cells if text]
        sentences.append(f"{row.name}: {', '.join(values)}")
    return sentences


def _row(row: Row, columns: Sequence[Column], siunitx: bool) -> str:
    indent = rf"\hspace*{{{row.indent}em}}" if row.indent else ""
    cells = [indent + escape(row.name)]
    for text, column in zip(row.texts[1:], columns[1:], strict=True):
        number = text.replace(",", "")
        if not siunitx or not column.is_number:
            cells.append(escape(text))
        elif _NUMBER.fullmatch(number):
            cells.append(number)
        else:
            cells.append(f"{{{escape(text)}}}")  # siunitx takes other texts in braces
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def escape(text: str) -> str:
    """Return text that LaTeX sets as it is written.

    Characters that pdflatex has no font for are named by number.
    """
    return _ESCAPED.sub(_escape_sign, text)


def _escape_sign(match: re.Match[str]) -> str:
    sign = match[0]
    command = _GREEK.get(sign) or _SIGNS.get(sign)
    if command is not None:
        return command
    has_font = ord(sign) < 0x180 and sign.isprintable() and sign not in _NO_FONT
    return sign if has_font else f"{{[}}U+{ord(sign):04X}]"
