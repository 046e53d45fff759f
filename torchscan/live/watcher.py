"""``watch(model)``: from now on the distributions of its tensors are recorded while it trains."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchscan.live.about import about_of
from torchscan.live.accepting import choice, flag, path
from torchscan.live.frequency import Frequency
from torchscan.live.gate import ModelHook
from torchscan.live.graphing import await_end, draw_apart
from torchscan.live.losses import INTERNAL_ERROR, format_error
from torchscan.live.probe import Before, Probe, SeriesNumbers, is_transformed, parameters_of
from torchscan.live.process import WriterProcess
from torchscan.live.rows import Rows
from torchscan.live.schema import Phase
from torchscan.live.sinks.sink import Sink
from torchscan.live.starting import START_METHODS, StartMethod
from torchscan.live.steps import Pass, StepCounter
from torchscan.live.telling import warn_or_print
from torchscan.live.wanted import (
    Chosen,
    Wanted,
    is_chosen,
    log_of,
    sinks_of,
    statistics_of,
    step_of,
    wanted_of,
)
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import modules_of, tensors_of
from torchscan.recording.call_tree import (
    Call,
    CallTree,
    Given,
    is_in_backward_pass,
    is_open,
    is_running,
    with_autograd_threads,
)
from torchscan.recording.request import require_module
from torchscan.recording.undo import is_recording
from torchscan.runtime.compiling import CompileWatch
from torchscan.torch_versions import has_compiler, without_torch_function
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torchscan.live.explore.serving import Server
    from torchscan.live.task import Statistic

#: the watchers at work, for attach() and for processes that are forked
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
#: seconds to wait, when everything is over, for the graph of a run that was short
_PATIENCE = 10.0


class Watcher:
    """Records what a model does while it trains. It puts nothing on the model, and changes nothing that it computes."""

    def __init__(
        self, module: nn.Module, process: WriterProcess, wanted: Wanted, step: int | None
    ) -> None:
        self._model, self._process, self._wanted = module, process, wanted
        self._frequencies: dict[Phase, Frequency] = {
            phase: Frequency(wanted.every, wanted.overhead_budget) for phase in ("train", "eval")
        }
        self._rows = Rows(
            wanted.sample_n,
            next((tensor.device for tensor in tensors_of(module)), torch.device("cpu")),
        )
        self._numbers, self._before = SeriesNumbers(wanted.whole), Before()
        self._steps = StepCounter(process.last, process.reached, step)
        self._rewrite_from(step)
        if step is None and process.last:
            self._warn_of_continuation(self._steps.next)
        self._probe: Probe | None = None
        self._paths: dict[int, str] = {}
        self._is_closed = self._has_begun = False
        #: the first process of a run has its graph drawn, by what the model is called with in the first step that is looked at
        self._awaits_graph = wanted.graph and process.is_first
        self._drawing: int | None = None
        #: that shows the run in the browser, if one was asked for
        self.server: Server | None = None
        self._pid = os.getpid()
        self._parameters = {id(each) for each in module.parameters()}
        #: the thread that trains: the first that calls the model
        self._thread: int | None = None
        self._tree = CallTree(self._path_of, with_autograd_threads())
        self._is_following = False
        self._model_hook = ModelHook(module, self._begin, self._note_backward)
        self._optimizers = register_optimizer_step_post_hook(
            lambda optimizer, *_: self._note_optimizer(optimizer)
        )
        self._knows_compiler = False
        self._compiler = CompileWatch(self._pause, self._go_on)
        self._compiler.listen()
        self._model_hook.await_call()
        self._go_on()
        _watchers.add(self)
        atexit.register(self._close_at_exit)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._knows_compiler != has_compiler():
            self._knows_compiler = True
            self._compiler.ignore_hooks()
            self._compiler.listen()
            self._model_hook.keep_compiler_out()
        self._model_hook.go_on()
        if self._is_following:
            self._tree.go_on()

    def _pause(self) -> None:
        self._model_hook.pause()
        self._tree.pause()

    def _note_backward(self) -> None:
        """Gradients come: the next forward pass may be one to be looked at."""
        if not self._is_closed:
            self._steps.note_backward()
            self._model_hook.await_call()

    def _note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made its step, which may be another model's: parameters are what they will be."""
        if not any(
            id(each) in self._parameters
            for group in optimizer.param_groups
            for each in group["params"]
        ):
            return
        self._note_backward()
        if self._probe is not None and self._is_here:
            self._probe.note_updated()

    @property
    def _is_here(self) -> bool:
        """True in the process and the thread that train."""
        return os.getpid() == self._pid and self._thread in (None, threading.get_ident())

    def _path_of(self, module: nn.Module) -> str | None:
        return None if is_recording() else self._paths.get(id(module))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The model is called, or a part of it."""
        if (
            not self._is_here
            or is_in_backward_pass()
            or is_recording()
            or is_transformed()
            or self._is_inside(module)
        ):
            return
        with self._guarded():
            self._thread = threading.get_ident()
            self._model_hook.note_entry(module, is_first=not self._has_begun)
            self._has_begun = True
            self._begin_pass(module, args)

    def _is_inside(self, module: nn.Module) -> bool:
        """Return whether the model itself calls a module.

        An open call may have been interrupted.
        """
        if is_open(module):
            return True
        current = (
            self._tree.current
            if self._is_following and not self._model_hook.is_model(module)
            else None
        )
        return current is not None and current.module is not module and is_running(current.module)

    def _begin_pass(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        phase: Phase = "train" if module.training and torch.is_grad_enabled() else "eval"
        part = None if self._model_hook.is_model(module) else id(module)
        place = self._steps.relation_of(phase, part)
        if self._probe is not None:
            self._probe.is_aside = place == "aside"
        if place == "same" and self._probe is not None:
            self._tree.forget_interrupted()
        elif place == "same" and phase == "train":
            self._model_hook.await_result(module)
        if place != "new":
            return
        self._finish()
        begun = self._steps.begin(phase, part)
        if self._is_due(begun):
            self._arm(module, args)
        elif phase == "train" and not self._steps.is_manual:
            self._model_hook.await_result(module)

    def _is_due(self, begun: Pass) -> bool:
        frequency = self._frequencies[begun.phase]
        if begun.phase == "train":
            return frequency.is_due(begun.step)
        return frequency.is_evaluation_due(begun.number, begun.place, begun.step + begun.number)

    def _arm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        start = time.perf_counter_ns()
        modules = list(modules_of(self._model))
        self._paths = {id(each): path for path, each in modules}
        self._paths.setdefault(id(module), "")  # which may be a compiled one around it
        self._parameters = {id(each) for each in self._model.parameters()}
        chosen = {path for path, each in modules if is_chosen(self._wanted.modules, path, each)}
        phase = self._steps.current.phase
        self._probe = Probe(
            self._steps.current,
            self._rows,
            self._numbers,
            parameters_of((path, each) for path, each in modules if path in chosen)
            if phase == "train"
            else [],
            self._before,
            kinds=self._wanted.kinds,
            follows=chosen.__contains__,
            is_exact=self._frequencies[phase].turn,
            sample_norms=self._wanted.sample_norms,
            begin_backward=self._note_backward,
            fail=self._give_up,
        )
        self._tree = CallTree(
            self._path_of, with_autograd_threads()
        )  # torch may still come to the hooks of the one before
        self._tree.start(self._note_end, at_start=self._note_start)
        if self._knows_compiler:
            self._tree.keep_compiler_out()
        self._is_following = True
        self._probe.took += time.perf_counter_ns() - start
        self._process.begin(phase, self._steps.current.step)
        self._tree.join(module, args)

    def _note_start(self, call: Call, args: tuple[Any, ...]) -> None:
        if call.parent is None:
            self._model_hook.note_entry(call.module, is_first=False)
        if self._probe is not None:
            self._probe.note_start(call, args)

    def _note_end(self, call: Call, given: Given, result: object) -> None:
        if self._probe is not None:
            self._probe.note_end(call, given, result)
            if (
                self._awaits_graph
                and call.parent is None
                and self._model_hook.is_model(call.module)
            ):
                self._draw_graph(given)
        if call.parent is None:
            self._tree.forget_exception()  # which holds all that was computed

    def _finish(self) -> None:
        """The step that was looked at is over."""
        probe, self._probe = self._probe, None
        if probe is None:
            return
        self._tree.stop()
        self._is_following = False
        sampled = probe.finish()
        start = time.perf_counter_ns()
        self._process.put(sampled, self._numbers)
        self._rows.wholes.clear()
        self._frequencies[sampled.phase].note_cost(probe.took + time.perf_counter_ns() - start)

    def _draw_graph(self, given: Given) -> None:
        if self._steps.current.phase != "train":
            return
        self._awaits_graph = False
        try:
            self._drawing = draw_apart(self._model, given, self._process.path)
        except Exception as error:  # the graph is not worth the watching
            note = Note.of("graph-not-drawn", error=format_error(error))
            self._process.send({"is": "note", "note": note.to_data()})

    def step(self, number: int | None = None) -> None:
        """End a training step by hand, from now on. ``number`` is that of the next step."""
        number = None if number is None else step_of(number)
        if self._is_closed or not self._is_here:
            return
        with self._guarded():
            self._model_hook.await_call()
            self._finish()
            if number is not None and number < self._steps.next:
                self._rewrite_from(number)
            self._steps.end(number)

    def _warn_of_continuation(self, step: int) -> None:
        note = Note.of("run-continued", step=step)
        self._process.send({"is": "note", "note": note.to_data()})
        advice = f"give step={step} to confirm, or another folder"
        folder = str(self._process.folder)
        warn_or_print(f"run {folder!r} already exists and continues at step {step}: {advice}")

    def _rewrite_from(self, step: int | None) -> None:
        if step is not None:
            self._process.send({"is": "from", "step": step})

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
        probe, self._probe = self._probe, None
        self._unfollow()
        text = format_error(error)
        if probe is not None:
            self._process.lose(
                self._steps.current.phase,
                self._steps.current.step,
                INTERNAL_ERROR,
            )
        warn_or_print(
            f"torchscan hit an internal error and stopped watching; training is not affected: {text}"
        )

    def forget(self) -> None:
        """In a process that was forked: the run is the other's."""
        self._is_closed = True
        self._probe = None
        self._tree.stop()
        self._model_hook.close()

    # -- the user's ----------------------------------------------------------------------------------------------------

    def attach(self, tensor: Tensor, alias: Tensor, module: nn.Module, name: str) -> None:
        """Record an attached tensor, with the ``alias`` that :func:`attach` returns for it."""
        path = self._paths.get(id(module))
        if (
            self._probe is None
            or path is None
            or not self._is_here
            or not isinstance(tensor, Tensor)
        ):
            return
        call = self._tree.current
        invocation = call.invocation if call is not None and call.module is module else 0
        self._probe.note_attached(path, name, invocation, module, tensor, alias)

    @property
    def dropped(self) -> int:
        """Steps that were sampled and are not in the run: without room, not written, or not yet when close() ended."""
        return self._process.dropped

    def state_dict(self) -> dict[str, int]:
        """For a checkpoint: ``watch(model, run, step=state["step"])`` goes on from there."""
        return {"step": self._steps.next}

    def close(self) -> None:
        """Watch no longer. What was seen is written."""
        self._close(None)

    def _close_at_exit(self) -> None:
        """The program is over, by an exception perhaps."""
        self._close(getattr(sys, "last_value", None))

    def _close(self, error: BaseException | None) -> None:
        if os.getpid() != self._pid:
            return
        if not self._is_closed:
            with self._guarded():
                self._finish()
        if not self._is_closed:
            self._unfollow()
            self._warn_of_unmatched()
        atexit.unregister(self._close_at_exit)
        self._process.close(self._steps.next, error)
        if self._drawing is not None:
            with self._guarded():
                await_end(self._drawing, _PATIENCE)
            self._drawing = None

    def _warn_of_unmatched(self) -> None:
        for pattern in self._numbers.unmet if self._has_begun else ():
            warn_or_print(
                f"whole has {pattern!r}, which matched no series: choose from open_run(…).find()"
            )

    def _unfollow(self) -> None:
        self._is_closed = True
        self._is_following = False
        self._tree.stop()
        self._compiler.close()
        self._model_hook.close()
        self._optimizers.remove()
        _watchers.discard(self)

    def __repr__(self) -> str:
        every = self._frequencies["train"].every
        return f"<Watcher: {self._steps.next} steps, samples {'every step' if every == 1 else f'one step in {every}'}>"

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)


