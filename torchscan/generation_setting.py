"""The options of a generation: the device, its formats, the engine and the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchscan.analyses.generation.engines import Engine, EngineName, engine_named
from torchscan.analyses.generation.kept_modules import kept_modules, quantization_of
from torchscan.analyses.generation.serving_costs import BITS, Compute, Serving
from torchscan.analyses.generation.stored import Stored, stored
from torchscan.analyses.roofline import Fabric, require_format
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import Device, device_named
from torchscan.precisions import Precision, supported_precision
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.engine_plan import experts_in
from torchscan.recording.engine_sharding import WeightCounts
from torchscan.recording.generation_passes import Length, Step
from torchscan.recording.request import require_module
from torchscan.recording.sequences import positions_of
from torchscan.recording.sharding import Apply
from torchscan.units import Tokens, tokens_of

GENERATION_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The arguments of :func:`torchscan.analyze_generation` besides the model and its tokens."""

    device: str | None = None
    precision: Precision | None = None
    weights: str | None = None
    cache: str | None = None
    compute: Compute | None = None
    engine: EngineName | Engine = "cuda-graph"
    inputs: Mapping[str, Tensor] | None = None
    step: Step | None = None
    mesh: Mapping[str, int] | None = None
    expert_parallel: bool = False
    apply: Apply | None = None
    per_machine: int = 8
    network_gbs: float = 50.0
    progress: bool = False

    def serving_of(self, module: nn.Module, compute: Compute | None) -> Serving:
        """Return the formats and the engine, with products computed in a format."""
        engine = engine_named(self.engine)
        packed = None if self.weights is None else stored(self.weights, "weights")
        if packed is not None and not packed.is_packed:
            converts = Give("precision", self.weights)
            advice = ("give ", converts, ", which converts the model")
            raise InputError.of_value("weights", self.weights, *advice)
        if compute is not None:
            packed = _computed_weights(compute, packed)
        return Serving(
            weights=packed,
            kept_modules=kept_modules(module),
            cache=None if self.cache is None else stored(self.cache, "cache"),
            compute=compute,
            appends=engine.is_graphed,
            has_flash_3=engine.has_flash_3,
            fuses_quantization=engine.fuses_quantization,
            joins_projections=engine.joins_projections,
            joins_experts=engine.is_graphed,
        )

    def fabric_of(self, device: Device) -> Fabric | None:
        """Return the links between devices, or None if there is no mesh."""
        if self.mesh is None:
            return None
        return Fabric(
            device=device,
            per_machine=self.per_machine,
            network=1e9 * self.network_gbs,
            is_engine=engine_named(self.engine).is_graphed,
        )

    def require_experts(self, module: nn.Module) -> None:
        """Refuse expert parallelism without experts or devices to divide them among."""
        if not WeightCounts.of(module).experts:
            raise InputError(
                f"{type_name_of(module)} has no experts that can be divided: leave out ",
                Argument("expert_parallel"),
            )
        if self.mesh is None:
            raise InputError(
                Argument("expert_parallel"),
                " divides the experts among devices: give ",
                Give("mesh", {"tp": 8}),
                ", for example",
            )
        others = [name for name in self.mesh if name not in ("dp", "tp")]
        if others:
            raise InputError(
                Argument("expert_parallel"),
                " divides the experts along dp and tp, and a dimension of the mesh is "
                f"{others[0]!r}: give ",
                Give("mesh", {"dp": 2, "tp": 4}),
                ", for example",
            )
        if self.apply is not None:
            raise InputError(
                Argument("expert_parallel"),
                " and ",
                Argument("apply"),
                " are both given: have the function divide the experts",
            )
        engine = engine_named(self.engine)
        if not engine.is_graphed:
            raise InputError(
                Argument("expert_parallel"),
                f" divides experts as inference engines do, and not {engine.name}: give ",
                Give("engine", "vllm"),
                ", for example",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSetting:
    """The options of a generation, checked for a model, and the tokens of each sequence."""

    device: Device
    precision: Precision | None
    serving: Serving
    engine: Engine
    length: Length
    #: tokens that the model has positions for
    limit: int | None
    #: the format of the weights in the checkpoint, if it is not the one of the question
    unapplied_format: str | None = None
    #: the devices among which the model is divided, and the links between them
    mesh: Mapping[str, int] | None = None
    fabric: Fabric | None = None
    #: True if the experts are divided among all devices
    expert_parallel: bool = False
    #: True if the model has experts, of which a token uses some
    is_mixture: bool = False

    @classmethod
    def of(
        cls, module: nn.Module, prompt: Tokens, new: Tokens, options: GenerationOptions
    ) -> GenerationSetting:
        """Return the setting of a model, or raise an InputError if options contradict it."""
        engine = engine_named(options.engine)
        serving = options.serving_of(module, options.compute)
        require_module(module)
        length = Length(tokens_of("prompt", prompt), tokens_of("new", new))
        advice = ("; ", Argument("weights"), " sets how weights are stored")
        precision = supported_precision(options.precision, GENERATION_PRECISIONS, *advice)
        device, limit = device_named(options.device), positions_of(module)
        quantization = quantization_of(module).get("quant_method")
        is_mixture = any(experts_in(each) is not None for each in module.modules())
        require_format(device, precision)
        require_rate(device, serving)
        _require_positions(length, limit)
        setting = cls(
            device=device,
            precision=precision,
            serving=serving,
            engine=engine,
            length=length,
            limit=limit,
            unapplied_format=quantization if serving.weights is None else None,
            mesh=options.mesh,
            fabric=options.fabric_of(device),
            expert_parallel=options.expert_parallel,
            is_mixture=is_mixture,
        )
        if options.expert_parallel:
            options.require_experts(module)
        return setting

    @property
    def is_gpu(self) -> bool:
        """True unless the device is a CPU."""
        return self.device.vendor != "CPU"

    @property
    def kernels(self) -> Mapping[str, Any]:
        """The kind of device whose kernels are recorded."""
        device_type = "cuda" if self.is_gpu else "cpu"
        return {
            "device_type": device_type,
            "has_flash": self.device.has_flash,
            "has_engine_attention": self.is_gpu and self.engine.is_graphed,
        }


def _require_positions(length: Length, limit: int | None) -> None:
    """Raise an InputError if the model has fewer positions than tokens."""
    prompt, new = length.prompt, length.generated
    if limit is not None and prompt + new > limit:
        raise InputError(
            f"the model has {limit:,} positions, fewer than {prompt:,} + {new:,} tokens: give a "
            "smaller ",
            Argument("prompt"),
            " or ",
            Argument("new"),
        )


_WEIGHTS_OF: Mapping[Compute, str] = {"fp8": "fp8", "fp4": "nvfp4"}


def _computed_weights(compute: Compute, packed: Stored | None) -> Stored:
    """Return the format of weights that are multiplied in 8 or 4 bits."""
    if compute not in _WEIGHTS_OF:
        raise InputError.of_value("compute", compute, 'give "fp8" or "fp4"')
    usual = stored(_WEIGHTS_OF[compute], "weights")
    if packed is None:
        return usual
    is_mixed = compute == "fp8" and packed.name in ("mxfp4", "nvfp4")
    if (packed.bits != usual.bits and not is_mixed) or packed.name.startswith("int"):
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and weights are in {packed}: give ",
            Give("weights", str(usual)),
        )
    return packed


def require_rate(device: Device, serving: Serving) -> None:
    """Raise an InputError if a device has no matrix units for a format."""
    compute = serving.compute
    if compute is None:
        return
    if compute not in device.flops_per_second:
        others = [each for each in _WEIGHTS_OF if each in device.flops_per_second]
        advice = f"give {' or '.join(map(repr, others))}" if others else "leave it out"
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and {device.name} has no {compute} arithmetic: {advice}; ",
            Argument("weights"),
            " sets how weights are stored",
        )
    is_mixed = serving.weights is not None and serving.weights.bits < BITS[compute]
    if is_mixed and "fp4" not in device.flops_per_second:
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and {device.name} does not multiply it by weights in "
            f"{serving.weights}: leave it out",
        )
