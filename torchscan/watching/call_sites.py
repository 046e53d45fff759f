"""Calls of modules within a step, with the numbers of their series, known from the step before.

A model that trains makes the same calls in each step. What depends only on the call is worked out
in the first one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchscan.observing.model_steps import lasting_parameters
from torchscan.recording.bookkeeping.inventory import modules_of, type_name_of
from torchscan.torch_versions import is_sharded_type, sharded_by_gathered
from torchscan.watching.activation_bounds import bounds_of, can_die, has_channels_first
from torchscan.watching.schema import Announced, Kind, Series


class Parameter(NamedTuple):
    """A parameter of a module, by the name that it has there."""

    path: str
    module: nn.Module
    name: str
    tensor: Tensor


def parameters_of(modules: Iterable[tuple[str, nn.Module]]) -> list[Parameter]:
    """Return each parameter once, by the first module that has it."""
    found: dict[int, Parameter] = {}
    for path, module in modules:
        for name, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in found and not nn.parameter.is_lazy(tensor):
                found[id(tensor)] = Parameter(path, module, name, tensor)
    return list(found.values())


class SeriesNumbers:
    """The numbers of series in the shared memory, and series that were not announced yet."""

    def __init__(self, whole: Sequence[tuple[str, int]] = ()) -> None:
        """``whole``: patterns of series of which all values are taken, each with a limit."""
        self._numbers: dict[tuple[str, Kind, str, int, type], int] = {}
        self._whole = whole
        self.new: list[Announced] = []
        #: for series of which all values are taken, the limit of their number
        self.wholes: dict[int, int] = {}
        #: patterns that have matched no series yet
        self.unmet = dict.fromkeys(pattern for pattern, _ in whole)

    def of(self, path: str, kind: Kind, name: str, invocation: int, module: nn.Module) -> int:
        """Return the number of a series, which may be new."""
        key = path, kind, name, invocation, type(module)
        number = self._numbers.get(key)
        if number is not None:
            return number

        number = self._numbers[key] = len(self._numbers)
        series = Series(
            path=path, type_name=type_name_of(module), kind=kind, name=name, invocation=invocation
        )
        is_output = kind == "output"
        bounds = bounds_of(module) if is_output else None
        self.new.append(Announced(series, bounds, is_output and can_die(module)))
        limits = {
            pattern: limit
            for pattern, limit in self._whole
            if fnmatch.fnmatchcase(series.label, pattern)
        }
        if limits:
            self.wholes[number] = max(limits.values())
            self.unmet = {pattern: None for pattern in self.unmet if pattern not in limits}
        return number


class CallSite:
    """The n-th call of a module in each step."""

    __slots__ = (
        "_series",
        "can_die",
        "has_channels_first",
        "input_grads",
        "inputs",
        "invocation",
        "is_sampled",
        "module",
        "output_grads",
        "outputs",
        "path",
        "takes_keywords",
    )

    def __init__(
        self,
        series: SeriesNumbers,
        path: str,
        module: nn.Module,
        invocation: int,
        *,
        is_sampled: bool,
    ) -> None:
        self._series = series
        self.path = path
        self.module = module
        self.invocation = invocation
        #: True if the user has chosen the module
        self.is_sampled = is_sampled
        #: True once a call had keyword arguments, and None before the first call; to look for them
        #: takes time
        self.takes_keywords: bool | None = None
        self.can_die = can_die(module)
        #: the layout of a layer's output; None for modules that keep the layout of their input
        self.has_channels_first = has_channels_first(module)
        #: numbers of series, by the index of the tensor among those of the call
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.input_grads: list[int] = []
        self.output_grads: list[int] = []

    def note_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Note the keyword arguments of a call, and return those not looked for before it.

        Those are the first that it has after steps without any.
        """
        missed = kwargs if self.takes_keywords is False else {}
        self.takes_keywords = bool(self.takes_keywords or kwargs)
        return missed

    def number(self, kind: Kind, numbers: list[int], index: int) -> int:
        """Return the number of the series of a tensor; ``numbers`` is the list of its kind."""
        while len(numbers) <= index:
            name = str(len(numbers))
            numbers.append(self._series.of(self.path, kind, name, self.invocation, self.module))
        return numbers[index]


