"""Attention over sequences in parts, recorded by itself on the ranks that share them.

torch's ring attention computes scores block by block, merges results in 32 bits, and sends keys,
values and their gradients meanwhile. All else in a layer runs on a part of each sequence as on a
shorter one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan.analyses.mesh_parts import LocalTrace
from torchscan.analyses.part_costs import AttentionShapes, RingCosts
from torchscan.analyses.roofline import Fabric, Rates, numbers_of, roofline_of
from torchscan.recording.context_parallel import run_ring_attention
from torchscan.recording.pretended_group import pretended
from torchscan.recording.sharding import sharded
from torchscan.scan import Scan

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_NAME = "attention"


class _Attention(nn.Module):
    """Causal attention of which a rank has a part of each sequence."""

    def __init__(
        self, shapes: AttentionShapes, dtype: torch.dtype, parts: int, sequences: int
    ) -> None:
        super().__init__()
        self._has_groups = shapes.query[0] != shapes.key[0]
        for name, (heads, length, width) in zip(shapes._fields, shapes, strict=True):
            size = (sequences, heads, length // parts, width)
            tensor = torch.empty(size, dtype=dtype, device="meta")
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self) -> Tensor:
        """Return the attention of this part to the keys of all parts."""
        query, key, value = map(self.get_parameter, AttentionShapes._fields)
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self._has_groups
        )


class _Root(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.add_module(_NAME, attention)

    def forward(self, _: Tensor) -> Tensor:
        """Return the attention."""
        result: Tensor = self.get_submodule(_NAME)()
        return result


def record_ring(
    shapes: AttentionShapes,
    dtype: torch.dtype,
    fabric: Fabric,
    *,
    cp: int,
    tp: int,
    sequences: int,
) -> RingCosts:
    """Return the costs of attention to complete sequences, of which each rank has a part."""
    module = _Root(_Attention(shapes, dtype, cp, sequences))

    def divide(_: nn.Module, mesh: DeviceMesh) -> None:
        run_ring_attention(mesh["cp"])

    with pretended({"cp": cp, "tp": tp}, 0) as devices:
        model = sharded(module, divide, devices, training=False)
        given: dict[str, Any] = {
            "args": (torch.zeros(1),),
            "device": fabric.device.name,
            "progress": False,
        }
        trace = Scan(model, training=True, **given).steps
    rates = Rates(fabric.device)
    numbers = numbers_of(rates.device, None)
    roofline = roofline_of(trace, rates, numbers=numbers, fabric=fabric)
    return LocalTrace(trace, roofline, fabric, [_NAME]).ring(_NAME)
