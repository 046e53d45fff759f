"""Rows of parameters that the next sampled step can use."""

from __future__ import annotations

import contextlib

from torch import Tensor

from torchscan.watching.row_groups import RowGroup


class ParameterMemory:
    """The sampled parameters after a step, which are those before the next one.

    They are sampled again if a parameter was written to meanwhile.
    """

    def __init__(self) -> None:
        self._group: RowGroup | None = None
        #: the list of parameters, which is another one if they have changed, and their versions
        self._parameters: list[Tensor] = []
        self._versions: list[int] = []
        self._number = -1

    def keep(self, number: int, parameters: list[Tensor], group: RowGroup) -> None:
        """Keep the rows of parameters after the step with this number."""
        self._group = None
        with contextlib.suppress(RuntimeError):  # tensors of inference mode have no version
            self._versions = [each._version for each in parameters]
            self._parameters, self._number = parameters, number
            self._group = group._replace(joined=None)

    def take(self, number: int, parameters: list[Tensor]) -> RowGroup | None:
        """Return the rows before the step with this number, or None if they must be sampled."""
        group, self._group = self._group, None
        if group is None or number != self._number + 1 or parameters is not self._parameters:
            return None
        versions = [each._version for each in parameters]
        return group if versions == self._versions else None
