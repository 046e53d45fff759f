"""The table of tensors in a pass: their identity, shared memory, and proxies that replace them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.known_outcomes import known_outcomes
from torchscan.recording.bookkeeping.storages import Storages, sparsity_of
from torchscan.recording.undo import run_at_end_of_pass
from torchscan.torch_versions import (
    WithoutData,
    is_fake_type,
    making_ordinary_tensors,
    without_torch_function,
    without_tracing,
)
from torchscan.trace.events import TensorSpec
from torchscan.trace.records import TensorKind, TensorRecord

#: integers and booleans up to this many elements keep their values in a pass on shapes alone
CONCRETE_INTEGERS = 2**22
#: floating-point tensors made from known values keep theirs up to this many elements
CONCRETE_FLOATS = 2**18
#: … or none do, not even those without elements
NO_FLOATS = -1

#: of no subclass
PLAIN_TYPES = frozenset({Tensor, nn.Parameter, nn.Buffer})


def are_plain(types: Collection[type]) -> bool:
    """Return whether tensors of these types wrap no other tensors. They may have no data."""
    if PLAIN_TYPES.issuperset(types):
        return True
    return all(each in PLAIN_TYPES or is_fake_type(each) for each in types)


_NAMELESS: tuple[TensorKind, str] = ("constant", "")


class Tracked:
    """The state of one tensor object during a pass."""

    __slots__ = (
        "index",
        "is_concrete",
        "is_from_pass",
        "is_produced",
        "proxy",
        "reference",
        "shares_with",
        "spec",
        "storage",
    )

    def __init__(
        self, tensor: Tensor, index: int, spec: TensorSpec, storage: int, proxy: Tensor | None
    ) -> None:
        self.reference = weakref.ref(tensor)
        self.index = index
        #: whether an operator of the pass made it
        self.is_produced = False
        #: whether the pass made it in any way, also as an argument or a substitute
        self.is_from_pass = False
        self.spec = spec
        self.storage = storage
        #: another one with the same memory, if there was one before
        self.shares_with: Tracked | None = None
        #: computed with instead of the tensor itself; None: the tensor itself
        self.proxy = proxy
        #: whether there are values to compute with
        self.is_concrete = not (tensor if proxy is None else proxy).is_meta

    def replace(self, proxy: Tensor) -> None:
        """From now on compute with ``proxy``."""
        self.proxy = proxy
        self.is_concrete = not proxy.is_meta


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
        #: by memory, the tensor met last that looks into it
        self._last_of_storage: dict[int, Tracked] = {}
        #: what is known of operators on tensors of these specs
        self.outcomes = known_outcomes()
        self._specs = self.outcomes.specs
        self._names: dict[int, tuple[TensorKind, str]] = {}
        self._foreign: set[int] = set()
        #: memory that is not computed with: the memory that stands in for it, None for meta tensors
        self._replaced: dict[int, torch.UntypedStorage | None] = {}
        #: those of the user's that the pass would have written to
        self._written: set[int] = set()
        self._generators: dict[torch.Generator, torch.Generator] = {}

    def share_specs(self, other: TensorTable) -> None:
        """Equal specs are one object in both."""
        self.outcomes = other.outcomes
        self._specs = other._specs

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

    def enter_constant(self, tensor: Tensor) -> None:
        """Enter the memory of a tensor that torch has made of a Python number or list."""
        self.storages.find_or_add(tensor, "constant", "")

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
            replaced = self._replaced.get(known.storage)
            if replaced is not None:
                proxy = _make_proxy(substitute, known.spec, replaced)
        tracked = Tracked(substitute, known.index, known.spec, known.storage, proxy)
        tracked.is_from_pass = True
        self._tracked[id(substitute)] = tracked
        self._share(tracked)
        self.storages.stands_for(substitute, known.storage, holds=True)

    def name_gradient(self, gradient: Tensor, name: str) -> None:
        """Say of the memory of a gradient, if it is known, whose gradient it is."""
        storage = self.storages.find(gradient)
        if storage is not None:
            self.storages.call_it(storage, "gradient", name)

    def name_cache(self, tensor: Tensor) -> int | None:
        """Say of the memory of a tensor that a later pass gets it; its number, if it has any."""
        storage = self.storages.find(tensor)
        if storage is not None:
            self.storages.call_it(storage, "cache", "")
        return storage

    def end(self) -> None:
        """End the pass: memory that is freed from now on is freed after its end."""
        self.storages.end()

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
            return self._adopt(tensor)

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
        self._replace_storage(self.find(tensor).storage, values.untyped_storage())

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
                self._show(tensor, proxy, tracked.storage)
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
        for tracked in [*self._sharing(before)]:
            record = self.records[tracked.index]
            tracked.index = len(self.records)
            tracked.storage = now
            self.records.append(record._replace(storage=now, producer=None))
        self._last_of_storage[now] = self._last_of_storage.pop(before)

    def protect(self, tensor: Tensor) -> bool:
        """Replace memory of the user by a copy, before the pass writes to it.

        This is done for all tensors that share the memory. Return whether the copy is new.
        """
        storage = self.find(tensor).storage
        if storage not in self._foreign:
            return False
        self._written.add(storage)
        if storage in self._replaced:
            return False
        self._replace_storage(storage, tensor.untyped_storage().clone())
        return True

    def forget_values(self, tensor: Tensor) -> None:
        """Forget the values of a tensor, and of all tensors that share its memory."""
        self._replace_storage(self.find(tensor).storage, None)

    def compute_without_data(self, tensor: Tensor, without_data: WithoutData) -> None:
        """Forget the values of a tensor and of all tensors that share its memory.

        It stays on its device.
        """
        storage = self.find(tensor).storage
        self._replaced[storage] = None
        for tracked in [*self._sharing(storage)]:
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

    def _replace_storage(self, storage: int, by: torch.UntypedStorage | None) -> None:
        self._replaced[storage] = by
        for tracked in self._sharing(storage):
            original = tracked.reference()
            if original is not None:
                tracked.replace(_make_proxy(original, tracked.spec, by))

    def _share(self, tracked: Tracked) -> None:
        tracked.shares_with = self._last_of_storage.get(tracked.storage)
        self._last_of_storage[tracked.storage] = tracked

    def _sharing(self, storage: int) -> Iterator[Tracked]:
        """Yield all tensors that share this memory."""
        tracked: Tracked | None = self._last_of_storage[storage]
        while tracked is not None:
            yield tracked
            tracked = tracked.shares_with

    def spec_of(self, tensor: Tensor) -> TensorSpec:
        """Return the spec of a tensor; equal specs are one object, whose identity can be a key."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            shape, sparsity = shape_of(tensor), sparsity_of(tensor)
            spec = TensorSpec(shape, tensor.dtype, (), sparsity, is_nested=tensor.is_nested)
            return self._specs.setdefault((spec,), spec)

        key = (tensor.shape, tensor.dtype, tensor.stride())
        known = self._specs.get(key)
        if known is not None:
            return known
        spec = TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.stride())
        self._specs[key] = spec
        return spec

    def _show(self, tensor: Tensor, proxy: Tensor, storage: int) -> None:
        """Give the model's tensor the shape that an operator gave its proxy, by ``resize_`` or so.

        If the proxy has no values, the tensor's memory is for its size alone: it is never touched.
        """
        if tensor.device == proxy.device:
            memory = proxy.untyped_storage()
            offset = proxy.storage_offset()
        else:
            size = _span_of(proxy) * proxy.element_size()
            memory = torch.UntypedStorage(size, device=tensor.device)
            offset = 0

        data = tensor.data

        def put_back() -> None:
            with without_torch_function():
                tensor.data = data

        run_at_end_of_pass(put_back)
        with torch.no_grad():
            tensor.set_(memory, offset, proxy.shape, proxy.stride())
        self.storages.stands_for(tensor, storage, holds=True)

    def _adopt(self, tensor: Tensor) -> Tracked:
        spec = self.spec_of(tensor)
        kind, name = self._names.get(tensor._cdata, _NAMELESS)
        storage = self._foreign_storage(tensor, kind, name)
        if storage in self._replaced:
            proxy: Tensor | None = _make_proxy(tensor, spec, self._replaced[storage])
        elif self._needs_proxy(tensor, spec, kind):
            self._replaced[storage] = None
            proxy = _make_proxy(tensor, spec, None)
        else:
            proxy = None
        return self._enter(tensor, spec, storage, proxy, kind, name, None)

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
        self._tracked[id(tensor)] = tracked
        self.records.append(TensorRecord(spec, storage, kind, name, producer))
        self._share(tracked)
        if proxy is not None:
            self.storages.stands_for(proxy, storage)
        return tracked

    def foreign_storage(self, tensor: Tensor) -> int:
        """Return the number of a tensor's memory; it is foreign if it is met for the first time."""
        return self._foreign_storage(tensor, *self._names.get(tensor._cdata, _NAMELESS))

    def _foreign_storage(self, tensor: Tensor, kind: TensorKind, name: str) -> int:
        storage, is_new = self.storages.find_or_add(tensor, kind, name)
        if is_new:
            self._foreign.add(storage)
        return storage


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape, or of a nested tensor that of all elements in a row.

    The shape of a nested tensor has symbols in it, or there is none.
    """
    if tensor.is_nested:
        return (tensor.numel(),)
    return tuple(tensor.shape)


def has_strides(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and strided."""
    return tensor.layout is torch.strided and not tensor.is_nested


def kind_of(tensor: Tensor) -> str:
    """Return how its elements are stored, in a word."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return str(tensor.layout).removeprefix("torch.")


def _span_of(tensor: Tensor) -> int:
    """Return the number of elements between the first and the last one, both included."""
    if not tensor.numel():
        return 0
    last = 0
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * step
    return last + 1


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has dense memory with strides, and is not of a subclass."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return is_dense and type(tensor) in (Tensor, nn.Parameter)


def same_view(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """Return the view of another storage that ``tensor`` is of its own."""
    view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def meta_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a meta tensor like this one, or of another type, which belongs to no graph."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta"
    )


def meta_tensor(spec: TensorSpec) -> Tensor:
    """Return a meta tensor of this spec."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def _make_proxy(tensor: Tensor, spec: TensorSpec, storage: torch.UntypedStorage | None) -> Tensor:
    """Return a proxy tensor for ``tensor``: the same view of another storage, or a meta tensor.

    Views of the model's tensors must be ordinary tensors, not those of inference mode.
    """
    with making_ordinary_tensors():
        if storage is None:
            return meta_tensor(spec)
        return same_view(tensor, storage)
