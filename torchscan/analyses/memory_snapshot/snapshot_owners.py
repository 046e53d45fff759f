"""Owners of the blocks of a snapshot, and the steps that they were allocated in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from torchscan.analyses.memory_snapshot.allocator_history import (
    AllocatorHistory,
    AllocatorState,
    LiveBlock,
)
from torchscan.analyses.memory_snapshot.block_owners import (
    KnownOwner,
    Owner,
    OwnerKind,
    owner_of,
    python_frames,
)
from torchscan.analyses.memory_snapshot.module_paths import (
    ModulePaths,
    path_pattern,
    star_numbers,
)
from torchscan.analyses.memory_snapshot.snapshot_data import Origin

#: kinds that show in which pass an allocation was made
_FORWARD: Final = frozenset({"activations", "loss"})
_AFTER_FORWARD: Final = frozenset({"backward", "gradients", "recomputed", "optimizer", "temporary"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBlock:
    """A block and its owner."""

    block: LiveBlock
    kind: OwnerKind
    owner: Owner
    path: str
    #: the variable that holds it, or ""
    variable: str
    #: number of forward passes that have begun before it was allocated, or None if not recorded
    step: int | None


class RunningPass(NamedTuple):
    """Pass that runs at a moment."""

    #: number of forward passes that have begun after a backward pass
    step: int
    #: True if it is a forward pass
    is_forward: bool
    #: what the failed request was for, or None
    kind: OwnerKind | None = None


class SnapshotOwners:
    """Finds owners of blocks; blocks of one stack have the same one."""

    def __init__(
        self,
        history: AllocatorHistory,
        modules: ModulePaths | None,
        known_owners: Mapping[int, KnownOwner],
    ) -> None:
        self._history = history
        #: by address, of tensors whose owners are known better than by stacks
        self._known_owners = known_owners
        self._modules = modules
        self._known: dict[tuple[int, bool], tuple[Owner, str]] = {}
        self._kept: list[Origin] = []
        #: indices of events with which forward passes begin
        self._starts: list[int] = []
        #: number of starts before each event
        self._steps: list[int] = []
        #: True for each event after which a forward pass runs
        self._is_forward_after: list[bool] = []
        self._find_steps()

    def of_state(self, state: AllocatorState) -> list[OwnedBlock]:
        """Return the blocks of a state with their owners."""
        running = self.running(state)
        found = []
        for block in state.blocks:
            owner, path = self._owner(block.origin, block.event)
            step = None if block.event is None else self._steps[block.event]
            kind = owner.kind
            # When the next forward pass runs, only gradients are left of a backward pass.
            is_earlier = step is not None and step < running.step
            if kind == "backward" and (running.is_forward or is_earlier):
                kind = "gradients"
            known = self._known_owners.get(block.address)
            variable = ""
            if known is not None and (known.kind != "other" or kind == "unknown"):
                kind, variable = known.kind, known.place
                path = star_numbers(known.path) or path
            found.append(
                OwnedBlock(
                    block=block, kind=kind, owner=owner, path=path, variable=variable, step=step
                )
            )
        return found

    def running(self, state: AllocatorState) -> RunningPass:
        """Return the pass that runs at the moment of a state, as far as stacks show it."""
        index = state.num_events
        step = self._steps[index - 1] if index else 0
        if state.failure is not None and state.failure.origin is not None:
            owner, _ = self._owner(state.failure.origin, index)
            return RunningPass(step, owner.kind in _FORWARD, owner.kind)
        return RunningPass(step, bool(index) and self._is_forward_after[index - 1])

    def _owner(self, origin: Origin, event: int | None) -> tuple[Owner, str]:
        is_recorded = event is not None and self._history.events[event].origin is not None
        key = (id(origin), is_recorded)
        known = self._known.get(key)
        if known is None:
            owner = owner_of(origin, is_recorded=is_recorded)
            paths = () if self._modules is None else self._modules.find(python_frames(origin))
            known = self._known[key] = owner, path_pattern(paths) if paths else ""
            # as long as it lives, no other origin has its identity
            self._kept.append(origin)
        return known

    def _find_steps(self) -> None:
        """Find where a forward pass follows a backward pass or an optimizer."""
        has_begun = is_after_forward = False
        for index, event in enumerate(self._history.events):
            if event.action == "alloc" and event.origin is not None:
                owner, _ = self._owner(event.origin, index)
                if owner.kind in _AFTER_FORWARD:
                    is_after_forward = True
                elif owner.kind in _FORWARD:
                    if is_after_forward:
                        self._starts.append(index)
                    has_begun, is_after_forward = True, False
            self._steps.append(len(self._starts))
            self._is_forward_after.append(has_begun and not is_after_forward)
