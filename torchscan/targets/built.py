"""A model that was built, and its inputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchscan.errors import Give, InputError
from torchscan.targets.inputs import InputSpec, arguments_of, checked_dtype, torch_dtype


@dataclass(frozen=True, slots=True)
class Built:
    """A model, and its known inputs, if any."""

    module: nn.Module
    inputs: tuple[InputSpec, ...] = ()
    #: True if the model is built again, with data, when its pass reads values and memory allows
    has_another_chance: bool = False

    def copied(self) -> Built:
        """Return the same with a copy of the model, which the caller may change."""
        return replace(self, module=_copy(self.module))

    def converted(self, dtype: str | None) -> Built:
        """Return the model in another floating-point type.

        A model with data is copied, because other code may use it.
        """
        if dtype is None or not torch_dtype(checked_dtype(dtype)).is_floating_point:
            return self
        is_meta = all(parameter.is_meta for parameter in self.module.parameters())
        module = self.module if is_meta else _copy(self.module)
        return replace(self, module=module.to(torch_dtype(checked_dtype(dtype))))


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InputError(
            f"the {type(module).__name__} has to be copied, and copying it failed: {error}"
        ) from error


def inputs_of(
    what: str, built: Built, specs: Sequence[InputSpec], dtype: str | None
) -> dict[str, Any]:
    """Return ``input_shape`` and ``dtype`` for :func:`torchscan.record`.

    They are those of the given inputs, or else of the known ones.
    """
    inputs = specs or built.inputs
    if not inputs:
        raise InputError.about(
            what,
            "its inputs are not known: give the shape of one sample as ",
            Give("input_shape", (3, 224, 224)),
        )
    shapes, dtypes = arguments_of(inputs, None if dtype is None else checked_dtype(dtype))
    return {"input_shape": shapes, "dtype": dtypes}
