"""matplotlib is an extra, ``pip install torchscan[plot]``, and imported where it is used."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """The module, or an error that says how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: run pip install matplotlib") from error
    return plt
