"""Resizing: each output element is a weighted sum of its neighbours in the input.

Along one axis: two products and a sum (linear); the axes follow one another, so 3, 7, 15 for one, two and three of them.
Cubic in two axes takes 31. The nearest neighbour is copied.
"""

from __future__ import annotations

import torch

from torchscan.ops.elementwise import per_element
from torchscan.ops.registry import free

aten = torch.ops.aten

free(aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d)
free(aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d)
per_element(3, aten.upsample_linear1d)
per_element(7, aten.upsample_bilinear2d)
per_element(15, aten.upsample_trilinear3d)
per_element(31, aten.upsample_bicubic2d)
