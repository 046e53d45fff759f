"""The options of a training step, and the copy of a model that follows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from torch import nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.adapters import adapt, inject_adapters, is_adapter_config
from torchscan.recording.folding.layer_folds import outermost_lists
from torchscan.recording.precision import on_meta_copy
from torchscan.recording.request import PassRequest, require_positive
from torchscan.recording.training.checkpoints import checkpoint_layers, require_checkpoint
from torchscan.recording.training.float8 import Float8, convert_to_float8
from torchscan.recording.training.fused_kernels import FusedKernel, fuse_kernels
from torchscan.recording.training.fused_losses import CrossEntropy, fuse_cross_entropy
from torchscan.recording.training.offloading import Offload, offload_activations
from torchscan.recording.training.quantized_linear import (
    PREPARED,
    FrozenFormat,
    prepare_for_training,
    quantize_frozen,
)

#: all layers, every n-th one, torchtitan's operators, a policy, or a list of operators
Checkpoint = bool | int | Literal["selective"] | Callable[..., Any] | Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options of a training step, the same for one device and for a mesh.

    They are explained in :mod:`torchscan.recording.arguments`. Contradictory options raise.
    """

    checkpoint: Checkpoint = False
    #: the rank of adapters, or a ``peft.LoraConfig``
    lora: int | Any | None = None
    weights: FrozenFormat | None = None
    cross_entropy: CrossEntropy | None = None
    fused_kernels: FusedKernel | Sequence[FusedKernel] | None = None
    optimizer_in_backward: bool = False
    clip_gradients: bool = False
    accumulation_steps: int = 1
    float8: Float8 | None = None
    float8_all_gather: bool = False
    float8_skip: Sequence[str] = ("lm_head",)
    offload: Offload | Sequence[Offload] | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        """Raise an InputError for the first option that is invalid or contradicts another."""
        self._require_choices()
        require_positive("accumulation_steps", self.accumulation_steps)
        require_checkpoint(self.checkpoint)
        if isinstance(self.lora, int):
            require_positive("lora", self.lora)
        elif self.lora is not None and not is_adapter_config(self.lora):
            raise InputError.of_value("lora", self.lora, "give a rank, or a peft.LoraConfig")
        self._refuse_contradictions()

    def _require_choices(self) -> None:
        for name in ("optimizer_in_backward", "clip_gradients", "float8_all_gather", "compiled"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InputError.of_value(name, value, "give True or False")
        given = [(name, getattr(self, name)) for name in _CHOICES if name not in _SEVERAL]
        given += [("offload", each) for each in self.offloaded]
        given += [("fused_kernels", each) for each in self.fused]
        for name, value in given:
            if value is not None and value not in _CHOICES[name]:
                raise InputError.of_choice(name, value, _CHOICES[name])
        if isinstance(self.float8_skip, str):
            advice = "give a list of names, such as ['lm_head']"
            raise InputError.of_value("float8_skip", self.float8_skip, advice)

    def _refuse_contradictions(self) -> None:
        if self.weights is not None:
            self._require_trainable()
        if self.float8_all_gather and self.float8 != "tensorwise":
            tensorwise = Give("float8", "tensorwise")
            raise InputError(
                Argument("float8_all_gather"), " needs one scale for a tensor: give ", tensorwise
            )
        if self.optimizer_in_backward:
            self._require_single_updates()

    def _require_trainable(self) -> None:
        """Raise if an option needs the values of weights that are quantized."""
        if self.float8 is not None:
            raise InputError(
                Argument("float8"),
                " is for weights that are trained, and those of ",
                Argument("weights"),
                " are frozen: leave out one of them",
            )
        if getattr(self.lora, "use_dora", False):
            raise InputError(
                Argument("weights"),
                f" is {self.weights!r}, and DoRA computes norms of weights in 16 bits: leave out "
                "use_dora or ",
                Argument("weights"),
            )

    def _require_single_updates(self) -> None:
        """Raise if an option needs all gradients at once."""
        if self.updates_on_host:
            raise InputError(
                Argument("offload"),
                " has the optimizer on the host, which updates all parameters at once: leave out ",
                Argument("optimizer_in_backward"),
            )
        for name in ("accumulation_steps", "clip_gradients"):
            if _is_given(self, name):
                raise InputError(
                    Argument(name),
                    " needs the gradients of all parameters at once: leave out ",
                    Argument("optimizer_in_backward"),
                )

    @property
    def offloaded(self) -> tuple[Offload, ...]:
        """The parts of the state that are kept on the host."""
        if self.offload is None:
            return ()
        return (self.offload,) if isinstance(self.offload, str) else tuple(self.offload)

    @property
    def updates_on_host(self) -> bool:
        """True if the host has the optimizer's state and updates parameters."""
        return "optimizer" in self.offloaded or "parameters" in self.offloaded

    @property
    def fused(self) -> tuple[FusedKernel, ...]:
        """The kernels that replace several operators."""
        if self.fused_kernels is None:
            return ()
        given = self.fused_kernels
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def changes_model(self) -> bool:
        """True if the step runs on a changed copy of the model."""
        is_offloaded = "activations" in self.offloaded
        return is_offloaded or any(_is_given(self, name) for name in _OF_MODEL)

    @property
    def of_step(self) -> Recipe:
        """The options that remain after the model was changed."""
        left = tuple(each for each in self.offloaded if each != "activations") or None
        return replace(self, **{name: RECIPE_DEFAULTS[name] for name in _OF_MODEL}, offload=left)

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [name for name in RECIPE_DEFAULTS if name != "compiled" and _is_given(self, name)]


#: options that change the model
_OF_MODEL = (
    *("checkpoint", "lora", "weights", "cross_entropy", "fused_kernels"),
    *("float8", "float8_all_gather", "float8_skip"),
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "weights": get_args(FrozenFormat),
    "cross_entropy": get_args(CrossEntropy),
    "fused_kernels": get_args(FusedKernel),
    "float8": get_args(Float8),
    "offload": get_args(Offload),
}
#: options that may have several values
_SEVERAL = ("offload", "fused_kernels")
#: options by name, each with the value that changes nothing
RECIPE_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Recipe)}


