"""A language model as one device of an inference engine has it: tensor and expert parallelism.

:mod:`torchscan.recording.engine_plan` says how modules are divided. Parts are ordinary tensors, as
in engines, and modules communicate through the collectives of a process group.

With expert parallelism, each device has some experts completely. If groups of devices serve
batches of their own, all tokens are gathered before the experts, and their results are summed and
scattered afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.attention_heads import heads_of, repeat_heads
from torchscan.recording.engine_plan import EnginePlan, divisible_experts
from torchscan.recording.engine_styles import STYLES, Forward, ShardGroup, Style
from torchscan.recording.expert_rows import all_rows, own_picks
from torchscan.recording.sharding import by_its_own_plan
from torchscan.torch_versions import gather_rows, scatter_rows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: attributes in which attention modules keep the number of their heads
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "num_key_value_heads")


def as_engines_shard(
    model: nn.Module, mesh: DeviceMesh, *, expert_parallel: bool = False
) -> nn.Module:
    """Shard a copy of a model without data over "tp", and its experts over all devices if asked."""
    names = mesh.mesh_dim_names or ()
    tp = mesh["tp"] if "tp" in names and mesh["tp"].size() > 1 else None
    if tp is None:
        if expert_parallel:
            _divide_experts(model, mesh, tp)
        return model
    heads = heads_of(model, tp.size())
    plan = EnginePlan(model, heads)
    if expert_parallel:
        plan.keep_experts(is_summed=tp.size() == mesh.size())
    plan.join_sums()
    unknown = sorted(set(plan.styles.values()) - STYLES.keys())
    if unknown and expert_parallel:
        raise InputError(
            f"the plan of {type(model).__name__} divides modules by {unknown[0]!r}, which is not "
            "known with expert parallelism: leave out ",
            Argument("expert_parallel"),
        )
    if unknown:  # of another version of transformers
        return by_its_own_plan(model, mesh)
    if expert_parallel:
        _divide_experts(model, mesh, tp)
    repeat_heads(model, heads, plan.styles)
    _Shards(model, tp).follow(plan.styles)
    return model


class _Shards:
    """The part of the first device of a group."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self._place = ShardGroup(mesh.get_group(), mesh.size())
        self._modules = dict(model.named_modules())
        #: parts by the tensor and the dimension, so that tied weights stay tied
        self._parts: dict[tuple[int, int], tuple[Tensor, nn.Parameter]] = {}

    def follow(self, styles: Mapping[str, str]) -> None:
        """Divide parameters and change modules, which are those of a copy."""
        for path, name in styles.items():
            style = STYLES[name]
            module = self._modules.get(path)
            if module is None:
                self._divide(path, style)
                continue
            if style.wrap is not None:
                _replace_forward(module, style.wrap(module, self._place))
            numbers = _HEADS if name == "own_heads" else ()
            for attribute in numbers:
                number = getattr(module, attribute, 0)
                if number and number % self._place.size == 0:
                    setattr(module, attribute, number // self._place.size)

    def _divide(self, path: str, style: Style) -> None:
        owner, _, name = path.rpartition(".")
        module = self._modules[owner]
        tensor = module._parameters.get(name)
        if tensor is None:
            return
        dim = style.dim_of(tensor)
        if dim is None:
            return
        key = id(tensor), dim % tensor.dim()
        if key not in self._parts:
            self._parts[key] = tensor, first_part(tensor, dim, self._place.size, style.packed)
        module._parameters[name] = self._parts[key][1]


def _replace_forward(module: Any, forward: Forward) -> None:
    module.forward = forward


def first_part(tensor: Tensor, dim: int, size: int, packed: int = 1) -> nn.Parameter:
    """Return the part of a parameter that the first of several devices has, in its own memory.

    Of each of ``packed`` matrices that lie one after the other, a device has a part.
    """
    number = packed * -(-tensor.shape[dim] // (packed * size))
    with torch.no_grad():
        part = tensor.narrow(dim, 0, number).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, tensor.requires_grad)


# -- experts -------------------------------------------------------------------------------------


class WeightCounts(NamedTuple):
    """Elements of a model's parameters."""

    #: of experts that can be divided among devices
    experts: int
    others: int
    #: bytes of an element, of the smallest type
    itemsize: int

    @classmethod
    def of(cls, model: nn.Module) -> WeightCounts:
        """Count the parameters of a model, tied ones once."""
        parameters = list(model.parameters())
        modules = [module for _, module, _ in divisible_experts(model)]
        experts = sum(each.numel() for module in modules for each in module.parameters())
        others = sum(each.numel() for each in parameters) - experts
        sizes = [each.element_size() for each in parameters if each.is_floating_point()]
        return cls(experts, others, min(sizes, default=1))


def _divide_experts(model: nn.Module, mesh: DeviceMesh, tp: DeviceMesh | None) -> None:
    """Leave each device some experts, and have their modules exchange tokens."""
    size = mesh.size()
    for _, module, experts in divisible_experts(model):
        if experts.number % size:
            raise InputError(
                f"{experts.number} experts cannot be divided among {size} devices",
                ": choose a number that divides them",
            )
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and tensor.shape[0] == experts.number:
                module._parameters[name] = first_part(tensor, 0, size)
        choices = experts.number // size
        made: Any = module
        made.num_experts = choices
        _replace_forward(module, _Exchange(module.forward, mesh, tp, choices))


class _Exchange:
    """The call of the experts of one device, with the rows that picked them."""

    def __init__(
        self, forward: Forward, mesh: DeviceMesh, tp: DeviceMesh | None, choices: int
    ) -> None:
        self._forward = forward
        self._size = mesh.size()
        self._tp = None if tp is None else ShardGroup(tp.get_group(), tp.size())
        #: True if groups of devices have batches of their own
        self._is_gathered = tp is None or tp.size() < mesh.size()
        self._choices = choices

    def __call__(self, states: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """Return the sum over the experts that each row picked."""
        if not self._is_gathered:
            return self._run(states, picks, weights)
        world = torch.distributed.group.WORLD
        rows = states.shape[0]
        inputs = [states, picks, weights]
        if self._tp is not None:  # devices that have the same rows send different ones of them
            own = self._tp.part(rows)
            inputs = [each.narrow(0, 0, own) for each in inputs]
        output = scatter_rows(self._run(*gather_rows(inputs, world)), world)
        if self._tp is None:
            return output
        (output,) = gather_rows([output], self._tp.group)
        return output.narrow(0, 0, rows)

    def _run(self, states: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """Run the experts on as many rows as the device with the most rows has."""
        own = own_picks(picks, self._choices, self._size)
        rows, number = own.shape
        own_weights = weights.reshape(-1)[: rows * number].view(rows, number)
        output = self._forward(states.narrow(0, 0, rows), own, own_weights)
        return all_rows(output, states.shape[0])
