"""Attributes outside of an object's ``__dict__``: those of its class, and those in slots."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from torch import nn

#: a flag of classes that Python code has made: only their objects can get another class
IS_HEAP_TYPE = 1 << 9


def user_classes(modules: Iterable[nn.Module]) -> set[type]:
    """Return the classes of modules, and their bases, that are neither torch's nor built in.

    Nothing can be assigned to a built-in class.
    """
    bases = {base for kind in set(map(type, modules)) for base in kind.__mro__}
    own = {base for base in bases if base.__flags__ & IS_HEAP_TYPE}
    return {base for base in own if not base.__module__.startswith("torch.")}


def restore_class(kind: type, attributes: dict[str, Any]) -> None:
    """Restore class attributes that a forward pass assigned: a table that all instances share."""
    now = dict(vars(kind))
    for name in now.keys() - attributes.keys():
        type.__delattr__(kind, name)
    for name, value in attributes.items():
        if now.get(name) is not value:
            setattr(kind, name, value)


def slots_of(value: Any) -> dict[str, Any]:
    """Return the attributes in slots that are set, by name."""
    members = {
        name: member
        for base in type(value).__mro__
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType and base.__flags__ & IS_HEAP_TYPE
    }
    slots = {}
    for name, member in members.items():
        try:
            slots[name] = member.__get__(value)
        except AttributeError:
            continue
    return slots


def restore_slots(value: Any, attributes: dict[str, Any]) -> None:
    """Restore the attributes of an object in slots."""
    now = slots_of(value)
    for name in now.keys() - attributes.keys():
        _member_of(value, name).__delete__(value)
    for name, before in attributes.items():
        if name not in now or now[name] is not before:
            _member_of(value, name).__set__(value, before)


def _member_of(value: Any, name: str) -> Any:
    return next(vars(base)[name] for base in type(value).__mro__ if name in vars(base))
