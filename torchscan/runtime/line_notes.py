"""Notes of the user's lines in the nodes of a graph: torch's anomaly mode, with one line instead of a stack."""

from __future__ import annotations

import torch

from torchscan.recording.places import place_of_user
from torchscan.torch_versions import FORMATS_STACK, put_in


class LineNotes:
    """The switch of the notes. It leaves an anomaly mode of the user's alone."""

    def __init__(self) -> None:
        self._is_on = False

    def switch_on(self) -> None:
        """Have torch note the line that creates each node."""
        if self._is_on or torch.is_anomaly_enabled():
            return
        self._is_on = True
        self._formatter = put_in(*FORMATS_STACK, _format_stack)
        torch.set_anomaly_enabled(True, False)

    def switch_off(self) -> None:
        """Restore torch's formatter and mode."""
        if not self._is_on:
            return
        self._is_on = False
        torch.set_anomaly_enabled(False)
        put_in(*FORMATS_STACK, self._formatter)


def _format_stack() -> list[str]:
    """Return the user's line, in place of torch's list of all frames."""
    place = place_of_user()
    return [] if place is None else [place]
