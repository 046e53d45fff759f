"""The steps of one model: which passes, backward passes and optimizers train it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchscan.observing.backward_watch import BackwardPass
from torchscan.observing.steps import Pass, Phase, StepCounter
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.torch_versions import (
    is_sharded_type,
    is_transforming,
    next_node,
    sharded_by_gathered,
)


class Parameters(Protocol):
    """The parameters of a model when they were last looked up."""

    #: identities of all parameters
    parameter_ids: set[int]

    @property
    def has_trained_parameters(self) -> bool:
        """True if a parameter requires a gradient."""


def lasting_parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters of a model, sharded where FSDP2 has all-gathered them."""
    sharded = sharded_by_gathered(model)
    every = nn.Module.parameters(model)  # models may override it
    return [sharded.get(id(each), each) for each in every]


class ModelParameters:
    """The parameters of a model, by weak references to it and to them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        #: identities of all parameters
        self.parameter_ids: set[int] = set()
        self._every: list[weakref.ref[Tensor]] = []
        self.find_again()

    @property
    def has_trained_parameters(self) -> bool:
        """True if a parameter requires a gradient."""
        for reference in self._every:
            parameter = reference()
            if parameter is not None and parameter.requires_grad:
                return True
        return False

    def find_again(self) -> bool:
        """Look up the parameters again, and return whether they have changed."""
        before, model = self.parameter_ids, self._model()
        every = [] if model is None else lasting_parameters(model)
        self._every = list(map(weakref.ref, every))
        self.parameter_ids = set(map(id, every))
        #: True if the autograd graph does not reach the parameters: while the model runs, other
        #: tensors replace sharded ones
        self.has_unreachable_parameters = any(is_sharded_type(type(each)) for each in every)
        return self.parameter_ids != before


class ModelSteps:
    """The steps of one model: its passes, and which backward passes and optimizers train it."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        find_parameters: Callable[[], bool],
        counter: StepCounter,
    ) -> None:
        """``find_parameters`` updates ``parameters``, and returns whether they have changed."""
        self._model, self._parameters = weakref.ref(model), parameters
        self._find_parameters = find_parameters
        self.counter = counter
        #: sequence number of the first autograd node that the current pass can create
        self._first_node = 0
        #: True once gradients have reached a pass in evaluation mode
        self._trains_in_eval_mode = False
        #: identities of tensors that replace parameters in a pass inside ``torch.func``
        self.replacements: Collection[int] = ()

    @property
    def current(self) -> Pass:
        """The last pass that has begun."""
        return self.counter.current

    def phase_of(self, module: nn.Module) -> Phase:
        """Return the phase of a pass that begins, as far as it is known before gradients arrive."""
        if not torch.is_grad_enabled() or not self._parameters.has_trained_parameters:
            return "eval"
        return "train" if module.training or self._trains_in_eval_mode else "eval"

    def begin(self, phase: Phase, part: int | None) -> Pass:
        """Begin a pass."""
        self._first_node = next_node()
        return self.counter.begin(phase, part)

    def note_replacements(self) -> None:
        """Note the tensors that replace parameters inside a transform of ``torch.func``."""
        model = self._model() if is_transforming() else None
        if model is None:
            self.replacements = ()
            return
        parameters = (module._parameters.values() for _, module in modules_of(model))
        self.replacements = set(map(id, chain.from_iterable(parameters)))

    def note_backward(self, backward: BackwardPass, promote: Callable[[], None]) -> bool:
        """Note a backward pass that begins, and return whether it trains the model.

        A pass that seemed to be an evaluation trains only if its own graph leads to parameters.
        Then ``promote`` is called.
        """
        is_evaluation = self.current.phase == "eval"
        first_node = self._first_node if is_evaluation else 0
        if not self._is_trained_by(backward, first_node):
            return False
        if is_evaluation:
            self._trains_in_eval_mode = True
            self.counter.promote()
            promote()
        self.counter.note_backward()
        return True

    def _is_trained_by(self, backward: BackwardPass, first_node: int) -> bool:
        parameters = self._parameters
        if backward.trains(parameters.parameter_ids, first_node):
            return True
        if self.replacements and backward.inputs:
            return backward.trains(self.replacements, first_node)
        return self._find_parameters() and backward.trains(parameters.parameter_ids, first_node)

    def has_optimizer(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer updates parameters of this model."""
        identities = self._parameters.parameter_ids
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in identities:
                    return True
        return False


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return list(chain.from_iterable([group["params"] for group in optimizer.param_groups]))
