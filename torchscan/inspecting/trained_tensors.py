"""Parameters and buffers whose training is checked, their modules, and which are not finite."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.finiteness import check_values, version_of
from torchscan.inspecting.loss_graph import LossGraph
from torchscan.inspecting.root_call import ModuleSteps
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.training_thread import is_same_or_part
from torchscan.observing.model_steps import parameters_of
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.bookkeeping.inventory import modules_of, type_name_of
from torchscan.torch_versions import without_torch_function, without_tracing


class TensorOwner(NamedTuple):
    """The module that has a parameter or buffer, within the root that the script calls."""

    root: nn.Module | None
    path: str
    type_name: str
    #: the tensor's name in the module
    name: str


class TrainedTensors:
    """The parameters that optimizers update, and the buffers of the models that were called."""

    def __init__(self, calls: RootCalls, model: nn.Module | None) -> None:
        """``model`` is the only one whose training is checked; None: every one."""
        self._calls = calls
        self._only = None if model is None else weakref.ref(model)
        #: with the numbers of the threads that they run in
        self._threads_by_optimizer: weakref.WeakKeyDictionary[Optimizer, int | None] = (
            weakref.WeakKeyDictionary()
        )
        #: steps of optimizers, by identity
        self._num_updates: Counter[int] = Counter()
        #: by optimizer: the number of its parameters, and whether it trains the model that is
        #: checked
        self._ours_by_optimizer: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        #: tensors that are not finite and have been reported
        self._reported: dict[int, weakref.ref[Tensor]] = {}
        #: tensors that held infinities from the start, as masks do, by identity
        self._masks: dict[int, _Mask] = {}
        #: True once parameters were seen to be finite after an optimizer's step
        self.has_seen_finite = False

    # -- which -------------------------------------------------------------------------------------

    def is_reached_by(self, graph: LossGraph) -> bool:
        """Return whether a backward pass through a graph reaches a module that is checked.

        A graph with more nodes than are followed counts if such a call awaits its gradient.
        """
        if self._only is None:
            return True
        for call in self._calls.recent:
            module = call.module()
            if module is None or not self._is_checked(module):
                continue
            if any(map(call.made_node, graph.reached)):
                return True
            if graph.is_truncated and call.awaits_gradient:
                return True
        return False

    def list_parameters(self) -> list[Tensor]:
        """Return the parameters that optimizers update or, before, those of called modules."""
        trained = [optimizer for optimizer in self._optimizers() if self.is_trained_by(optimizer)]
        updated = list(chain.from_iterable(map(parameters_of, trained)))
        return updated or list(self.iter_parameters())

    def iter_parameters(self) -> Iterator[Tensor]:
        """Yield the parameters of the modules that were called."""
        for steps in self._calls.modules():
            module = steps.module()
            if module is not None and self._is_checked(module):
                yield from nn.Module.parameters(module)

    def known_parameters(self) -> Iterator[Tensor]:
        """Yield the parameters of modules and optimizers, some of them twice."""
        yield from self.iter_parameters()
        yield from self.list_parameters()

    def iter_buffers(self) -> Iterator[Tensor]:
        """Yield the buffers of the modules that have begun a step."""
        for steps in self._calls.modules():
            module = steps.module()
            if module is not None and steps.begun and self._is_checked(module):
                yield from filter(is_readable, module.buffers())

    def _is_checked(self, module: nn.Module) -> bool:
        only = None if self._only is None else self._only()
        return only is None or is_same_or_part(module, only)

    # -- optimizers --------------------------------------------------------------------------------

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Check the parameters of this optimizer as well."""
        self._threads_by_optimizer[optimizer] = self._calls.thread.number

    def _optimizers(self) -> list[Optimizer]:
        """Return the optimizers of the thread that is checked."""
        number = self._calls.thread.number
        return [
            optimizer
            for optimizer, thread in list(self._threads_by_optimizer.items())
            if thread == number
        ]

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer updates parameters that are checked."""
        only = None if self._only is None else self._only()
        if only is None:
            return True
        parameters = parameters_of(optimizer)
        number, is_ours = self._ours_by_optimizer.get(optimizer, (-1, False))
        if number != len(parameters):
            is_ours = _has_one_of(parameters, nn.Module.parameters(only))
            self._ours_by_optimizer[optimizer] = len(parameters), is_ours
        return is_ours

    def note_update(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer."""
        self._num_updates[id(optimizer)] += 1

    def num_updates_by(self, optimizer: Optimizer) -> int:
        """Return how many steps an optimizer has taken."""
        return self._num_updates[id(optimizer)]

    def num_updates_of(self, steps: ModuleSteps | None) -> int | None:
        """Return how many steps the optimizer of a root has taken, or None without optimizer."""
        module = None if steps is None else steps.module()
        if module is None:
            return None
        for optimizer in self._optimizers():
            if _has_one_of(parameters_of(optimizer), nn.Module.parameters(module)):
                return self.num_updates_by(optimizer)
        return None

    # -- owners ------------------------------------------------------------------------------------

    def find_owner(self, tensor: Tensor) -> TensorOwner:
        """Return the module that has a parameter or buffer; its root is None if none has it."""
        for steps in self._calls.modules():
            root = steps.module()
            for path, module in () if root is None else modules_of(root):
                for name, each in chain(module._parameters.items(), module._buffers.items()):
                    if each is tensor:
                        return TensorOwner(root, path, type_name_of(module), name)
        return TensorOwner(None, "", "", "parameter")

    def find_root(self, tensors: Iterable[Tensor]) -> ModuleSteps | None:
        """Return the root that has one of these tensors, or else the first root."""
        wanted = list(tensors)
        for steps in self._calls.modules():
            module = steps.module()
            if module is None or not steps.begun:
                continue
            if _has_one_of(wanted, chain(nn.Module.parameters(module), module.buffers())):
                return steps
        return next(iter(self._calls.modules()), None)

    # -- known to be bad ---------------------------------------------------------------------------

    def note_bad(self, tensors: Iterable[Tensor]) -> None:
        """Remember that these tensors are not finite. Infinities of a mask do not count."""
        for tensor in tensors:
            if not self.is_mask(tensor) or check_values(tensor).nan:
                self._reported[id(tensor)] = weakref.ref(tensor)

    def note_masks(self, module: nn.Module) -> None:
        """Remember the parameters and buffers that are not finite before a module's first call."""
        for tensor in filter(is_readable, chain(nn.Module.parameters(module), module.buffers())):
            if self.is_reported(tensor) or self.is_mask(tensor):
                continue
            look = check_values(tensor)
            if not look.is_fine:
                self._masks[id(tensor)] = _Mask(tensor, had_nan=bool(look.nan))

    def is_mask(self, tensor: Tensor) -> bool:
        """Return whether a tensor held infinities from the start."""
        if not self._masks:
            return False
        mask = self._masks.get(id(tensor))
        return mask is not None and mask.reference() is tensor

    def has_new_nan(self, tensor: Tensor) -> bool:
        """Return whether a mask has become NaN. It is read if it was written to since."""
        return self._masks[id(tensor)].has_new_nan(tensor)

    def is_reported(self, tensor: Tensor) -> bool:
        """Return whether a tensor has been reported."""
        if not self._reported:
            return False
        known = self._reported.get(id(tensor))
        return known is not None and known() is tensor

    def is_spoiled(self) -> bool:
        """Return whether parameters that have been reported are still not finite."""
        return any(
            self.is_reported(each) and not check_values(each).is_fine
            for each in self.known_parameters()
        )


def updated_rows_of(parameter: Tensor) -> Tensor:
    """Return the rows of a parameter that its gradient updates: all, unless that is sparse."""
    gradient = parameter.grad
    if gradient is None or gradient.layout is not torch.sparse_coo or not is_plain(parameter):
        return parameter
    with without_tracing(), without_torch_function():
        rows = gradient._indices()[0]
        return parameter.detach().index_select(0, rows)


class _Mask:
    """A tensor that was not finite from the start."""

    __slots__ = ("_had_nan", "_version", "reference")

    def __init__(self, tensor: Tensor, *, had_nan: bool) -> None:
        self.reference = weakref.ref(tensor)
        self._had_nan = had_nan
        self._version = version_of(tensor)

    def has_new_nan(self, tensor: Tensor) -> bool:
        version = version_of(tensor)
        if self._had_nan or version == self._version != -1:
            return False
        self._version = version
        return bool(check_values(tensor).nan)


def _has_one_of(wanted: Iterable[Tensor], tensors: Iterable[Tensor]) -> bool:
    """Return whether ``tensors`` has one that is ``wanted``."""
    identities = set(map(id, wanted))
    return any(id(each) in identities for each in tensors)
