"""The training side of ``watch``, as users see it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.torch_versions import without_torch_function
from torchscan.user_warnings import warn_or_print
from torchscan.watching.argument_checks import quote
from torchscan.watching.process import WriterProcess
from torchscan.watching.step_follower import StepFollower
from torchscan.watching.wanted import Wanted, step_of

if TYPE_CHECKING:
    from torchscan.watching.explore.serving import Server

#: open watchers, for attach() and for forked processes
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
#: seconds to wait at the end for the module graph of a short run
_PATIENCE = 10.0
#: characters of a note
_MAX_NOTE = 200


class Watcher(StepFollower):
    """Recorder of a model while it trains. ``watch`` returns it.

    Nothing is stored on the model, and its results stay bit-for-bit identical.
    """

    def __init__(
        self, module: nn.Module, process: WriterProcess, wanted: Wanted, step: int | None
    ) -> None:
        super().__init__(module, process, wanted, step)
        #: server that shows the run in the browser, or None
        self.server: Server | None = None
        _watchers.add(self)
        atexit.register(self._close_at_exit)

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

    def forget(self) -> None:
        """Stop watching in a forked process: the run belongs to its parent."""
        self._is_closed = True
        self._sampler = None
        self._model_hook.close()
        self._backward_watch.close()

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
        if self._thread.is_own_process:
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
        if not self._thread.is_own_process:
            return
        if not self._is_closed:
            with self._guarded():
                self._finish()
                self._curves.close()
        if not self._is_closed:
            self._unfollow()
            for pattern in self._context.numbers.unmet if self._has_begun else ():
                choices = "choose from open_run(…).find()"
                warn_or_print(f"whole has {pattern!r}, which matched no series: {choices}")
        atexit.unregister(self._close_at_exit)
        self._process.close(self._steps.next, error)
        with self._guarded():
            self._drawing.await_end(_PATIENCE)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the watching, and not the program, after an internal error."""
        try:
            with without_torch_function():
                yield
        except Exception as error:
            self._give_up(error)

    def _unfollow(self) -> None:
        super()._unfollow()
        _watchers.discard(self)

    def __repr__(self) -> str:
        every = self._context.every
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
