"""Overlays on the modules of a model: values by path, matched with modules and their calls."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from torchscan.errors import Argument, InputError
from torchscan.report.paging.overlay_values import NamedValues
from torchscan.report.paging.row_values import key_of, truncate_text
from torchscan.trace.trace import Trace
from torchscan.user_warnings import warn_user

#: parts of paths that wrappers of modules add
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
#: paths that a warning or a remark names
_MAX_NAMED = 3


class ValuePlace(NamedTuple):
    """A module, and the name of its parameter or buffer: "" for the module itself."""

    module: str
    tensor: str = ""


@dataclass(frozen=True, slots=True)
class PlacedOverlay:
    """An overlay whose paths are modules of the model."""

    name: str
    #: path of a module -> name of a parameter or buffer, or "" -> value
    values: Mapping[str, Mapping[str, float]]


def overlay_data(overlays: Sequence[PlacedOverlay], trace: Trace) -> list[dict[str, Any]]:
    """Return the overlays that a page shows: names, and values by the keys of calls.

    A value is a number, or several by the names of parameters.
    """
    shown = []
    for overlay in overlays:
        values: dict[str, Any] = {}
        for call in trace.modules:
            given = overlay.values.get(call.path)
            if given is not None:
                by_name = {truncate_text(name): value for name, value in given.items()}
                values[key_of(call.path, call.call)] = by_name.get("", by_name)
        if values:
            shown.append({"name": overlay.name, "values": values})
    return shown


def overlay_remarks(overlays: Sequence[PlacedOverlay], trace: Trace) -> list[str]:
    """Return remarks that name the modules with values that a page cannot show."""
    called = {call.path for call in trace.modules}
    remarks = []
    for overlay in overlays:
        missing = [path for path in overlay.values if path not in called]
        if missing:
            text = f"not shown for modules that the pass does not call: {_join_some(missing)}"
            remarks.append(f"{overlay.name}: {text}")
    return remarks


def place_overlays(overlays: NamedValues, model: nn.Module) -> list[PlacedOverlay]:
    """Return overlays by the model's own paths. Paths that it does not have raise a warning.

    If the model has none of an overlay's paths, this raises an InputError.
    """
    places = _ModelPlaces(model)
    placed = [places.place(truncate_text(name), values) for name, values in overlays.items()]
    if places.unknown:
        paths = {path for values in overlays.values() for path in values}
        warn_user(
            f"{len(places.unknown)} of {len(paths)} paths of the overlay are not in the model, and "
            f"their values are not shown: {places.describe(list(places.unknown))}"
        )
    return placed


class _ModelPlaces:
    """The paths of a model's modules, parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        first_paths: dict[int, str] = {}
        self._places: dict[str, ValuePlace] = {}
        tensors: dict[str, ValuePlace] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            own_path = first_paths.setdefault(id(module), path)  # as the pass records it
            self._places[path] = ValuePlace(own_path)
            for name in (*module._parameters, *module._buffers):
                tensors[f"{path}.{name}" if path else name] = ValuePlace(own_path, name)
        self._modules = list(self._places)
        self._tensors = list(tensors)
        self._places = {**tensors, **self._places}
        self._unwrapped: dict[str, ValuePlace] = {}
        #: paths of values that the model does not have, in order
        self.unknown: dict[str, None] = {}

    def place(self, name: str, values: Mapping[str, float]) -> PlacedOverlay:
        """Return the overlay by the paths of modules."""
        paths: dict[ValuePlace, str] = {}
        unknown = []
        found: dict[str, dict[str, float]] = {}
        for path, value in values.items():
            place = self._find(path)
            if place is None:
                unknown.append(path)
                continue
            before = paths.setdefault(place, path)
            if values[before] != value:
                pair = f"{truncate_text(before)} and {truncate_text(path)}"
                raise InputError(
                    f"{name}: {pair} are the same, and have different values: give one of them"
                )
            found.setdefault(place.module, {})[place.tensor] = value
        if not found:
            text = f": the model has none of the paths of {name}, such as {self.describe(unknown)}"
            advice = ": give paths as named_modules() returns them"
            raise InputError(Argument("overlay"), text, advice)
        self.unknown.update(dict.fromkeys(unknown))
        _warn_of_hidden(name, found)
        return PlacedOverlay(name, found)

    def _find(self, path: str) -> ValuePlace | None:
        """Return the place of a path, which may have parts that wrappers of modules add."""
        place = self._places.get(path)
        if place is not None:
            return place
        if not self._unwrapped:
            for known, place_of_known in self._places.items():
                self._unwrapped.setdefault(_without_wrappers(known), place_of_known)
        return self._unwrapped.get(_without_wrappers(path))

    def describe(self, unknown: Sequence[str]) -> str:
        """Return the first of these paths, each with the nearest one of the model."""
        shown = []
        for path in unknown[:_MAX_NAMED]:
            last = path.rpartition(".")[2]
            is_tensor = any(each.rpartition(".")[2] == last for each in self._tensors)
            near = difflib.get_close_matches(path, self._tensors if is_tensor else self._modules, 1)
            label = truncate_text(path)
            shown.append(f"{label} (did you mean {truncate_text(near[0])}?)" if near else label)
        return _join_some([*shown, *unknown[_MAX_NAMED:]])


def _without_wrappers(path: str) -> str:
    return ".".join([part for part in path.split(".") if part not in _WRAPPERS])


def _warn_of_hidden(name: str, found: Mapping[str, Mapping[str, float]]) -> None:
    """Warn of values of parameters that a value of their module hides."""
    hidden = [path for path, values in found.items() if "" in values and len(values) > 1]
    if hidden:
        warn_user(
            f"{name}: values of parameters are not shown if their module has a value, too: "
            f"{_join_some([path or 'the model' for path in hidden])}"
        )


def _join_some(names: Sequence[str]) -> str:
    shown = ", ".join(map(truncate_text, names[:_MAX_NAMED]))
    if len(names) > _MAX_NAMED:
        shown += f" and {len(names) - _MAX_NAMED} more"
    return shown
