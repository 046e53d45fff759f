"""How Sphinx makes a site of these pages: ``scripts/docs``. Nothing is fetched, neither to build it nor to read it."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode
from torchscan import __version__

project = "torchscan"
author = project_copyright = "The torchscan authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# -- pages: Markdown that reads well by itself, with the anchors that its headings have elsewhere --------------------------

myst_heading_anchors = 3
toc_object_entries_show_parents = "hide"

# -- reference: made from docstrings ---------------------------------------------------------------------------------------

autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

nitpicky = True
nitpick_ignore_regex = [
    # other projects: to link to their pages, their lists of names would have to be fetched
    ("py:.*", r"(collections\.abc|fractions|os|pathlib|torch)\..*"),
    # names that only a type checker imports: then autodoc leaves a signature as it is written
    ("py:class", r"pd\.DataFrame|Axes|Cut|InfoDict|PlotSize|Size"),
    # those of what takes apply=, whose DeviceMesh only a type checker imports
    (
        "py:class",
        r"nn\.Module|Tensor|Shapes|DTypes|Apply|Ranks|OptimizerChoice|Precision|TrainingPrecision|Step|"
        r"Chosen|Statistic|StartMethod|Phase",
    ),
    # how an interface names arguments, which callers do not deal with
    ("py:class", r"torchscan\.errors\.Spelling"),
    # what is given is returned; and what look(…) returns is handed on as it is
    ("py:.*", r"torchscan\.ops\.(registry\.[FW]|windows\.(Way|Whole))"),
]

# -- the look: nothing comes from other hosts ------------------------------------------------------------------------------

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"  # furo's underlines names, as if they were links
html_title = f"torchscan {version}"
html_show_sphinx = False
html_copy_source = False

# -- docstrings as the package writes them ---------------------------------------------------------------------------------

#: classes that users make themselves; of all others, which are results, the arguments of the class say nothing new
_MADE_BY_USERS = {"Alarm", "Scan", "Work", "Along", "At", "Taps"}
_COLON = "\ue000"


def _without_arguments(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None] | None:
    """The fields of a result are listed below it."""
    return (
        ("", None)
        if signature
        and what == "class"
        and name.rpartition(".")[2] not in _MADE_BY_USERS
        else None
    )


def _keep_colons(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Before napoleon: it takes what stands before a colon in the first line of an attribute for its type."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = lines[0].replace(":", _COLON)


def _finish(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """After napoleon: colons as they were, and pages that are named become links to them."""
    lines[:] = [
        re.sub(r"docs/([\w-]+)\.md", r":doc:`/\1`", line.replace(_COLON, ":"))
        for line in lines
    ]


def _find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Return a link for a name that a docstring gives without its module, as readers of code do."""
    objects = env.get_domain("py").data["objects"]
    for module in (
        "torchscan",
        "torchscan.types",
        "torchscan.sinks",
        "torchscan.parallel",
    ):
        entry = objects.get(f"{module}.{node['reftarget']}")
        if node["refdomain"] == "py" and entry is not None:
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content
            )
    return None


_PICTURE = re.compile(
    r'<picture><source [^>]*srcset="([^"]*)"><img src="([^"]*)" alt="([^"]*)"></picture>'
)


def _follow_the_switch(app: Sphinx, name: str, content: list[str]) -> None:
    """A picture that elsewhere follows the reader's system follows the switch of the site."""
    both = r'<img class="only-light" src="\2" alt="\3"><img class="only-dark" src="\1" alt="\3">'
    content[0] = _PICTURE.sub(both, content[0])


def setup(app: Sphinx) -> None:
    """Napoleon has the priority 500."""
    app.connect("source-read", _follow_the_switch)
    app.connect("missing-reference", _find_public_name)
    app.connect("autodoc-process-signature", _without_arguments)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)
    app.connect("autodoc-process-docstring", _finish, priority=600)
