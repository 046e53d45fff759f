"""Along which dimension of an activation's result the units of a layer lie, of which some may be dead."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

#: what returns zero where a unit is not active
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
_CHANNELS_FIRST = (_ConvNd, _BatchNorm, _InstanceNorm, nn.GroupNorm)


class Units:
    """Of the layers of one step. Three dimensions may be N × C × L or N × L × C: the layer before tells."""

    def __init__(self) -> None:
        self._is_channels_first = False

    def dim_of(self, module: nn.Module, outputs: Sequence[Tensor]) -> int | None:
        """None: what the module returns is no activation that can be dead."""
        if isinstance(module, (*_CHANNELS_FIRST, nn.Linear, nn.LayerNorm)):
            self._is_channels_first = isinstance(module, _CHANNELS_FIRST)
        if not isinstance(module, _RECTIFIERS) or not outputs or outputs[0].dim() < 2:
            return None
        return 1 if outputs[0].dim() > 3 or (outputs[0].dim() == 3 and self._is_channels_first) else -1
