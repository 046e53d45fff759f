"""The table of tensors in a pass: their identity, shared memory, and proxies that replace them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.known_outcomes import known_outcomes
from torchscan.recording.bookkeeping.shared_memory import SharedMemory, Tracked
from torchscan.recording.bookkeeping.storages import Storages
from torchscan.recording.bookkeeping.tensor_layouts import has_strides, make_proxy, show_shape
from torchscan.torch_versions import WithoutData, without_tracing
from torchscan.trace.events import TensorSpec
from torchscan.trace.records import TensorKind, TensorRecord

_NAMELESS: tuple[TensorKind, str] = ("constant", "")


class TensorTable:
    """Every tensor that the pass met, by object.

    A tensor that no operator of the pass produced is *foreign*: it is the user's, so it is read but
    never written. Tensors are held weakly, so a real pass needs no more memory than one that is not
    recorded.
    """

    def __init__(self, needs_proxy: Callable[[Tensor, TensorSpec, TensorKind], bool]) -> None:
        self.records: list[TensorRecord] = []
        self.storages = Storages()
        self._needs_proxy = needs_proxy
        self._tracked: dict[int, Tracked] = {}
        self._memory = SharedMemory()
        #: what is known of operators on tensors of these specs
        self.outcomes = known_outcomes()
        self.spec_of = self.outcomes.spec_of
        self._names: dict[int, tuple[TensorKind, str]] = {}
        self._foreign: set[int] = set()
        #: those of the user's that the pass would have written to
        self._written: set[int] = set()
        self._generators: dict[torch.Generator, torch.Generator] = {}

    def share_specs(self, other: TensorTable) -> None:
        """Equal specs are one object in both."""
        self.outcomes = other.outcomes
        self.spec_of = other.spec_of

    def name(self, tensor: Tensor, kind: TensorKind, name: str) -> None:
        """Set the kind and name that a tensor gets if the pass meets it.

        They are stored by the address of its C++ side, which survives a change of Python wrapper.
        """
        self._names.setdefault(tensor._cdata, (kind, name))

    def enter_copy(self, tensor: Tensor, kind: TensorKind, name: str) -> None:
        """Enter a copy that the model may write to, for example of an argument."""
        known = self._tracked.get(id(tensor))
        if known is None or known.reference() is not tensor:
            storage, _ = self.storages.find_or_add(tensor, kind, name)
            spec = self.spec_of(tensor)
            tracked = self._enter(tensor, spec, storage, None, kind, name, None)
            tracked.is_from_pass = True

    def enter_state(self, tensor: Tensor, name: str) -> None:
        """Enter the state of an optimizer."""
        self.enter_copy(tensor, "optimizer state", name)

    def enter_elsewhere(self, tensor: Tensor) -> None:
        """Enter what an optimizer works on in place of a tensor that is counted already."""
        self.enter_state(tensor, "")
        self.storages.is_elsewhere(self.find(tensor).storage)

    def enter_substitute(self, substitute: Tensor, original: Tensor) -> None:
        """Enter a tensor of our own that functions are handed in place of one that is not."""
        known = self.find(original)
        proxy = None
        if not substitute.is_meta:
            replaced = self._memory.replaced.get(known.storage)
            if replaced is not None:
                proxy = make_proxy(substitute, known.spec, replaced)
        tracked = Tracked(substitute, known.index, known.spec, known.storage, proxy)
        tracked.is_from_pass = True
        self._tracked[id(substitute)] = tracked
        self._memory.share(tracked)
        self.storages.stands_for(substitute, known.storage, holds=True)

    def is_from_pass(self, tensor: Tensor) -> bool:
        """Return whether the pass produced a tensor: a result, a proxy or a copied argument."""
        tracked = self._tracked.get(id(tensor))
        return tracked is not None and tracked.reference() is tensor and tracked.is_from_pass

    def find_leaked(self) -> list[TensorSpec]:
        """Return the meta tensors of the pass that are still referenced."""
        return [
            tracked.spec
            for tracked in self._tracked.values()
            if tracked.is_produced and not tracked.is_concrete and tracked.reference() is not None
        ]

    def memory_of(self, tensor: Tensor) -> int | None:
        """Return the number of the memory of a tensor, or None if no operator touched it."""
        tracked = self._tracked.get(id(tensor))
        if tracked is not None and tracked.reference() is tensor:
            return tracked.storage
        return self.storages.find(tensor)

    def was_written(self, tensor: Tensor) -> bool:
        """Return whether the pass wrote to the proxy of this tensor of the user's."""
        return self.storages.find(tensor) in self._written

    def find(self, tensor: Tensor) -> Tracked:
        """Return the entry of a tensor.

        One that is met for the first time is foreign, and gets its entry now.
        """
        tracked = self._tracked.get(id(tensor))
        if tracked is not None and tracked.reference() is tensor:
            return tracked
        with without_tracing():  # hooks of modules ask where operators are recorded
            spec = self.spec_of(tensor)
            kind, name = self._names.get(tensor._cdata, _NAMELESS)
            storage, is_new = self.storages.find_or_add(tensor, kind, name)
            if is_new:
                self._foreign.add(storage)
            replaced = self._memory.replaced
            is_replaced = storage in replaced or self._needs_proxy(tensor, spec, kind)
            memory = replaced.setdefault(storage, None) if is_replaced else None
            proxy = None if memory is None else make_proxy(tensor, spec, memory)
            tracked = self._enter(tensor, spec, storage, proxy, kind, name, None)
            if proxy is not None:
                self.storages.stands_for(proxy, storage)
            elif is_replaced:
                tracked.replace_on_demand(self.storages)
            return tracked

    def name_of_buffer(self, tracked: Tracked) -> str | None:
        """Return the path of a buffer without values that could have some, else None."""
        record = self.records[tracked.index]
        if record.kind != "buffer" or tracked.is_concrete or record.spec.is_arithmetic:
            return None
        return record.name

    def give_values(self, tensor: Tensor, values: Tensor) -> None:
        """Compute with these values.

        The tensor still reports that it is a meta tensor, as activations do.
        """
        self._memory.replace(self.find(tensor).storage, values.untyped_storage())

    def enter_constant_with(self, tensor: Tensor, values: Tensor) -> None:
        """Enter a meta tensor that the pass has made from these values."""
        self.find(tensor).is_from_pass = True
        self.give_values(tensor, values)

    def with_values(self, tensor: Tensor) -> Tensor:
        """Return the tensor to read for a tensor: its proxy, to which the pass may have written."""
        known = self.find(tensor)
        if known.proxy is None or not known.is_concrete:
            return tensor
        return known.proxy

    def add(
        self, tensor: Tensor, spec: TensorSpec, producer: int, alias_of: Tracked | None
    ) -> Tracked:
        """Enter a tensor that an operator of the pass returned; a view has its base's storage."""
        if alias_of is None:
            storage = self.storages.add_made(tensor, spec, producer)
        else:
            storage = alias_of.storage
        tracked = self._enter(tensor, spec, storage, None, "intermediate", "", producer)
        tracked.is_produced = tracked.is_from_pass = True
        return tracked

    def rewrite(self, tensor: Tensor, spec: TensorSpec, producer: int) -> Tracked:
        """Note that an operator wrote to a tensor, or returned it as it is.

        The tensor has a new version, made by that operator.
        """
        tracked = self.find(tensor)
        old = self.records[tracked.index]
        tracked.index = len(self.records)
        tracked.spec = spec
        if spec is not old.spec:
            self.storages.grow(tracked.storage, spec.stored_bytes)
        proxy = tracked.proxy
        if proxy is not None and has_strides(proxy):
            is_same = tensor.shape == proxy.shape and tensor.stride() == proxy.stride()
            if not is_same:
                show_shape(tensor, proxy)
                self.storages.stands_for(tensor, tracked.storage, holds=True)
        self.records.append(TensorRecord(spec, old.storage, old.kind, old.name, producer))
        return tracked

    def note_size(self, tensor: Tensor) -> None:
        """Note that the memory of a tensor was freed, or is there again, as another block.

        All tensors that share the memory have the new block.
        """
        before = self.storages.find(tensor)
        now = self.storages.resized(tensor)
        if before is None or now is None:
            return
        for tracked in self._memory.sharing(before):
            record = self.records[tracked.index]
            tracked.index = len(self.records)
            self.records.append(record._replace(storage=now, producer=None))
        self._memory.move(before, now)

    def protect(self, tensor: Tensor) -> bool:
        """Replace memory of the user by a copy, before the pass writes to it.

        This is done for all tensors that share the memory. Return whether the copy is new.
        """
        storage = self.find(tensor).storage
        if storage not in self._foreign:
            return False
        self._written.add(storage)
        if storage in self._memory.replaced:
            return False
        self._memory.replace(storage, tensor.untyped_storage().clone())
        return True

    def forget_values(self, tensor: Tensor) -> None:
        """Forget the values of a tensor, and of all tensors that share its memory."""
        self._memory.replace(self.find(tensor).storage, None)

    def compute_without_data(self, tensor: Tensor, without_data: WithoutData) -> None:
        """Forget the values of a tensor and of all tensors that share its memory.

        It stays on its device.
        """
        storage = self.find(tensor).storage
        self._memory.replaced[storage] = None
        for tracked in [*self._memory.sharing(storage)]:
            original = tracked.reference()
            if original is not None:
                spec = tracked.spec
                proxy = without_data.tensor(spec.shape, spec.stride, spec.dtype, original.device)
                tracked.replace(proxy)
                self.storages.stands_for(proxy, storage)

    def generator_for(self, generator: torch.Generator) -> torch.Generator:
        """Return a copy to draw from, so that the user's own generator does not advance."""
        if generator not in self._generators:
            self._generators[generator] = generator.clone_state()
        return self._generators[generator]

    def _enter(
        self,
        tensor: Tensor,
        spec: TensorSpec,
        storage: int,
        proxy: Tensor | None,
        kind: TensorKind,
        name: str,
        producer: int | None,
    ) -> Tracked:
        tracked = Tracked(tensor, len(self.records), spec, storage, proxy)
        self.records.append(TensorRecord(spec, storage, kind, name, producer))
        self._tracked[id(tensor)] = tracked
        self._memory.share(tracked)
        return tracked

    def foreign_storage(self, tensor: Tensor) -> int:
        """Return the number of a tensor's memory; it is foreign if it is met for the first time."""
        kind, name = self._names.get(tensor._cdata, _NAMELESS)
        storage, is_new = self.storages.find_or_add(tensor, kind, name)
        if is_new:
            self._foreign.add(storage)
        return storage
