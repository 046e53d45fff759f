"""The rule by which steps of one model begin, end and train it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import nn
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.step import Step
from torchscan.observing.backward_watch import BackwardPass
from torchscan.observing.model_hook import ModelEntries
from torchscan.observing.model_steps import ModelParameters, ModelSteps
from torchscan.observing.steps import StepCounter


class StepBoundaries:
    """The passes, backward passes and optimizers of one model, which make its steps."""

    def __init__(self, model: nn.Module) -> None:
        self.entries = ModelEntries(model)
        self._parameters = parameters = ModelParameters(model)
        self._steps = ModelSteps(model, parameters, parameters.find_again, StepCounter())
        #: optimizers that have begun a step, perhaps of another model
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def begin_pass(self, module: nn.Module, step: Step, end_step: Callable[[], bool]) -> bool:
        """Note that a pass begins after or in a step, and return whether it is followed.

        ``end_step`` ends this step if another begins, and returns whether that is followed.
        """
        part = None if self.entries.is_model(module) else id(module)
        self.entries.note(module)
        steps = self._steps
        phase = steps.phase_of(module)
        # No graph shows whether gradients of such parameters train the model.
        if step.has_begun_backward and self._parameters.has_unreachable_parameters:
            self._note_training(step)
        if not step.can_train:
            steps.counter.abandon()
        if steps.counter.relation_of(phase, part) == "new":
            if not end_step():
                return False
            steps.begin(phase, part)
        steps.note_replacements()
        return True

    def note_backward(self, backward: BackwardPass, step: Step) -> None:
        """Note a backward pass in a step, which may train the model."""
        if self._steps.note_backward(backward, lambda: None):
            step.note_training()

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer that begins its step."""
        self._optimizers.add(optimizer)

    def note_update(self, optimizer: Optimizer, step: Step) -> None:
        """Note that an optimizer has ended its step, which trains the model if it is its own."""
        is_training = self._steps.current.phase == "train"
        if is_training and self._steps.has_optimizer(optimizer):
            self._note_training(step)

    def find_optimizers(self) -> list[Optimizer]:
        """Return the optimizers of the model that have begun a step."""
        return [each for each in self._optimizers if self._steps.has_optimizer(each)]

    def _note_training(self, step: Step) -> None:
        self._steps.counter.note_backward()
        step.note_training()
