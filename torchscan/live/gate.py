"""Notices that a model is called, and that gradients come, at the cost of a comparison for each call of a module.

There is one global hook, and only where a step may begin: nothing is put on the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from torchscan.torch_versions import accumulator_of, compiled_from, has_compiler, not_compiled

#: a module is called, with these positional arguments
Begin = Callable[[nn.Module, tuple[Any, ...]], None]


class Gate:
    """Tells when the model is called; or a part of it, where the model itself is not, as in Lightning's ``training_step``."""

    def __init__(self, model: nn.Module, begin: Begin, note_backward: Callable[[], None]) -> None:
        self._model, self._begin, self._note_backward = model, begin, note_backward
        #: whose calls begin steps: any module's, until the first call tells
        self._entries = {id(module) for module in model.modules()}
        self._hook = self._hook_of()
        self._handle: RemovableHandle | None = None
        self._leaves = self._followed_leaves()
        self._optimizers = register_optimizer_step_post_hook(lambda *_: self._note_backward())

    def is_model(self, module: nn.Module) -> bool:
        """Whether a module is the model, or what a compiler has made of it."""
        return module is self._model or (has_compiler() and compiled_from(module) is self._model)

    def note_entry(self, module: nn.Module, *, is_first: bool) -> None:
        """A module was called by nobody else's: once the model is, its parts are no entries any more."""
        if self.is_model(module) or is_first:
            self._entries.clear()
        self._entries |= {id(self._model), id(module)}

    def open(self) -> None:
        """A step may begin."""
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._hook)

    def close(self) -> None:
        """None can."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def keep_compiler_out(self) -> None:
        """Something is compiled from now on, and the hook must not be."""
        self.close()
        self._hook = self._hook_of()

    def remove(self) -> None:
        """Tell nothing any more."""
        self.close()
        self._optimizers.remove()
        self._leaves = []

    def _hook_of(self) -> Begin:
        entries = self._entries

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if id(module) in entries:
                self._begin(module, args)

        def hook_of_compiled(module: nn.Module, args: tuple[Any, ...]) -> None:
            if id(module) in entries or id(compiled_from(module)) in entries:
                self._begin(module, args)

        return not_compiled(hook_of_compiled) if has_compiler() else hook

    def _followed_leaves(self) -> list[object]:
        """Nodes that store gradients of the first and the last parameter: they tell of backward passes that nobody sees."""
        parameters = [each for each in self._model.parameters() if each.requires_grad and not nn.parameter.is_lazy(each)]
        nodes = [node for each in {*parameters[:1], *parameters[-1:]} if (node := accumulator_of(each)) is not None]
        for node in nodes:
            node.register_prehook(lambda *_: self._note_backward())
        return nodes
