"""A cheap check of every training step to the end of a run: the loss, the gradients, and the parameters after the optimizer.

Each is one sum or one fused norm. On a CUDA device nothing waits for it: it is read when it has arrived, up to a step later.
When a check fails, the call that is to blame is repeated on a copy and inspected closely, until module, operator and line are
known. The guard puts nothing on models. It takes the place of the function that runs backward passes, and of two methods of
``GradScaler``, and listens to hooks of all modules and optimizers.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchscan.errors import TorchscanError, warn_user
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import is_in_backward_pass, is_running
from torchscan.recording.places import is_of_user, place_of_user
from torchscan.recording.undo import is_recording
from torchscan.runtime.compiling import CompileWatch
from torchscan.runtime.findings import Bad, CheckedModule, GuardFacts, NonFinite, ranges_of
from torchscan.runtime.finiteness import FINE, Look, is_plain, is_readable, look_at
from torchscan.runtime.loss_graph import LossGraph, operator_of
from torchscan.runtime.root_calls import ModuleSteps, RootCall, RootCalls, is_capturing_here
from torchscan.runtime.second_look import is_looking_again, look_again
from torchscan.runtime.values import Listener
from torchscan.torch_versions import (
    FORMATS_STACK,
    RUNS_BACKWARD,
    compile_callbacks,
    forget_hooks,
    is_transforming,
    norms_of,
    not_compiled,
    put_in,
    unseen,
)

#: calls that are repeated in a run
_MAX_LOOKS = 16
#: findings that are kept
_MAX_FINDINGS = 1024
_WRITTEN = "it was written to since the last optimizer step, after which it was finite"
_TOO_MANY = f"{_MAX_LOOKS} calls have been repeated, and no more are"
_LATER = "values were read after the step, as they are on a device"
_REPEATED = "its call, repeated, made none"


class NonFiniteGuard:
    """Checks training steps while it is started."""

    def __init__(self, listener: Listener, model: nn.Module | None = None) -> None:
        """``model`` is the only one whose training is checked; None: every one."""
        self._listener = listener
        self._only = None if model is None else weakref.ref(model)
        self._calls = RootCalls()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._updates: Counter[int] = Counter()
        self._findings: list[NonFinite] = []
        self._bad_steps: set[tuple[int, int]] = set()
        self._found_elsewhere: set[int] = set()
        self._num_looks = 0
        #: parameters and buffers that are not finite and have been reported, or were so from the start
        self._known_bad: dict[int, weakref.ref[Tensor]] = {}
        #: True once parameters were seen to be finite after an optimizer's step
        self._was_fine = False
        self._notes_lines = False
        self._scaled: deque[tuple[weakref.ref[Tensor], Tensor, float]] = deque(maxlen=8)
        self._scale: float | None = None
        #: of the backward pass before an optimizer's step: whether its gradients were finite, and which version they had
        self._gradients_fine: bool | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        #: gradients that were not finite after an earlier backward pass
        self._spoilt: dict[int, weakref.ref[Tensor]] = {}
        self._backward_line: str | None = None
        self._stepping: list[Optimizer] = []
        self._scaling: Optimizer | None = None
        self._has_stepped = False
        self._skipped: list[int] = []
        self._late: deque[_Late] = deque()
        self._busy = False
        self._process = os.getpid()
        self._handles: tuple[RemovableHandle, ...] = ()
        self._undo: list[Callable[[], None]] = []
        self._before: Callable[..., None] = self._note_start
        self._after: Callable[..., None] = self._note_end
        self.is_started = False
        #: True once the compiler is loaded, which may try to compile whatever is called in what it compiles
        self._has_compiler = False
        #: by optimizer: the number of its parameters, and whether it trains the model that is checked
        self._ours_by_optimizer: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = weakref.WeakKeyDictionary()
        #: a context for what the guard does, which is no part of a step's times
        self.ours: Callable[[], AbstractContextManager[object]] = nullcontext
        #: tells whether an inspection of this module has found something in its current step
        self.has_found: Callable[[], bool] = lambda: False
        #: the module that is inspected closely
        self.inspected: Callable[[], nn.Module | None] = lambda: None

    @property
    def is_scaled(self) -> bool:
        """True while a backward pass goes on whose loss a GradScaler has scaled: it skips steps whose gradients overflow."""
        return self._scale is not None

    def refined(self, found: NonFinite) -> NonFinite | None:
        """Return what an inspection has found, with what the guard knows about parameters, or None if it has reported it."""
        if found.phase != "forward" or not found.weights:
            return found
        if self._is_spoilt():
            return None
        if not self._was_fine:
            return found
        return replace(found, phase="update", cause=_WRITTEN, operator=None, line=None, inputs=())

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check from now on."""
        if self.is_started:
            return
        self.is_started = True
        self._compiler = CompileWatch(self._pause, self._go_on)
        self._go_on()
        self._handles = (
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        )
        self._replace(*RUNS_BACKWARD, self._running)
        scaler: Any = torch.amp.GradScaler
        self._replace_method(scaler, "scale", self._scaling_loss)
        self._replace_method(scaler, "step", self._scaling_step)

    def finish(self) -> None:
        """Check no longer."""
        if not self.is_started:
            return
        self.is_started = False
        self._pause()
        self._compiler.close()
        for handle in self._handles:
            handle.remove()
        for put_back in reversed(self._undo):
            put_back()
        self._undo.clear()
        self._read(waits=True)
        self._calls.recent.clear()

    def _replace(self, names: dict[str, Any], name: str, wrap: Callable[..., Any]) -> None:
        before = names[name]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrap(before, *args, **kwargs)

        names[name] = wrapped

        def put_back() -> None:
            if names[name] is wrapped:
                names[name] = before

        self._undo.append(put_back)

    def _replace_method(self, owner: type, name: str, wrap: Callable[..., Any]) -> None:
        before = vars(owner)[name]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrap(before, *args, **kwargs)

        setattr(owner, name, wrapped)

        def put_back() -> None:
            if vars(owner)[name] is wrapped:
                setattr(owner, name, before)

        self._undo.append(put_back)

    def _go_on(self) -> None:
        if not self.is_started:
            return
        self._has_compiler = bool(compile_callbacks())
        self._before = not_compiled(self._note_start) if self._has_compiler else self._note_start
        self._after = not_compiled(self._note_end) if self._has_compiler else self._note_end
        register_module_forward_pre_hook(self._before)
        register_module_forward_hook(self._after, with_kwargs=True, always_call=True)

    def _pause(self) -> None:
        self._note_lines(on=False)
        forget_hooks(self._before, self._after)

    def _is_off(self) -> bool:
        return not self.is_started or self._is_blind() or os.getpid() != self._process

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Keep an internal error from ending the user's run."""
        self._busy = True
        try:
            with self.ours():
                yield
        except TorchscanError:
            raise
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy = False

    def _give_up(self, error: Exception) -> None:
        """An internal error ends the checks, not the run."""
        self._late.clear()
        self.finish()
        said = f"{type(error).__name__}: {error}"[:300]
        warn_user(f"torchscan hit an internal error and stopped checking for NaN; training is not affected: {said}")

    def facts(self) -> GuardFacts:
        """Return what was checked and found so far."""
        self._read(waits=True)
        trained = self._calls.trained()
        module = self.inspected()
        main = None if module is None else self._calls.steps_of(module)
        if main is None or not main.begun:
            main = max(trained, key=lambda each: each.begun, default=None)
        names = [CheckedModule(name=self._name_of(each), steps=each.begun) for each in trained]
        return GuardFacts(
            checked_steps=0 if main is None else main.begun,
            trained=tuple(names) if len(names) > 1 else (),
            skipped_steps=len(self._skipped),
            first_skipped=self._skipped[0] if self._skipped else None,
            findings=tuple(self._findings),
            nonfinite_steps=len(self._bad_steps),
        )

    # -- calls of modules ----------------------------------------------------------------------------------------------

    def _note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._is_blind():
            return
        try:
            call = self._calls.begin(module, args)
            if call is not None and call.steps.has_parameters:
                self._begin_root(call, module)
        except Exception as error:
            self._give_up(error)

    def _begin_root(self, call: RootCall, module: nn.Module) -> None:
        self._note_lines(on=False)
        self._compiler.listen()
        if not self._has_compiler and compile_callbacks():  # it has been loaded since
            self._pause()
            self._go_on()
        if call.steps.is_new:
            call.steps.is_new = False
            with self.ours():  # infinities that are there from the start are masks
                self._know(each for each in module.buffers() if is_readable(each) and not look_at(each).is_fine)

    def _note_end(self, module: nn.Module, _args: tuple[Any, ...], *rest: Any) -> None:
        if self._is_blind():
            return
        *kwargs, result = rest
        try:
            call = self._calls.end(module, kwargs[0] if kwargs else {}, result)
            if call is not None and call.has_graph:
                self._note_lines(on=True)
        except Exception as error:
            self._give_up(error)

    def _is_blind(self) -> bool:
        """Return whether the current call of a module is none of a training step."""
        return (
            self._busy
            or is_dynamo_compiling()
            or is_recording()
            or is_looking_again()
            or is_transforming()
            or is_capturing_here()
        )

    def _note_lines(self, *, on: bool) -> None:
        """Have torch note the lines that create nodes of a graph, as in anomaly mode but in short, or not."""
        if on and not self._notes_lines and not torch.is_anomaly_enabled():
            self._notes_lines = True
            self._formatter = put_in(*FORMATS_STACK, _short_stack)
            torch.set_anomaly_enabled(True, False)
        elif not on and self._notes_lines:
            self._notes_lines = False
            torch.set_anomaly_enabled(False)
            put_in(*FORMATS_STACK, self._formatter)

    # -- backward passes -----------------------------------------------------------------------------------------------

    def _running(self, run: Callable[..., Any], tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, in place of torch's function."""
        if self._is_off() or is_in_backward_pass():
            return run(tensors, *args, **kwargs)
        self._note_lines(on=False)
        graph = None
        with self._looking():
            if self._calls.is_open() and not any(is_running(module) for module in self._open_modules()):
                self._calls.forget_open()
            graph = self._check_loss([each for each in tensors if isinstance(each, Tensor)])
        made = run(tensors, *args, **kwargs)
        if graph is not None:
            with self._looking():
                if kwargs.get("accumulate_grad", True):
                    self._check_gradients(graph)
                graph.close()
        self._note_lines(on=self.is_started)
        return made

    def _open_modules(self) -> list[nn.Module]:
        opened = [call.module() for call, _ in self._calls._open.values()]
        return [each for each in opened if each is not None]

    def _check_loss(self, tensors: Sequence[Tensor]) -> LossGraph | None:
        """Check what a backward pass starts at; return the graph between that and the models, or None if it is not ours."""
        self._read(waits=False)
        self._gradients_fine = self._scale = None
        if self._only is not None and not self._awaits_gradient():
            return None
        graph = LossGraph(tensors, self._is_inside)
        self._backward_line = place_of_user()
        losses, self._scale = self._unscaled(tensors)
        if any(each.is_cuda for each in losses):
            self._send("loss", [(None, each) for each in losses])
        else:
            look = sum((look_at(each) for each in losses if is_readable(each)), FINE)
            if not look.is_fine:
                self._explain_loss(graph, look, losses)
                self._gradients_fine = False
                return graph
        graph.follow()
        return graph

    def _awaits_gradient(self) -> bool:
        """Return whether a call of the only model that is checked, or of one around it, has not got its gradient yet."""
        modules = [module for call in self._calls.recent if call.awaits_gradient and (module := call.module()) is not None]
        return any(map(self._is_wanted, modules))

    def _is_inside(self, number: int) -> bool:
        """Return whether the node with this number was made in a call of a module with parameters."""
        return any(call.made_node(number) for call in self._calls.recent if call.steps.has_parameters)

    def _unscaled(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Return the losses as they were before a GradScaler scaled them, and its scale."""
        losses, scale = [], None
        for tensor in tensors:
            found = next(((loss, by) for scaled, loss, by in self._scaled if scaled() is tensor), None)
            if found is not None:
                loss, scale = found
                losses.append(loss)
            else:
                losses.append(tensor)
        return losses, scale

    def _check_gradients(self, graph: LossGraph) -> None:
        """Check the gradients that a backward pass has stored."""
        gradients = [(each, each.grad) for each in self._parameters() if each.grad is not None]
        if self._gradients_fine is False:  # the loss was not finite
            self._note_spoilt(gradients)
            return
        self._versions = {id(each): (id(gradient), gradient._version) for each, gradient in gradients}
        if any(gradient.is_cuda for _, gradient in gradients):
            self._send("backward", gradients)
            return
        checked = [
            (each, gradient)
            for each, gradient in gradients
            if not self._is_known(each) and not self._is_spoilt_by_others(gradient)
        ]
        self._gradients_fine = _are_finite([gradient for _, gradient in checked])
        if self._gradients_fine:
            return
        self._note_spoilt(checked)
        if self._scale is None:
            self._explain_gradients(graph, 1.0)
        else:
            self._explain_scaled(graph)

    def _note_spoilt(self, gradients: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Remember gradients that stay as they are while others are added to them."""
        bad = [gradient for _, gradient in gradients if not look_at(gradient).is_fine]
        self._spoilt = {id(each): weakref.ref(each) for each in bad}

    def _is_spoilt_by_others(self, gradient: Tensor) -> bool:
        """Return whether a gradient was not finite before this backward pass, which has added to it."""
        known = self._spoilt.get(id(gradient))
        return known is not None and known() is gradient and not look_at(gradient).is_fine

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_off():
            return
        self._has_stepped = True
        self._stepping.append(optimizer)
        self._optimizers.add(optimizer)
        if optimizer is self._scaling or self._gradients_fine is not True or not self._is_ours(optimizer):
            return
        with self._looking():
            written = []
            for parameter in _parameters_of(optimizer):
                gradient = parameter.grad
                if gradient is not None and self._versions.get(id(parameter)) != (id(gradient), gradient._version):
                    written.append((parameter, gradient))
            if written and written[0][1].is_cuda:
                self._send("gradient", written)
            elif not _are_finite([gradient for _, gradient in written]):
                self._explain_written(optimizer, written)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_off() or optimizer not in self._stepping:
            return
        self._stepping.remove(optimizer)
        if not self._is_ours(optimizer):
            return
        with self._looking():
            parameters = [each for each in _parameters_of(optimizer) if not self._is_known(each)]
            buffers = [each for each in self._buffers() if not self._is_known(each)]
            if parameters and parameters[0].is_cuda:
                self._send("optimizer", [(each, each) for each in (*parameters, *buffers)])
            else:
                self._check_parameters(optimizer, parameters, buffers)
            self._updates[id(optimizer)] += 1
            self._calls.release()

    def _check_parameters(self, optimizer: Optimizer, parameters: list[Tensor], buffers: list[Tensor]) -> None:
        if not _are_finite(parameters):
            self._explain_update(optimizer, [each for each in parameters if not look_at(each).is_fine])
        if not _are_finite(buffers):  # infinities may be a mask that was made anew
            self._explain_buffers([each for each in buffers if look_at(each).nan])
        self._was_fine = True

    # -- GradScaler ----------------------------------------------------------------------------------------------------

    def _scaling_loss(self, scale: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        made = scale(scaler, outputs)
        if isinstance(outputs, Tensor) and isinstance(made, Tensor) and made is not outputs and not self._is_off():
            by = math.nan if made.is_cuda else float(scaler.get_scale())
            self._scaled.append((weakref.ref(made), outputs.detach(), by))
        return made

    def _scaling_step(self, step: Callable[..., Any], scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._is_off():
            return step(scaler, optimizer, *args, **kwargs)
        self._has_stepped, self._scaling = False, optimizer
        is_fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        try:
            made = step(scaler, optimizer, *args, **kwargs)
        finally:
            self._scaling = None
        with self._looking():
            if not self._has_stepped or (is_fused and self._gradients_fine is False):
                self._note_skipped(optimizer)
        return made

    def _note_skipped(self, optimizer: Optimizer) -> None:
        """Count a step that is skipped because scaled gradients overflow. Those that do without a scale are a finding."""
        main = self._main_of(_parameters_of(optimizer))
        self._skipped.append(max(main.begun - 1, 0) if main is not None else self._updates[id(optimizer)])
        if self._gradients_fine is False and self._scale is not None and math.isfinite(self._scale):
            self._explain_gradients(None, self._scale)
        self._calls.release()

    # -- explanations --------------------------------------------------------------------------------------------------

    def _explain_loss(self, graph: LossGraph, look: Look, losses: Sequence[Tensor]) -> None:
        """The loss is not finite: report the call, or the operator between models and loss, that made it so."""
        calls = [call for call in self._calls.recent if call.has_graph or not call.has_grad or call.outputs]
        steps = self._steps_now()
        if not self._begin_finding(steps):
            return
        for call in calls:
            if not call.steps.has_parameters and call.has_graph:
                continue  # a loss module: its nodes are in the graph
            outputs = [each for reference in call.outputs if (each := reference()) is not None and is_readable(each)]
            given = call.given()
            inputs = [] if isinstance(given, str) else _tensors(given)
            given_nan = next((each for each in inputs if look_at(each).nan), None)
            if given_nan is not None:
                before = LossGraph([given_nan], self._is_inside)
                if before.nodes:
                    self._report(self._between(before, look_at(given_nan), [given_nan]), None, call.steps)
                else:
                    self._report(self._given(call, given_nan), call)
                return
            is_fine = (
                all(look_at(each).is_fine or not look_at(each).nan for each in outputs)
                if look.nan
                else all(look_at(each).is_fine for each in outputs)
            )
            if outputs and is_fine and len(outputs) == len(call.outputs):
                continue
            found = self._look_again(call)
            if isinstance(found, NonFinite):
                self._report(found, call)
                return
            if outputs and not is_fine:
                self._report(self._unknown(call, "forward", outputs, found), call)
                return
        self._report(self._between(graph, look, losses), None, steps)

    def _given(self, call: RootCall, bad: Tensor) -> NonFinite:
        look = look_at(bad)
        return NonFinite(
            step=call.step,
            phase="input",
            path="",
            type_name=call.steps.type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=bad.numel(),
            inputs=ranges_of([("it", bad)]),
        )

    def _unknown(self, call: RootCall, phase: Any, tensors: Sequence[Tensor], why: object) -> NonFinite:
        look = sum(map(look_at, tensors), FINE)
        return NonFinite(
            step=call.step,
            phase=phase,
            path="",
            type_name=call.steps.type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=sum(each.numel() for each in tensors),
            unknown=why if isinstance(why, str) else _REPEATED,
        )

    def _between(self, graph: LossGraph, look: Look, losses: Sequence[Tensor]) -> NonFinite:
        """What the script computes between models and loss made it."""
        index = graph.source(nan=bool(look.nan))
        module = self._module_at(graph, index)
        repeated = None if module is None else self._look_again(module)
        if isinstance(repeated, NonFinite) and module is not None:
            return replace(repeated, root=self._root_name(module.module()))
        line = graph.line(-1 if index is None else index)
        numel = sum(each.numel() for each in losses)
        operator = then = None
        inputs: Iterable[tuple[str, Tensor]] = ()
        if index is not None:
            operator, made = operator_of(graph.names[index]), graph.first_look(index)
            if look.nan and not made.nan:
                last = graph.becomes_nan(index)
                then = None if last is None else operator_of(graph.names[last])
            look, inputs = (made, graph.operands(index)) if not made.is_fine else (look, graph.operands(index))
            numel = graph.size(index) or numel
        return NonFinite(
            step=0,
            phase="loss",
            path="",
            type_name="" if module is None else module.steps.type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=numel,
            operator=operator,
            then=then,
            line=line,
            unknown=None if index is not None else "no node of the loss's graph keeps what would tell",
            inputs=ranges_of(inputs),
        )

    def _module_at(self, graph: LossGraph, index: int | None) -> RootCall | None:
        """Return the call of the loss module that made a node, if one did."""
        if index is None:
            return None
        number = graph.nodes[index]._sequence_nr()
        return next((call for call in self._calls.recent if call.made_node(number)), None)

    def _explain_gradients(self, graph: LossGraph | None, scale: float) -> None:
        """Gradients are not finite though the loss is: report what made the first, on the way back from the loss."""
        steps = self._steps_now()
        is_scaled = scale != 1.0
        if not is_scaled and not self._begin_finding(steps):
            return
        source = None if graph is None else graph.gradient_source()
        if graph is not None and source is not None:
            self._report(self._on_the_way_back(graph, *source), None, steps)
            return
        reached = [call for call in self._calls.recent if call.is_reached and call.gradients]
        for call in reversed(reached):
            kept = {index: each for index, each in call.gradients.items() if each is not None}
            if any(not look_at(each).is_fine for each in kept.values()):
                continue  # given to it
            divided = {index: each / scale for index, each in kept.items()} if is_scaled else kept
            found = (
                self._look_again(call, divided) if len(kept) == len(call.gradients) else "its gradient was too large to keep"
            )
            if isinstance(found, NonFinite):
                if is_scaled and not self._begin_finding(steps, is_scaled=True):
                    return
                self._report(found, call)
                return
            if not is_scaled and len(reached) == 1:
                self._report_gradients(call, found)
                return
        if not is_scaled:
            self._report_gradients(reached[0] if reached else None, None)

    def _explain_scaled(self, graph: LossGraph) -> None:
        """Scaled gradients overflow, to Inf: report what makes NaN of finite ones in the loss."""
        source = graph.gradient_source()
        if source is not None and source[1].nan:
            steps = self._steps_now()
            if self._begin_finding(steps, is_scaled=True):
                self._report(self._on_the_way_back(graph, *source), None, steps)

    def _report_gradients(self, call: RootCall | None, why: object) -> None:
        bad = [
            (each, each.grad)
            for each in self._parameters()
            if each.grad is not None and not self._is_known(each) and not look_at(each.grad).is_fine
        ]
        found = self._of_parameters("backward", bad)
        if isinstance(why, str):
            found = replace(found, unknown=why, weights=())
        else:
            name = found.weights[0].name if found.weights else "a parameter"
            found = replace(found, operator=f"a hook on the gradient of {name}, or its sum", weights=())
        self._report(found, call)

    def _on_the_way_back(self, graph: LossGraph, index: int, look: Look) -> NonFinite:
        module = self._module_at(graph, index)
        return NonFinite(
            step=0,
            phase="loss",
            path="",
            type_name="" if module is None else module.steps.type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=0,
            operator=graph.names[index],
            line=graph.line(index),
        )

    def _explain_written(self, optimizer: Optimizer, written: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Gradients were finite after the backward pass, and are not before the optimizer's step."""
        bad = [(each, gradient) for each, gradient in written if not look_at(gradient).is_fine]
        self._gradients_fine = False
        if self._begin_finding(self._main_of([each for each, _ in bad])):
            found = self._of_parameters("gradient", bad, operator=f"{type(optimizer).__name__}.step()", line=place_of_user())
            self._report(replace(found, then=self._backward_line), None, self._main_of([bad[0][0]]))

    def _explain_update(self, optimizer: Optimizer, bad: Sequence[Tensor]) -> None:
        """Parameters are not finite after the optimizer's step."""
        steps = self._main_of(bad)
        is_news = self._gradients_fine is not False and self._begin_finding(steps)
        self._know(bad)
        if not is_news:
            return
        name = f"{type(optimizer).__name__}.step()"
        spoilt = [(each, each.grad) for each in bad if each.grad is not None and not look_at(each.grad).is_fine]
        if spoilt and self._gradients_fine:  # written to through .data, say, which has no version
            found = self._of_parameters("gradient", spoilt, operator=name, line=place_of_user())
            self._report(replace(found, then=self._backward_line), None, steps)
            return
        found = self._of_parameters("optimizer", [(each, each) for each in bad], operator=name, line=place_of_user())
        self._report(replace(found, unsure=None, cause=_cause_in(optimizer)), None, steps)

    def _explain_buffers(self, bad: Sequence[Tensor]) -> None:
        if not bad:
            return
        steps = self._main_of(bad)
        is_news = self._gradients_fine is not False and self._begin_finding(steps)
        self._know(bad)
        if is_news:
            self._report(self._of_parameters("update", [(each, each) for each in bad]), None, steps)

    def _of_parameters(self, phase: Any, bad: Sequence[tuple[Tensor, Tensor]], **more: Any) -> NonFinite:
        """Return a finding about the first of these parameters, by the module that has it."""
        looks = [look_at(each) for _, each in bad]
        look = sum(looks, FINE)
        owners = [self._owner_of(parameter) for parameter, _ in bad]
        root, path, type_name, _ = owners[0] if owners else (None, "", "", "")
        weights = tuple(
            Bad(name, own.nan, own.inf, value.numel())
            for (_, value), own, (owner, place, _, name) in zip(bad, looks, owners, strict=True)
            if owner is root and place == path
        )
        return NonFinite(
            step=0,
            phase=phase,
            path=path,
            type_name=type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=sum(each.numel() for _, each in bad),
            weights=weights,
            others=len(bad) - len(weights),
            root=self._root_name(root),
            **more,
        )

    # -- findings ------------------------------------------------------------------------------------------------------

    def _begin_finding(self, steps: ModuleSteps | None, *, is_scaled: bool = False) -> bool:
        """Count a step in which something is not finite; return whether it is the first thing found in it, and news.

        What an inspection has found in a gradient that ``is_scaled`` does not count.
        """
        key = (id(steps), -1 if steps is None else steps.begun)
        has_found = self.has_found() and not is_scaled
        is_news = key not in self._bad_steps and not has_found and not self._is_spoilt()
        self._bad_steps.add(key)
        return is_news

    def _is_spoilt(self) -> bool:
        """Return whether parameters are not finite that have been reported."""
        return any(self._is_known(each) and not look_at(each).is_fine for each in self._all_parameters())

    def _know(self, tensors: Iterable[Tensor]) -> None:
        """Remember that these are not finite."""
        self._known_bad.update((id(each), weakref.ref(each)) for each in tensors)

    def _is_known(self, tensor: Tensor) -> bool:
        known = self._known_bad.get(id(tensor))
        return known is not None and known() is tensor

    def _look_again(self, call: RootCall, gradients: Mapping[int, Tensor] | None = None) -> NonFinite | str | None:
        if self._num_looks >= _MAX_LOOKS:
            return _TOO_MANY
        self._num_looks += 1
        found = look_again(call, gradients)
        if isinstance(found, NonFinite) and found.phase == "forward" and found.weights and self._was_fine:
            return replace(found, phase="update", cause=_WRITTEN, operator=None, line=None, inputs=())
        return found

    def _report(self, found: NonFinite, call: RootCall | None, steps: ModuleSteps | None = None) -> None:
        """Note a finding, and tell the listener, which may raise."""
        steps = call.steps if call is not None else steps
        number = call.step if call is not None else max(steps.begun - 1, 0) if steps is not None else 0
        root = found.root if call is None else self._root_name(call.module())
        updates = self._num_updates(steps)
        found = replace(found, step=number, root=root, update=None if updates == number else updates)
        for each in self._all_parameters():
            if found.weights and not look_at(each).is_fine:
                self._know([each])
        if len(self._findings) < _MAX_FINDINGS:
            self._findings.append(found)
        self._listener(found)

    def _num_updates(self, steps: ModuleSteps | None) -> int | None:
        """Return how many steps the optimizer of this module has taken."""
        module = None if steps is None else steps.module()
        own = set() if module is None else {id(each) for each in module.parameters()}
        for optimizer in self._optimizers:
            if any(id(each) in own for each in _parameters_of(optimizer)):
                return self._updates[id(optimizer)]
        return None

    def _steps_now(self) -> ModuleSteps | None:
        calls = [call for call in self._calls.recent if call.steps.has_parameters and call.has_graph]
        inspected = self.inspected()
        mine = next((call.steps for call in calls if call.module() is inspected), None)
        return mine or (calls[-1].steps if calls else None)

    def _main_of(self, parameters: Iterable[Tensor]) -> ModuleSteps | None:
        """Return the root that has one of these tensors."""
        wanted = set(map(id, parameters))
        for steps in self._calls.modules():
            module = steps.module()
            if module is not None and steps.begun and any(id(each) in wanted for each in _tensors_of(module)):
                return steps
        return next(iter(self._calls.modules()), None)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _parameters(self) -> list[Tensor]:
        """Return the parameters that optimizers update or, as long as none has, those of the modules that were called."""
        known = [each for optimizer in self._optimizers if self._is_ours(optimizer) for each in _parameters_of(optimizer)]
        return known or list(self._all_parameters())

    def _all_parameters(self) -> Iterator[Tensor]:
        for steps in self._calls.modules():
            module = steps.module()
            if module is not None and self._is_wanted(module):
                yield from module.parameters()

    def _buffers(self) -> Iterator[Tensor]:
        for steps in self._calls.modules():
            module = steps.module()
            if module is not None and steps.begun and self._is_wanted(module):
                yield from (each for each in module.buffers() if is_readable(each))

    def _is_wanted(self, module: nn.Module) -> bool:
        only = None if self._only is None else self._only()
        if only is None:
            return True
        return (
            module is only or any(each is only for each in module.modules()) or any(each is module for each in only.modules())
        )

    def _is_ours(self, optimizer: Optimizer) -> bool:
        only = None if self._only is None else self._only()
        if only is None:
            return True
        parameters = _parameters_of(optimizer)
        number, is_ours = self._ours_by_optimizer.get(optimizer, (-1, False))
        if number != len(parameters):
            own = {id(each) for each in only.parameters()}
            is_ours = any(id(each) in own for each in parameters)
            self._ours_by_optimizer[optimizer] = len(parameters), is_ours
        return is_ours

    def _owner_of(self, tensor: Tensor) -> tuple[nn.Module | None, str, str, str]:
        """Return the root that has it, the path and type of the module in it, and the tensor's name there."""
        for steps in self._calls.modules():
            root = steps.module()
            for path, module in [] if root is None else root.named_modules():
                for name, each in [*module._parameters.items(), *module._buffers.items()]:
                    if each is tensor:
                        return root, path, type_name_of(module), name
        return None, "", "", "parameter"

    # -- names ---------------------------------------------------------------------------------------------------------

    def _root_name(self, module: nn.Module | None) -> str | None:
        """Return the name of a root other than the one that is inspected."""
        if module is None or module is self.inspected():
            return None
        steps = self._calls.steps_of(module)
        steps.variable = steps.variable or _variable_of(module, _active_names())
        return self._name_of(steps)

    def _name_of(self, steps: ModuleSteps) -> str:
        module = steps.module()
        if module is not None and steps.variable is None:
            steps.variable = _variable_of(module, [vars(sys.modules["__main__"])])
        return steps.type_name if steps.variable is None else f"{steps.variable} ({steps.type_name})"

    # -- on a device ---------------------------------------------------------------------------------------------------

    def _send(self, kind: str, pairs: Sequence[tuple[Tensor | None, Tensor]]) -> None:
        """Have a device work out whether these are finite, and read it later."""
        values = [each for _, each in pairs if is_plain(each)]
        if not values:
            return
        with unseen():
            norms = [norm.float() for norm in norms_of([each.detach() for each in values], math.inf)]
            sent = torch.stack(norms)
            arrived = torch.empty_like(sent, device="cpu", pin_memory=True)
            arrived.copy_(sent, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._late.append(
            _Late(
                kind=kind,
                values=arrived,
                event=event,
                steps=self._steps_now(),
                parameters=[None if each is None else weakref.ref(each) for each, value in pairs if is_plain(value)],
                line=place_of_user(),
                is_scaled=self._scale is not None,
            )
        )

    def _read(self, *, waits: bool) -> None:
        """Report what has arrived of earlier checks on a device."""
        while self._late and (waits or self._late[0].event.query()):
            late = self._late.popleft()
            late.event.synchronize()
            bad = [index for index, value in enumerate(late.values.tolist()) if not math.isfinite(value)]
            if bad and not (late.is_scaled and late.kind in ("backward", "gradient")):
                self._explain_late(late, bad)

    def _explain_late(self, late: _Late, bad: Sequence[int]) -> None:
        if not self._begin_finding(late.steps):
            return
        kinds = {"loss": "loss", "backward": "backward", "gradient": "gradient", "optimizer": "optimizer"}
        nan = any(math.isnan(late.values[index].item()) for index in bad)
        tensor = None if late.parameters[bad[0]] is None else late.parameters[bad[0]]()  # type: ignore[misc] # it is none of them
        root, path, type_name, name = (None, "", "", "") if tensor is None else self._owner_of(tensor)
        if tensor is not None:
            self._know([tensor])
        self._report(
            NonFinite(
                step=0,
                phase=kinds[late.kind],  # type: ignore[arg-type] # they are phases
                path=path,
                type_name=type_name,
                invocation=0,
                nan=int(nan),
                inf=int(not nan),
                numel=0,
                line=late.line,
                unknown=_LATER,
                weights=(Bad(name, int(nan), int(not nan), tensor.numel()),) if tensor is not None else (),
                root=self._root_name(root),
            ),
            None,
            late.steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """A check on a device that has not been read."""

    kind: str
    values: Tensor
    event: torch.cuda.Event
    steps: ModuleSteps | None
    parameters: Sequence[weakref.ref[Tensor] | None]
    line: str | None
    is_scaled: bool


def _short_stack() -> list[str]:
    """Return the user's line, in place of torch's list of all frames."""
    place = place_of_user()
    return [] if place is None else [place]


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all values are finite."""
    plain = [each for each in tensors if is_plain(each)]
    others = [each for each in tensors if not is_plain(each) and is_readable(each)] if len(plain) < len(tensors) else []
    if plain:
        types = {each.dtype for each in plain}
        with unseen():
            norms = list(norms_of(plain, 2.0))
            total = torch.stack(norms if len(types) == 1 else [norm.double() for norm in norms]).sum().item()
        if not math.isfinite(total) and any(not look_at(each).is_fine for each in plain):
            return False
    return all(look_at(each).is_fine for each in others)


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _tensors(given: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Tensor]:
    return [each for each in tensors_in(given) if is_readable(each)]


def _cause_in(optimizer: Optimizer) -> str | None:
    """Return an option of the optimizer that is not finite."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name != "params" and isinstance(value, float | Tensor) and not math.isfinite(float(value)):
                return f"its {name} is {float(value)}"
    return None


def _active_names() -> Iterator[Mapping[str, Any]]:
    """Yield the variables of the user's active functions.

    Asked for these, Python up to 3.12 keeps their values until the function returns, so it is done for a finding only.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back


def _variable_of(module: nn.Module, names: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the name that the user's code has for a module."""
    return next((name for each in names for name, value in list(each.items()) if value is module), None)
