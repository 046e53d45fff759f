"""Events of autograd nodes in the backward pass of a step, and the leaves of the graph.

A hook on a node takes a few microseconds to put there, and there are hundreds in a step. Those that
store gradients of the model's parameters are held, with their hooks, for as long as the inspection
goes on, as DistributedDataParallel does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from torchscan.errors import TorchscanError
from torchscan.inspecting.call_memory import MemoryWatch
from torchscan.inspecting.checks import StepChecks
from torchscan.inspecting.timing import LEAVES, StepTimes
from torchscan.inspecting.values import Gradients, Leaf, Values
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import NO_BACKWARD_PASS, at_end_of_backward_pass, backward_pass


class HeldLeaves:
    """The nodes that accumulate gradients of parameters, and the step to notify when one runs."""

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], give_up: Callable[[Exception], None]
    ) -> None:
        #: called with an internal error
        self.give_up = give_up
        self._parameters: dict[int, tuple[Tensor, Leaf]] = {}
        for path, module in modules:
            for name, each in module._parameters.items():
                if each is not None:
                    self._parameters.setdefault(
                        id(each), (each, Leaf(path, type_name_of(module), name))
                    )
        self._held: dict[int, tuple[Node, tuple[RemovableHandle, ...]]] = {}
        #: of the step that goes on; None once the inspection is over
        self.watch: NodeWatch | None = None
        #: of all steps whose graphs are there
        self.watches: weakref.WeakSet[NodeWatch] = weakref.WeakSet()
        self._start = 0

    def hold(self, node: Any) -> bool:
        """Return whether a node accumulates a parameter's gradient, and follow it if so."""
        variable = node.variable
        known = self._parameters.get(id(variable))
        if known is None:
            return False
        held = self._held.get(id(variable))
        if held is None or held[0] is not node:
            self._held[id(variable)] = (
                node,
                (
                    node.register_prehook(self._before),
                    node.register_hook(partial(self._after, variable, known[1])),
                ),
            )
        return True

    def let_go(self) -> None:
        """Release the nodes: the next pass creates others."""
        for _, handles in self._held.values():
            for handle in handles:
                handle.remove()
        self._held.clear()

    def close(self) -> None:
        """Follow none any more."""
        self.let_go()
        self._parameters.clear()
        self.watch = None
        self.give_up = lambda _: None
        for watch in self.watches:
            watch.forget()

    def _before(self, *_: Any) -> None:
        watch = self.watch
        if watch is None or is_compiling():
            return
        times = watch.times
        if times.device is not None and times.is_captured:
            return
        looking = times.begin_looking()
        try:
            self._start = watch.note_node_start(LEAVES, looking)
        except Exception as error:
            times.end_looking(looking)
            self.give_up(error)

    def _after(self, variable: Tensor, leaf: Leaf, _: Gradients, given: Gradients) -> None:
        if is_compiling():
            return
        if self.watch is not None and self._start:
            self.watch.note_stored(variable, leaf, given, self._start)
        self._start = 0


class NodeWatch:
    """The reports of nodes in one step to its times, values, memory and checks."""

    def __init__(
        self,
        tree: CallTree,
        leaves: HeldLeaves,
        times: StepTimes,
        values: Values,
        memory: MemoryWatch,
        checks: StepChecks,
    ) -> None:
        self.tree = tree
        self.leaves = leaves
        self.times = times
        self.values = values
        self.memory = memory
        self.checks = checks
        self._calls = tree.calls
        #: the backward pass whose end is awaited
        self._awaited = NO_BACKWARD_PASS
        leaves.watch = self
        leaves.watches.add(self)

    def forget(self) -> None:
        """Release the model at the end of the inspection, because a kept graph keeps its hooks."""
        leaves = self.leaves
        self.checks.is_over = True
        vars(self).clear()
        self.leaves = leaves

    @property
    def is_over(self) -> bool:
        """True if the inspection has ended. Nodes of a kept graph keep their hooks."""
        return self.leaves.watch is None

    def give_up(self, error: Exception) -> None:
        """End the inspection, and not the run, after an internal error."""
        self.leaves.give_up(error)

    def call_at(self, index: int) -> Call | None:
        """Return the call of this index, or None. Hooks hold no call: it has the module."""
        return self._calls[index] if index >= 0 else None

    def note_loss(self, index: int, gradients: Gradients) -> None:
        """Note that the loss gives a call these gradients."""
        if self.is_over or is_compiling():
            return
        with self._looking():
            self.values.note_loss(self.call_at(index), gradients)

    @property
    def entered(self) -> int:
        """When torch last came to a hook of a module."""
        return self.tree.entered

    def note_node_start(self, index: int, looking: int) -> int:
        """Note that a node of a call starts, after checks since ``looking``. Return the time."""
        if self.values.awaits_end_of_backward and self._awaited != (going_on := backward_pass()):
            # Not that of an earlier one, which may have been left by an exception.
            self._awaited = going_on
            at_end_of_backward_pass(self._note_end)
        self.times.end_looking(looking)
        return self.times.note_node_start(index)

    def _note_end(self) -> None:
        """Note that a backward pass is over; another may follow, or go on around it."""
        if self.is_over:
            return

        self._awaited = NO_BACKWARD_PASS
        with self._looking():
            self.values.note_end_of_backward()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Exclude the time inside the context.

        An internal error ends the inspection, not the run.
        """
        times = self.times  # a listener may end the inspection
        start = times.begin_looking()
        try:
            yield
        except TorchscanError:
            raise
        except Exception as error:
            self.give_up(error)
        finally:  # a listener may raise
            times.end_looking(start)

    def note_stored(self, variable: Tensor, leaf: Leaf, given: Gradients, start: int) -> None:
        """A gradient was stored."""
        times = self.times  # a listener may end the inspection
        looking = times.begin_looking()
        try:
            times.note_node(LEAVES, start, 0)
            self.memory.note_stored(variable)
            self.checks.note_stored(variable)
            self.values.note_stored(leaf, variable, given)
        except TorchscanError:
            raise
        except Exception as error:
            self.give_up(error)
        finally:  # a listener may raise
            times.end_looking(looking)
