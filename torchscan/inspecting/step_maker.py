"""The beginning of a step: its checks, times and values, and what it takes over from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from torchscan.inspecting.call_memory import MemoryWatch
from torchscan.inspecting.checks import Check, CheckResult, StepChecks
from torchscan.inspecting.deferred_values import DeferredValues
from torchscan.inspecting.device_times import DeviceTimes, EventPool
from torchscan.inspecting.immediate import ImmediateValues
from torchscan.inspecting.keyword_inputs import KeywordInputs
from torchscan.inspecting.nodes import HeldLeaves, NodeWatch
from torchscan.inspecting.step import Step
from torchscan.inspecting.step_labels import StepLabel
from torchscan.inspecting.timing import StepTimes
from torchscan.inspecting.values import Listener, Memory, Values
from torchscan.recording.bookkeeping.inventory import device_of
from torchscan.recording.call_tree import CallTree


class StepMaker:
    """The parts that the steps of an inspection have in common, and the beginning of each."""

    def __init__(
        self,
        model: nn.Module,
        tree: CallTree,
        listener: Listener,
        checks: Sequence[Check],
        alarmed: Callable[[CheckResult], None],
        *,
        is_second_look: bool,
    ) -> None:
        self._model = model
        self._tree = tree
        self._listener = listener
        self._checks = checks
        self._alarmed = alarmed
        #: parameters by name, if the user has given checks of them
        self.parameters: dict[str, Tensor] = dict(model.named_parameters()) if checks else {}
        self.found_before = Memory()
        self.found_before.is_alarmed = self.found_before.has_found = is_second_look
        self._memory = MemoryWatch(model)
        self._pool = EventPool()
        self._keywords = KeywordInputs()

    def begin(self, leaves: HeldLeaves, number: int) -> Step:
        """Return a new step, which has this number if it trains."""
        device = device_of(self._model)
        on_device = None
        if device is not None and device.type == "cuda":
            on_device = DeviceTimes(self._pool, device)
        times = StepTimes(on_device)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        label = StepLabel(number)
        checks = StepChecks(
            number,
            self._checks,
            names,
            lambda found: self._alarmed(label.put_on(found)),
            times,
        )
        values = self._make_values(number, times)
        values.tell_as(label.put_on)
        nodes = NodeWatch(self._tree, leaves, times, values, self._memory, checks)
        return Step(nodes, label, self._keywords)

    def _make_values(self, number: int, times: StepTimes) -> Values:
        """On a device everything is checked after the step, until something is found."""
        if times.device is None or self.found_before.is_alarmed:
            return ImmediateValues(number, self._tree, self.found_before, self._listener)
        return DeferredValues(
            number,
            self.found_before,
            self._listener,
            device=times.device.device,
            allocated=self._memory,
            times=times,
        )
