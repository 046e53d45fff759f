"""A language model as one device of an inference engine has it: tensor and expert parallelism.

Tensor parallelism follows the plan of transformers where it divides the work, and engines where it
does not: attention by heads, experts and MLPs by their inner dimension, the vocabulary by rows.
Norms over all heads add up squares. The output of experts and of shared experts is summed once.

With expert parallelism, each device has some experts completely. If groups of devices serve
batches of their own, all tokens are gathered before the experts, and their results are summed and
scattered afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.expert_rows import all_rows, own_picks
from torchscan.recording.sharding import Heads, by_its_own_plan, heads_of, repeat_heads
from torchscan.torch_versions import gather_columns, gather_rows, scatter_rows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Forward = Callable[..., Any]
#: matrices of all experts in one tensor
_STACKED = 3
#: attributes in which attention modules keep the number of their heads
_HEADS = ("num_heads", "num_attention_heads", "n_heads")
#: products of attention that other heads need, too
_LATENT = ("q_a_proj", "kv_a_proj_with_mqa")


def as_engines_shard(
    model: nn.Module, mesh: DeviceMesh, *, expert_parallel: bool = False
) -> nn.Module:
    """Shard a copy of a model without data over "tp", and its experts over all devices if asked."""
    names = mesh.mesh_dim_names or ()
    tp = mesh["tp"] if "tp" in names and mesh["tp"].size() > 1 else None
    if expert_parallel:
        _divide_experts(model, mesh, tp)
    if tp is None:
        return model
    heads = heads_of(model, tp.size())
    repeat_heads(model, heads)
    plan = _Plan(model, heads, is_joined=not expert_parallel or tp.size() == mesh.size())
    if plan.unknown_styles:
        return by_its_own_plan(model, mesh)
    _Shards(model, tp).follow(plan.styles)
    return model


# -- plan ----------------------------------------------------------------------------------------


class _Plan:
    """The style of each parameter and module that is divided, by its path."""

    def __init__(self, model: nn.Module, heads: Heads | None, *, is_joined: bool) -> None:
        """``is_joined``: True if experts and shared experts are summed over the same devices."""
        self._model = model
        self._heads = heads
        #: by path, a name in ``_STYLES``
        self.styles = _plan_of_transformers(model)
        self._modules = dict(model.named_modules())
        self._hidden = getattr(_text_config(model), "hidden_size", None)
        is_planned = len(self.styles) > len(self._styles_of_ends())
        for path, module in self._modules.items():
            if heads is not None and self._add_attention(path, module, heads):
                is_planned = True
            self._add_experts(path, module)
            self._add_mlp(path, module)
        if not is_planned:
            raise InputError(
                f"{type(model).__name__} has no plan for tensor parallelism, and no attention "
                "whose heads can be told: give ",
                Give("apply"),
                ", a function of the model and the mesh that shards it",
            )
        self._add_vocabulary()
        if is_joined:
            self._join_sums()

    @property
    def unknown_styles(self) -> set[str]:
        """Styles of newer versions of transformers."""
        return set(self.styles.values()) - _STYLES.keys()

    def _styles_of_ends(self) -> list[str]:
        """Return the paths in the plan that belong to the product that computes scores."""
        return [path for path in self.styles if path.startswith("lm_head")]

    def _add(self, path: str, style: str) -> None:
        """Set the style of a module with its parameters, or of a parameter."""
        module = self._modules.get(path)
        if module is not None:
            for name in module._parameters:
                self.styles[f"{path}.{name}"] = style
        self.styles[path] = style

    def _is_divided(self, path: str) -> bool:
        return self.styles.get(path) == "colwise"

    def _add_attention(self, path: str, module: nn.Module, heads: Heads) -> bool:
        """Divide attention by heads. Return whether it does."""
        inputs = _projections_of_heads(module)
        output = getattr(module, "o_proj", None)
        if not inputs or not isinstance(output, nn.Linear):
            return False
        if output.out_features != self._hidden or self._is_divided(f"{path}.{inputs[0]}"):
            return False
        projections = {name: module.get_submodule(name) for name in inputs}
        queries: Any = projections[inputs[0]]
        if queries.out_features % heads.queries or output.in_features % heads.queries:
            return False
        norms = _norms_over_heads(module, projections)
        if norms is None:
            return False
        for name in inputs:
            self._add(f"{path}.{name}", "colwise")
        self._add(f"{path}.o_proj", "rowwise")
        for name in norms:
            self._add(f"{path}.{name}", f"{name}_over_heads")
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.shape[:1] == (heads.queries,):
                self.styles[f"{path}.{name}"] = "colwise"
        if path not in self.styles:
            self.styles[path] = "own_heads"
        return True

    def _add_experts(self, path: str, module: nn.Module) -> None:
        """Divide experts by their inner dimension."""
        experts = _experts_in(module)
        if experts is None or f"{path}.down_proj" in self.styles:
            return
        first, second = "packed_colwise", "rowwise"
        if experts.is_transposed:
            first, second = "packed_rowwise", "colwise"
        for name in (experts.first, f"{experts.first}_bias"):
            if name in module._parameters:
                self.styles[f"{path}.{name}"] = first
        self.styles[f"{path}.down_proj"] = second
        self.styles[path] = "moe_tp_experts"

    def _add_mlp(self, path: str, module: nn.Module) -> None:
        """Divide an MLP by its inner dimension."""
        last = getattr(module, "down_proj", None)
        if not isinstance(last, nn.Linear):
            return
        names = [name for name in ("gate_proj", "up_proj") if _is_linear(module, name)]
        style = "colwise"
        if _is_linear(module, "gate_up_proj"):
            names, style = ["gate_up_proj"], "packed_colwise"
            first: Any = module.get_submodule("gate_up_proj")
            if first.out_features != 2 * last.in_features:
                return
        is_planned = self.styles.get(f"{path}.down_proj") in ("rowwise", "replicate")
        if not names or is_planned or last.out_features != self._hidden:
            return
        for name in names:
            self._add(f"{path}.{name}", style)
        self._add(f"{path}.down_proj", "rowwise")

    def _add_vocabulary(self) -> None:
        paths = {id(module): path for path, module in self._modules.items()}
        for verb, kind, style in (
            ("get_input_embeddings", nn.Embedding, "embedding_rowwise"),
            ("get_output_embeddings", nn.Linear, "colwise_gather_output"),
        ):
            find = getattr(self._model, verb, None)
            found = None if find is None else find()
            path = paths.get(id(found))
            if path is not None and path not in self.styles and isinstance(found, kind):
                self._add(path, style)

    def _join_sums(self) -> None:
        """Sum the outputs of experts and of the shared experts beside them once, as engines do."""
        for path, module in self._modules.items():
            prefix = f"{path}.experts"
            if self.styles.get(prefix) != "moe_tp_experts":
                continue
            shared = [name for name in module._modules if name.startswith("shared_expert")]
            last = [f"{path}.{name}.down_proj" for name in shared]
            last = [each for each in last if self.styles.get(each) == "rowwise"]
            if last:
                self.styles[prefix] = self.styles[last[0]] = "replicate"
                self.styles[path] = "all_reduce"


def _plan_of_transformers(model: nn.Module) -> dict[str, str]:
    plan, expand = getattr(model, "tp_plan", None), getattr(model, "_expand_parallel_plan", None)
    return dict(expand(dict(plan))) if plan and expand is not None else {}


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _is_linear(module: nn.Module, name: str) -> bool:
    return isinstance(module._modules.get(name), nn.Linear)


def _projections_of_heads(module: nn.Module) -> list[str]:
    """Return the products whose outputs are heads, queries first, or none if they are not known."""
    linear = [name for name, each in module._modules.items() if isinstance(each, nn.Linear)]
    queries = "q_b_proj" if "q_b_proj" in linear else "q_proj"
    latent = [queries, "kv_b_proj"]
    plain = ["q_proj", "k_proj", "v_proj"]
    for names in (latent, plain):
        is_complete = set(linear) - set(_LATENT) - {"o_proj"} == set(names)
        if is_complete:
            return names
    return []


def _norms_over_heads(
    module: nn.Module, projections: Mapping[str, nn.Module]
) -> list[str] | None:
    """Return the norms over all heads, or None if there is one of another size."""
    found = []
    for norm, projection in (("q_norm", "q_proj"), ("k_norm", "k_proj")):
        weight = getattr(getattr(module, norm, None), "weight", None)
        if not isinstance(weight, Tensor):
            continue
        outputs: Any = projections.get(projection)
        if outputs is None or weight.dim() != 1 or outputs.out_features % weight.numel():
            return None
        if weight.numel() == outputs.out_features != getattr(module, "head_dim", None):
            found.append(norm)
    return found


class _Experts(NamedTuple):
    """The experts of a module, whose matrices are stacked."""

    number: int
    #: name of the matrices that the hidden states meet first
    first: str
    #: True if the inner dimension of these matrices is the last
    is_transposed: bool


def _experts_in(module: nn.Module) -> _Experts | None:
    """Return the experts of a module, or None if it has none that are stacked."""
    first = next((name for name in ("gate_up_proj", "up_proj") if name in module._parameters), None)
    if first is None:
        return None
    up, down = module._parameters[first], module._parameters.get("down_proj")
    if up is None or down is None or not up.dim() == down.dim() == _STACKED:
        return None
    is_transposed = down.shape[-1] == up.shape[1] != down.shape[1]
    if down.shape[1] == down.shape[2]:  # both dimensions are equal: the inner one is doubled
        is_transposed = up.shape[2] > up.shape[1]
    return _Experts(up.shape[0], first, is_transposed)


# -- styles --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The devices that share a module."""

    group: Any
    size: int

    def sum(self, output: Any) -> Any:
        """Sum a tensor, or the first of several, over the devices."""
        tensor = output[0] if isinstance(output, tuple) else output
        torch.distributed.all_reduce(tensor, group=self.group)
        return output

    def part(self, size: int) -> int:
        """Return the part of a dimension that the first device has."""
        return -(-size // self.size)


Wrapper = Callable[[nn.Module, Forward, _Place], Forward]


def _summed(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    return lambda *args, **kwargs: place.sum(forward(*args, **kwargs))


def _gathered(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    return lambda *args, **kwargs: gather_columns(forward(*args, **kwargs), place.group)


def _split_and_summed(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    def split(states: Tensor) -> Any:
        return place.sum(forward(states.narrow(-1, 0, place.part(states.shape[-1]))))

    return split


def _shared_out(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    return lambda states, *args: forward(states / place.size, *args)


def _looked_up(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    """Look up the tokens in this device's part of the vocabulary, zeros for the others."""

    def look_up(tokens: Tensor) -> Any:
        is_elsewhere = tokens >= module.get_parameter("weight").shape[0]
        rows = forward(tokens.masked_fill(is_elsewhere, 0))
        return place.sum(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0.0))

    if getattr(module, "padding_idx", None) is not None:
        module.padding_idx = None  # it may lie in another part, and only matters for gradients
    return look_up


def _normed_over_heads(module: Any, place: _Place, *, sums: int) -> Forward:
    """Return an RMS norm over the heads of all devices, which adds up their squares.

    The sums for queries and keys travel together, so the norm of keys has no collective of its own.
    """
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or 0.0

    def norm(states: Tensor) -> Tensor:
        wide = states.to(torch.float32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        if sums:
            both = place.sum(torch.cat([mean] * sums, -1))
            mean = both[..., :1] / place.size
        scaled = wide * torch.rsqrt(mean + epsilon)
        return module.weight * scaled.to(states.dtype)

    return norm


def _normed_with_keys(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    return _normed_over_heads(module, place, sums=2)


def _normed_with_queries(module: nn.Module, forward: Forward, place: _Place) -> Forward:
    return _normed_over_heads(module, place, sums=0)


class _Style(NamedTuple):
    """The dimension along which parameters are divided, and what a module does besides."""

    dim: int | None = None
    #: True if tensors of one dimension stay whole
    keeps_vectors: bool = False
    wrap: Wrapper | None = None

    def dim_of(self, tensor: Tensor) -> int | None:
        """Return the dimension along which a parameter is divided, or None."""
        if self.dim is None or tensor.dim() > 1:
            return self.dim
        return None if self.keeps_vectors else 0


_COLUMNS, _ROWS = _Style(-2), _Style(-1, keeps_vectors=True)
#: by their names in transformers
_STYLES: Mapping[str, _Style] = {
    "colwise": _COLUMNS,
    "packed_colwise": _COLUMNS,
    "colwise_gather_output": _COLUMNS._replace(wrap=_gathered),
    "colwise_rep": _COLUMNS._replace(wrap=_gathered),
    "rowwise": _ROWS._replace(wrap=_summed),
    "packed_rowwise": _ROWS,
    "rowwise_split_input": _ROWS._replace(wrap=_split_and_summed),
    "rowwise_rep": _ROWS._replace(wrap=_split_and_summed),
    "embedding_rowwise": _Style(0, wrap=_looked_up),
    "embedding_colwise": _Style(1, wrap=_gathered),
    "moe_tp_experts": _Style(wrap=_summed),
    "all_reduce": _Style(wrap=_summed),
    "moe_identity_expert": _Style(wrap=_shared_out),
    "q_norm_over_heads": _Style(0, wrap=_normed_with_keys),
    "k_norm_over_heads": _Style(0, wrap=_normed_with_queries),
    **dict.fromkeys(
        (
            *("replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj"),
            *("local_params", "own_heads"),
        ),
        _Style(),
    ),
}


class _Shards:
    """The part of the first device of a group."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self._place = _Place(mesh.get_group(), mesh.size())
        self._modules = dict(model.named_modules())
        #: parts by the tensor and the dimension, so that tied weights stay tied
        self._parts: dict[tuple[int, int], tuple[Tensor, nn.Parameter]] = {}

    def follow(self, styles: Mapping[str, str]) -> None:
        """Divide parameters and change modules, which are those of a copy."""
        for path, name in styles.items():
            style = _STYLES[name]
            module = self._modules.get(path)
            if module is None:
                self._divide(path, style)
                continue
            if style.wrap is not None:
                made: Any = module
                made.forward = style.wrap(module, module.forward, self._place)
            if name == "own_heads":
                self._divide_attributes(module)

    def _divide(self, path: str, style: _Style) -> None:
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
            self._parts[key] = tensor, first_part(tensor, dim, self._place.size)
        module._parameters[name] = self._parts[key][1]
        if isinstance(module, nn.Linear) and name == "weight":
            module.out_features, module.in_features = module.weight.shape

    def _divide_attributes(self, module: nn.Module) -> None:
        for name in _HEADS:
            number = getattr(module, name, None)
            if isinstance(number, int) and number % self._place.size == 0:
                setattr(module, name, number // self._place.size)


def first_part(tensor: Tensor, dim: int, size: int) -> nn.Parameter:
    """Return the part of a parameter that the first of several devices has, in its own memory."""
    number = -(-tensor.shape[dim] // size)
    with torch.no_grad():
        part = tensor.narrow(dim, 0, number).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, tensor.requires_grad)


# -- experts -------------------------------------------------------------------------------------


def _experts_of(model: nn.Module) -> Iterator[tuple[nn.Module, _Experts]]:
    """Yield the modules of experts that are called with hidden states, picks and weights."""
    for module in model.modules():
        experts = _experts_in(module)
        if experts is not None and len(inspect.signature(module.forward).parameters) == _STACKED:
            yield module, experts


def has_divisible_experts(model: nn.Module) -> bool:
    """Return whether a model has experts that can be divided among devices."""
    return any(True for _ in _experts_of(model))


def _divide_experts(model: nn.Module, mesh: DeviceMesh, tp: DeviceMesh | None) -> None:
    """Leave each device some experts, and have their modules exchange tokens."""
    found = list(_experts_of(model))
    if not found:
        raise InputError(
            f"{type(model).__name__} has no experts that can be divided: leave out ",
            Argument("expert_parallel"),
        )
    size = mesh.size()
    for module, experts in found:
        if experts.number % size:
            raise InputError(
                f"{experts.number} experts cannot be divided among {size} devices: choose a number "
                "that divides them"
            )
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and tensor.shape[0] == experts.number:
                module._parameters[name] = first_part(tensor, 0, size)
        made: Any = module
        made.num_experts = experts.number // size
        made.forward = _Exchange(made.forward, mesh, tp, experts.number // size)


class _Exchange:
    """The call of the experts of one device, with the rows that picked them."""

    def __init__(
        self, forward: Forward, mesh: DeviceMesh, tp: DeviceMesh | None, choices: int
    ) -> None:
        self._forward = forward
        self._size = mesh.size()
        self._tp = None if tp is None else _Place(tp.get_group(), tp.size())
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
        output = self._forward(states.narrow(0, 0, rows), own, weights[:rows, :number])
        return all_rows(output, states.shape[0])
