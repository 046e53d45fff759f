"""Values of modules over the steps, for the heat map of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.watching.test_bins import of
from torchscan.watching.explore.layer_steps import LayerSteps
from torchscan.watching.schema import SampledStep, Series


@pytest.mark.parametrize(("value", "norm"), [(1e-30, 2e-30), (0.0, 0.0), (0.5, 1.0)])
def test_a_gradient_that_is_too_small_to_square_is_not_zero(value: float, norm: float) -> None:
    """The square of 1e-30 is 0 with 32 bits, and so is the norm that a device computes."""
    series = Series(path="fc", type_name="Linear", kind="param_grad", name="weight")
    gradient = torch.full((4,), value)
    found = replace(of(gradient), norm=(gradient**2).sum().sqrt().item())
    steps = LayerSteps([series])
    watched = SampledStep(step=0, phase="train", number=0, time=1.0, distributions={0: found})
    steps.add(0, watched, {0: series})
    columns = steps.columns()
    row = columns.tree.row_by_path["fc"]
    assert columns.values["gradient"][row].tolist() == [pytest.approx(norm, rel=0.01)]
