"""The two colors of overlays with values of both signs, as color-blind people see them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from torchscan.report.html import page_file

Vector = npt.NDArray[np.float64]

#: in linear RGB, for complete deficiency (Machado, Oliveira & Fernandes 2009, severity 1)
DEFICIENCIES = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
#: cone responses of linear RGB, and OKLab of their cube roots (Ottosson 2020)
_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def tones(theme: int) -> list[Vector]:
    """The five tones in linear RGB: 0 is the light theme, 1 the dark one."""
    style = page_file("model/model.css")
    colors = [re.findall(rf"--d{at}: #(\w{{6}})", style)[theme] for at in range(5)]
    found = []
    for color in colors:
        parts = np.array([int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)])
        curved = ((parts + 0.055) / 1.055) ** 2.4
        found.append(np.where(parts <= 0.04045, parts / 12.92, curved))
    return found


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_signs_and_sizes_differ_for_all(theme: int, deficiency: str) -> None:
    """A distance of 0.02 in OKLab can be told apart beside each other; these are several times that."""
    seen = []
    for tone in tones(theme):
        linear = np.clip(np.array(DEFICIENCIES[deficiency]) @ tone, 0, 1)
        seen.append(np.array(_OKLAB) @ np.cbrt(np.array(_CONES) @ linear))
    low, half_low, middle, half_high, high = seen

    def distance(one: Vector, other: Vector) -> float:
        return float(np.linalg.norm(one - other))

    assert distance(low, high) >= 0.15
    assert distance(half_low, half_high) >= 0.15
    for one, other in ((low, half_low), (half_low, middle), (middle, half_high), (half_high, high)):
        assert distance(one, other) >= 0.15