def recipe_for(training: bool, given: Mapping[str, Any]) -> Recipe:
    """Return the recipe from the keyword arguments. Raise if the pass cannot have its options."""
    recipe = Recipe(**{name: given[name] for name in RECIPE_DEFAULTS if name in given})
    options = recipe.given()
    if options and not training:
        raise InputError(
            Argument(options[0]), " belongs to a training step: give ", Give("training", True)
        )
    return recipe


def recipe_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the options by name, as arguments of a question."""
    return {name: getattr(recipe, name) for name in RECIPE_DEFAULTS}


def with_recipe(request: PassRequest, recipe: Recipe) -> PassRequest:
    """Return the same pass of a copy of the model that follows the recipe."""
    if not recipe.changes_model:
        return request
    copied = request if request.is_converted else on_meta_copy(request)
    change_model(copied.module, recipe)
    if recipe.weights in PREPARED and request.autocast is not None:
        prepare_for_training(copied.module)
    return copied


def change_model(
    model: nn.Module, recipe: Recipe, layers: Sequence[nn.Module] | None = None
) -> None:
    """Change a copy of a model as the recipe says. Its tensors need no data.

    Args:
        model: the copy, on the meta device or with proxy tensors.
        recipe: the options.
        layers: the layers of the model, if it has so few that other module lists may be mistaken
            for them.
    """
    known = layers_of(model) if layers is None else layers
    if recipe.float8 is not None:
        skipped, all_gather = recipe.float8_skip, recipe.float8_all_gather
        convert_to_float8(model, recipe.float8, skip=skipped, all_gather=all_gather)
    if isinstance(recipe.lora, int):
        adapt(model, known, recipe.lora)
    elif recipe.lora is not None:
        inject_adapters(model, recipe.lora)
    if recipe.weights is not None:
        quantize_frozen(model, known, recipe.weights)
    fuse_kernels(model, recipe.fused)
    if recipe.cross_entropy is not None:
        fuse_cross_entropy(model, recipe.cross_entropy)
    if recipe.checkpoint is not False:
        blocks = layers or [model.get_submodule(path) for path in checkpointed_paths(model)]
        checkpoint_layers(model, blocks, recipe.checkpoint)
    if "activations" in recipe.offloaded:
        offload_activations(model)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of all outermost module lists, in their order."""
    return [layer for _, each in outermost_lists(model, more_than=1) for layer in each]


def checkpointed_paths(model: nn.Module) -> list[str]:
    """Return the paths of the layers that ``checkpoint`` is about.

    They are those of the outermost module lists, or else of sequences that have several of a type.
    """
    lists = outermost_lists(model, more_than=1)
    paths = [f"{path}.{index}" for path, each in lists for index in range(len(each))]
    paths = paths or list(_sequential_blocks(model))
    # a layer that stands in several places is one layer
    path_by_module = {model.get_submodule(path): path for path in reversed(paths)}
    paths = [path for path in paths if path in path_by_module.values()]
    if not paths:
        raise InputError(
            Argument("checkpoint"),
            " needs equal layers in a torch.nn.ModuleList or torch.nn.Sequential, and "
            f"{type(model).__name__} has none: checkpoint them in the model",
        )
    return paths


def _sequential_blocks(module: nn.Module, path: str = "") -> Iterator[str]:
    """Yield the paths of modules that stand in a sequence with others of their type."""
    is_sequence = type(module) is nn.Sequential
    kinds = Counter(type(child) for child in module.children())
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        is_block = type(child) is not nn.Sequential and next(child.children(), None) is not None
        if is_sequence and kinds[type(child)] > 1 and is_block:
            yield inner
        else:
            yield from _sequential_blocks(child, inner)


def _is_given(recipe: Recipe, name: str) -> bool:
    value, default = getattr(recipe, name), RECIPE_DEFAULTS[name]
    return not (value is default or value == default)
