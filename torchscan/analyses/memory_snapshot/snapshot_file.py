"""Files with a snapshot of torch's CUDA allocator, read and checked.

``torch.cuda.memory._dump_snapshot`` pickles a dict of segments, with the blocks in each, and of one
trace per GPU, with the events of the allocator. Keys differ between versions of torch, so keys that
are not needed are optional here. The parser does not recurse, and visits no list of entries twice,
because a small pickle may refer to the same list very often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from torchscan.analyses.memory_snapshot.plain_pickle import load_plain
from torchscan.analyses.memory_snapshot.snapshot_data import (
    BlockState,
    Frame,
    Origin,
    Segment,
    SegmentBlock,
    SnapshotData,
    TraceEvent,
)
from torchscan.errors import InputError
from torchscan.files import shortened

#: bytes of a file
_MAX_BYTES: Final = 2**29
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
#: what may stand before JSON
_BEFORE_JSON: Final = (b" ", b"\t", b"\r", b"\n", _BYTE_ORDER_MARK[:1])
#: segments, blocks and events, at most
_MAX_ENTRIES: Final = 2**22
#: brackets and commas in JSON, at most, which bound the memory that its values take
_MAX_BRACKETS, _MAX_COMMAS = 2**24, 2**26
#: frames of a stack, from the innermost on; torch's own stacks have up to some 200
_MAX_FRAMES: Final = 1024
#: characters of a name, and of the end of a path
_MAX_TEXT: Final = 1024
#: integers of 64 bits, with or without a sign
_MAX_INTEGER: Final = 2**64
#: where a snapshot file comes from, in errors
_ADVICE: Final = "give a file that torch.cuda.memory._dump_snapshot() wrote"
#: a frame of ``traceback.format_stack``, as ``forward_frames`` has them
_FORMATTED_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')

#: names of a state in the documentation of torch and in its code
_STATES: Mapping[str, BlockState] = {
    "active_awaiting_free": "active_pending_free",
    **{state: state for state in get_args(BlockState)},
}
Entry = TypeVar("Entry")


def read_snapshot_file(path: Path) -> SnapshotData:
    """Return the content of a file, or raise an InputError that names the file."""
    if path.exists() and not path.is_file():  # reading it may never end
        raise InputError(f"{shortened(str(path))} is not a file: {_ADVICE}")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the snapshot {shortened(str(path))} cannot be read: {reason}") from error
    try:
        return parse_snapshot(_load(data))
    except InputError as error:
        raise InputError(
            f"{shortened(str(path))} is not a snapshot of torch's memory: {error}: {_ADVICE}"
        ) from error


def parse_snapshot(content: Any) -> SnapshotData:
    """Check and return the content of the result of ``torch.cuda.memory._snapshot()``."""
    return _SnapshotParser().snapshot(content)


def _load(data: bytes) -> Any:
    if len(data) > _MAX_BYTES:
        raise InputError("it is larger than 512 MiB, so record with max_entries=100_000")
    if data[:1] in _BEFORE_JSON:
        data = data.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if data[:1] not in (b"{", b"["):
        return load_plain(data)
    if data.count(b"{") + data.count(b"[") > _MAX_BRACKETS or data.count(b",") > _MAX_COMMAS:
        raise InputError(f"it has more than {_MAX_BRACKETS:,} lists and objects")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError("it begins as JSON and is not JSON") from error


class _SnapshotParser:
    """Checks the types of a snapshot's values, and shares equal frames and stacks."""

    def __init__(self) -> None:
        self._num_entries = 0
        #: identities of the lists of segments, blocks and events, which the content keeps alive
        self._lists: set[int] = set()
        self._frames: dict[Frame, Frame] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        #: by identity of the lists, which the content keeps alive
        self._origins: dict[tuple[int, int], Origin] = {}
        self._origins_by_value: dict[Origin, Origin] = {}
        self._frame_by_identity: dict[int, Frame] = {}

    def snapshot(self, content: Any) -> SnapshotData:
        """Return the content; a list is that of segments alone."""
        if type(content) is list:
            content = {"segments": content}
        if type(content) is not dict:
            raise InputError(f"it is a {type(content).__name__}")
        segments = self._entries(content, "segments", "", self._segment)
        traces = []
        for index, trace in enumerate(_list_of(content.get("device_traces", []), "device_traces")):
            where = f"device_traces[{index}]"
            events = {where: _list_of(trace, where)}
            traces.append(self._entries(events, where, "", self._event))
        settings = content.get("allocator_settings", {})
        return SnapshotData(
            segments=segments,
            traces=tuple(traces),
            settings=settings if type(settings) is dict else {},
        )

    def _entries(
        self,
        owner: dict[Any, Any],
        key: str,
        prefix: str,
        parse: Callable[[dict[Any, Any], str], Entry],
    ) -> tuple[Entry, ...]:
        name = f"{prefix}{key}"
        if key not in owner:
            raise InputError(f"{name} is missing")
        entries = _list_of(owner[key], name)
        if entries and id(entries) in self._lists:
            raise InputError(f"{name} is the same list as another")
        self._lists.add(id(entries))
        self._num_entries += len(entries)
        if self._num_entries > _MAX_ENTRIES:
            raise InputError(f"it has more than {_MAX_ENTRIES:,} blocks and events")
        return tuple(
            parse(_dict_of(each, name, index), f"{name}[{index}].")
            for index, each in enumerate(entries)
        )

    def _segment(self, entry: dict[Any, Any], where: str) -> Segment:
        kind = entry.get("segment_type", "large")
        if kind not in ("small", "large"):
            raise InputError(f"{where}segment_type is not 'small' or 'large'")
        address = _integer(entry, "address", where)
        self._next_address = address
        return Segment(
            device=_integer(entry, "device", where, 0),
            address=address,
            total_size=_size(entry, "total_size", where),
            stream=_integer(entry, "stream", where, 0),
            is_small=kind == "small",
            pool_id=_pool_id(entry.get("segment_pool_id", (0, 0)), f"{where}segment_pool_id"),
            is_expandable=entry.get("is_expandable") is True,
            blocks=self._entries(entry, "blocks", where, self._block),
        )

    def _block(self, entry: dict[Any, Any], where: str) -> SegmentBlock:
        size = _size(entry, "size", where)
        given = entry.get("state")
        state = _STATES.get(given) if type(given) is str else None
        if state is None:
            raise InputError(f"{where}state is not one of {', '.join(get_args(BlockState))}")
        address = self._next_address
        self._next_address += size
        requested = _size(entry, "requested_size", where, size)
        return SegmentBlock(address, size, min(requested, size), state, self._origin(entry, where))

    def _event(self, entry: dict[Any, Any], where: str) -> TraceEvent:
        action = entry.get("action")
        if type(action) is not str:
            raise InputError(f"{where}action is not a string")
        is_oom = action == "oom"
        address = 0
        if not is_oom:
            address = _integer(entry, "addr", where, 0)
        size = _size(entry, "size", where, 0)
        stream = _integer(entry, "stream", where, 0)
        device_free = None
        if is_oom:
            device_free = _size(entry, "device_free", where, 0)
        pool_id = _pool_id(entry.get("pool_id", (0, 0)), f"{where}pool_id")
        origin = None
        if "frames" in entry:
            origin = self._origin(entry, where)
        return TraceEvent(action, address, size, stream, device_free, pool_id, origin)

    # -- stacks ------------------------------------------------------------------------------------

    def _origin(self, entry: dict[Any, Any], where: str) -> Origin:
        frames = entry.get("frames", [])
        if not frames and type(entry.get("history")) is list and entry["history"]:
            (oldest, *_) = entry["history"]  # before torch 2.1
            frames = _dict_of(oldest, f"{where}history", 0).get("frames", [])
        forward = entry.get("forward_frames", ())
        key = (id(frames), id(forward))
        known = self._origins.get(key)
        if known is None:
            origin = Origin(
                self._share_stack(self._parsed_frames(frames, f"{where}frames")),
                self._share_stack(_formatted_frames(forward, f"{where}forward_frames")),
            )
            known = self._origins_by_value.setdefault(origin, origin)
            # JSON repeats every list, so that identities of short-lived ones say nothing
            if frames and type(frames) is list:
                self._origins[key] = known
        return known

    def _share_stack(self, frames: Iterator[Frame]) -> tuple[Frame, ...]:
        stack = tuple(self._frames.setdefault(frame, frame) for frame in frames)
        return self._stacks.setdefault(stack, stack)

    def _parsed_frames(self, frames: Any, where: str) -> Iterator[Frame]:
        for index, entry in enumerate(_list_of(frames, where)[:_MAX_FRAMES]):
            known = self._frame_by_identity.get(id(entry))
            if known is None:
                frame = _dict_of(entry, where, index)
                name, filename = frame.get("name"), frame.get("filename")
                line = frame.get("line", 0)
                if type(name) is not str or type(filename) is not str or type(line) is not int:
                    raise InputError(f"{where}[{index}] has no name, filename and line")
                known = Frame(name[:_MAX_TEXT], filename[-_MAX_TEXT:], line)
                self._frame_by_identity[id(entry)] = known
            yield known


