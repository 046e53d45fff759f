"""What the tests of reports share."""

from __future__ import annotations

import pytest

from tests.report.samples import INFOS
from torchscan.report.info import Info


@pytest.fixture(params=INFOS)
def info(request: pytest.FixtureRequest) -> Info:
    """Of models of many kinds."""
    return INFOS[request.param]()
