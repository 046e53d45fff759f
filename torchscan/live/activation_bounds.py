"""Properties of activation modules: whether their units can die, and the bounds of their values."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

#: what returns zero where a unit is not active
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
_CHANNELS_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)
#: between which bounds the results of modules are
_BOUNDS = {(nn.Sigmoid, nn.Hardsigmoid): (0.0, 1.0), (nn.Tanh, nn.Softsign): (-1.0, 1.0)}


def can_die(module: nn.Module) -> bool:
    """Return whether units of a module's output can be dead."""
    return isinstance(module, _RECTIFIERS)


def bounds_of(module: nn.Module) -> tuple[float, float] | None:
    """Between which values what it returns is; None: there are no such bounds."""
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one
        return float(module.min_val), float(module.max_val)
    return next((bounds for kinds, bounds in _BOUNDS.items() if isinstance(module, kinds)), None)


class Units:
    """The dimension of units in the outputs of one step's layers.

    Channels come first or last, which the layer before decides.
    """

    def __init__(self) -> None:
        self._is_channels_first: bool | None = None

    def dim_of(self, module: nn.Module, outputs: Sequence[Tensor]) -> int | None:
        """Return the dimension of units in an output, or None if they cannot be dead."""
        if isinstance(module, (*_CHANNELS_FIRST, *_CHANNELS_LAST)):
            self._is_channels_first = isinstance(module, _CHANNELS_FIRST)
        if not can_die(module) or not outputs or outputs[0].dim() < 2:
            return None
        is_first = (
            outputs[0].dim() > 3 if self._is_channels_first is None else self._is_channels_first
        )
        return 1 if is_first else -1
