"""The table in LaTeX, for a paper: booktabs, with a caption that says what was counted, and by what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchscan.report.columns import FIELDS, Column, chosen_columns, full_name_of, name_of
from torchscan.report.info import InfoDict, Layer
from torchscan.report.remarks import remarks_of, totals_of

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


def to_latex(
    info: InfoDict,
    columns: Sequence[str] | None = None,
    *,
    caption: str | None = None,
    label: str | None = None,
    long: bool | None = None,
) -> str:
    r"""The layers and totals as a LaTeX table; needs ``\usepackage{booktabs}``.

    Args:
        info: what ``crawl_module`` returned.
        columns: as in :func:`format_info`.
        caption: LaTeX (``\%`` for a per cent sign) to stand before what is always said: convention, inputs and versions. By
            default what the table shows.
        label: what ``\ref`` calls it.
        long: a table over several pages, which also needs ``\usepackage{longtable}``; by default from 40 layers on.

    """
    chosen = chosen_columns(columns)
    rows = [
        [_name(info, layer), *(escape(_text(column, layer)) for key, column in chosen.items() if key != "layer")]
        for layer in info["layers"]
    ]
    model = escape(info["layers"][0]["type"] if info["layers"] else "")
    numbers = [column.is_number for column in chosen.values()]
    totals = [rf"\multicolumn{{{len(numbers)}}}{{l}}{{{escape(name)}: {escape(text)}}}" for name, text in totals_of(info)]
    remarks = " ".join(escape(text) for text in remarks_of(info, with_fields=not FIELDS.isdisjoint(chosen)))
    words = f"{caption or f'Layers of {model}.'} {remarks} {versions(info['provenance'])}"
    return latex_table(
        [column.heading for column in chosen.values()],
        rows,
        numbers,
        words,
        label,
        totals,
        long=len(rows) > _PAGE if long is None else long,
    )


def versions(provenance: Mapping[str, str]) -> str:
    """What counted, by which convention."""
    by = "" if provenance["convention"] == "torchscan" else f", MACs by the rules of {provenance['convention']}"
    return escape(f"Counted by torchscan {provenance['torchscan_version']}{by} with torch {provenance['torch_version']}.")


def latex_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[bool],
    caption: str,
    label: str | None = None,
    below: Sequence[str] = (),
    *,
    long: bool = False,
) -> str:
    r"""A table of cells that are LaTeX already. ``below`` are rows over the whole width, under a rule."""
    specification = "".join("r" if is_number else "l" for is_number in numbers)
    head = [rf"\caption{{{caption}}}", *([rf"\label{{{label}}}"] if label else [])]
    body = [_row(row) for row in rows]
    foot = [r"\midrule", *(f"{_row([each])}*" for each in below[:-1]), _row(below[-1:])] if below else []  # *: on the same page
    titles = _row([escape(heading) for heading in headings])
    if long:
        opening = [rf"\begin{{longtable}}{{{specification}}}", *head[:-1], rf"{head[-1]} \\"]
        repeated = [r"\toprule", titles, r"\midrule"]
        heads = [*repeated, r"\endfirsthead", *repeated, r"\endhead", r"\bottomrule", r"\endfoot"]
        lines = [*opening, *heads, *body, *foot, r"\end{longtable}"]
    else:
        opening = [r"\begin{table}", r"\centering", *head, r"\medskip", rf"\begin{{tabular}}{{{specification}}}", r"\toprule"]
        lines = [*opening, titles, r"\midrule", *body, *foot, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([f"% needs {_NEEDS}{' and longtable' if long else ''}", *lines])


def escape(text: str) -> str:
    """Text that LaTeX sets as it stands. Signs that pdflatex has no font for are named by their number."""
    return _ESCAPED.sub(lambda found: _sign(found[0]), text)


def _sign(sign: str) -> str:
    if sign in _GREEK:
        return _GREEK[sign]
    has_font = ord(sign) < 0x180 and sign.isprintable() and sign not in _NO_FONT
    return _SIGNS.get(sign, sign if has_font else f"{{[}}U+{ord(sign):04X}]")


def _name(info: InfoDict, layer: Layer) -> str:
    if "selection" in info:
        return escape(full_name_of(layer))
    indent = rf"\hspace*{{{layer['depth']}em}}" if layer["depth"] else ""
    return f"{indent}{escape(name_of(layer))}"


def _text(column: Column, layer: Layer) -> str:
    """With a minus for the batch, where LaTeX would set a hyphen."""
    text = column.text(layer)
    return text.replace("(-1", "(−1") if isinstance(column.value(layer), list) else text


def _row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"
