"""Properties of activation modules: whether their units can die, and the bounds of their values."""

from __future__ import annotations

from torch import Tensor, nn

#: what returns zero where a unit is not active
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NORMS = (*_BATCH_NORMS, nn.GroupNorm, *_INSTANCE_NORMS)
_CHANNELS_FIRST = (*_CONVOLUTIONS, *_TRANSPOSED, *_NORMS)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)
#: bounds of the results of modules
_BOUNDS = {
    (nn.Sigmoid, nn.Hardsigmoid): (0.0, 1.0),
    (nn.Tanh, nn.Softsign): (-1.0, 1.0),
}


def can_die(module: nn.Module) -> bool:
    """Return whether units of a module's output can be dead."""
    return isinstance(module, _RECTIFIERS)


def bounds_of(module: nn.Module) -> tuple[float, float] | None:
    """Return the bounds of a module's results, or None if there are none."""
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one
        return float(module.min_val), float(module.max_val)
    for types, bounds in _BOUNDS.items():
        if isinstance(module, types):
            return bounds
    return None


def has_channels_first(module: nn.Module) -> bool | None:
    """Return whether the units of a layer's output lie along its second dimension.

    Return None for modules other than layers, whose output is laid out as their input.
    """
    if isinstance(module, _CHANNELS_FIRST):
        return True
    return False if isinstance(module, _CHANNELS_LAST) else None


def unit_dim_of(output: Tensor, is_channels_first: bool | None) -> int | None:
    """Return the dimension of units in an output, or None if it has none.

    ``is_channels_first`` tells how the last layer has laid out its output, if there was one.
    """
    if output.dim() < 2:
        return None
    if is_channels_first is None:
        is_channels_first = output.dim() > 3
    return 1 if is_channels_first else -1
