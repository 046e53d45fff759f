"""What ``forward`` changes of objects without items: classes, bytes, arrays, slots, generators and iterators."""

from __future__ import annotations

import array
import collections
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchscan import RecordError, crawl_module, record

BOTH_WAYS = pytest.mark.parametrize("execute", ["abstract", "real"])


class Slotted:
    __slots__ = ("absent", "items")

    def __init__(self) -> None:
        self.items = [1]

    def change(self) -> None:
        self.items.append(2)
        self.absent = 3


class Plain:
    pass


class Other(Plain):
    pass


def pop(deque: collections.deque[int]) -> None:
    deque.append(3)


#: how to make an object, to change it, and to describe it
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], object]]] = {
    "bytearray": (lambda: bytearray(b"abc"), lambda it: it.extend(b"z"), bytes),
    "array": (lambda: array.array("i", [1, 2]), lambda it: it.append(3), list),
    "array item": (lambda: array.array("d", [1.0, 2.0]), lambda it: it.__setitem__(0, 5.0), list),
    "memoryview": (lambda: memoryview(bytearray(b"ab")), lambda it: it.__setitem__(0, 65), bytes),
    "numpy": (
        lambda: np.arange(4),
        lambda it: it.sort() or it.__setitem__(0, 9),
        np.ndarray.tolist,
    ),
    "numpy of floats": (lambda: np.ones((2, 2)).T, lambda it: it.fill(np.nan), np.ndarray.tolist),
    "numpy of lists": (
        lambda: np.array([[1], None], dtype=object),
        lambda it: it[0].append(2),
        lambda it: str(it.tolist()),
    ),
    "slots": (Slotted, Slotted.change, lambda it: (list(it.items), hasattr(it, "absent"))),
    "class": (Plain, lambda it: setattr(it, "__class__", Other), type),
    "deque": (lambda: collections.deque([1, 2], maxlen=2), pop, list),
    "defaultdict": (lambda: collections.defaultdict(list), lambda it: it["new"], dict),
    "Counter": (lambda: collections.Counter("ab"), lambda it: it.update("a"), dict),
    "OrderedDict": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda it: it.move_to_end("a"),
        list,
    ),
    "set": (lambda: {1}, lambda it: it.add(2), set),
    "random": (lambda: random.Random(0), lambda it: it.random(), random.Random.getstate),  # noqa: S311
    "numpy generator": (
        lambda: np.random.default_rng(0),
        lambda it: it.random(),
        lambda it: str(it.bit_generator.state),
    ),
    "numpy random state": (
        lambda: np.random.RandomState(0),
        lambda it: it.rand(),
        lambda it: str(it.get_state()),
    ),
    "iterator of a list": (lambda: iter([1, 2]), next, lambda it: it.__reduce__()),
}
if sys.version_info < (3, 12):  # later ones cannot be set back
    KINDS["iterator of a long range"] = (
        lambda: iter(range(2**64)),
        next,
        lambda it: it.__reduce__(),
    )
    KINDS["iterator of a range"] = (lambda: iter(range(3)), next, lambda it: it.__reduce__())


class Changes(nn.Linear):
    """Holds an object and changes it."""

    def __init__(self, held: Any, change: Callable[[Any], object]) -> None:
        super().__init__(4, 4)
        self.held = held
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self.held)
        return super().forward(x)


@BOTH_WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pass_changes_is_put_back(kind: str, execute: Any) -> None:
    make, change, describe = KINDS[kind]
    held = make()
    before = describe(held)
    crawl_module(Changes(held, change), (4,), execute=execute)
    assert describe(held) == before
    change(held)
    assert describe(held) != before


class Becoming(nn.Module):
    """Changes its class, and that of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.__class__ = Become
        self.layer.__class__ = nn.Identity  # type: ignore[assignment]
        return self.layer(x)


class Become(Becoming):
    pass


@BOTH_WAYS
def test_modules_keep_their_classes(execute: Any) -> None:
    model = Becoming()
    crawl_module(model, (4,), execute=execute)
    assert [type(each) for each in model.modules()] == [Becoming, nn.Linear]


def test_they_keep_them_after_an_exception() -> None:
    class Failing(Becoming):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("none")

    model = Failing()
    with pytest.raises(RecordError):
        crawl_module(model, args=(torch.rand(1, 4),))
    assert [type(each) for each in model.modules()] == [Failing, nn.Linear]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (itertools.count(), r"count\(0\) went on to count\(1\)"),
        (iter([1]), "was used up"),
        (iter({1: 2, 2: 3, 3: 4}), "a dict_keyiterator went on"),
        pytest.param(
            iter(range(3)),
            "a range_iterator went on",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="ranges are set back"),
        ),
    ],
)
def test_what_cannot_be_put_back_is_reported(held: Any, said: str) -> None:
    def exhaust(iterator: Any) -> None:
        for _ in range(2):
            next(iterator, None)
            if isinstance(iterator, itertools.count):
                return

    with pytest.warns(UserWarning, match=f"could not be restored.*{said}"):
        crawl_module(Changes(held, exhaust), (4,), execute="real")


def test_a_large_array_does_not_keep_other_objects_from_being_restored() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = np.zeros(300 * 2**20, dtype=np.uint8)
            self.random = random.Random(0)  # noqa: S311
            self.bytes = bytearray(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.random.random()
            self.bytes[0] = 1
            return x

    model = Keeps()
    before = model.random.getstate()
    record(model, (2,))
    assert model.random.getstate() == before
    assert model.bytes == bytearray(3)