class CallSites:
    """The call sites and parameters of a model, until its modules change."""

    def __init__(self, series: SeriesNumbers, is_chosen: Callable[[str, nn.Module], bool]) -> None:
        self._series = series
        self._is_chosen = is_chosen
        self._identities: list[int] = []
        #: calls of each module, by its identity
        self.by_module: dict[int, list[CallSite]] = {}
        self._paths: dict[int, str] = {}
        self._modules: list[nn.Module] = []
        self._chosen: set[int] = set()
        #: True if a parameter had no shape yet: it gets one in place
        self._has_lazy = False
        #: parameters of the chosen modules, and their tensors
        self.parameters: list[Parameter] = []
        self.parameter_tensors: list[Tensor] = []
        #: numbers of the series of parameters, and of their gradients
        self._parameter_numbers: dict[Kind, list[int]] = {}
        #: identities of all parameters of the model
        self.parameter_ids: set[int] = set()
        #: all parameters of the model
        self._every: list[Tensor] = []
        #: True if no graph leads to the parameters: other tensors take the place of sharded ones
        #: while the model runs
        self.has_unreachable_parameters = False

    def update(self, model: nn.Module, called: nn.Module) -> bool:
        """Work out everything again if modules or parameters have changed, and return whether.

        ``called`` may be a compiled module around the model, which shares its path.
        """
        identities = [id(called)]
        pending: list[nn.Module | None] = [model]
        seen: set[int] = set()
        while pending:
            module = pending.pop()
            if module is None:
                continue
            identities.append(id(module))
            if module._parameters:
                identities.extend(map(id, module._parameters.values()))
            if module._modules and id(module) not in seen:
                seen.add(id(module))
                pending.extend(module._modules.values())
        if identities == self._identities and not self._has_lazy:
            return False
        # functional_call has put other tensors in the place of parameters for this call
        is_replaced = any(
            type(tensor) is Tensor
            for _, module in modules_of(model)
            for tensor in module._parameters.values()
        )
        if is_replaced and self._identities:
            return False
        self._identities = identities
        self._find(model, called)
        return True

    def _find(self, model: nn.Module, called: nn.Module) -> None:
        modules = list(modules_of(model))
        self.by_module.clear()
        # holds the modules, whose identities others could have after them
        self._modules = [called, *(module for _, module in modules)]
        self._paths = {id(module): path for path, module in modules}
        self._paths.setdefault(id(called), "")
        chosen = [(path, module) for path, module in modules if self._is_chosen(path, module)]
        self._chosen = {id(module) for _, module in chosen}
        if "" in {path for path, _ in chosen}:
            self._chosen.add(id(called))
        sharded = sharded_by_gathered(model)
        self.parameters = []
        for each in parameters_of(chosen):
            self.parameters.append(each._replace(tensor=sharded.get(id(each.tensor), each.tensor)))
        self.parameter_tensors = [each.tensor for each in self.parameters]
        self._parameter_numbers.clear()
        every = lasting_parameters(model)
        self._has_lazy = any(map(nn.parameter.is_lazy, every))
        self._every = every
        self.has_unreachable_parameters = any(is_sharded_type(type(each)) for each in every)
        self.parameter_ids = set(map(id, every))

    @property
    def has_trained_parameters(self) -> bool:
        """True if a parameter of the model requires a gradient."""
        for each in self._every:  # noqa: SIM110 - a generator takes longer than the first answer
            if each.requires_grad:
                return True
        return False

    def parameter_numbers(self, kind: Kind) -> list[int]:
        """Return the numbers of the series of the parameters, or of their gradients."""
        if kind not in self._parameter_numbers:
            self._parameter_numbers[kind] = [
                self._series.of(each.path, kind, each.name, 0, each.module)
                for each in self.parameters
            ]
        return self._parameter_numbers[kind]

    def path_of(self, module: nn.Module) -> str | None:
        """Return the path of a module, or None if the model does not have it."""
        return self._paths.get(id(module))

    def site(self, module: nn.Module, invocation: int) -> CallSite | None:
        """Return a call of a module, or None if the model does not have the module."""
        known = self.by_module.get(id(module))
        if known is not None and invocation < len(known):
            return known[invocation]
        path = self._paths.get(id(module))
        if path is None:
            return None
        sites = self.by_module.setdefault(id(module), [])
        while len(sites) <= invocation:
            sites.append(
                CallSite(
                    self._series,
                    path,
                    module,
                    len(sites),
                    is_sampled=id(module) in self._chosen,
                )
            )
        return sites[invocation]
