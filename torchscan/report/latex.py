"""The table in LaTeX, for a paper: booktabs, with a caption that says what was counted, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchscan.report.columns import FIELDS, chosen_columns, full_name_of, name_of
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
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "…": r"\dots{}",
    "µ": r"$\mu$",
}
_NEEDS = r"\usepackage{booktabs}"


def to_latex(
    info: InfoDict,
    columns: Sequence[str] | None = None,
    *,
    caption: str | None = None,
    label: str | None = None,
    long: bool = False,
) -> str:
    r"""The layers and totals as a LaTeX table; needs ``\usepackage{booktabs}``.

    Args:
        info: what ``crawl_module`` returned.
        columns: as in :func:`format_info`.
        caption: LaTeX to stand before what is always said: convention, inputs and versions. By default what the table shows.
        label: what ``\ref`` calls it.
        long: a table over several pages, which also needs ``\usepackage{longtable}``.

    """
    chosen = chosen_columns(columns)
    rows = [
        [_name(info, layer), *(escape(column.text(layer)) for key, column in chosen.items() if key != "layer")]
        for layer in info["layers"]
    ]
    model = escape(info["layers"][0]["type"] if info["layers"] else "")
    numbers = [column.is_number for column in chosen.values()]
    totals = [rf"\multicolumn{{{len(numbers)}}}{{l}}{{{escape(name)}: {escape(text)}}}" for name, text in totals_of(info)]
    remarks = " ".join(escape(text) for text in remarks_of(info, with_fields=not FIELDS.isdisjoint(chosen)))
    words = f"{caption or f'Layers of {model}.'} {remarks} {versions(info['provenance'])}"
    return latex_table([column.heading for column in chosen.values()], rows, numbers, words, label, totals, long=long)


def versions(provenance: Mapping[str, str]) -> str:
    """What counted, by which convention."""
    by = "" if provenance["convention"] == "torchscan" else f", MACs by the rules of {escape(provenance['convention'])}"
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
    foot = [r"\midrule", *(_row([each]) for each in below)] if below else []
    titles = _row([escape(heading) for heading in headings])
    if long:
        opening = [rf"\begin{{longtable}}{{{specification}}}", *head[:-1], rf"{head[-1]} \\"]
        repeated = [r"\toprule", titles, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot"]
        lines = [*opening, *repeated, *body, *foot, r"\end{longtable}"]
    else:
        opening = [r"\begin{table}", r"\centering", *head, rf"\begin{{tabular}}{{{specification}}}", r"\toprule"]
        lines = [*opening, titles, r"\midrule", *body, *foot, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([f"% needs {_NEEDS}{' and longtable' if long else ''}", *lines])


def escape(text: str) -> str:
    """Text that LaTeX sets as it stands. Signs that pdflatex has no font for are named by their number."""
    signs = (_SIGNS.get(sign, sign if ord(sign) < 0x180 else f"[U+{ord(sign):04X}]") for sign in text.replace("--", "-\0-"))
    return "".join(signs).replace("\0", "{}")  # or two of them would be a dash


def _name(info: InfoDict, layer: Layer) -> str:
    if "selection" in info:
        return escape(full_name_of(layer))
    indent = rf"\hspace*{{{layer['depth']}em}}" if layer["depth"] else ""
    return f"{indent}{escape(name_of(layer))}"


def _row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"
