"""How long module calls take: forward from start to end, backward node by node, on the host and, apart, on a CUDA device.

A node of the backward pass belongs to the call that made it, so a module's backward time is that of the nodes made in it. What
no module made (the loss, sums of gradients, autograd itself) is the rest, and is never spread over modules.

The device's times are those between events in the stream that a call or node runs in. They are read when the device has passed
them, so nobody waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter_ns
from typing import NamedTuple

import torch

from torchscan.recording.call_tree import Call, is_in_backward_pass
from torchscan.runtime.streams import current_stream
from torchscan.torch_versions import is_capturing

#: in place of a call: what stores gradients of parameters and inputs
LEAVES = -1
_MILLISECOND = 1_000_000


class EventPool:
    """Events of CUDA that are used again and again: making one takes longer than recording it."""

    def __init__(self) -> None:
        #: an event belongs to the device in which it was recorded first
        self._free: dict[torch.device, list[torch.cuda.Event]] = defaultdict(list)

    def record(self) -> torch.cuda.Event:
        """One in the current stream."""
        stream = current_stream()
        free = self._free[stream.device]
        event = free.pop() if free else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def give_back(self, event: torch.cuda.Event) -> None:
        """It has been read."""
        self._free[event.device].append(event)


class Span(NamedTuple):
    """What a call, or a node that it made, took on the device."""

    call: int
    is_forward: bool
    start: torch.cuda.Event
    end: torch.cuda.Event


class StepTimes:
    """The times of one step, in nanoseconds."""

    def __init__(self, pool: EventPool | None = None) -> None:
        #: by index of a call
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        #: what nodes took, by the call that made them
        self.backward: dict[int, int] = defaultdict(int)
        #: of all nodes together
        self.in_nodes = 0
        #: what checkpoints took to compute again, by index of the call that was run again
        self.again: set[int] = set()
        #: each node as it ran: the call that made it, its start and its end
        self.nodes: list[tuple[int, int, int]] = []
        #: on the device, by index of a call, once they are read
        self.device_forward: dict[int, int] = {}
        self.device_backward: dict[int, int] = defaultdict(int)
        #: None: nothing runs on CUDA
        self._pool = pool
        self._open: dict[tuple[int, bool], torch.cuda.Event] = {}
        self._spans: list[Span] = []
        self._first_node = self._last_node = 0
        #: what optimizers took
        self.optimizer = 0
        self._began = self._last = self._over = self._optimizer_start = 0
        #: nanoseconds that were spent on looking, which are nobody's
        self.looking = 0

    def now(self) -> int:
        """The time, on a clock that stands still while anything is looked at."""
        return perf_counter_ns() - self.looking

    def begin(self) -> None:
        """A forward pass of the model begins, perhaps not the first."""
        self._began = self._began or self.now()

    def close(self, *, is_followed: bool) -> None:
        """The step is over; if it ``is_followed`` by another, what was between is known."""
        self._over = self.now() if is_followed else 0

    @property
    def period(self) -> int | None:
        """From the start of this step to that of the next."""
        return self._over - self._began if self._over else None

    @property
    def between(self) -> int | None:
        """Of that, what came after the last thing that was noticed: loading of data, say."""
        return self._over - self._last if self._over else None

    def note_optimizer(self, *, is_start: bool) -> None:
        """An optimizer starts its step, or has ended it."""
        if is_start:
            self._optimizer_start = self.now()
        elif self._optimizer_start:
            self._last = self.now()
            self.optimizer += self._last - self._optimizer_start
            self._optimizer_start = 0

    @property
    def has_begun_backward(self) -> bool:
        """Whether a node has run."""
        return bool(self._first_node)

    @property
    def backward_span(self) -> int:
        """From the start of the first node to the end of the last."""
        return self._last_node - self._first_node

    def note_start(self, call: Call) -> None:
        """A module has started."""
        if is_in_backward_pass():
            self.again.add(call.index)
        self._begin(call.index, is_forward=True)
        self.started[call.index] = self.now()

    def note_end(self, call: Call) -> None:
        """A module has ended."""
        self._last = self.ended[call.index] = self.now()
        self._end(call.index, is_forward=True)

    def note_node_start(self, call: int) -> int:
        """A node starts. The time."""
        self._begin(call, is_forward=False)
        start = self.now()
        self._first_node = self._first_node or start
        return start

    def note_node(self, call: int, start: int, inside: int) -> None:
        """A node has run, and ``inside`` it others, of a backward pass that it has started itself, as a checkpoint may."""
        end = self.now()
        self._end(call, is_forward=False)
        self._last = self._last_node = max(self._last_node, end)
        self.backward[call] += end - start - inside
        self.in_nodes += end - start - inside
        self.nodes.append((call, start, end))

    @property
    def is_on_device(self) -> bool:
        """Whether there are times of a device."""
        return self._pool is not None

    @property
    def is_captured(self) -> bool:
        """Whether what runs on the device now is captured, to be run later."""
        return self._pool is not None and is_capturing()

    # -- on the device -------------------------------------------------------------------------------------------------

    def _begin(self, call: int, *, is_forward: bool) -> None:
        if self._pool is not None:
            self._open[call, is_forward] = self._pool.record()

    def _end(self, call: int, *, is_forward: bool) -> None:
        start = self._open.pop((call, is_forward), None)
        if start is not None and self._pool is not None:
            self._spans.append(Span(call, is_forward, start, self._pool.record()))

    @property
    def is_over(self) -> bool:
        """Whether the device has passed all that was noted."""
        return all(span.end.query() for span in reversed(self._spans))

    def read(self) -> None:
        """Read what the device took, and give the events back. It is waited for if it is not over."""
        for span in self._spans:
            span.end.synchronize()
            took = round(span.start.elapsed_time(span.end) * _MILLISECOND)
            if span.is_forward:
                self.device_forward[span.call] = took
            else:
                self.device_backward[span.call] += took
            for event in (span.start, span.end):
                if self._pool is not None:
                    self._pool.give_back(event)
        self._spans.clear()
