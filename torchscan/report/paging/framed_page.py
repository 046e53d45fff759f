"""The text of a page: a file, or in a notebook a frame."""

from __future__ import annotations

import html
from pathlib import Path

from torchscan.files import write_text

#: height in a notebook, in pixels
_HEIGHT = 900


class Page(str):
    """The text of an HTML file; a notebook shows it, and :meth:`save` writes it."""

    __slots__ = ()

    def save(self, path: str | Path) -> None:
        """Write the file; one that is there is replaced when the new one is complete."""
        write_text(Path(path), self)

    def _repr_html_(self) -> str:
        """Return the page in a frame that can run its script and save panels.

        It has no access to the notebook.
        """
        sandbox = "allow-scripts allow-downloads"
        return (
            f'<iframe srcdoc="{html.escape(self)}" sandbox="{sandbox}" '
            'title="HTML report of a model" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )
