"""Times of module calls: forward from start to end, backward node by node.

They are taken on the host and, separately, on a CUDA device. A node of the backward pass belongs to
the call that created it, so a module's backward time is that of the nodes created in it. The rest
(the loss, sums of gradients, autograd itself) belongs to no module and is never spread over
modules.

The time of torchscan's own checks belongs to no call: the clock stands still meanwhile.
"""

from __future__ import annotations

import gc
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, time_ns

from torchscan.inspecting.device_times import DeviceTimes
from torchscan.recording.call_threads import is_in_backward_pass
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import is_capturing, place_in_group

#: in place of a call: what stores gradients of parameters and inputs
LEAVES = -1


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep Python's garbage collector from running inside the context.

    Thousands of objects that are soon freed would set off collections, also of all objects of the
    process, which take longer than a training step.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class StepTimes:
    """The times of one step, in nanoseconds."""

    def __init__(self, device: DeviceTimes | None = None) -> None:
        #: by index of a call
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        #: what nodes took, by the call that made them
        self.backward: dict[int, int] = defaultdict(int)
        #: of all nodes together
        self.in_nodes = 0
        #: what checkpoints took to compute again, by index of the call that was run again
        self.again: set[int] = set()
        #: three numbers for each node as it ran: the call that made it, its start and its end.
        #: Arrays, not tuples, of which thousands would set off garbage collections
        self._nodes = array("q")
        #: nodes that only move values and are not timed
        self.num_untimed = 0
        #: None: nothing runs on CUDA
        self.device = device
        self._first_node = self._last_node = 0
        #: what optimizers took
        self.optimizer = 0
        self._began = self._last = self._over = self._optimizer_start = 0
        #: nanoseconds that were spent on looking, which are nobody's, and when the looking that
        #: goes on began
        self.looking = self._looking_since = 0
        #: two numbers for each time that looking ended: when, and how much there had been by then;
        #: they are needed to compare the times of ranks
        self._looked_until = array("q")
        self._keeps_looks = place_in_group() is not None
        #: when it began and was over, in nanoseconds since 1970
        self.began_at = self.over_at = 0

    def now(self) -> int:
        """The time, on a clock that stands still while anything is looked at."""
        return (self._looking_since or perf_counter_ns()) - self.looking

    @property
    def is_looking(self) -> bool:
        """True while the clock stands still."""
        return self._looking_since != 0

    def begin_looking(self, start: int = 0) -> int:
        """Exclude time from ``start`` on, or from now on, and return that moment."""
        self._looking_since = start or perf_counter_ns()
        return self._looking_since

    def end_looking(self, start: int) -> None:
        """Until now."""
        end = perf_counter_ns()
        self.looking += end - start
        self._looking_since = 0
        if self._keeps_looks:
            self._looked_until.extend((end, self.looking))

    @contextmanager
    def stand_still(self) -> Iterator[None]:
        """Exclude the time inside the context, unless what surrounds it is excluded."""
        if self.is_looking:
            yield
            return
        start = self.begin_looking()
        try:
            yield
        finally:
            self.end_looking(start)

    @property
    def looked(self) -> Sequence[tuple[int, int]]:
        """Return when looking ended, and how much there had been by then."""
        numbers = self._looked_until
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    @property
    def nodes(self) -> Sequence[tuple[int, int, int]]:
        """Return the call that made each node, its start and end, in the order of running."""
        numbers = self._nodes
        return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes that have run, or 0 without a backward pass."""
        return len(self._nodes) // 3 + self.num_untimed if self._nodes else 0

    @contextmanager
    def as_overhead(self) -> Iterator[None]:
        """Exclude the device's work inside the context, too."""
        if self.device is None:
            yield
            return
        self.device.begin_overhead(self._looked)
        try:
            yield
        finally:
            self.device.end_overhead(self._looked)

    @property
    def _looked(self) -> int:
        """Nanoseconds of looking, with that which goes on."""
        return self.looking + (
            perf_counter_ns() - self._looking_since if self._looking_since else 0
        )

    def begin(self) -> int:
        """A forward pass of the model begins, perhaps not the first. When that is."""
        self._began = self._began or self.now()
        self.began_at = self.began_at or time_ns()
        return perf_counter_ns()

    def close(self, *, is_followed: bool) -> None:
        """The step is over; if it ``is_followed`` by another, what was between is known."""
        self._over = self.now() if is_followed else 0
        self.over_at = time_ns()

    @property
    def period(self) -> int | None:
        """From the start of this step to that of the next."""
        return self._over - self._began if self._over else None

    @property
    def between(self) -> int | None:
        """The time after the last event of the step, for example for loading data."""
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
    def zero(self) -> int:
        """When the first call started."""
        return min(self.started.values(), default=0)

    @property
    def has_begun_backward(self) -> bool:
        """True if a node has run."""
        return bool(self._first_node)

    @property
    def backward_span(self) -> int:
        """From the start of the first node to the end of the last."""
        return self._last_node - self._first_node

    def note_start(self, call: Call) -> None:
        """A module has started."""
        if is_in_backward_pass():
            self.again.add(call.index)
        if self.device is not None:
            self.device.begin(call.index, self.looking, is_forward=True)
        self.started[call.index] = self.now()

    def note_end(self, call: Call) -> None:
        """A module has ended."""
        self._last = self.ended[call.index] = self.now()
        if self.device is not None:
            self.device.end(call.index, self.looking, is_forward=True)

    def note_node_start(self, call: int) -> int:
        """A node starts. The time."""
        if self.device is not None:
            self.device.begin(call, self.looking, is_forward=False)
        start = (self._looking_since or perf_counter_ns()) - self.looking
        if not self._first_node:
            self._first_node = start
        return start

    def note_node(self, call: int, start: int, inside: int) -> None:
        """Note that a node has run, and the time ``inside`` it of a backward pass that it started.

        A checkpoint starts one.
        """
        end = (self._looking_since or perf_counter_ns()) - self.looking
        if self.device is not None:
            self.device.end(call, self.looking, is_forward=False)
        self._last = self._last_node = max(self._last_node, end)
        took = end - start - inside
        self.backward[call] += took
        self.in_nodes += took
        self._nodes.extend((call, start, end))

    @property
    def is_captured(self) -> bool:
        """True if the device's work is being captured, to be run later."""
        return self.device is not None and is_capturing()
