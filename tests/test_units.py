"""Numbers as text."""

from __future__ import annotations

import pytest

from torchscan import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (999_994, "999.99 k"),
        (999_999, "1.00 M"),
        (4_089_184_256, "4.09 G"),
        (10**18, "1.00 E"),
        (10**22, "10000.00 E"),
    ],
)
def test_counts_are_decimal(value: int, text: str) -> None:
    assert units.count(value) == text
    assert units.count(value, "MACs") == (f"{text}MACs" if " " in text else f"{text} MACs")


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 * 2**40, "3.00 TiB")])
def test_memory_is_binary(size: int, text: str) -> None:
    assert units.memory(size) == text


def test_exact_counts_and_shapes() -> None:
    assert units.exact(25557032) == "25,557,032"
    assert units.shape([-1, 3]) == "(-1, 3)"
    assert units.shape([]) == "()"
