"""The page of a model as one file: its data, and the scripts and styles that show it. Nothing is fetched."""

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

#: each after all that it imports
SCRIPTS = (
    "format",
    "elements",
    "keep",
    "layout",
    "fold",
    "sees",
    "measured",
    "figures",
    "tones",
    "plan",
    "boxes",
    "graph",
    "layers",
    "charts",
    "save",
    "numbers",
    "axis",
    "histories",
    "scales",
    "time_panel",
    "distribution_panel",
    "dead_units",
    "tensors_view",
    "common_scales",
    "reading",
    "dock",
    "help",
    "live",
    "unpack",
    "oklab",
    "values_axis",
    "brush",
    "quantities",
    "summary",
    "curves",
    "cards",
    "heat_rows",
    "heat_columns",
    "heat_paint",
    "heat_frame",
    "heat_profile",
    "layers_heat",
    "broken",
    "readouts",
    "segments",
    "training",
    "run_header",
    "model",
)
_IMPORT = re.compile(r'^import (\{.*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
_START = """const data = JSON.parse(document.getElementById("data").textContent);
$model.showModel(document.querySelector(".torchscan-page"), data);"""


def model_page(shown: PageContent) -> str:
    """The whole document."""
    return document(page_data(shown))


def document(data: Mapping[str, Any]) -> str:
    """Return the HTML of a page. Only a ``live`` page requests data, from its own server."""
    title = html.escape(f"{data['title']} · torchscan")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy("live" in data)}">'
        f'<title>{title}</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{styles()}</style></head>'
        f'<body class="torchscan-page"><noscript>This page is drawn by its own script; nothing is fetched.</noscript>'
        f'<script type="application/json" id="data">{in_a_page(data)}</script>'
        f"<script>{script()}</script></body></html>\n"
    )


@cache
def script() -> str:
    """All modules as one script: each a function that returns what it exports, since a file cannot import from itself."""
    return "\n".join(['"use strict";', *map(_module, SCRIPTS), _START])


def _module(name: str) -> str:
    text = page_file(f"model/{name}.js")
    exported = ", ".join(found[2] for found in _EXPORT.finditer(text))
    inner = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const \1 = $\2;", text))
    return f"const ${name} = (() => {{\n{inner}\nreturn {{ {exported} }};\n}})();"


@cache
def styles() -> str:
    """With the colours that are the same everywhere."""
    light, dark = (
        "".join(_in_colour(*each) for each in colours.items())
        for colours in (COLOURS, DARK_COLOURS)
    )
    wrong = ".torchscan-page .on-wrong{fill:var(--wrong);background:var(--wrong)}"
    return (
        f"{page_file('model/model.css')}\n{page_file('model/training.css')}\n"
        f"{page_file('model/distributions.css')}\n"
        f"{light}{wrong}@media(prefers-color-scheme:dark){{{dark}}}"
    )


def _in_colour(kind: str, colour: str) -> str:
    return f".torchscan-page .on-{kind}{{fill:{colour};background:{colour}}}"


@cache
def policy(is_live: bool) -> str:
    """Return the content security policy: our script and styles, and images made by the page."""
    sources = {"script-src": script(), "style-src": styles()}
    hashes = [
        f"{name} 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for name, text in sources.items()
    ]
    asks = ["connect-src 'self'"] if is_live else []
    return "; ".join(
        [
            "default-src 'none'",
            *hashes,
            *asks,
            "img-src blob: data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def in_a_page(data: Any) -> str:
    """JSON that no browser takes for markup, whatever its texts are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    text = text.encode(errors="replace").decode()  # names of files that are no text
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
    )
