"""State of objects without items and attributes: bytes, arrays, random generators, iterators."""

from __future__ import annotations

import array
import itertools
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Step = Callable[[], object]

#: larger arrays are not copied, so that what they hold is not put back (bytes)
_LARGEST = 2**24

_ROWS = (bytearray, array.array)
_SEQUENCES: tuple[Any, ...] = ([], (), range(0), range(2**64), "", b"", bytearray())
_ITERATORS = tuple(type(iter(each)) for each in _SEQUENCES)
_OTHERS = (memoryview, random.Random, itertools.count)
#: iterators whose position shows in what is left of a dict or set, and cannot be set back
_TABLES: tuple[Any, ...] = ({}, {}.values(), {}.items(), set())
_OF_TABLES = tuple(type(iter(each)) for each in _TABLES)
#: ranges cannot be set back either, from Python 3.12 on: their position is None
_RANGE_ITERATORS = (type(iter(range(0))), type(iter(range(2**64))))
_CAN_SET_RANGES_BACK = iter(range(1)).__reduce__()[-1] is not None


def has_plain_state(kind: type) -> bool:
    """Return whether objects of this class are known here."""
    return issubclass(kind, (*_ROWS, *_ITERATORS, *_OF_TABLES, *_OTHERS)) or _is_from_numpy(kind)


def num_bytes_to_copy(value: Any) -> int:
    """Return the size of the copy that :func:`steps_for` makes, or 0 if it makes none.

    Random generators and iterators count as 0.
    """
    if isinstance(value, _ROWS):
        size = memoryview(value).nbytes
    else:
        size = getattr(value, "nbytes", 0)
    return size if size <= _LARGEST else 0


def steps_for(value: Any) -> list[Step]:
    """Return what puts the object back into its present state, if anything has to and can."""
    kind = type(value)
    for row in _ROWS:
        if issubclass(kind, row):
            return _steps_for_row(row, value)
    if issubclass(kind, memoryview):
        return _steps_for_view(value)
    if issubclass(kind, random.Random):
        return [] if kind is random.SystemRandom else [partial(value.setstate, value.getstate())]
    if issubclass(kind, itertools.count):
        return _steps_for_count(value)
    if issubclass(kind, _OF_TABLES) or (
        issubclass(kind, _RANGE_ITERATORS) and not _CAN_SET_RANGES_BACK
    ):
        return _steps_for_table_iterator(value)
    if issubclass(kind, _ITERATORS):
        return [partial(_restore_iterator, value, value.__reduce__())]
    return _steps_for_numpy(value)


def objects_in(value: Any) -> Iterable[Any]:
    """Return the elements of a NumPy array of objects."""
    dtype = getattr(value, "dtype", None) if _is_from_numpy(type(value)) else None
    return value.ravel().tolist() if getattr(dtype, "hasobject", False) else ()


def _is_from_numpy(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "numpy"


def _steps_for_row(row: Any, value: Any) -> list[Step]:
    """Return the step that restores a row of numbers, by the methods of its base class."""
    copied = row.__getitem__(value, slice(None))
    if memoryview(copied).nbytes > _LARGEST:
        return []

    def restore() -> None:
        if row.__ne__(value, copied):
            row.__setitem__(value, slice(None), copied)

    return [restore]


def _steps_for_view(view: memoryview) -> list[Step]:
    """Return the step that restores the bytes of a view that can be written to."""
    if view.readonly or not view.c_contiguous or view.nbytes > _LARGEST:
        return []
    copied = view.tobytes()

    def restore() -> None:
        if view.tobytes() != copied:
            view.cast("B")[:] = copied

    return [restore]


def _steps_for_numpy(value: Any) -> list[Step]:
    numpy = sys.modules["numpy"]
    if type(value) is numpy.ndarray:
        return _steps_for_array(value)
    if isinstance(value, numpy.random.Generator | numpy.random.BitGenerator):
        bits = getattr(value, "bit_generator", value)
        return [partial(setattr, bits, "state", bits.state)]
    if isinstance(value, numpy.random.RandomState):
        return [partial(value.set_state, value.get_state())]
    return []


def _steps_for_array(values: Any) -> list[Step]:
    """Return the step that restores the shape and values of an array that can be written to."""
    if not values.flags.writeable or values.nbytes > _LARGEST:
        return []
    copied = values.copy()

    def restore() -> None:
        if values.shape != copied.shape:
            values.shape = copied.shape
        if values.dtype.hasobject or values.tobytes() != copied.tobytes():
            values[...] = copied

    return [restore]


def _restore_iterator(iterator: Any, before: tuple[Any, ...]) -> None:
    _, _, *position = before
    now = iterator.__reduce__()
    if now[1:] == before[1:]:
        return
    if len(now) < len(before):  # it has let go of what it goes through
        raise TypeError(f"a {type(iterator).__name__} was used up")
    iterator.__setstate__(*position)


def _steps_for_table_iterator(iterator: Any) -> list[Step]:
    """Return the step that fails if an iterator has gone on, which cannot be set back."""
    before = iterator.__length_hint__()

    def require_same_rest() -> None:
        if iterator.__length_hint__() != before:
            raise TypeError(f"a {type(iterator).__name__} went on")

    return [require_same_rest]


def _steps_for_count(count: itertools.count[Any]) -> list[Step]:
    """Return the step that fails if a count has gone on, which cannot be set back."""
    before = repr(count)

    def require_same_count() -> None:
        if repr(count) != before:
            raise TypeError(f"{before} went on to {count!r}")

    return [require_same_count]
