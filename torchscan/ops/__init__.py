"""Everything known about operators: one file per family. Importing this package registers them all."""

from torchscan.ops import (
    activation,
    attention,
    convolution,
    matmul,
    movement,
    normalization,
    pointwise,
    pooling,
    recurrent,
    reduction,
    resize,
)
from torchscan.ops.registry import OpCost, Price, Work, cost_of, free, is_known, price, traffic_of

__all__ = [
    "OpCost",
    "Price",
    "Work",
    "activation",
    "attention",
    "convolution",
    "cost_of",
    "free",
    "is_known",
    "matmul",
    "movement",
    "normalization",
    "pointwise",
    "pooling",
    "price",
    "recurrent",
    "reduction",
    "resize",
    "traffic_of",
]
