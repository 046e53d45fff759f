"""Dataclasses as plain data, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from torchscan.plain import from_plain, required_fields, to_plain


class Pair(NamedTuple):
    one: float
    other: float | None = None


@dataclass(frozen=True, kw_only=True)
class Base:
    name: str
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Whole(Base):
    pairs: tuple[Pair, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    by_name: Mapping[str, Pair | None] = field(default_factory=dict)
    inner: Base | None = None


WHOLE = Whole(
    name="x",
    pairs=(Pair(1.0), Pair(0.1, 2.0)),
    shapes=((1, 2), ()),
    by_name={"a": Pair(3.0), "b": None},
    inner=Base(name="y", kind="b"),
)


def test_what_is_taken_apart_can_be_put_together() -> None:
    data = to_plain(WHOLE)
    assert data["pairs"] == [{"one": 1.0, "other": None}, {"one": 0.1, "other": 2.0}]
    assert data["by_name"] == {"a": {"one": 3.0, "other": None}, "b": None}
    assert from_plain(Whole, json.loads(json.dumps(data))) == WHOLE


def test_whole_numbers_become_floats_again_where_they_were() -> None:
    assert isinstance(from_plain(Pair, {"one": 1}).one, float)


@pytest.mark.parametrize(("value", "text"), [(math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_what_is_infinite_is_a_text(value: float, text: str) -> None:
    assert to_plain(Pair(value)) == {"one": text, "other": None}
    assert from_plain(Pair, {"one": text}) == Pair(value)


def test_nan_is_a_text() -> None:
    assert to_plain([math.nan]) == ["NaN"]
    assert math.isnan(from_plain(Pair, {"one": "NaN"}).one)


def test_fields_with_defaults_may_be_missing_and_unknown_ones_are_left_alone() -> None:
    assert required_fields(Whole) == ["name", "pairs"]
    assert required_fields(Pair) == ["one"]
    data: Any = {"name": "x", "pairs": [], "later": 3}
    assert from_plain(Whole, data) == Whole(name="x", pairs=())
