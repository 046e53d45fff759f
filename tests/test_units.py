"""Numbers as text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from torchscan import InputError, units


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


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 * 2**40, "3.00 TiB")]
)
def test_memory_is_binary(size: int, text: str) -> None:
    assert units.memory(size) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25000000", 25e6),
        ("25_000_000", 25e6),
        ("25,000,000", 25e6),
        ("25M", 25e6),
        ("4.2 G", 4.2e9),
        ("4.2 GMACs", 4.2e9),
        ("7B", 7e9),
        ("1e3", 1000),
        (" 3k ", 3000),
        ("0", 0),
    ],
)
def test_counts_are_read(text: str, value: float) -> None:
    assert units.parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100", 100),
        ("1.5GiB", 1.5 * 2**30),
        ("2 KiB", 2048),
        ("800 MB", 8e8),
        ("3kB", 3000),
        ("10 bytes", 10),
        ("1G", 1e9),
    ],
)
def test_memory_is_read(text: str, value: float) -> None:
    assert units.parse_memory(text) == value


def test_durations_and_shares_are_read() -> None:
    assert [
        units.parse_duration(text) for text in ("2s", "12.5 ms", "80us", "80 µs")
    ] == pytest.approx([2, 0.0125, 8e-5, 8e-5])
    assert [units.parse_tokens(text) for text in ("8192", "8k", "32K tokens", "1,000")] == [
        8192,
        8192,
        32768,
        1000,
    ]
    assert [units.parse_share(text) for text in ("2.5%", "0.025", "3 %")] == pytest.approx(
        [0.025, 0.025, 0.03]
    )


@pytest.mark.parametrize(
    "text",
    ["", "-1", "4,2G", "1_000 apples", "25MiB", "1e999", "nan", "inf", "٣", "1.2.3", "M", "0x10"],
)
@pytest.mark.parametrize(
    "parse",
    [
        units.parse_count,
        units.parse_memory,
        units.parse_duration,
        units.parse_share,
        units.parse_tokens,
    ],
)
def test_what_is_no_number_is_refused_in_a_line(text: str, parse: Callable[[str], float]) -> None:
    if parse is units.parse_memory and text == "25MiB":
        return
    with pytest.raises(InputError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exact_counts_and_shapes() -> None:
    assert units.exact(25557032) == "25,557,032"
    assert units.shape([-1, 3]) == "(-1, 3)"
    assert units.shape([]) == "()"


@pytest.mark.parametrize(("given", "tokens"), [(4096, 4096), ("4k", 4096), ("1.5 k", 1536)])
def test_tokens_of_an_argument_are_a_number_or_a_text(given: int | str, tokens: int) -> None:
    assert units.tokens_of("length", given) == tokens


@pytest.mark.parametrize(("given", "size"), [(0, 0), ("500 MiB", 524_288_000), ("2kB", 2000)])
def test_bytes_of_an_argument_are_a_number_or_a_text(given: int | str, size: int) -> None:
    assert units.bytes_of("cuda_context", given) == size


@pytest.mark.parametrize("given", [0, "0", -4, 1.5, True, "many", "1.0001k", None])
def test_what_is_no_number_of_tokens_is_refused_with_the_name(given: object) -> None:
    with pytest.raises(InputError, match=f"^length is {re.escape(repr(given))}: give a positive"):
        units.tokens_of("length", given)