@explain_wrong_types
def watch(
    module: nn.Module,
    run: str | os.PathLike[str],
    *,
    every: int | Literal["auto"] = "auto",
    log: Sequence[str] = ("inputs", "outputs", "output_grads", "params", "param_grads"),
    modules: Iterable[Chosen] | None = None,
    sample_n: int = 512,
    sample_norms: bool = False,
    whole: Iterable[str] = (),
    custom: Mapping[str, Statistic] | None = None,
    sinks: Iterable[Sink] = (),
    overhead_budget: float = 0.01,
    step: int | None = None,
    graph: bool = True,
    serve: bool = False,
    start: StartMethod = "spawn",
) -> Watcher:
    """Record the distributions of a model's tensors while it trains, into the folder ``run``.

    Args:
        module: what is trained. Nothing of it is changed.
        run: the folder of the run. If it has one already, that goes on.
        every: how many steps from one that is looked at to the next; "auto": as few as ``overhead_budget`` allows, or fewer, so
            that eight are looked at in each doubling of their number.
        log: what is looked at: "inputs", "outputs", "input_grads", "output_grads", "params", "param_grads".
        modules: which modules: patterns of paths such as ``"layer*.conv?"``, modules, or functions of a path and a module.
        sample_n: values that are taken of a tensor in a step; of a tensor with fewer values, all.
        sample_norms: of gradients of inputs and outputs, also the mean over the batch of an element's L2 norm.
        whole: series of which all values go to ``custom`` and ``sinks``, as patterns of what :attr:`Series.label` is.
        custom: statistics of yours, by their names: functions of a series' values, which run in the worker.
        sinks: where each step goes besides the run's own file.
        overhead_budget: the share of the time of training that watching may take, with ``every="auto"``.
        step: the number of the first step. What an earlier process has recorded from there on is recorded anew. None: the one
            after the last that was recorded.
        graph: whether a process that is forked in the first step that is looked at works out the graph of the model for the
            page of the run: on shapes alone, and with no effect here. Only Linux has it.
        serve: whether to show the run in the browser, at the address that is printed, until this program ends.
        start: how the worker is started: "spawn", as a program of its own; or "fork", "forkserver", as Python does.
    """
    require_module(module)
    folder = path("run", run, "a folder such as 'runs/first'")
    choice("start", start, START_METHODS)
    serve = flag("serve", serve)
    step = None if step is None else step_of(step)
    sinks, log = sinks_of(sinks), log_of(log)
    statistics = statistics_of(custom)
    wanted = wanted_of(
        module,
        every=every,
        log=log,
        modules=modules,
        sample_n=sample_n,
        sample_norms=sample_norms,
        whole=whole,
        sinks=sinks,
        overhead_budget=overhead_budget,
        graph=graph,
    )
    if serve:
        from torchscan.live.explore.serving import require_server

        require_server()
    process = WriterProcess(
        folder, about_of(module, log), sinks=sinks, custom=statistics, start=start, step=step
    )
    watcher = Watcher(module, process, wanted, step)
    if serve and process.is_first:
        from torchscan.live.explore.serving import serve as served

        try:
            watcher.server = served(run)
        except BaseException:
            watcher.close()  # nobody else could
            raise
        print(f"torchscan: {watcher.server.url}")  # noqa: T201 - that is what was asked for
    return watcher


def attach(tensor: Tensor, module: nn.Module, name: str) -> Tensor:
    """Watch any tensor inside a module's ``forward``: ``x = torchscan.attach(x, self, "after_skip")``.

    Returns:
        A tensor with the same values. For a tensor that has gradients it is a view of all its values, so that the gradient
        that flows through it is kept apart from that of other uses of the tensor. It is a view whether anything is watched
        or not, so watching changes no sum of gradients. If the view is not used, the gradient is that of the tensor itself.
    """
    if torch.compiler.is_compiling():  # a compiled program has no tensors to look at
        return tensor
    alias = _alias_of(tensor)
    for watcher in _watchers:
        watcher.attach(tensor, alias, module, name)
    return alias


def _alias_of(tensor: Tensor) -> Tensor:
    """Return another tensor with the same values and a separate node, or the same one if it has no gradients."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor
    try:
        alias: Tensor = torch.ops.aten.alias.default(tensor)
    except (RuntimeError, NotImplementedError):  # of a layout that has no views
        return tensor
    return alias


def _forget_in_child() -> None:
    for watcher in list(_watchers):
        watcher.forget()


os.register_at_fork(after_in_child=_forget_in_child)
