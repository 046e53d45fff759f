"""A reader of pickles that builds only plain containers, numbers and strings.

``pickle`` calls any function that a file names. Even if imports are forbidden, a file can make its
unpickler in C allocate much more memory than the file has bytes. This reader executes the opcodes
itself. It has no opcode that imports or calls, hashes only strings and small integers, and counts
objects. It does not support the opcodes of protocols 0 and 1, which write numbers as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from torchscan.errors import InputError

#: largest number of lists, tuples and dicts in a file
_MAX_CONTAINERS: Final = 2**23
#: largest number of these, strings, and integers above 255
_MAX_OBJECTS: Final = 2**25
#: largest number of values on the stack, and in the memo
_MAX_HEIGHT: Final = 2**24
#: largest depth of open containers; a snapshot has six
_MAX_MARKS: Final = 64
#: values in all lists, at most: each takes 8 bytes, and may take one in the file
_MAX_ITEMS: Final = 2**27
#: characters of a name that an error shows
_MAX_NAME: Final = 60
#: larger integers are refused as keys of a dict: all multiples of 2**61 - 1 have the same hash
_LARGE_KEY: Final = 2**32
_STOP: Final = ord(".")
_BINGET: Final = ord("h")
_LONG_BINGET: Final = ord("j")
_BININT1: Final = ord("K")
_FLOAT: Final = Struct(">d")
#: several of these opcodes in a row, as in the list of a stack's frames, and each of them
_LONG_BINGETS: Final = re.compile(rb"(?:j[\0-\xff]{4}){1,4096}")
_INDICES: Final = Struct("<cI")
#: how a file that gzip has compressed begins
_GZIP: Final = b"\x1f\x8b"


def load_plain(data: bytes) -> Any:
    """Return the content of a pickle, or raise an InputError with the reason."""
    if data.startswith(_GZIP):
        raise InputError("it is compressed by gzip, so decompress it first")
    try:
        return _PlainUnpickler(data).load()
    except InputError:  # which is a ValueError, too
        raise
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError("it is not a complete pickle of plain containers") from error


class _PlainUnpickler:
    """The stack machine that executes the opcodes of a pickle, with marks and a memo."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._stack: list[Any] = []
        #: heights of the stack at which containers begin
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._num_containers = self._num_objects = self._num_items = 0

    def load(self) -> Any:
        """Return the object on the stack when the pickle ends.

        Nearly all of a snapshot consists of a few opcodes. They are executed here, because calls of
        methods would take three times as long.
        """
        data, stack, memo, operations = self._data, self._stack, self._memo, _OPERATIONS
        position, end_of_inline = 0, len(data) - 5
        while True:
            opcode = data[position]
            position += 1
            if position < end_of_inline and len(stack) < _MAX_HEIGHT:
                if opcode == _BINGET:
                    stack.append(memo[data[position]])
                    position += 1
                    continue
                if opcode == _LONG_BINGET:
                    run = _LONG_BINGETS.match(data, position - 1)
                    assert run is not None  # noqa: S101 - there is room for one
                    indices = _INDICES.iter_unpack(run[0])
                    stack += [memo[index] for _, index in indices]
                    position = run.end()
                    continue
                if opcode == _BININT1:
                    stack.append(data[position])
                    position += 1
                    continue
            if opcode == _STOP:
                return stack.pop()
            self._position = position
            operations[opcode](self)
            position = self._position

    # -- bytes of arguments ------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        start = self._position
        end = start + size
        if end > len(self._data):
            raise ValueError("truncated")
        self._position = end
        return self._data[start:end]

    def read_size(self, num_bytes: int) -> int:
        return int.from_bytes(self.read(num_bytes), "little")

    def read_line(self) -> str:
        end = self._data.index(b"\n", self._position)
        line = self._data[self._position : end]
        self._position = end + 1
        return line.decode("utf-8")

    # -- new objects -------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        if len(self._stack) >= _MAX_HEIGHT:
            raise InputError(f"it has a list of more than {_MAX_HEIGHT:,} values")
        self._stack.append(value)

    def push_object(self, value: Any) -> None:
        self._num_objects += 1
        if self._num_objects > _MAX_OBJECTS:
            raise InputError(f"it has more than {_MAX_OBJECTS:,} values")
        self.push(value)

    def push_container(self, value: Any) -> None:
        self._num_containers += 1
        if self._num_containers > _MAX_CONTAINERS:
            raise InputError(f"it has more than {_MAX_CONTAINERS:,} lists, tuples and dicts")
        self.push_object(value)

    def push_string(self, size: int) -> None:
        self.push_object(self.read(size).decode("utf-8", "surrogatepass"))

    def push_integer(self, num_bytes: int) -> None:
        self.push_object(int.from_bytes(self.read(num_bytes), "little", signed=True))

    def push_long(self) -> None:
        position = self._position
        end = position + 1 + self._data[position]
        if end > len(self._data):
            raise ValueError("truncated")
        self._position = end
        self.push_object(int.from_bytes(self._data[position + 1 : end], "little", signed=True))

    # -- containers --------------------------------------------------------------------------------

    def mark(self) -> None:
        if len(self._marks) == _MAX_MARKS:
            raise InputError(f"it nests more than {_MAX_MARKS} containers")
        self._marks.append(len(self._stack))

    def pop_marked(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def push_tuple(self, size: int) -> None:
        values = tuple(self._stack[-size:])
        if len(values) != size:
            raise ValueError("a tuple has too few values")
        del self._stack[-size:]
        self.push_container(values)

    def append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ValueError("a value is appended to something else than a list")
        self._num_items += len(values)
        if self._num_items > _MAX_ITEMS:
            raise InputError(f"its lists have more than {_MAX_ITEMS:,} values")
        target.extend(values)

    def set_items(self, values: list[Any], target: Any) -> None:
        keys = values[::2]
        # Other keys could be tuples of tuples, whose hash takes time and stack without limit.
        for key in keys:
            if type(key) is not str and not (type(key) is int and 0 <= key < _LARGE_KEY):
                raise InputError("a dict in it has a key that is not a string or a small integer")
        # Nothing but a dict has this method.
        target.update(zip(keys, values[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self.set_items([key, value], self._stack[-1])

    def set_marked_items(self) -> None:
        values = self.pop_marked()
        self.set_items(values, self._stack[-1])

    # -- memo --------------------------------------------------------------------------------------

    def memoize(self, index: int) -> None:
        if len(self._memo) >= _MAX_HEIGHT:
            raise InputError(f"it refers to more than {_MAX_HEIGHT:,} values")
        self._memo[index] = self._stack[-1]

    def recall(self, index: int) -> None:
        self.push(self._memo[index])

    # -- what is refused ---------------------------------------------------------------------------

    def refuse_global(self, module: object, name: object) -> None:
        named = re.sub(r"\s+", " ", f"{module}.{name}") if type(module) is str else "an object"
        raise InputError(f"it names {named[:_MAX_NAME]}, and a snapshot has plain containers only")

    def refuse_opcode(self) -> None:
        opcode = self._data[self._position - 1]
        raise InputError(
            f"it has the opcode {opcode:#04x} at byte {self._position - 1}, "
            "and a snapshot has plain containers only"
        )


def _operations() -> list[Callable[[_PlainUnpickler], object]]:
    """Return the method of each opcode, by its number."""
    m = _PlainUnpickler
    by_name: dict[bytes, Callable[[Any], object]] = {
        b"\x80": lambda x: x.read(1),  # PROTO
        b"\x95": lambda x: x.read(8),  # FRAME
        b"N": lambda x: x.push(None),
        b"\x88": lambda x: x.push(True),
        b"\x89": lambda x: x.push(False),
        b"J": lambda x: x.push_integer(4),  # BININT
        b"K": lambda x: x.push(x.read(1)[0]),  # BININT1
        b"M": lambda x: x.push_object(x.read_size(2)),  # BININT2
        b"\x8a": m.push_long,  # LONG1
        b"G": lambda x: x.push_object(_FLOAT.unpack(x.read(8))[0]),  # BINFLOAT
        b"X": lambda x: x.push_string(x.read_size(4)),  # BINUNICODE
        b"\x8c": lambda x: x.push_string(x.read_size(1)),  # SHORT_BINUNICODE
        b"\x8d": lambda x: x.push_string(x.read_size(8)),  # BINUNICODE8
        b"(": m.mark,
        b"]": lambda x: x.push_container([]),
        b"a": lambda x: x.append([x._stack.pop()]),
        b"e": lambda x: x.append(x.pop_marked()),
        b")": lambda x: x.push(()),
        b"t": lambda x: x.push_container(tuple(x.pop_marked())),
        b"\x85": lambda x: x.push_tuple(1),
        b"\x86": lambda x: x.push_tuple(2),
        b"\x87": lambda x: x.push_tuple(3),
        b"}": lambda x: x.push_container({}),
        b"s": m.set_item,
        b"u": m.set_marked_items,
        b"q": lambda x: x.memoize(x.read(1)[0]),  # BINPUT
        b"r": lambda x: x.memoize(x.read_size(4)),  # LONG_BINPUT
        b"\x94": lambda x: x.memoize(len(x._memo)),  # MEMOIZE
        b"h": lambda x: x.recall(x.read(1)[0]),  # BINGET
        b"j": lambda x: x.recall(x.read_size(4)),  # LONG_BINGET
        b"c": lambda x: x.refuse_global(x.read_line(), x.read_line()),  # GLOBAL
        b"\x93": lambda x: x.refuse_global(x._stack[-2], x._stack[-1]),  # STACK_GLOBAL
    }
    operations: list[Callable[[_PlainUnpickler], object]] = [m.refuse_opcode] * 256
    for name, operation in by_name.items():
        operations[name[0]] = operation
    return operations


_OPERATIONS: Final = _operations()
