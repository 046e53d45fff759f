"""The table in Markdown, as GitHub and most others read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchscan.report.columns import FIELDS, chosen_columns, full_name_of, name_of
from torchscan.report.info import InfoDict, Layer
from torchscan.report.remarks import remarks_of, totals_of

_INDENT = "&emsp;"
#: what would be taken for markup: of the underscores those that are not inside a word, of the spaces those that would get lost
_MARKUP = re.compile(r"[\\`*{}\[\]<>|~&:@#$]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|^ | $|(?<= ) ")
#: mentions of people, numbers of issues, formulas: sites look for them after Markdown, when an entity is its sign again
_LINKS = "@#$"


def to_markdown(info: InfoDict, columns: Sequence[str] | None = None, *, details: bool = False) -> str:
    """The layers, the totals and the remarks in Markdown.

    ``columns`` as in :func:`format_info`. With ``details`` the totals come first and the layers open on a click, as suits a
    comment on GitHub.
    """
    chosen = chosen_columns(columns)
    rows = [
        [_name(info, layer), *(escape(column.text(layer)) for key, column in chosen.items() if key != "layer")]
        for layer in info["layers"]
    ]
    layers = markdown_table([column.heading for column in chosen.values()], rows, [each.is_number for each in chosen.values()])
    totals = markdown_table(["Total", ""], [[escape(name), escape(text)] for name, text in totals_of(info)], [False, True])
    remarks = "\n\n".join(escape(text) for text in remarks_of(info, with_fields=not FIELDS.isdisjoint(chosen)))
    if not details:
        return f"{layers}\n\n{totals}\n\n{remarks}"
    return f"{totals}\n\n{folded(f'{len(rows)} layers', layers)}\n\n{remarks}"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool]) -> str:
    """A table of cells that are escaped already; columns of numbers are aligned to the right."""
    rules = ["--:" if is_number else ":--" for is_number in numbers]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([escape(heading) for heading in headings], rules, *rows))


def folded(title: str, content: str) -> str:
    """What opens on a click."""
    return f"<details><summary>{escape(title)}</summary>\n\n{content}\n\n</details>"


def escape(text: str) -> str:
    """Text that stays as it is: no markup, no links, no mention of anybody."""
    return _MARKUP.sub(lambda found: _harmless(found[0]), text)


def _harmless(sign: str) -> str:
    return f"<span>{sign}</span>" if sign in _LINKS else f"&#{ord(sign)};"


def _name(info: InfoDict, layer: Layer) -> str:
    if "selection" in info:
        return escape(full_name_of(layer))
    return f"{_INDENT * layer['depth']}{escape(name_of(layer))}"
