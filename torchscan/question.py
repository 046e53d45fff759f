"""One question about a model, as it was asked, and the passes that answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import is_torch_device
from torchscan.pass_changes import Change
from torchscan.precisions import Precision, checked_precision
from torchscan.recording.arguments import DEFINITIONS
from torchscan.recording.precision import in_precision, with_channels_last
from torchscan.recording.request import Execute, Inputs, Mode, PassRequest, require_module
from torchscan.recording.training.float8 import Float8
from torchscan.recording.training.fused_kernels import FusedKernel
from torchscan.recording.training.fused_losses import CrossEntropy
from torchscan.recording.training.offloading import Offload
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.quantized_linear import FrozenFormat
from torchscan.recording.training.recipe import (
    RECIPE_DEFAULTS,
    Checkpoint,
    Recipe,
    recipe_arguments,
    recipe_for,
    with_recipe,
)
from torchscan.signatures import spelled_out
from torchscan.terminal import progress
from torchscan.torch_versions import is_offloaded
from torchscan.units import bytes_of

#: arguments of a training step
_OF_STEP = ("loss", "optimizer", "accumulate", "holds_output", *RECIPE_DEFAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Inputs):
    """The arguments as they were given, which :mod:`torchscan.recording.arguments` explains."""

    mode: Mode | None = None
    training: bool = False
    loss: Callable[[Any], Tensor] | None = None
    loop_iterations: int | None = None
    execute: Execute = "auto"
    optimizer: OptimizerChoice | None = None
    accumulate: bool = False
    holds_output: bool = False
    precision: Precision | None = None
    device: str | None = None
    cuda_context: int | str | None = None
    checkpoint: Checkpoint = False
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
    progress: bool = True

    def __post_init__(self) -> None:
        """Refuse contradictory arguments; what a pass needs is checked when it is recorded."""
        require_module(self.module)
        if self.device is not None and is_torch_device(self.device):
            object.__setattr__(self, "device", str(self.device))
        if self.precision is not None:
            checked_precision(self.precision)
        for name in ("training", "accumulate", "holds_output", "progress"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise InputError.of_value(name, flag, "give True or False")
        if self.cuda_context is not None:
            bytes_of("cuda_context", self.cuda_context)
        if any(getattr(self, name) is not DEFAULTS[name] for name in _OF_STEP):
            self._check_step()

    def _check_step(self) -> None:
        """Raise if arguments of a training step are invalid, or exclude each other or the pass."""
        if self.loss is not None and not callable(self.loss):
            raise InputError(
                Argument("loss"),
                f" is a {type(self.loss).__name__}: give a function of the model's output",
            )
        is_given = {
            "loss": self.loss is not None,
            "optimizer": self.optimizer is not None,
            "accumulate": self.accumulate,
            "holds_output": self.holds_output,
        }
        refused = next((name for name, given in is_given.items() if given), None)
        if refused is not None and not self.training:
            training = Give("training", True)
            raise InputError(Argument(refused), " belongs to a training step: give ", training)
        self._require_optimizer(self.recipe)
        if self.accumulate and self.optimizer_in_backward:
            raise InputError(
                Argument("accumulate"),
                " adds to gradients of an earlier batch, and ",
                Argument("optimizer_in_backward"),
                " keeps none: leave out one of them",
            )
        if self.lora is not None and isinstance(self.optimizer, Optimizer):
            raise InputError(
                Argument("optimizer"),
                " is an instance, which has no parameter of the adapters: give its name or its "
                "class",
            )

    def _require_optimizer(self, recipe: Recipe) -> None:
        """Raise if an option needs an optimizer, or FSDP2, and there is none."""
        is_given = {
            "optimizer_in_backward": self.optimizer_in_backward,
            "clip_gradients": self.clip_gradients,
            "offload": "optimizer" in recipe.offloaded,
        }
        for name in (name for name, given in is_given.items() if given):
            if self.optimizer is None:
                optimizer = Give("optimizer", "AdamW")
                raise InputError(Argument(name), " is about the optimizer's step: give ", optimizer)
        if "parameters" in recipe.offloaded and not is_offloaded(self.module):
            raise InputError(
                Argument("offload"),
                " has 'parameters', which FSDP2 copies layer by layer: give it to plan(), with a "
                "mesh of one device, for example",
            )

    @property
    def recipe(self) -> Recipe:
        """The options of the training step."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return recipe_for(self.training, given)

    @property
    def cuda_context_bytes(self) -> int | None:
        """Bytes of the CUDA context, or None if they were not given."""
        if self.cuda_context is None:
            return None
        return bytes_of("cuda_context", self.cuda_context)

    def show_progress(self, how: str = "") -> AbstractContextManager[None]:
        """Return a context that shows progress if a pass takes long."""
        name = type(self.module).__name__
        return progress(f"torchscan: {name}{how}", is_shown=self.progress)

    def fused_pass(self) -> PassRequest:
        """Return the pass with fused composite operators, for costs and receptive fields."""
        inputs = {field.name: getattr(self, field.name) for field in fields(Inputs)}
        usual_mode: Mode = "train" if self.training else "eval"
        return PassRequest(
            **inputs,
            mode=self.mode or usual_mode,
            execute=self.execute,
            loop_iterations=self.loop_iterations,
            backward=self.training if self.loss is None else self.loss,
        )

    def forward_alone(self) -> Question:
        """Return the same question without a backward pass, in the same mode."""
        return replace(
            self,
            mode=self.fused_pass().mode,
            training=False,
            loss=None,
            optimizer=None,
            accumulate=False,
            holds_output=False,
            **recipe_arguments(Recipe(compiled=self.compiled)),
        )

    def decomposed_pass(self, kernels: KernelDevice, change: Change | None = None) -> PassRequest:
        """Return the pass with decomposed composite operators, for memory and time.

        It runs as on that kind of device.
        """
        recipe = self.recipe
        step = replace(
            self.fused_pass(),
            optimizer=self.optimizer,
            accumulate=self.accumulate or self.accumulation_steps > 1,
            holds_output=self.holds_output,
            updates_in_backward=self.optimizer_in_backward,
            clips_gradients=self.clip_gradients,
            updates_on_host=recipe.updates_on_host,
            parameters_on_host="parameters" in recipe.offloaded,
            is_decomposed=True,
            device_type=kernels.device_type,
            has_flash=kernels.has_flash,
        )
        if change is not None:
            step = replace(step, checkpointed=change.checkpointed)
            if change.channels_last:
                step = with_channels_last(step)
        return with_recipe(in_precision(step, checked_precision(self.precision)), recipe)


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Question)}
#: decorates verbs that take the arguments of a question, so that each argument is shown
asking = spelled_out(DEFAULTS, DEFINITIONS)


class KernelDevice(NamedTuple):
    """The kind of device whose kernels a pass uses."""

    device_type: Literal["cpu", "cuda"]
    has_flash: bool = True
