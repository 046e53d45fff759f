"""The way in which an inference engine divides the modules of a language model.

The plan of transformers is kept where it divides the work. What it leaves whole on each device is
divided as engines do it, by the names and shapes of products: attention by heads, experts and MLPs
by their inner dimension, the vocabulary by rows. Norms over all heads add up squares. The outputs
of experts and of shared experts are summed once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchscan.errors import Give, InputError
from torchscan.recording.attention_heads import Heads

#: dimensions of the matrices of all experts in one tensor
_STACKED = 3
#: arguments of the experts that can be divided: hidden states, picks and weights
_NUM_ARGUMENTS = 3
#: products of attention that all heads share
LATENT = ("q_a_proj", "kv_a_proj_with_mqa")
#: norms of attention that are divided or the same for all heads
_NORMS_OF_HEADS = ("q_norm", "k_norm")


class StackedExperts(NamedTuple):
    """The experts of a module, whose matrices are stacked."""

    number: int
    #: name of the matrices that the hidden states meet first
    first: str
    #: True if the inner dimension of these matrices is the last
    is_transposed: bool


def experts_in(module: nn.Module) -> StackedExperts | None:
    """Return the experts of a module, or None if it has none that are stacked."""
    held = module._parameters
    first = next((name for name in ("gate_up_proj", "up_proj") if name in held), None)
    if first is None:
        return None
    up, down = held[first], held.get("down_proj")
    if up is None or down is None or not up.dim() == down.dim() == _STACKED:
        return None
    is_transposed = getattr(module, "is_transposed", None)  # as transformers' modules say
    if not isinstance(is_transposed, bool):
        # With gates, the inner dimension is doubled; without, the shapes are the same either way.
        is_transposed = first == "gate_up_proj" and up.shape[2] == 2 * down.shape[1]
    return StackedExperts(up.shape[0], first, is_transposed)


def divisible_experts(model: nn.Module) -> list[tuple[str, nn.Module, StackedExperts]]:
    """Return the modules, by path, whose experts can be divided among devices.

    They are called with hidden states, picks and weights.
    """
    found = []
    for path, module in model.named_modules():
        experts = experts_in(module)
        number = len(inspect.signature(module.forward).parameters)
        if experts is not None and number == _NUM_ARGUMENTS:
            found.append((path, module, experts))
    return found


class EnginePlan:
    """The style of each parameter and module that is divided, by its path.

    Styles have the names of transformers. Own ones are "own_heads" of attention, and
    "q_norm_over_heads" and "k_norm_over_heads".
    """

    def __init__(self, model: nn.Module, heads: Heads | None) -> None:
        """Take the plan of transformers, and derive what it lacks."""
        self._model = model
        self._modules = dict(model.named_modules())
        plan, expand = (
            getattr(model, "tp_plan", None),
            getattr(model, "_expand_parallel_plan", None),
        )
        #: the style by the path
        self.styles: dict[str, str] = {}
        if plan and expand is not None:
            self.styles.update(expand(dict(plan)))
        is_planned = any(not path.startswith("lm_head") for path in self.styles)
        config: Any = getattr(model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self._hidden = getattr(text, "hidden_size", None)
        for path, module in self._modules.items():
            if heads is not None and self._add_attention(path, module, heads):
                is_planned = True
            self._add_experts(path, module)
            self._add_mlp(path, module)
        if not is_planned:
            raise InputError(
                f"{type(model).__name__} has no plan for tensor parallelism, and no attention "
                "whose heads can be told",
                ": give ",
                Give("apply"),
                ", a function of the model and the mesh that shards it",
            )
        self._add_vocabulary()

    def keep_experts(self, *, is_summed: bool) -> None:
        """Do not divide experts any further, and sum their outputs only if ``is_summed``."""
        for path, module, _ in divisible_experts(self._model):
            for name in module._parameters:
                self.styles.pop(f"{path}.{name}", None)
            self.styles[path] = "moe_tp_experts" if is_summed else "replicate"

    def join_sums(self) -> None:
        """Sum the outputs of experts and of the shared experts beside them once, as engines do."""
        for path, module in self._modules.items():
            experts = f"{path}.experts"
            if self.styles.get(experts) != "moe_tp_experts":
                continue
            shared = [name for name in module._modules if name.startswith("shared_expert")]
            last = [f"{path}.{name}.down_proj" for name in shared]
            last = [each for each in last if self.styles.get(each) == "rowwise"]
            if last:
                self.styles.update(dict.fromkeys((experts, *last), "replicate"))
                self.styles[path] = "all_reduce"

    def _add(self, path: str, style: str) -> None:
        """Set the style of a module and of its parameters."""
        for name in self._modules[path]._parameters:
            self.styles[f"{path}.{name}"] = style
        self.styles[path] = style

    def _add_attention(self, path: str, module: nn.Module, heads: Heads) -> bool:
        """Divide attention by heads. Return whether it does."""
        projections = self._projections(path, module, heads)
        norms = _norms_over_heads(module, projections)
        if not projections or norms is None:
            return False
        if "kv_b_proj" not in projections:
            self._refuse_norm(path, module, module.get_submodule("o_proj"))
        for name in projections:
            self._add(f"{path}.{name}", "colwise")
        self._add(f"{path}.o_proj", "rowwise")
        for name in norms:
            self._add(f"{path}.{name}", f"{name}_over_heads")
        for name, parameter in module._parameters.items():  # such as sinks
            if parameter is not None and parameter.shape[:1] == (heads.queries,):
                self.styles[f"{path}.{name}"] = "colwise"
        self.styles.setdefault(path, "own_heads")
        return True

    def _projections(self, path: str, module: nn.Module, heads: Heads) -> Mapping[str, nn.Linear]:
        """Return the products whose outputs are heads, if the plan leaves them whole."""
        output = getattr(module, "o_proj", None)
        if not isinstance(output, nn.Linear) or output.out_features != self._hidden:
            return {}
        others = _products_of_heads(module, output)
        queries = "q_b_proj" if "q_b_proj" in others else "q_proj"
        if not others or self.styles.get(f"{path}.{queries}") == "colwise":
            return {}
        widths = others[queries].out_features, output.in_features
        if any(width % heads.queries for width in widths):
            return {}
        return others

    def _add_experts(self, path: str, module: nn.Module) -> None:
        """Divide experts by their inner dimension."""
        experts = experts_in(module)
        if experts is None:
            return
        packed = "packed_" if experts.first == "gate_up_proj" else ""
        if f"{path}.down_proj" not in self.styles:
            first, second = "colwise", "rowwise"
            if experts.is_transposed:
                first, second = second, first
            self.styles[f"{path}.{experts.first}"] = packed + first
            self.styles[f"{path}.down_proj"] = second
            self.styles[path] = "moe_tp_experts"
        bias = f"{experts.first}_bias"
        if bias in module._parameters:  # of shape [experts, outputs]
            self.styles[f"{path}.{bias}"] = f"{packed}rowwise"

    def _add_mlp(self, path: str, module: nn.Module) -> None:
        """Divide an MLP by its inner dimension."""
        last = module._modules.get("down_proj")
        if not isinstance(last, nn.Linear) or last.out_features != self._hidden:
            return
        if self.styles.get(f"{path}.down_proj") in ("rowwise", "replicate"):
            return
        for name, number, style in (
            ("gate_up_proj", 2, "packed_colwise"),
            ("gate_proj", 1, "colwise"),
            ("up_proj", 1, "colwise"),
        ):
            first = module._modules.get(name)
            if isinstance(first, nn.Linear) and first.out_features == number * last.in_features:
                self._refuse_norm(path, module, last)
                self._add(f"{path}.{name}", style)
                self._add(f"{path}.down_proj", "rowwise")

    def _refuse_norm(self, path: str, module: nn.Module, last: Any) -> None:
        """Raise if a norm spans the inputs of a product that are divided."""
        for name, child in module._modules.items():
            weight = getattr(child, "weight", None)
            if name in _NORMS_OF_HEADS or not isinstance(weight, Tensor):
                continue
            if weight.shape == (last.in_features,):
                raise InputError(
                    f"{path}.{name} norms what several GPUs compute, which is not supported: give ",
                    Give("apply"),
                    ", a function of the model and the mesh that shards it",
                )

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


def _products_of_heads(module: nn.Module, output: nn.Linear) -> Mapping[str, nn.Linear]:
    """Return the products of attention whose outputs are heads, or none if there are unknown ones.

    Gates of heads have as many outputs as the last product, ``output``, has inputs.
    """
    children = module._modules.items()
    linear = {name: each for name, each in children if isinstance(each, nn.Linear)}
    others = {name: each for name, each in linear.items() if name not in (*LATENT, "o_proj")}
    usual = {"q_proj", "k_proj", "v_proj"}
    if "kv_b_proj" in others:
        usual = {"q_b_proj" if "q_b_proj" in others else "q_proj", "kv_b_proj"}
    gates = [each.out_features for name, each in others.items() if name not in usual]
    if not usual <= others.keys() or any(width % output.in_features for width in gates):
        return {}
    return others


def _norms_over_heads(module: nn.Module, projections: Mapping[str, nn.Linear]) -> list[str] | None:
    """Return the norms over all heads, or None if there is one of another size."""
    found = []
    for norm, projection in (("q_norm", "q_proj"), ("k_norm", "k_proj")):
        weight = getattr(module._modules.get(norm), "weight", None)
        if not isinstance(weight, Tensor):
            continue
        outputs = projections.get(projection)
        if outputs is None or weight.dim() != 1 or outputs.out_features % weight.numel():
            return None
        if weight.numel() == outputs.out_features != getattr(module, "head_dim", None):
            found.append(norm)
    return found
