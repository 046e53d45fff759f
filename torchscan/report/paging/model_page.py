"""Page of a model as one file: its data, and the scripts and styles that show it."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from torchscan.report.colours import COLOURS, DARK_COLOURS
from torchscan.report.html import page_file
from torchscan.report.paging.page_data import PageContent, page_data

#: scripts that a page starts with: of a model, of a run that was watched, and of two sides
_MODEL, _RUN, _PAIR = "model", "run", "pair"
_STYLES = {
    _MODEL: ("model",),
    _RUN: ("model", "training", "distributions"),
    _PAIR: ("model", "pair"),
}
_IMPORT = re.compile(r'^import (\{.*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
#: comments that fill lines, types inside lines, indentation and empty lines
_COMMENTS = re.compile(
    r"^[ \t]*//[^\n]*\n|^[ \t]*/\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL
)
_TYPES = re.compile(r"/\*\* @(?:type|param|returns)(?:(?!\*/).)*\*/ ?")
_INDENTATION = re.compile(r"^[ \t]+|^\n", re.MULTILINE)
_TITLE_END = " · torchscan</title>"
_START = """const data = JSON.parse(document.getElementById("data").textContent);
${entry}.showPage(document.querySelector(".torchscan-page"), data);"""


def model_page(shown: PageContent) -> str:
    """Return the whole document, which fetches nothing."""
    return document(page_data(shown))


def document(data: Mapping[str, Any]) -> str:
    """Return the HTML of a page. Only a ``live`` page requests data, from its own server."""
    title = f"{html.escape(data['title'])}{_TITLE_END}"
    is_live = "live" in data
    has_run = is_live or "training" in data or "histories" in data.get("measured", {})
    entry = _RUN if has_run else _MODEL
    if "sides" in data:
        entry = _PAIR
    head = (
        f'<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy_of(entry, is_live)}">'
        f"<title>{title}"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{_styles(entry)}</style>'
    )
    body = (
        f"<noscript>This page is drawn by its own script; nothing is fetched.</noscript>"
        f'<script type="application/json" id="data">{in_a_page(data)}</script>'
        f"<script>{_script(entry)}</script>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>'
        f'<body class="torchscan-page">{body}</body></html>\n'
    )


def is_page(text: str) -> bool:
    """Return whether a text is the HTML of such a page."""
    head, *_ = text.partition("</title>")
    return f"{head}</title>".endswith(_TITLE_END)


def scripts_of(entry: str) -> list[str]:
    """Return the names of a script and of all that it imports, each after those that it imports."""
    found: dict[str, None] = {}
    waiting = [entry]
    while waiting:
        imported = [match[2] for match in _IMPORT.finditer(_source(waiting[-1]))]
        missing = [name for name in imported if name not in found]
        if missing:
            waiting += missing
        else:
            found[waiting.pop()] = None
    return list(found)


def _source(name: str) -> str:
    return page_file(f"model/{name}.js")


@cache
def _script(entry: str) -> str:
    """Return all modules as one script: each a function that returns what it exports.

    A page in a file cannot import from other files.
    """
    parts = map(_module, scripts_of(entry))
    return "\n".join(['"use strict";', *parts, _START.replace("{entry}", entry)])


def _module(name: str) -> str:
    text = _source(name)
    exported = ", ".join(found[2] for found in _EXPORT.finditer(text))
    inner = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const \1 = $\2;", text))
    for useless in (_COMMENTS, _TYPES, _INDENTATION):
        inner = useless.sub("", inner)
    return f"const ${name} = (() => {{\n{inner}return {{ {exported} }};\n}})();"


@cache
def _styles(entry: str) -> str:
    """Return the style sheets, with the colors that are the same everywhere."""
    sheets = [page_file(f"model/{name}.css") for name in _STYLES[entry]]
    light = _color_rules({**COLOURS, "wrong": "var(--wrong)"})
    dark = _color_rules(DARK_COLOURS)
    return "\n".join([*sheets, f"{light}@media(prefers-color-scheme:dark){{{dark}}}"])


def _color_rules(colors: Mapping[str, str]) -> str:
    """Return the rules of a style sheet for areas of each kind."""
    rules = []
    for kind, color in colors.items():
        rules.append(f".torchscan-page .on-{kind}{{fill:{color};background:{color}}}")
    return "".join(rules)


@cache
def _policy_of(entry: str, is_live: bool) -> str:
    directives = ["default-src 'none'"]
    for name, text in (("script-src", _script(entry)), ("style-src", _styles(entry))):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        directives.append(f"{name} 'sha256-{digest}'")
    if is_live:
        directives.append("connect-src 'self'")
    directives += ["img-src blob: data:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join(directives)


def live_policy() -> str:
    """Return the content security policy of a live page: our script and styles, and its server."""
    return _policy_of(_RUN, is_live=True)


def in_a_page(data: Any) -> str:
    """Return JSON that no browser takes for markup, whatever its texts are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    text = text.encode(errors="replace").decode()  # names of files that are no text
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
    )