def _formatted_frames(lines: Any, where: str) -> Iterator[Frame]:
    """Yield frames of a formatted stack, which has the innermost last."""
    for line in reversed(_list_of(lines, where)[:_MAX_FRAMES]):
        match = _FORMATTED_FRAME.search(line[:_MAX_TEXT]) if type(line) is str else None
        if match is not None:
            filename, number, name = match.groups()
            yield Frame(name, filename, int(number[:9]))


def _list_of(value: Any, where: str) -> list[Any] | tuple[Any, ...]:
    if type(value) not in (list, tuple):
        raise InputError(f"{where} is a {type(value).__name__} instead of a list")
    entries: list[Any] | tuple[Any, ...] = value
    return entries


def _dict_of(value: Any, where: str, index: int) -> dict[Any, Any]:
    if type(value) is not dict:
        raise InputError(f"{where}[{index}] is a {type(value).__name__} instead of a dict")
    entry: dict[Any, Any] = value
    return entry


def _integer(entry: dict[Any, Any], key: str, where: str, default: int | None = None) -> int:
    value = entry.get(key, default)
    if type(value) is not int or abs(value) > _MAX_INTEGER:
        raise InputError(f"{where}{key} is not an integer")
    return value


def _size(entry: dict[Any, Any], key: str, where: str, default: int | None = None) -> int:
    value = _integer(entry, key, where, default)
    if value < 0:
        raise InputError(f"{where}{key} is negative")
    return value


def _pool_id(value: Any, where: str) -> tuple[int, int]:
    if type(value) in (list, tuple) and len(value) == 2:
        first, second = value
        if type(first) is int and type(second) is int:
            return first, second
    raise InputError(f"{where} is not a pair of integers")
