"""Random modules: the record on shapes alone is that of the real pass, and nothing is left behind.

``scripts/random-modules`` does the same for as many as wanted.
"""

from __future__ import annotations

import pytest
import torch

from tests.random_modules.comparing import verdict_on
from tests.random_modules.known import reason_for
from tests.random_modules.models import random_module
from tests.versions import before

SEEDS = [range(first, first + 20) for first in range(0, 40, 20)]
MORE = [
    pytest.param(range(first, first + 20), marks=pytest.mark.sweep) for first in range(40, 240, 20)
]


@pytest.mark.slow
@before("2.13", "shapes alone show other detached tensors than data")
@pytest.mark.parametrize("seeds", [*SEEDS, *MORE], ids=lambda seeds: f"from {seeds[0]}")
@pytest.mark.few(1)
def test_random_modules_are_recorded_on_shapes_alone_as_for_real(seeds: range) -> None:
    """Every twentieth also in training, with all that is derived from its record."""
    verdicts = [verdict_on(random_module(seed), thorough=seed % 20 == 0) for seed in seeds]
    assert [
        str(each) for verdict in verdicts for each in verdict.differences if not reason_for(each)
    ] == []
    assert sum(verdict.compared for verdict in verdicts) > 12, "most are compared, and few refused"


def test_a_seed_makes_one_module_only() -> None:
    one, other = random_module(7), random_module(7)
    assert str(one.module) == str(other.module)
    assert torch.equal(one.args[0], other.args[0])
