"""``watch(model)``: from now on the distributions of its tensors are recorded while it trains."""

from __future__ import annotations

import atexit
import fnmatch
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from torchscan._version import __version__
from torchscan.errors import InputError, warn_user
from torchscan.live.frequency import Frequency
from torchscan.live.probe import LOGGED, Numbers, Probe, parameters_of
from torchscan.live.process import Process
from torchscan.live.rows import Rows
from torchscan.live.schema import Phase
from torchscan.recording.bookkeeping.inventory import modules_of, tensors_of, type_name_of
from torchscan.recording.call_tree import CallTree, is_in_backward_pass, is_open, with_autograd_threads
from torchscan.recording.undo import is_recording
from torchscan.runtime.compiling import CompileWatch
from torchscan.torch_versions import accumulator_of, compiled_from, has_compiler, not_compiled

Chosen = str | nn.Module | Callable[[str, nn.Module], bool]

#: the watchers at work, for attach()
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()


class Watcher:
    """Records what a model does while it trains. It puts nothing on the model, and changes nothing that it computes."""

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        *,
        every: int | Literal["auto"],
        log: Sequence[str],
        modules: Iterable[Chosen] | None,
        sample_n: int,
        overhead_budget: float,
        step: int | None,
    ) -> None:
        self._model = model
        self._kinds = {LOGGED[name] for name in log}
        self._chosen = None if modules is None else list(modules)
        self._frequencies: dict[Phase, Frequency] = {phase: Frequency(every, overhead_budget) for phase in ("train", "eval")}
        self._device = next((tensor.device for tensor in tensors_of(model)), torch.device("cpu"))
        self._rows = Rows(sample_n, self._device)
        self._numbers = Numbers()
        self._process = Process(folder, _about(model, log))
        last = self._process.last
        #: passes of each phase so far, and training steps
        self._passes: dict[Phase, int] = {phase: last[phase][1] + 1 if phase in last else 0 for phase in ("train", "eval")}
        self._step = last["train"][0] + 1 if step is None and "train" in last else (step or 0)
        if step is not None:
            self._process.say({"is": "from", "step": step})
        self._is_told = self._is_closed = False
        self._probe: Probe | None = None
        self._under_way: tuple[int, Phase, int] = (0, "train", 0)
        self._has_begun_backward = False
        self._pid = os.getpid()
        self._follow()
        _watchers.add(self)
        atexit.register(self.close)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        self._tree = CallTree(self._path_of, with_autograd_threads())
        self._compiler = CompileWatch(self._pause, self._go_on)
        self._compiler.listen()
        self._knows_compiler = False
        self._gate = self._gate_of(self._model)
        self._handles: list[RemovableHandle] = []
        self._is_following = False
        self._leaves = self._followed_leaves()
        self._optimizers = register_optimizer_step_post_hook(lambda *_: self._note_backward())
        self._go_on()

    def _gate_of(self, model: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """Called before each module of the process: it must cost nothing but a comparison."""

        def gate(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module is model:
                self._begin(module, args)

        def gate_of_compiled(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module is model or compiled_from(module) is model:
                self._begin(module, args)

        return not_compiled(gate_of_compiled) if has_compiler() else gate

    def _go_on(self) -> None:
        if self._knows_compiler != has_compiler():
            self._knows_compiler = True
            self._compiler.ignore_hooks()
            self._compiler.listen()
            self._gate = self._gate_of(self._model)
        self._open_gate()
        if self._is_following:
            self._tree.go_on()

    def _pause(self) -> None:
        self._close_gate()
        self._tree.pause()

    def _open_gate(self) -> None:
        if not self._handles:
            self._handles = [register_module_forward_pre_hook(self._gate)]

    def _close_gate(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _followed_leaves(self) -> list[object]:
        """Nodes that store gradients of the first and the last parameter: they tell of backward passes that nobody sees."""
        parameters = [each for each in self._model.parameters() if each.requires_grad and not nn.parameter.is_lazy(each)]
        nodes = [node for each in {*parameters[:1], *parameters[-1:]} if (node := accumulator_of(each)) is not None]
        for node in nodes:
            node.register_prehook(lambda *_: self._note_backward())
        return nodes

    def _note_backward(self) -> None:
        """Gradients come, or an optimizer makes its step: the next forward pass may be one to be looked at."""
        self._has_begun_backward = True
        if not self._is_closed:
            self._open_gate()

    def _path_of(self, module: nn.Module) -> str | None:
        return None if is_recording() else self._paths.get(id(module))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The model is called."""
        if os.getpid() != self._pid or is_in_backward_pass() or is_recording() or is_open(module):
            return
        try:
            self._begin_pass(module, args)
        except Exception as error:
            self._give_up(error)

    def _begin_pass(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        phase: Phase = "train" if module.training and torch.is_grad_enabled() else "eval"
        if phase == "train" == self._under_way[1] and self._goes_on:
            return  # another forward pass of the same step
        self._finish()
        self._has_begun_backward = False
        number = self._passes[phase]
        self._passes[phase] += 1
        self._under_way = self._step, phase, number
        if phase == "train" and not self._is_told:
            self._step += 1
        if self._frequencies[phase].is_due(self._under_way[0] if self._is_told else number):
            self._arm(module, args)
        elif phase == "train" and not self._is_told:
            self._close_gate()  # until gradients come: no module need know

    @property
    def _goes_on(self) -> bool:
        """Whether a forward pass that begins now is of the step that is under way."""
        if self._is_told:
            return self._probe is not None
        return self._probe is not None and not self._has_begun_backward and self._probe.can_go_on

    def _arm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        start = time.perf_counter_ns()
        modules = list(modules_of(self._model))
        self._paths = {id(each): path for path, each in modules} | {id(module): ""}  # which may be a compiled one around it
        chosen = {path for path, each in modules if self._is_chosen(path, each)}
        turn = self._frequencies[self._under_way[1]].turn
        self._probe = Probe(
            self._rows,
            self._numbers,
            parameters_of((path, each) for path, each in modules if path in chosen) if self._under_way[1] == "train" else [],
            kinds=self._kinds,
            follows=chosen.__contains__,
            is_exact=turn,
        )
        self._tree = CallTree(self._path_of, with_autograd_threads())  # torch may still come to the hooks of the one before
        self._tree.start(self._probe.note_end, at_start=self._probe.note_start)
        if self._knows_compiler:
            self._tree.keep_compiler_out()
        self._is_following = True
        self._probe.took += time.perf_counter_ns() - start
        self._tree.join(module, args)

    def _is_chosen(self, path: str, module: nn.Module) -> bool:
        return self._chosen is None or any(_matches(each, path, module) for each in self._chosen)

    def _finish(self) -> None:
        """The step that was looked at is over."""
        probe, self._probe = self._probe, None
        if probe is None:
            return
        self._tree.stop()
        self._is_following = False
        step, phase, number = self._under_way
        sampled = probe.finish(step, phase, number)
        start = time.perf_counter_ns()
        self._process.put(sampled, self._numbers)
        self._frequencies[phase].note_cost(probe.took + time.perf_counter_ns() - start)

    def step(self, number: int | None = None) -> None:
        """A training step is over: from now on you say so, and nobody looks for it. ``number`` is that of the next one."""
        self._is_told = True
        self._open_gate()
        self._finish()
        self._step = self._step + 1 if number is None else number

    # -- the user's ----------------------------------------------------------------------------------------------------

    def attach(self, tensor: Tensor, module: nn.Module, name: str) -> None:
        """See :func:`attach`."""
        path = self._paths.get(id(module)) if self._probe is not None else None
        if self._probe is None or path is None:
            return
        call = self._tree.current
        invocation = call.invocation if call is not None and call.module is module else 0
        self._probe.note_attached(path, name, invocation, module, tensor)

    @property
    def dropped(self) -> int:
        """Steps that were looked at and not kept, because the worker was behind."""
        return self._process.dropped

    def state_dict(self) -> dict[str, int]:
        """For a checkpoint: ``watch(model, run, step=state["step"])`` goes on from there."""
        return {"step": self._step}

    def close(self) -> None:
        """Watch no longer. What was seen is written."""
        if self._compiler is None or os.getpid() != self._pid:
            return
        try:
            self._finish()
        except Exception as error:
            self._give_up(error)
        self._unfollow()
        self._process.close()

    def _unfollow(self) -> None:
        self._tree.stop()
        self._pause()
        self._is_following = False
        self._compiler.close()
        self._optimizers.remove()
        self._leaves = []
        self._is_closed = True
        _watchers.discard(self)
        atexit.unregister(self.close)

    def _give_up(self, error: Exception) -> None:
        """A mistake of ours ends the watching, not the training."""
        self._probe = None
        self._unfollow()
        said = f"{type(error).__name__}: {error}"[:300]
        warn_user(f"nothing is watched any more, by a mistake of torchscan's that does not touch the run: {said}")

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def watch(
    model: nn.Module,
    run: str | os.PathLike[str],
    *,
    every: int | Literal["auto"] = "auto",
    log: Sequence[str] = ("inputs", "outputs", "output_grads", "params", "param_grads"),
    modules: Iterable[Chosen] | None = None,
    sample_n: int = 512,
    overhead_budget: float = 0.01,
    step: int | None = None,
) -> Watcher:
    """Record the distributions of a model's tensors while it trains, into the folder ``run``.

    Args:
        model: what is trained. Nothing of it is changed.
        run: the folder of the run. If it has one already, that goes on.
        every: how many steps from one that is looked at to the next; "auto": as few as ``overhead_budget`` allows.
        log: what is looked at: "inputs", "outputs", "input_grads", "output_grads", "params", "param_grads".
        modules: which modules: patterns of paths such as ``"layer*.conv?"``, modules, or functions of a path and a module.
        sample_n: values that are taken of a tensor in a step.
        overhead_budget: the share of the time of training that watching may take, with ``every="auto"``.
        step: the number of the first step. What an earlier process has recorded from there on is recorded anew. None: the one
            after the last that was recorded.
    """
    if isinstance(log, str):
        raise InputError(f"log is a text: give a list, log=[{log!r}]")
    unknown = [name for name in log if name not in LOGGED]
    if unknown:
        raise InputError(f"log has {unknown[0]!r}: there are {', '.join(LOGGED)}")
    if every != "auto" and (not isinstance(every, int) or every < 1):
        raise InputError(f"every is {every!r}: a number of steps from 1 on, or 'auto'")
    return Watcher(
        model,
        Path(run),
        every=every,
        log=log,
        modules=modules,
        sample_n=sample_n,
        overhead_budget=overhead_budget,
        step=step,
    )


def attach(tensor: Tensor, module: nn.Module, name: str) -> Tensor:
    """Watch any tensor inside a module's ``forward``: ``x = torchscan.attach(x, self, "after_skip")``. You get it back."""
    for watcher in _watchers:
        watcher.attach(tensor, module, name)
    return tensor


def _matches(chosen: Chosen, path: str, module: nn.Module) -> bool:
    if isinstance(chosen, str):
        return fnmatch.fnmatchcase(path, chosen)
    return chosen is module if isinstance(chosen, nn.Module) else bool(chosen(path, module))


def _about(model: nn.Module, log: Sequence[str]) -> dict[str, Any]:
    whole = compiled_from(model) or model
    return {
        "model": type_name_of(whole),
        "parameters": sum(each.numel() for each in whole.parameters() if not nn.parameter.is_lazy(each)),
        "log": list(log),
        "torchscan": __version__,
        "torch": torch.__version__,
    }
