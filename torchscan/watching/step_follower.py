"""The part of ``watch`` that follows the steps of a model and samples its tensors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchscan.notes import Note
from torchscan.observing.backward_watch import BackwardPass, BackwardWatch
from torchscan.observing.compiling import CompileWatch
from torchscan.observing.model_hook import ModelHook
from torchscan.observing.model_steps import ModelSteps
from torchscan.observing.readable_tensors import is_plain
from torchscan.observing.steps import Pass, StepCounter
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.call_tree import Given, is_open
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    GradientHook,
    backward_pass,
    has_compiler,
    is_capturing_now,
    is_tracing,
    is_transforming,
    without_torch_function,
    without_transforms,
)
from torchscan.user_warnings import warn_or_print
from torchscan.watching.about import inputs_of
from torchscan.watching.call_sites import CallSites, SeriesNumbers
from torchscan.watching.curve_log import CurveLog
from torchscan.watching.frequency import Frequency
from torchscan.watching.graphing import draw_apart
from torchscan.watching.lost_steps import INTERNAL_ERROR, format_error
from torchscan.watching.parameter_memory import ParameterMemory
from torchscan.watching.process import WriterProcess
from torchscan.watching.rows import Rows
from torchscan.watching.schema import Phase
from torchscan.watching.step_sampler import StepSampler
from torchscan.watching.wanted import Wanted, is_chosen


class StepFollower:
    """A follower of the steps of a model, which it counts and of which it samples some."""

    def __init__(
        self, module: nn.Module, process: WriterProcess, wanted: Wanted, step: int | None
    ) -> None:
        self._model, self._process, self._wanted = module, process, wanted
        self._frequencies: dict[Phase, Frequency] = {
            phase: Frequency(wanted.every, wanted.overhead_budget) for phase in ("train", "eval")
        }
        devices = (tensor.device for tensor in tensors_of(module))
        self._rows = Rows(wanted.sample_n, next(devices, torch.device("cpu")))
        self._numbers = SeriesNumbers(wanted.whole)
        self._memory = ParameterMemory()
        self._gradient_hook = GradientHook()
        self._sites = CallSites(
            self._numbers, lambda path, each: is_chosen(wanted.modules, path, each)
        )
        self._steps = StepCounter(process.last, process.reached, step)
        self._model_steps = ModelSteps(
            module, self._sites, lambda: self._sites.update(self._model, self._called), self._steps
        )
        self._begin_at(step)
        self._sampler: StepSampler | None = None
        self._curves = CurveLog(self._process.send_row)
        self._is_closed = self._has_begun = self._is_paused = False
        #: the first process of a run draws the graph of the model in the first sampled step
        self._awaits_graph = wanted.graph and process.is_first
        self._drawing: int | None = None
        self._pid = os.getpid()
        #: the thread that trains: the first that calls the model, or the next once that has ended
        self._thread: int | None = None
        self._thread_object: threading.Thread | None = None
        self._facts: dict[str, Any] = {}
        #: the module that is called from outside: the model, or a compiled version of it
        self._called = module
        self._sites.update(module, module)
        self._model_hook = ModelHook(module, self._begin, self._note_backward, self._go_on)
        self._backward_watch = BackwardWatch(partial(self._run, self._note_backward_pass))
        self._optimizers = register_optimizer_step_post_hook(
            partial(self._run, self._note_optimizer)
        )
        self._knows_compiler = False
        self._compiler = CompileWatch(self._model_hook.pause, self._go_on)
        self._compiler.listen()
        self._compiler.ignore_hooks()
        self._model_hook.await_call()
        self._go_on()
        self._backward_watch.start()

    # -- hooks -----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._knows_compiler != has_compiler():
            self._knows_compiler = True
            self._compiler.listen()
            self._model_hook.keep_compiler_out()
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
        losses, scale = backward.scales.unscale(backward.tensors)
        # reading a distributed tensor would communicate
        has_loss = len(losses) == 1 and losses[0].numel() == 1 and is_plain(losses[0])
        if has_loss and backward_pass() == NO_BACKWARD_PASS:
            self._curves.add_loss(losses[0])
            if scale is not None:
                self._curves.note_scale(scale, backward.tensors[0], losses[0])

    def _run(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method, and end the watching, not the training, after an internal error.

        As :meth:`_guarded`, in a fraction of its time.
        """
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
        if self._thread == get_ident() or self._thread is None:
            return True
        thread = self._thread_object
        return thread is not None and not thread.is_alive()

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
        if self._thread != get_ident():
            self._thread, self._thread_object = get_ident(), threading.current_thread()
        self._compiler.listen()  # a compiler that is reset forgets its listeners
        self._model_hook.note_entry(module, is_first=not self._has_begun)
        self._has_begun = True
        phase = self._model_steps.phase_of(module)
        part = None if self._model_hook.is_model(module) else id(module)
        relation = self._steps.relation_of(phase, part)
        if self._sampler is not None:
            self._sampler.is_aside = relation == "aside"
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
        if self._is_due(begun):
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

    def _is_due(self, begun: Pass) -> bool:
        if self._is_paused:
            return False
        frequency = self._frequencies[begun.phase]
        if begun.phase == "train":
            return frequency.is_due(begun.step)
        return frequency.is_evaluation_due(begun.number, begun.place, begun.step + begun.number)

    def _arm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        start = time.perf_counter_ns()
        self._called = module
        self._sites.update(self._model, module)
        phase = self._steps.current.phase
        self._rows.turn, self._rows.period = self._frequencies[phase].turn
        self._sampler = StepSampler(
            self._steps.current,
            self._rows,
            self._numbers,
            self._sites,
            self._memory,
            self._gradient_hook,
            kinds=self._wanted.kinds,
            sample_norms=self._wanted.sample_norms,
            note_backward=self._note_sampled_gradients,
            end_root=self._note_root_end,
            fail=self._give_up,
        )
        self._model_hook.follow(self._sampler)
        if "batch" not in self._facts:
            self._note_facts(**inputs_of(self._model, args))
        self._sampler.took += time.perf_counter_ns() - start
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
            loss = getattr(result, "loss", None)
            if isinstance(loss, Tensor) and loss.numel() == 1 and is_plain(loss):
                self._curves.add_loss(loss)
        if self._awaits_graph and self._model_hook.is_model(module):
            self._draw_graph((args, kwargs))

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
        self._process.put(sampled, self._numbers)
        self._rows.clear()
        spent = sampler.took + time.perf_counter_ns() - start
        self._frequencies[sampled.phase].note_cost(spent)

    def _draw_graph(self, given: Given) -> None:
        if self._steps.current.phase != "train":
            return
        self._awaits_graph = False
        try:
            self._drawing = draw_apart(self._model, given, self._process.path)
        except Exception as error:  # the graph is not worth the watching
            note = Note.of("graph-not-drawn", error=format_error(error))
            self._process.send({"is": "note", "note": note.to_data()})

    # -- facts and the end -----------------------------------------------------------------------

    def _note_facts(self, **facts: Any) -> None:
        self._facts |= facts
        self._process.send({"is": "about", "about": facts})

    def _begin_at(self, step: int | None) -> None:
        """Rewrite the run from the user's first step, or warn that it is continued."""
        if step is not None:
            self._process.send({"is": "from", "step": step})
        elif self._process.last:
            step = self._steps.next
            note = Note.of("run-continued", step=step)
            self._process.send({"is": "note", "note": note.to_data()})
            advice = f"give step={step} to confirm, or another folder"
            folder = str(self._process.folder)
            warn_or_print(f"run {folder!r} already exists and continues at step {step}: {advice}")

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the watching, and not the training, after an internal error."""
        try:
            with without_torch_function():
                yield
        except Exception as error:
            self._give_up(error)

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
