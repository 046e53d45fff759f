"""Plots inside HTML, in the colors of the page around them."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

from torchscan.errors import InputError
from torchscan.report.pictures.style import LIGHT, detached_figures
from torchscan.results import Result

_OPTIONS: dict[Any, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "torchscan",  # the same plot twice is the same text
    "text.usetex": False,
}
#: what a file needs and a part of a page does not: addresses of namespaces, and who made it
_NEEDLESS = re.compile(r"<metadata>.*?</metadata>|\sxmlns(:\w+)?=\"[^\"]*\"", re.DOTALL)
_WITHOUT_PLOT = (
    '<div class="torchscan" data-ready="static"><p>For the plot, install matplotlib: '
    "pip install matplotlib.</p></div>"
)
#: options of matplotlib belong to the process: two threads would restore each other's
_lock = threading.Lock()


def inline_plot(result: Result) -> str:
    """Return the plot of a result as SVG, or "" if there is nothing to draw.

    Without matplotlib, a sentence says how to get the plot.
    Lines and text take the color of the text around them, so that they can be read in a dark page.
    """
    try:
        from matplotlib import rc_context
    except ImportError:
        return _WITHOUT_PLOT
    with _lock, rc_context(_OPTIONS), detached_figures():
        try:
            figure: Any = result.plot().figure
        except InputError:
            return ""
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    svg = _NEEDLESS.sub("", text[text.index("<svg") :])
    for ink in (LIGHT.ink, LIGHT.soft):
        svg = svg.replace(ink, "currentColor")
    svg = svg.replace(LIGHT.hair, "rgba(127, 127, 127, .6)")
    return f'<div class="torchscan" data-ready="static"><div class="plot">{svg}</div></div>'
