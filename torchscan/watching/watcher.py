"""The training side of ``watch``: follows the steps of a model and samples its tensors."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchscan.errors import InputError, warn_or_print
from torchscan.notes import Note
from torchscan.observing.backward_watch import BackwardPass, BackwardWatch
from torchscan.observing.compiling import CompileWatch
from torchscan.observing.model_hook import ModelHook
from torchscan.observing.model_steps import ModelSteps
from torchscan.observing.readable_tensors import is_plain
from torchscan.observing.steps import Pass, StepCounter
from torchscan.recording.bookkeeping.containers import tensors_in
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
from torchscan.watching.argument_checks import quote
from torchscan.watching.call_sites import CallSites, SeriesNumbers
from torchscan.watching.curve_log import CurveLog
from torchscan.watching.frequency import Frequency
from torchscan.watching.graphing import await_end, draw_apart
from torchscan.watching.lost_steps import INTERNAL_ERROR, format_error
from torchscan.watching.parameter_memory import ParameterMemory
from torchscan.watching.process import WriterProcess
from torchscan.watching.rows import Rows
from torchscan.watching.schema import Phase
from torchscan.watching.step_sampler import StepSampler
from torchscan.watching.wanted import Wanted, is_chosen, step_of

if TYPE_CHECKING:
    from torchscan.watching.explore.serving import Server

#: open watchers, for attach() and for forked processes
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
#: seconds to wait at the end for the module graph of a short run
_PATIENCE = 10.0
#: characters of a note
_MAX_NOTE = 200


class Watcher:
    """Recorder of a model while it trains. ``watch`` returns it.

    Nothing is stored on the model, and its results stay bit-for-bit identical.
    """

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
        #: server that shows the run in the browser, or None
        self.server: Server | None = None
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
        _watchers.add(self)
        atexit.register(self._close_at_exit)

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
            self._note_inputs(args)
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

    # -- facts of the run ------------------------------------------------------------------------

    def _note_inputs(self, args: tuple[Any, ...]) -> None:
        """Note the shape of the first input, the precision and the device."""
        shape = next((list(each.shape) for each in tensors_in(args)), None)
        tensor = next(tensors_of(self._model), None)
        device = torch.device("cpu") if tensor is None else tensor.device
        dtype = torch.float32 if tensor is None else tensor.dtype
        precision = str(dtype).removeprefix("torch.")
        if torch.is_autocast_enabled(device.type):
            narrow = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
            precision = {"bfloat16": "bf16", "float16": "fp16"}.get(narrow, narrow) + "-mixed"
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
        self._note_facts(batch=shape, precision=precision, device=name)

    def _note_facts(self, **facts: Any) -> None:
        self._facts |= facts
        self._process.send({"is": "about", "about": facts})

    def step(self, number: int | None = None) -> None:
        """End the training step. After the first call, only calls end steps.

        ``number`` is the number of the next step.
        """
        number = None if number is None else step_of(number)
        if self._is_closed or not self._is_here:
            return
        with self._guarded():
            self._finish()
            self._model_hook.await_call()
            if number is not None and number < self._steps.next:
                self._process.send({"is": "from", "step": number})
            self._steps.end(number)

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

    def forget(self) -> None:
        """Stop watching in a forked process: the run belongs to its parent."""
        self._is_closed = True
        self._sampler = None
        self._model_hook.close()
        self._backward_watch.close()

    # -- public ----------------------------------------------------------------------------------

    def attach(self, tensor: Tensor, alias: Tensor, module: nn.Module, name: str) -> None:
        """Record an attached tensor, with the ``alias`` that :func:`attach` returns for it."""
        sampler = self._sampler
        if sampler is not None and self._is_here and isinstance(tensor, Tensor):
            sampler.note_attached(module, name, tensor, alias)

    @property
    def dropped(self) -> int:
        """Number of sampled steps that are not in the run, or were not when ``close()`` ended."""
        return self._process.dropped

    def note(self, text: str) -> None:
        """Write a note that the run shows at the current step: ``watcher.note("epoch 3")``.

        Notes of the form "epoch 3" also mark epochs on the time axis of the HTML report.
        """
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"text is {quote(text)}: give a sentence such as 'epoch 3'")
        if len(text) > _MAX_NOTE:
            raise InputError(f"text has {len(text)} characters: give at most {_MAX_NOTE}")
        self._write_event(Note.of("user-note", text=text.strip(), step=self._steps.next))

    def log_evaluation(self, loss: float | Tensor) -> None:
        """Record the loss of an evaluation at the current step, beside those of training.

        Losses of training are recorded without a call. So are those of recorded evaluation passes
        if the model returns an object with the attribute ``loss``, as models of transformers do.
        """
        value = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"loss is {quote(loss)}: give a number")
        self._require_open()
        if not self._curves.set_evaluation_loss(float(value)):
            step, number = self._steps.next, self._steps.add_evaluation()
            row = ["eval", step, number, time.time(), float(value), None, None]
            self._process.send_row(row)

    def pause(self) -> None:
        """Sample nothing until :meth:`resume`. Steps are still counted."""
        if not self._is_paused:
            self._write_event(Note.of("paused", step=self._steps.next))
            self._is_paused = True

    def resume(self) -> None:
        """End a pause: the next step may be sampled."""
        if self._is_paused:
            self._write_event(Note.of("resumed", step=self._steps.next))
            self._is_paused = False

    def _require_open(self) -> None:
        if self._is_closed:
            raise InputError("this watcher is closed: call watch(model, run) again")

    def _write_event(self, note: Note) -> None:
        self._require_open()
        if os.getpid() == self._pid:
            now = time.time()  # the worker may read the note much later
            self._process.send({"is": "note", "note": note.to_data(), "time": now})

    def state_dict(self) -> dict[str, int]:
        """Return the next step, for a checkpoint: ``watch(model, run, step=state["step"])``."""
        return {"step": self._steps.next}

    def close(self) -> None:
        """Stop watching, and wait until the recorded steps are written."""
        self._close(None)

    def _close_at_exit(self) -> None:
        """Close at the end of the program, which an exception may have ended."""
        self._close(getattr(sys, "last_value", None))

    def _close(self, error: BaseException | None) -> None:
        if os.getpid() != self._pid:
            return
        if not self._is_closed:
            with self._guarded():
                self._finish()
                self._curves.close()
        if not self._is_closed:
            self._unfollow()
            for pattern in self._numbers.unmet if self._has_begun else ():
                choices = "choose from open_run(…).find()"
                warn_or_print(f"whole has {pattern!r}, which matched no series: {choices}")
        atexit.unregister(self._close_at_exit)
        self._process.close(self._steps.next, error)
        if self._drawing is not None:
            with self._guarded():
                await_end(self._drawing, _PATIENCE)
            self._drawing = None

    def _unfollow(self) -> None:
        self._is_closed = True
        self._backward_watch.close()
        self._compiler.close()
        self._model_hook.close()
        self._optimizers.remove()
        _watchers.discard(self)

    def __repr__(self) -> str:
        every = self._frequencies["train"].every
        sampled = "every step" if every == 1 else f"one step in {every}"
        return f"<Watcher: {self._steps.next} steps, samples {sampled}>"

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)


def attach(tensor: Tensor, module: nn.Module, name: str) -> Tensor:
    """Record a tensor inside a ``forward``: ``x = torchscan.attach(x, self, "after_skip")``.

    Returns:
        A tensor with the same values. If it requires a gradient, it is a view, so that the gradient
        through it is separate from that of other uses of the tensor. It is a view even if nothing
        is watched, so watching changes no sum of gradients. If the view is not used, the recorded
        gradient is that of the tensor itself.
    """
    if torch.compiler.is_compiling():  # compiled code has no tensors to record
        return tensor
    alias = _alias_of(tensor)
    for watcher in _watchers:
        watcher.attach(tensor, alias, module, name)
    return alias


def _alias_of(tensor: Tensor) -> Tensor:
    """Return a view of a tensor, or the tensor itself if it requires no gradient."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor
    try:
        alias: Tensor = torch.ops.aten.alias.default(tensor)
    except (RuntimeError, NotImplementedError):  # of a layout that has no views
        return tensor
    return alias


def forget_in_child() -> None:
    """Stop watching in a process that was forked."""
    for watcher in list(_watchers):
        watcher.forget()


os.register_at_fork(after_in_child=forget_in_child)
