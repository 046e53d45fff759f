"""Snapshots of torch's CUDA allocator: what held the memory, and what would have helped."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.analyses.snapshot_files import SnapshotRecorder
from torchscan import InputError, read_snapshot
from torchscan.types import MemorySnapshot

MIB = 2**20
BASE = 0x7F00_0000_0000
#: a stack of a module's forward pass, as torch writes it
FORWARD = [
    {"name": "forward", "filename": "/p/site-packages/torch/nn/modules/linear.py", "line": 125},
    {"name": "_call_impl", "filename": "/p/site-packages/torch/nn/modules/module.py", "line": 1773},
    {"name": "forward", "filename": "/home/me/model.py", "line": 31},
    {"name": "_call_impl", "filename": "/p/site-packages/torch/nn/modules/module.py", "line": 1773},
    {"name": "<module>", "filename": "/home/me/train.py", "line": 9},
]


def block(
    size: int, *, in_use: bool = True, requested: int | None = None, frames: Any = ()
) -> dict[str, Any]:
    """Return a block of a segment."""
    return {
        "size": size,
        "requested_size": (size if requested is None else requested) if in_use else 0,
        "state": "active_allocated" if in_use else "inactive",
        "frames": list(frames),
    }


def segment(blocks: Sequence[dict[str, Any]], number: int = 0, **values: Any) -> dict[str, Any]:
    """Return a segment with these blocks."""
    return {
        "device": 0,
        "address": BASE + number * 2**32,
        "total_size": sum(each["size"] for each in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
        **values,
    }


def event(
    action: str, size: int, address: int = BASE, frames: Any = None, **values: Any
) -> dict[str, Any]:
    """Return an event of the trace."""
    stack = {} if frames is None else {"frames": list(frames)}
    place = {} if action == "oom" else {"addr": address}
    return {"action": action, "size": size, "stream": 0, **place, **stack, **values}


def read(path: Path, content: object, **options: Any) -> MemorySnapshot:
    """Return what is read from a pickle with this content."""
    path.write_bytes(pickle.dumps(content))
    return read_snapshot(path, **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


def codes(snapshot: MemorySnapshot) -> list[str]:
    return [note.code for note in snapshot.suggestions]


# -- the account of memory -----------------------------------------------------------------------


def test_memory_is_divided_without_a_rest(file: Path) -> None:
    """Reserved: 40 MiB, of which 10 MiB less 100 bytes are requested, and 30 MiB are free."""
    blocks = [
        block(10 * MIB, requested=10 * MIB - 100, frames=FORWARD),
        block(30 * MIB, in_use=False),
    ]
    trace = [event("oom", 64 * MIB, device_free=MIB)]
    found = read(file, {"segments": [segment(blocks)], "device_traces": [trace]}, device="1 GiB")
    assert found.moment == "oom"
    assert (found.requested_bytes, found.rounding_bytes) == (10 * MIB - 100, 100)
    assert (found.free_bytes, found.largest_free_bytes) == (30 * MIB, 30 * MIB)
    assert (found.reserved_bytes, found.failed_bytes) == (40 * MIB, 64 * MIB)
    # 97.5 % of a device's memory can be used
    assert found.capacity_bytes == int(2**30 * 0.975)
    assert found.other_bytes == found.capacity_bytes - MIB - 40 * MIB


def test_free_blocks_are_grouped_by_what_can_use_them(file: Path) -> None:
    segments = [
        segment(
            [block(MIB), block(3 * MIB, in_use=False), block(MIB), block(5 * MIB, in_use=False)]
        ),
        segment([block(MIB), block(7 * MIB, in_use=False)], 1, stream=9),
        segment([block(MIB), block(2 * MIB, in_use=False)], 2, segment_pool_id=(0, 1)),
    ]
    found = read(file, {"segments": segments, "device_traces": []})
    assert [(each.stream, each.pool_id, each.free_bytes) for each in found.free_pools] == [
        (0, (0, 0), 8 * MIB),
        (9, (0, 0), 7 * MIB),
        (0, (0, 1), 2 * MIB),
    ]
    assert found.free_pools[0].largest_free_bytes == 5 * MIB


def test_an_earlier_moment_is_found_by_undoing_events(file: Path) -> None:
    """At the peak there were blocks of 20 and 30 MiB in two segments; the second was released."""
    second = BASE + 2**32
    trace = [
        event("segment_alloc", 40 * MIB),
        event("alloc", 20 * MIB, BASE, FORWARD),
        event("segment_alloc", 30 * MIB, second),
        event("alloc", 30 * MIB, second, FORWARD),
        event("free_requested", 30 * MIB, second),
        event("free_completed", 30 * MIB, second),
        event("segment_free", 30 * MIB, second),
    ]
    blocks = [block(20 * MIB, frames=FORWARD), block(20 * MIB, in_use=False)]
    content = {"segments": [segment(blocks)], "device_traces": [trace]}
    peak = read(file, content)
    assert (peak.moment, peak.requested_bytes, peak.reserved_bytes) == ("peak", 50 * MIB, 70 * MIB)
    assert peak.free_bytes == 20 * MIB
    assert peak.bytes_by_moment == {"peak": 50 * MIB, "end": 20 * MIB}
    end = read(file, content, moment="end")
    assert (end.requested_bytes, end.reserved_bytes) == (20 * MIB, 40 * MIB)


def test_blocks_of_an_expandable_segment_are_undone_by_page(file: Path) -> None:
    trace = [
        event("segment_map", 20 * MIB, BASE),
        event("alloc", 20 * MIB, BASE, FORWARD),
        event("oom", 60 * MIB, device_free=0),
        event("segment_map", 20 * MIB, BASE + 20 * MIB),
        event("alloc", 20 * MIB, BASE + 20 * MIB, FORWARD),
    ]
    blocks = [block(20 * MIB, frames=FORWARD), block(20 * MIB, frames=FORWARD)]
    segments = [segment(blocks, is_expandable=True)]
    found = read(file, {"segments": segments, "device_traces": [trace]})
    assert (found.requested_bytes, found.reserved_bytes, found.free_bytes) == (
        20 * MIB,
        20 * MIB,
        0,
    )


def test_blocks_that_wait_for_another_stream_are_in_use(file: Path) -> None:
    for state in ("active_pending_free", "active_awaiting_free"):
        waiting = {**block(4 * MIB, frames=FORWARD), "state": state}
        found = read(file, {"segments": [segment([waiting])], "device_traces": []})
        assert found.requested_bytes == 4 * MIB
        assert "snapshot-pending" in [note.code for note in found.notes]


def test_the_gpu_whose_request_failed_is_read(file: Path) -> None:
    segments = [segment([block(8 * MIB)]), segment([block(2 * MIB)], 1, device=1)]
    content = {"segments": segments, "device_traces": [[], [event("oom", 64 * MIB, device_free=0)]]}
    found = read(file, content)
    assert (found.device, found.requested_bytes) == (1, 2 * MIB)
    assert "cuda:0, has 8.00 MiB" in str(found)
    assert read(file, content, device="cuda:0").requested_bytes == 8 * MIB


# -- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_binary_protocol_of_pickle_is_read(file: Path, protocol: int) -> None:
    content = {"segments": [segment([block(MIB, frames=FORWARD)])], "device_traces": [[]]}
    file.write_bytes(pickle.dumps(content, protocol))
    assert read_snapshot(file).requested_bytes == MIB


def test_json_and_segments_alone_are_read(file: Path) -> None:
    segments = [segment([block(MIB, frames=FORWARD)])]
    for content in ({"segments": segments, "device_traces": [[]]}, segments):
        file.write_text("\ufeff\n" + json.dumps(content), encoding="utf-8")
        assert read_snapshot(file).held[0].place == "model.py:31 forward (linear)"


def test_stacks_of_old_versions_are_read(file: Path) -> None:
    old = {
        "size": MIB,
        "state": "active_allocated",
        "history": [{"addr": BASE, "real_size": MIB, "frames": FORWARD}],
    }
    found = read(file, [segment([old])])
    assert found.held[0].place == "model.py:31 forward (linear)"


def test_forward_frames_name_the_code_of_a_backward_pass(file: Path) -> None:
    formatted = [
        '  File "/home/me/train.py", line 9, in <module>\n    x\n',
        '  File "/home/me/model.py", line 31, in forward\n    y\n',
    ]
    trace = [{**event("alloc", MIB, BASE, []), "forward_frames": formatted}]
    found = read(file, {"segments": [segment([block(MIB)])], "device_traces": [trace]})
    assert (found.held[0].kind, found.held[0].place) == ("backward", "model.py:31 forward")


# -- hostile and broken files --------------------------------------------------------------------


class _Call:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    proof = tmp_path / "called"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        file = tmp_path / "snapshot.pickle"
        call = _Call(os.mkdir, str(proof))
        file.write_bytes(pickle.dumps({"segments": [], "device_traces": call}, protocol))
        with pytest.raises(InputError, match=r"it names \w+.mkdir, and a snapshot has plain"):
            read_snapshot(file)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a complete pickle"),
        (b".", "not a complete pickle"),
        (b"\x80\x04]\x8d" + b"\xff" * 8, "not a complete pickle"),  # a string of 2^64 bytes
        (b"\x80\x04]r\xff\xff\xff\xff.", "segments|missing|"),  # a memo of 2^32 entries
        (b"(" * 100, "nests more than"),
        (b"I" + b"9" * 10_000 + b"\n.", "has the opcode 0x49"),  # a number as text
        (b"\x1f\x8b\x08\x00", "it is compressed by gzip, so decompress it first"),
        (b"\x80\x04)\x85\x94" * 10 + b"}h\x00K\x01s.", "not a complete pickle|key"),
        (b"\x80\x04}()\x85K\x01u.", "a key that is not"),
        # 2**61 - 1: the hash of all its multiples is zero
        (b"\x80\x04}(\x8a\x08" + (2**61 - 1).to_bytes(8, "little") + b"Nu.", "a key that is not"),
        (b"\x80\x04}(J\xff\xff\xff\xffNu.", "a key that is not"),  # -1
        (b"\x80\x04\x82\x01.", "opcode 0x82"),  # an object of the extension registry
        (b'{"segments": ' + b"[" * 100_000, "is not JSON"),
        (b"[NaN, {}]", "is a float instead of a dict"),
        (pickle.dumps([1]), "is a int instead of a dict"),
        (pickle.dumps({"segments": {}}), "segments is a dict instead of a list"),
        (pickle.dumps({}), "segments is missing"),
        (pickle.dumps([segment([block(-1)])]), "size is negative"),
        (pickle.dumps([segment([], address="0")]), "address is not an integer"),
        (pickle.dumps([segment([{**block(1), "state": []}])]), "state is not one of"),
        (pickle.dumps([segment([{**block(1), "frames": [{}]}])]), "has no name, filename and line"),
        (pickle.dumps([segment([], segment_pool_id=(1,))]), "not a pair of integers"),
    ],
)
def test_broken_files_are_refused_in_one_line(file: Path, data: bytes, reason: str) -> None:
    file.write_bytes(data)
    if data.startswith(b"\x80\x04]r"):  # a memo with one entry at a large index is harmless
        assert read_snapshot(file).requested_bytes == 0
        return
    with pytest.raises(InputError, match=reason) as caught:
        read_snapshot(file)
    assert "\n" not in str(caught.value)


def test_a_list_that_is_referred_to_twice_is_refused(file: Path) -> None:
    one = segment([block(1)])
    with pytest.raises(InputError, match=r"segments\[1\].blocks is the same list as another"):
        read(file, [one, {**one}])


def assert_read_or_refused(file: Path) -> None:
    refused = ""
    try:
        str(read_snapshot(file))
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused


def test_damaged_files_raise_nothing_but_input_errors(file: Path) -> None:
    trace = [event("alloc", MIB, BASE, FORWARD), event("oom", MIB, device_free=0)]
    content = {"segments": [segment([block(MIB, frames=FORWARD)])], "device_traces": [trace]}
    chance = random.Random(0)  # noqa: S311 - damage that is the same in each run
    for protocol in (2, 4):
        data = pickle.dumps(content, protocol)
        for _ in range(100):
            damaged = bytearray(
                data[: chance.randrange(len(data))] if chance.random() < 0.3 else data
            )
            for _ in range(chance.randrange(1, 4)):
                if damaged:
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            file.write_bytes(damaged)
            assert_read_or_refused(file)


def test_values_of_any_type_raise_nothing_but_input_errors(file: Path) -> None:
    content: dict[str, Any] = {
        "segments": [segment([block(MIB, frames=FORWARD)])],
        "device_traces": [[event("alloc", MIB, BASE, FORWARD), event("free_completed", MIB)]],
    }
    text = json.dumps(content)
    for key in sorted(
        {
            *content["segments"][0],
            *content["segments"][0]["blocks"][0],
            *content["device_traces"][0][0],
            *content,
            *FORWARD[0],
        }
    ):
        for value in ("null", "-1", "1e30", "[]", "{}", '"x"', "[[]]", "true", "9" * 30):
            start = text.find(f'"{key}": ')
            while start >= 0:
                decoder = json.JSONDecoder()
                begin = start + len(key) + 4
                _, end = decoder.raw_decode(text, begin)
                file.write_text(text[:begin] + value + text[end:])
                assert_read_or_refused(file)
                start = text.find(f'"{key}": ', begin)


def test_arguments_that_do_not_fit_the_snapshot_are_refused(file: Path) -> None:
    content = [segment([block(MIB)])]
    with pytest.raises(InputError, match="moment is 'peak', and no events were recorded"):
        read(file, content, moment="peak")
    with pytest.raises(InputError, match="moment is 'oom', and no failed request was recorded"):
        read(file, content, moment="oom")
    with pytest.raises(InputError, match="choose from 'oom', 'peak', 'end'"):
        read(file, content, moment="start")
    with pytest.raises(InputError, match="device is 'cuda:3', of which the snapshot has nothing"):
        read(file, content, device="cuda:3")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_snapshot(file.with_name("other"))


# -- owners of blocks, in real steps ---------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.up(x))
        return x + self.down(inner)


class Model(nn.Module):
    def __init__(self, *, checkpoints: bool = False, width: int = 32, classes: int = 64) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.layers = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(x)


@contextmanager
def until_out_of_memory(recorder: SnapshotRecorder) -> Iterator[None]:
    with pytest.raises(torch.OutOfMemoryError), recorder:
        yield


def train(
    model: nn.Module, steps: int = 3, *, kept: list[Tensor] | None = None, rows: int = 2048
) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        output = model(torch.zeros(rows, 32))
        if kept is not None:
            kept.append(output)
        loss = nn.functional.cross_entropy(output, torch.zeros(rows, dtype=torch.long))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def sizes_by_kind_and_path(snapshot: MemorySnapshot) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = {}
    for held in snapshot.held:
        key = held.kind, held.path
        sizes[key] = sizes.get(key, 0) + held.size
    return sizes


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_what_a_step_holds_is_attributed_to_modules(tmp_path: Path, stacks: Any) -> None:
    """The peak is in the backward pass, when all that the forward pass kept is there."""
    recorder = SnapshotRecorder(stacks=stacks)
    with recorder:
        model = Model()
        optimizer = train(model)
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), model)
    assert optimizer.state
    sizes = sizes_by_kind_and_path(found)
    # 2,048 rows of 128 numbers (relu) for each block, and of 32 numbers, the inputs of two blocks:
    # the input of the head is freed when its gradients are computed
    assert sizes["activations", "layers.*"] == 2048 * (3 * 128 + 2 * 32) * 4
    num_parameters = 3 * (32 * 128 + 128 + 128 * 32 + 32) + 32 * 64 + 64
    assert found.by_kind["parameters"] == num_parameters * 4
    # two moments of each parameter; the counters of steps stay on the CPU
    assert found.by_kind["optimizer"] == num_parameters * 8
    assert found.by_kind["backward"] >= 2048 * 64 * 4
    assert sum(found.by_kind.values()) == found.requested_bytes
    assert "snapshot-activations" in codes(found)
    end = read_snapshot(tmp_path / "snapshot.pickle", model, moment="end")
    assert end.by_kind["optimizer"] == num_parameters * 8
    assert codes(end) == ["snapshot-optimizer"]


def test_a_snapshot_without_forward_passes_is_of_no_other_model(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    with recorder:
        model = Model()  # its construction alone
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), model)
    assert "snapshot-other-model" not in codes(found)


def test_a_failed_request_is_explained(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(capacity=6 * MIB, device_bytes=6 * MIB)
    with until_out_of_memory(recorder):
        train(Model())
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), Model())
    assert found.moment == "oom"
    assert found.failed_bytes is not None
    assert found.requested_bytes + found.failed_bytes > found.reserved_bytes - found.free_bytes
    assert "cuda:0: a request of " in str(found)
    assert found.held[0].kind == "activations"
    assert found.held[0].path.startswith("layers.")


def test_stacks_are_needed_for_places(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(stacks=None)
    with recorder:
        train(Model(), 1)
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"))
    assert list(found.by_kind) == ["unknown"]
    assert [note.code for note in found.notes] == ["snapshot-no-stacks"]


@pytest.mark.parametrize("blocks", [[], [block(2 * MIB, in_use=False)]])
def test_nothing_is_in_use_after_the_cache_was_emptied(
    file: Path, blocks: list[dict[str, Any]]
) -> None:
    found = read(file, [segment(blocks)])
    assert (found.requested_bytes, found.held, found.notes) == (0, (), ())
    assert "Tensors and workspaces  0 B" in found.to_text()
    for text in (found.to_markdown(), found.to_latex(), found.to_html(), found.to_csv()):
        assert text


def test_what_was_allocated_before_the_recording_is_unknown(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    with recorder:
        model = Model()
        before = len(recorder.snapshot()["device_traces"][0])
        train(model, 2)
    content = recorder.snapshot()
    weights = sum(each.numel() * 4 for each in model.parameters())
    del content["device_traces"][0][:before]
    for each in content["segments"]:
        for inner in each["blocks"]:
            if any(frame["name"] == "__init__" for frame in inner["frames"]):
                inner["frames"] = []
    found = read(tmp_path / "snapshot.pickle", content)
    assert found.by_kind["unknown"] == weights


def test_recomputed_activations_are_told_apart(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    with recorder:
        model = Model(checkpoints=True)
        train(model, 2)
    content = recorder.snapshot()
    # the state after the first product that is recomputed, of the last block
    events = content["device_traces"][0]
    names = [{each["name"] for each in one.get("frames", ())} for one in events]
    first = next(index for index, each in enumerate(names) if "recompute_fn" in each)
    frames = events[first]["frames"]
    events.insert(first + 1, event("oom", 64 * MIB, device_free=0, frames=frames))
    found = read(tmp_path / "snapshot.pickle", content, model=model)
    sizes = sizes_by_kind_and_path(found)
    assert sizes["recomputed", "layers.*.up"] == 2048 * 128 * 4
    # kept by the forward pass: the inputs of two blocks
    assert sizes["activations", "layers.*"] == 2 * 2048 * 32 * 4


def test_paths_of_modules_follow_the_names_in_the_code(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    kept: list[Tensor] = []
    with recorder:
        model = Model()
        train(model, 1, kept=kept)
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), model, moment="end")
    held = {each.path: each for each in found.held if each.kind == "activations"}
    assert held["head"].size == 2048 * 64 * 4
    assert held["head"].stack[0].endswith("forward")


# -- suggestions -----------------------------------------------------------------------------------


def failing(size: int, device_free: int = 0, **values: Any) -> list[list[dict[str, Any]]]:
    return [[event("oom", size, device_free=device_free, frames=FORWARD, **values)]]


def fragmented(free: int, number: int) -> list[dict[str, Any]]:
    return [segment([block(2 * MIB), block(free, in_use=False)], each) for each in range(number)]


@pytest.mark.parametrize(
    ("free", "number", "request_size", "expected"),
    [
        (60 * MIB, 3, 128 * MIB, "snapshot-fragmented"),  # 3 × 3 pages of 20 MiB
        (30 * MIB, 4, 100 * MIB, "snapshot-fragmented-finely"),  # 120 MiB, but 4 pages
        (30 * MIB, 3, 100 * MIB, None),  # 90 MiB
    ],
)
def test_fragmentation_is_what_expandable_segments_solve(
    file: Path, free: int, number: int, request_size: int, expected: str | None
) -> None:
    segments = fragmented(free, number)
    found = read(file, {"segments": segments, "device_traces": failing(request_size)})
    assert [each for each in codes(found) if "fragmented" in each] == [expected] * bool(expected)
    settings = {"expandable_segments": True}
    content = {
        "segments": segments,
        "device_traces": failing(request_size),
        "allocator_settings": settings,
    }
    assert not [each for each in codes(read(file, content)) if "fragmented" in each]


def test_free_blocks_of_other_streams_and_graphs_are_named(file: Path) -> None:
    other = [segment([block(MIB), block(50 * MIB, in_use=False)], 0, stream=7)]
    found = read(file, {"segments": other, "device_traces": failing(40 * MIB)})
    assert codes(found) == ["snapshot-other-streams"]
    private = [segment([block(MIB), block(50 * MIB, in_use=False)], 0, segment_pool_id=(0, 3))]
    found = read(file, {"segments": private, "device_traces": failing(40 * MIB)})
    assert codes(found) == ["snapshot-private-pools"]


def test_limits_and_memory_outside_of_torch_are_named(file: Path) -> None:
    segments = [segment([block(100 * MIB)])]
    found = read(file, {"segments": segments, "device_traces": failing(30 * MIB, 200 * MIB)})
    assert codes(found) == ["snapshot-process-limit"]
    content = {"segments": segments, "device_traces": failing(30 * MIB)}
    found = read(file, content, device="1 GiB")
    assert codes(found) == ["snapshot-not-torch"]
    assert found.suggestions[0].values["saves"] == int(2**30 * 0.975) - 100 * MIB


def test_free_memory_of_the_device_is_not_that_of_others(file: Path) -> None:
    """100 MiB are reserved by torch and 10 MiB are free, which a request of 30 MiB does not fit."""
    segments = [segment([block(100 * MIB)])]
    content = {"segments": segments, "device_traces": failing(30 * MIB, 10 * MIB)}
    found = read(file, content, device="1 GiB")
    (suggestion,) = found.suggestions
    assert suggestion.code == "snapshot-not-torch"
    assert suggestion.values["saves"] == int(2**30 * 0.975) - 110 * MIB


def test_logits_are_known_by_the_size_of_the_loss(file: Path) -> None:
    """The loss has 64 MiB, and the output of the last layer half of it, in 16 bits."""
    loss = [
        {"name": "cross_entropy", "filename": "/p/torch/nn/functional.py", "line": 3500},
        FORWARD[-1],
    ]
    blocks = [
        block(32 * MIB, frames=FORWARD),
        block(64 * MIB, frames=loss),
        block(20 * MIB, frames=FORWARD),
    ]
    found = read(file, {"segments": [segment(blocks)], "device_traces": failing(64 * MIB)})
    assert found.by_kind == {"loss": 64 * MIB, "activations": 52 * MIB}
    assert codes(found) == ["snapshot-logits"]
    (suggestion,) = found.suggestions
    assert suggestion.values["size"] == 96 * MIB
    counted = "counted as 64.00 MiB of loss and 32.00 MiB of activations"
    assert f"logits and the loss hold 96.00 MiB (83 %), {counted}" in str(suggestion)


def test_activations_of_a_suggestion_are_told_from_logits(file: Path) -> None:
    """Activations of 130 MiB include logits of 40 MiB, which a fused loss would save."""
    loss = [
        {"name": "cross_entropy", "filename": "/p/torch/nn/functional.py", "line": 3500},
        FORWARD[-1],
    ]
    layers = [block(30 * MIB, frames=FORWARD) for _ in range(3)]
    blocks = [*layers, block(40 * MIB, frames=FORWARD), block(40 * MIB, frames=loss)]
    traces = failing(40 * MIB)
    found = read(file, {"segments": [segment(blocks)], "device_traces": traces})
    assert found.by_kind == {"activations": 130 * MIB, "loss": 40 * MIB}
    activations = next(each for each in found.suggestions if each.code == "snapshot-activations")
    assert "activations other than logits hold 90.00 MiB (53 %)" in str(activations)


def test_layers_are_sharded_in_smaller_groups_if_gathered_parameters_hold_most(file: Path) -> None:
    gather = {
        "name": "unshard",
        "filename": "/p/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        "line": 280,
    }
    blocks = [block(30 * MIB, frames=[gather, *FORWARD]), block(10 * MIB, frames=FORWARD)]
    found = read(file, {"segments": [segment(blocks)], "device_traces": failing(64 * MIB)})
    assert found.by_kind == {"gathered": 30 * MIB, "activations": 10 * MIB}
    (suggestion,) = found.suggestions
    assert str(suggestion) == (
        "sharding smaller groups of layers, or resharding after the forward pass: all-gathered "
        "parameters hold 30.00 MiB (75 %)"
    )


def test_logits_of_one_kind_are_not_divided(file: Path) -> None:
    """Nothing but the loss has its size, or half of it."""
    loss = {"name": "cross_entropy", "filename": "/p/torch/nn/functional.py", "line": 3500}
    blocks = [block(30 * MIB, frames=[loss, FORWARD[-1]]), block(10 * MIB, frames=FORWARD)]
    found = read(file, {"segments": [segment(blocks)], "device_traces": failing(30 * MIB)})
    (suggestion,) = found.suggestions
    assert str(suggestion).endswith("logits and the loss hold 30.00 MiB (75 %)")


def test_a_model_that_a_loss_function_calls_is_not_the_loss(file: Path) -> None:
    """Trainers call the model in a function such as ``compute_loss``."""
    caller = {"name": "compute_loss", "filename": "/p/transformers/trainer.py", "line": 3800}
    product = {"name": "cross_entropy", "filename": "/p/torch/nn/functional.py", "line": 3500}
    blocks = [
        block(MIB, frames=[*FORWARD[:4], caller, FORWARD[-1]]),
        block(2 * MIB, frames=[product, caller, FORWARD[-1]]),
        block(4 * MIB, frames=[product, *FORWARD[2:4], caller, FORWARD[-1]]),
    ]
    found = read(file, [segment(blocks)])
    assert found.by_kind == {"loss": 6 * MIB, "activations": MIB}


def test_tensors_that_are_kept_from_step_to_step_are_a_leak(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    kept: list[Tensor] = []
    with recorder:
        train(Model(), 5, kept=kept)
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), moment="end")
    (leak,) = [note for note in found.suggestions if note.code == "snapshot-leak"]
    # the outputs of the steps before the last one
    assert (leak.values["blocks"], leak.values["steps"]) == (4, 4)
    assert leak.values["saves"] == 4 * 2048 * 64 * 4
    assert "test_memory_snapshot.py" in str(leak)


def test_gradients_are_in_the_way_of_the_next_forward_pass(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    with recorder:
        model = Model(width=32)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            model(torch.zeros(4, 32)).sum().backward()
            optimizer.step()
        output = model(torch.zeros(4, 32))
    snapshot = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"), moment="end")
    assert snapshot.by_kind["gradients"] == sum(each.numel() * 4 for each in model.parameters())
    assert output.requires_grad


# -- output --------------------------------------------------------------------------------------


def test_every_format_shows_the_result(tmp_path: Path) -> None:
    recorder = SnapshotRecorder()
    with recorder:
        train(Model(), 2)
    found = read_snapshot(recorder.dump(tmp_path / "snapshot.pickle"))
    for width in (50, 80):
        text = found.to_text(width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "Would help: " in text
    assert json.loads(found.to_json())["held"][0]["stack"]
    num_rows = len(found.to_csv().splitlines())
    assert num_rows == 1 + len(found.held)
    assert "Would help" in found.to_markdown()
    assert "Would help" in found.to_html()
