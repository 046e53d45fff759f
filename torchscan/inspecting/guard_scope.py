"""The part of a process that a guard checks: training steps of the user's program."""

from __future__ import annotations

import os

from torch.compiler import is_dynamo_compiling

from torchscan.inspecting.repeated_calls import is_looking_again
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import is_capturing_now, is_transforming


class GuardScope:
    """The state of a guard that decides what it checks, and of torch."""

    def __init__(self) -> None:
        self._process = os.getpid()
        #: True while the guard is at work
        self.is_started = False
        #: True while the guard itself calls torch
        self.is_busy = False

    def is_outside(self) -> bool:
        """Return whether what runs now is not part of a training step of the user's.

        Each call of a module outside of models that train asks for it.
        """
        if self.is_busy or not self.is_started or os.getpid() != self._process:
            return True
        if is_dynamo_compiling() or is_recording() or is_looking_again():
            return True
        return is_transforming() or is_capturing_now()
