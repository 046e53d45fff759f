"""Calls of layers that were left out, each with the call of an equal layer that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchscan.recording.folding.thinned import UnfoldableError
from torchscan.trace.events import ModuleCall
from torchscan.trace.trace import Trace


class LeftOut(NamedTuple):
    """The call of a layer that was left out, and that of an equal one."""

    call: ModuleCall
    model: ModuleCall
    #: the operators of the equal layer are those from here
    begin: int
    #: to here
    end: int
    #: number of operators called before, in the complete trace
    start: int
    #: number of modules in it, itself among them
    size: int

    @property
    def at(self) -> int:
        """Number of operators in the folded trace before the layer's place."""
        return _end_of(self.call)

    @property
    def hidden(self) -> int:
        """The tensor that it has handed on."""
        return self.call.outputs[0]

    @property
    def given(self) -> int:
        """The tensor that the layer which ran took as its hidden state."""
        name = self.call.input_names[self.call.inputs.index(self.hidden)]
        return self.model.inputs[self.model.input_names.index(name)]

    def calls_in(self, trace: Trace) -> Sequence[ModuleCall]:
        """Return the module calls in the layer that ran, itself among them."""
        return trace.modules[self.model.index : self.model.index + self.size]

    def has(self, op: int | None) -> bool:
        """Return whether an operator call of the folded trace belongs to the layer that ran."""
        return op is not None and self.begin <= op < self.end

    def lets_go(self, died: int | None) -> bool:
        """Return whether memory is released during the layer that ran."""
        return died is not None and self.begin < died <= self.end

    def moved(self, place: int) -> int:
        """Return a position in the complete trace, given that in the layer which ran."""
        return self.start + place - self.begin

    def renamed(self, name: str) -> str | None:
        """Return the name here of a parameter of the layer that ran, or None if it has no such."""
        path = self.model.path
        if name != path and not name.startswith(f"{path}."):
            return None
        return self.call.path + name.removeprefix(path)


def left_out_of(trace: Trace, stands_in: Mapping[str, str]) -> list[LeftOut]:
    """Return the calls of layers that were left out, in their order."""
    calls = Counter(each.path for each in trace.modules)
    last = {each.path: each for each in trace.modules}
    found: list[LeftOut] = []
    more = 0
    for call in trace.modules:
        if call.path not in stands_in:
            continue
        model = last.get(stands_in[call.path])
        is_called_once = calls[call.path] == 1 and model is not None and calls[model.path] == 1
        hands_on = not set(call.inputs).isdisjoint(call.outputs[:1])
        if model is None or not is_called_once or not hands_on:
            raise UnfoldableError(
                "a layer is called several times, or in another way than an equal one"
            )
        inside = calls_inside(trace, model)
        ops = sum(len(trace.modules[each].ops) for each in inside)
        end = _end_of(model)
        start = _end_of(call) + more
        found.append(LeftOut(call, model, end - ops, end, start, len(inside)))
        more += ops
    return found


def times_of_caches(trace: Trace, stands_in: Mapping[str, str]) -> dict[int, int]:
    """Return the number of layers that a cache represents, by its storage, if there are several."""
    many = Counter((each.begin, each.end) for each in left_out_of(trace, stands_in))
    times: dict[int, int] = {}
    for (begin, end), more in many.items():
        for op in trace.ops[begin:end]:
            for tensor in (*op.inputs, *op.outputs):
                storage = trace.tensors[tensor].storage
                if trace.storages[storage].kind == "cache":
                    times[storage] = 1 + more
    return times


def _end_of(call: ModuleCall) -> int:
    if call.end is None:
        raise UnfoldableError("a layer has not ended")
    return call.end


def calls_inside(trace: Trace, call: ModuleCall) -> range:
    """Return the indices of the calls in a call, and its own: they come one after the other."""
    last = call
    while last.children:
        last = trace.modules[last.children[-1]]
    return range(call.index, last.index + 1)
