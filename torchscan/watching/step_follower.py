"""The part of ``watch`` that follows the steps of a model and samples its tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchscan.observing.backward_watch import BackwardPass, BackwardWatch
from torchscan.observing.compiling import CompileWatch
from torchscan.observing.model_hook import ModelHook
from torchscan.observing.model_steps import ModelSteps
from torchscan.observing.steps import StepCounter
from torchscan.recording.running_modules import is_open
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    backward_pass,
    is_capturing_now,
    is_tracing,
    is_transforming,
    without_torch_function,
    without_transforms,
)
from torchscan.user_warnings import warn_or_print
from torchscan.watching.about import inputs_of
from torchscan.watching.curve_log import CurveLog
from torchscan.watching.followed_thread import FollowedThread
from torchscan.watching.graphing import GraphDrawing
from torchscan.watching.lost_steps import INTERNAL_ERROR, format_error
from torchscan.watching.process import WriterProcess
from torchscan.watching.sampling_context import SamplingContext
from torchscan.watching.step_sampler import StepSampler
from torchscan.watching.wanted import Wanted


class StepFollower:
    """A follower of the steps of a model, which it counts and of which it samples some."""

    def __init__(
        self, module: nn.Module, process: WriterProcess, wanted: Wanted, step: int | None
    ) -> None:
        self._model, self._process = module, process
        self._context = SamplingContext(module, wanted)
        self._sites = self._context.sites
        self._steps = StepCounter(process.last, process.reached, step)
        self._model_steps = ModelSteps(
            module, self._sites, lambda: self._sites.update(self._model, self._called), self._steps
        )
        process.begin_at(step, self._steps.next)
        self._sampler: StepSampler | None = None
        self._curves = CurveLog(self._process.send_row)
        self._is_closed = self._has_begun = self._is_paused = False
        #: the first process of a run draws the graph of the model in the first sampled step
        is_drawn = wanted.graph and process.is_first
        self._drawing = GraphDrawing(process.path, process.send, is_wanted=is_drawn)
        self._thread = FollowedThread()
        self._facts: dict[str, Any] = {}
        #: the module that is called from outside: the model, or a compiled version of it
        self._called = module
        self._sites.update(module, module)
        self._model_hook = ModelHook(module, self._begin, self._note_backward, self._go_on)
        self._backward_watch = BackwardWatch(partial(self._run, self._note_backward_pass))
        self._optimizers = register_optimizer_step_post_hook(
            partial(self._run, self._note_optimizer)
        )
        self._compiler = CompileWatch(
            self._model_hook.pause, self._go_on, keep_out=self._model_hook.keep_compiler_out
        )
        self._model_hook.await_call()
        self._go_on()
        self._backward_watch.start()

    # -- hooks -----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self._is_closed:
            self._compiler.adapt()
        self._model_hook.go_on()

    def _note_backward(self) -> None:
        """Note that gradients arrive: the next forward pass may begin another step."""
        if not self._is_closed:
            self._steps.note_backward()
            self._model_hook.await_call()

    def _note_backward_pass(self, backward: BackwardPass) -> None:
        """Note a backward pass that begins, if it trains the model."""
        if not self._has_begun or not self._is_here:
            return
        if is_recording() or is_tracing() or is_capturing_now():
            return
        if not self._model_steps.note_backward(backward, self._relabel):
            return
        self._model_hook.await_call()
        if backward_pass() == NO_BACKWARD_PASS:
            self._curves.note_backward(backward)

    def _run(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method, and end the watching, not the training, after an internal error."""
        try:
            with without_torch_function():
                method(*args)
        except Exception as error:
            self._give_up(error)

    def _relabel(self) -> None:
        """Note that a pass in evaluation mode trains, as of a model with frozen batch norms."""
        begun = self._steps.current
        self._curves.relabel(begun.phase, begun.step, begun.number)
        if self._sampler is not None:
            self._sampler.relabel(begun)

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note the step of an optimizer, which may be that of another model."""
        if not self._model_steps.has_optimizer(optimizer):
            return
        if not self._steps.is_over:
            self._note_backward()
        if not self._is_here:
            return
        if self._steps.current.phase == "train":
            self._curves.note_learning_rate(optimizer.param_groups[0].get("lr"))
        if "optimizer" not in self._facts:
            self._note_facts(optimizer=type(optimizer).__name__)
        if self._sampler is not None:
            self._sampler.note_updated()

    @property
    def _is_here(self) -> bool:
        """True in the process and the thread that train; in a forked process, the run is closed."""
        if self._is_closed:
            return False
        return self._thread.identity in (get_ident(), None) or self._thread.has_ended

    # -- steps -----------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that the model is called, or a part of it."""
        if (
            not self._is_here
            or backward_pass() != NO_BACKWARD_PASS
            or is_recording()
            or is_tracing()
            or is_open(module)
        ):
            return
        if not is_transforming():
            self._model_steps.replacements = ()
            self._run(self._begin_pass, module, args)
            return
        self._model_steps.note_replacements()
        with without_transforms():  # the step before is handed over: its tensors are ordinary ones
            self._run(self._begin_pass, module, args)

    def _begin_pass(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._thread.identity != get_ident():
            self._thread.follow_current()
        self._compiler.listen()  # a compiler that is reset forgets its listeners
        self._model_hook.note_entry(module, is_first=not self._has_begun)
        self._has_begun = True
        phase = self._model_steps.phase_of(module)
        part = None if self._model_hook.is_model(module) else id(module)
        relation = self._steps.relation_of(phase, part)
        if self._sampler is not None:
            self._sampler.calls.is_aside = relation == "aside"
        elif relation == "same" and phase == "train":
            self._await_gradients(module)
        if relation != "new":
            return

        self._finish()
        begun = self._model_steps.begin(phase, part)
        if self._is_paused:
            self._curves.end()
        else:
            self._curves.begin(phase, begun.step, begun.number)
        if not self._is_paused and self._context.is_due(begun):
            self._arm(module, args)
        elif phase == "train" and not self._steps.is_manual:
            self._await_gradients(module)
        else:
            self._model_hook.await_call()

    def _await_gradients(self, module: nn.Module) -> None:
        """Wait for the gradients of a step that is not sampled."""
        if self._sites.has_unreachable_parameters:
            self._model_hook.await_result(module)
        else:
            self._model_hook.sleep()

    def _arm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        start = time.perf_counter_ns()
        self._called = module
        self._sites.update(self._model, module)
        phase = self._steps.current.phase
        self._context.begin(phase)
        self._sampler = StepSampler(
            self._steps.current,
            self._context,
            note_backward=self._note_sampled_gradients,
            end_root=self._note_root_end,
            fail=self._give_up,
        )
        self._model_hook.follow(self._sampler)
        if "batch" not in self._facts:
            self._note_facts(**inputs_of(self._model, args))
        self._sampler.guard.took += time.perf_counter_ns() - start
        self._process.begin(phase, self._steps.current.step)

    def _note_sampled_gradients(self) -> None:
        """Note gradients of a sampled step, if no graph shows whether they train the model."""
        if self._sites.has_unreachable_parameters:
            self._note_backward()

    def _note_root_end(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        self._model_hook.note_entry(module, is_first=False)
        if self._steps.current.phase == "eval":
            self._curves.note_result(result)
        is_training = self._steps.current.phase == "train"
        if self._drawing.is_due and is_training and self._model_hook.is_model(module):
            self._drawing.begin(self._model, (args, kwargs))

    def _finish(self) -> None:
        """Hand over the samples of the step that has ended, if it was sampled."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        self._model_hook.forget_listener()
        sampled = sampler.finish()
        start = time.perf_counter_ns()
        if sampler.gradient_norm is not None:
            self._curves.note_gradient_norm(sampler.gradient_norm)
        self._process.put(sampled, self._context.numbers)
        self._context.rows.clear()
        spent = sampler.guard.took + time.perf_counter_ns() - start
        self._context.note_cost(sampled.phase, spent)

    # -- facts and the end -----------------------------------------------------------------------

    def _note_facts(self, **facts: Any) -> None:
        self._facts |= facts
        self._process.send({"is": "about", "about": facts})

    def _give_up(self, error: Exception) -> None:
        if self._is_closed:
            return
        sampler, self._sampler = self._sampler, None
        self._unfollow()
        text = format_error(error)
        if sampler is not None:
            current = self._steps.current
            self._process.lose(current.phase, current.step, INTERNAL_ERROR)
        what = "torchscan hit an internal error and stopped watching"
        warn_or_print(f"{what}; training is not affected: {text}")

    def _unfollow(self) -> None:
        self._is_closed = True

        self._backward_watch.close()
        self._compiler.close()
        self._model_hook.close()
        self._optimizers.remove()
