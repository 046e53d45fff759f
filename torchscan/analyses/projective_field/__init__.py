"""The projective field of the graph that ran: the units of each layer that a position reaches.

It is the inverse of the receptive field. The same walk follows the same windows of operators, with
the elements that are reached (:mod:`~torchscan.analyses.projective_field.reach_masks`) instead of
the ends of what is seen.
"""

from torchscan.analyses.projective_field.projective_field_result import (
    AxisReach,
    LayerReach,
    ProjectiveField,
)

__all__ = ["AxisReach", "LayerReach", "ProjectiveField"]
