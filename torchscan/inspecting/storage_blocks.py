"""Blocks of memory behind tensors, and what autograd saves."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchscan.torch_versions import TELLS_UNPACKING


class StorageBlock(NamedTuple):
    """A memory block. The weak reference keeps others from having its identity."""

    reference: StorageWeakRef
    size: int


Blocks = dict[int, StorageBlock]


def blocks_of(tensors: Iterable[Tensor]) -> Blocks:
    """The memory blocks of tensors that have any, by identity."""
    blocks: Blocks = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
        except (
            NotImplementedError,
            RuntimeError,
            ValueError,
        ):  # none: sparse, not initialised yet, or a subclass without one
            continue
        reference = StorageWeakRef(storage)
        blocks[reference.cdata] = StorageBlock(reference, storage.nbytes())
    return blocks


def bytes_in(blocks: Mapping[int, StorageBlock]) -> int:
    """All of them together."""
    return sum(block.size for block in blocks.values())


#: names of the attributes with what nodes of a type save
_names: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def tensors_saved_by(node: Any) -> Iterator[Tensor]:
    """Yield the tensors that an autograd node saved as they are.

    Tensors that hooks pack, for example a checkpoint's, are left out: unpacking them may run a
    forward pass.
    """
    if not TELLS_UNPACKING:
        return
    with contextlib.suppress(RuntimeError):  # it has run, and freed everything
        names = _names.get(type(node))
        if names is None:
            names = tuple(name for name in dir(type(node)) if name.startswith("_raw_saved_"))
            _names[type(node)] = names
        for name in names:
            found = getattr(node, name, None)
            for saved in found if isinstance(found, list | tuple) else (found,):
                if (
                    saved is not None
                    and saved.unpack_hook is None
                    and isinstance(saved.data, Tensor)
                ):
                    yield saved.data
