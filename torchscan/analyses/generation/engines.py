"""Inference engines: what a program that serves a model adds to the time of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchscan.errors import InputError

#: engines whose figures are known
EngineName = Literal[
    "cuda-graph", "vllm", "vllm-0.12", "vllm-0.6", "sglang", "tensorrt-llm", "transformers"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The program that runs a language model, as far as time and memory depend on it."""

    name: str
    #: version that the figures describe, and where they were measured or read
    version: str = ""
    source: str = ""
    #: True if kernels are fused and launched by CUDA graphs, and caches are appended to; False if
    #: each operator launches its kernel, and the cache is copied for each token
    is_graphed: bool = True
    #: seconds of each token that the device waits for the host, and more for each sequence
    host_time: float = 0.0
    host_time_per_sequence: float = 0.0
    #: largest number of prompt tokens in one pass, or None if the prompts of all sequences are
    #: processed in a single pass
    prompt_chunk: int | None = None
    #: True if all waiting prompts are processed before the next tokens, so that requests stay
    #: together; False if each pass over prompts generates tokens, too
    prompts_first: bool = False
    #: True if a prompt is split where it exceeds what is left of a pass; False if it waits for the
    #: next pass
    splits_prompts: bool = True
    #: True if attention runs as FlashAttention 3 on Hopper, and by kernels like it on B200
    has_flash_3: bool = True
    #: True if inputs of 8-bit products are quantized by the kernel before
    fuses_quantization: bool = False
    #: True if queries, keys and values are one product, and a gate and what it gates another
    joins_projections: bool = False

    def __post_init__(self) -> None:
        """Refuse figures that no engine has."""
        if not isinstance(self.name, str) or not self.name:
            raise InputError.of_value("name", self.name, "give the name of the engine")
        for name in ("host_time", "host_time_per_sequence"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float)
            if not is_number or not 0 <= seconds < 60:
                raise InputError.of_value(name, seconds, "give seconds, from 0 to 60")
        chunk = self.prompt_chunk
        if chunk is None:
            return
        if not isinstance(chunk, int) or chunk < 1:
            raise InputError.of_value(
                "prompt_chunk", chunk, "give a number of tokens of 1 or more, or None"
            )

    def host_seconds(self, sequences: int) -> float:
        """Return the seconds of a pass over these sequences that the device waits for the host."""
        return self.host_time + self.host_time_per_sequence * sequences

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


_ENGINES: Mapping[str, Engine] = {
    each.name: each
    for each in (
        Engine(
            name="cuda-graph",
            version="PyTorch 2.4",
            source="gpt-fast's table of Llama-2-7B on A100",
            has_flash_3=False,
        ),
        Engine(
            name="vllm",
            version="vLLM 0.18",
            source="InferenceMAX's runs of gpt-oss-120b on H100; schedules the next step while "
            "one runs, as is the default from vLLM 0.14 on",
            host_time=0.4e-3,
            host_time_per_sequence=5e-6,
            prompt_chunk=8192,
            joins_projections=True,
        ),
        Engine(
            name="vllm-0.12",
            version="vLLM 0.12",
            source="InferenceMAX's runs on H100; vLLM's defaults of max_num_batched_tokens",
            host_time=0.6e-3,
            host_time_per_sequence=50e-6,
            prompt_chunk=8192,
            joins_projections=True,
        ),
        Engine(
            name="vllm-0.6",
            version="vLLM 0.6.3",
            source="Qwen2.5's speed benchmark on A100",
            host_time=2.0e-3,
            has_flash_3=False,
            joins_projections=True,
        ),
        Engine(
            name="sglang",
            version="SGLang 0.5.1",
            source="InferenceMAX's runs on H100; SGLang's default of chunked_prefill_size",
            host_time=0.5e-3,
            host_time_per_sequence=20e-6,
            prompt_chunk=8192,
            prompts_first=True,
            joins_projections=True,
        ),
        Engine(
            name="tensorrt-llm",
            version="TensorRT-LLM 1.0",
            source="InferenceMAX's runs on H100; TensorRT-LLM's defaults of max_num_tokens "
            "and enable_chunked_prefill",
            host_time_per_sequence=20e-6,
            prompt_chunk=8192,
            splits_prompts=False,
            fuses_quantization=True,
            joins_projections=True,
        ),
        Engine(
            name="transformers",
            version="transformers 4.46",
            source="Qwen2.5's speed benchmark on A100",
            is_graphed=False,
            has_flash_3=False,
        ),
    )
}


def engine_named(engine: object) -> Engine:
    """Return the engine of this name, or an engine as it is."""
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and engine in _ENGINES:
        return _ENGINES[engine]
    names = ", ".join(get_args(EngineName))
    raise InputError.of_value(
        "engine", engine, f"give one of {names}, or a torchscan.types.Engine with figures"
    )
