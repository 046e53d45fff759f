"""Blocks of a page that a script writes, between two comments, and the tables in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_BLOCK = re.compile(r"(<!-- written: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def blocks_of(page: str) -> dict[str, str]:
    """What stands in each block, by name."""
    return {name: text for _, name, text, _ in _BLOCK.findall(page)}


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """The page with these in place of what its blocks of these names held."""
    missing = blocks.keys() - blocks_of(page).keys()
    if missing:
        raise ValueError(f"the page has no block {', '.join(sorted(missing))}")
    return _BLOCK.sub(lambda found: f"{found[1]}{blocks.get(found[2], found[3])}{found[4]}", page)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """As Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def rows_of(text: str) -> list[list[str]]:
    """The rows of the first table in a text, without its headings."""
    first = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = first[0].splitlines()[2:] if first else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
