"""Hooks on the calls of all modules, out of the way of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from torchscan.observing.compiling import CompileWatch
from torchscan.torch_versions import forget_hooks, not_compiled

Hook = Callable[..., None]


class ModuleHooks:
    """A hook at the start and one at the end of each call, while they are started."""

    def __init__(self, note_start: Hook, note_end: Hook, at_pause: Callable[[], object]) -> None:
        """Call ``at_pause`` before the hooks are removed, for good or while torch compiles."""
        self._note_start = note_start
        self._note_end = note_end
        self._at_pause = at_pause
        #: the hooks as they are registered
        self._at_start = note_start
        self._at_end = note_end
        self._is_started = False

    def start(self) -> None:
        """Register the hooks."""
        self._is_started = True
        self.compiler = CompileWatch(self._pause, self._go_on, keep_out=self._keep_compiler_out)
        self._go_on()
        self.compiler.adapt()

    def close(self) -> None:
        """Remove the hooks."""
        self._is_started = False
        self._pause()
        self.compiler.close()

    def _go_on(self) -> None:
        if self._is_started:
            register_module_forward_pre_hook(self._at_start)
            register_module_forward_hook(self._at_end, with_kwargs=True, always_call=True)

    def _pause(self) -> None:
        self._at_pause()
        forget_hooks(self._at_start, self._at_end)

    def _keep_compiler_out(self) -> None:
        """Replace the hooks by some that torch does not compile."""
        self._pause()
        self._at_start = not_compiled(self._note_start)
        self._at_end = not_compiled(self._note_end)
        self._go_on()
