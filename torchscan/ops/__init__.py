"""Everything known about operators: one file per family.

The window rules of a large family have a separate file. Importing this package registers them all.
"""

from torchscan.ops import (  # noqa: F401 - each registers its formulas and window rules
    activation,
    arithmetic,
    attention,
    attention_kernels,
    communication,
    convolution,
    convolution_gradients,
    convolution_windows,
    delta_rules,
    distances,
    einsum,
    embedding,
    experts,
    fft,
    flash_attention,
    fused_recurrences,
    gated_linear_attention,
    index_windows,
    index_writes,
    indexing,
    join_windows,
    kimi_delta_attention,
    kimi_delta_gradients,
    liger,
    linalg,
    linear_attention,
    linear_attention_gradients,
    linear_attention_layers,
    linear_attention_models,
    loss,
    low_bit_products,
    low_rank_transition_gradients,
    low_rank_transitions,
    mamba,
    mamba_gradients,
    matmul,
    movement,
    movement_windows,
    multilinear,
    normalization,
    normalization_gradients,
    normalization_windows,
    optimizer,
    patch_windows,
    pooling,
    quantizers,
    recurrent,
    reduction,
    resize,
    rwkv_layers,
    transformer_layers,
    view_windows,
    views,
    vision,
    xformers,
)
from torchscan.ops.formula_problems import find_formula_problem as find_formula_problem
from torchscan.ops.formula_problems import operators_with_problem as operators_with_problem
from torchscan.ops.op_costs import CallCost as CallCost
from torchscan.ops.op_costs import OpCost as OpCost
from torchscan.ops.op_costs import Work as Work
from torchscan.ops.registry import compute_cost as compute_cost
from torchscan.ops.registry import cost_of as cost_of
from torchscan.ops.registry import declare_costless as declare_costless
from torchscan.ops.registry import is_known as is_known
from torchscan.ops.registry import traffic_of as traffic_of
from torchscan.ops.registry import window_of as window_of
