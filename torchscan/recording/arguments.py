"""The arguments that the front verbs share. Each is named, typed and explained only here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor

from torchscan.precisions import Precision
from torchscan.recording.request import Execute, Mode
from torchscan.recording.training.float8 import Float8
from torchscan.recording.training.fused_kernels import FusedKernel
from torchscan.recording.training.fused_losses import CrossEntropy
from torchscan.recording.training.offloading import Offload
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.quantized_linear import FrozenFormat
from torchscan.recording.training.recipe import Checkpoint


class InputArguments(TypedDict, total=False):
    """Arguments for the model and its inputs.

    Args:
        module: the model. It is left unchanged, even if its forward pass raises; it may be on the
            meta device.
        input_shape: the shape of one sample, without the batch dimension; for several inputs, a
            list of shapes, a dict of shapes by argument name, or one shape after the other:
            ``(10,), (20,)``.
        dtype: the type of inputs made from ``input_shape``: one for all, or one per input (a list,
            or a dict by argument name); by default the model's own.
        args: positional arguments themselves, for anything that ``input_shape`` can't express.
        kwargs: keyword arguments of the forward pass.
        batch_size: the batch dimension of inputs made from ``input_shape``.
        progress: show what takes more than a second, in a terminal or a notebook.
    """

    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    batch_size: int
    progress: bool


class PassArguments(InputArguments, total=False):
    """Arguments for the kind of pass: inference, or a training step.

    Args:
        mode: "eval", "train" or "same" (leave each module as it is); by default "train" for a
            training step, else "eval".
        training: a training step (forward and backward pass, and the optimizer's step if one is
            given) instead of an inference without gradients, in any ``mode``. No ``.grad`` is
            touched.
        loss: a function of the model's output to differentiate; by default every output, starting
            from gradients of ones.
        loop_iterations: the number of iterations of each ``torch.while_loop`` whose end depends on
            data; by default, the pass runs on data, and generated inputs decide when loops end.
    """

    mode: Mode | None
    training: bool
    loss: Callable[[Any], Tensor] | None
    loop_iterations: int | None


class RunArguments(PassArguments, total=False):
    """Arguments for recording a pass.

    Args:
        execute: "abstract" works on shapes alone; "real" computes on the model's own device; "auto"
            computes only if the model is on CUDA or shapes are not enough. ``trace.provenance``
            says which was used, and why.
    """

    execute: Execute


class ChangeArguments(TypedDict, total=False):
    """Arguments for what is changed in a model and a training step.

    Args:
        lora: freeze the model, and train LoRA adapters of this rank on all linear layers inside its
            layers, as peft does: in 32 bits, with dropout. Or give a ``peft.LoraConfig``.
        weights: the format of frozen linear layers (QLoRA): "nf4", "nf4-dq" (double quantization)
            or "int8" as in bitsandbytes, "gptq" or "awq" in 4 bits. With autocast, all other
            16-bit weights become 32-bit, as by peft's ``prepare_model_for_kbit_training``.
        cross_entropy: compute the loss of a language model with a fused kernel: "chunked" and
            "liger" compute it from hidden states, a part of the logits at a time; "unsloth"
            overwrites the logits with their gradients.
        fused_kernels: compute these parts with fused kernels of Liger and Unsloth: "rms_norm",
            "rope", "swiglu", or "lora" (Unsloth's product of a frozen layer and its adapter); or
            several of them.
        optimizer_in_backward: update each parameter as soon as its gradient is computed, and free
            the gradient.
        clip_gradients: clip the norm of all gradients before the optimizer's step.
        float8: compute linear layers in 8 bits by this recipe of torchao: "tensorwise", "rowwise",
            "rowwise_with_gw_hp" or "mx".
        float8_all_gather: all-gather weights of FSDP2 in 8 bits; for "tensorwise".
        float8_skip: names of layers that are not computed in 8 bits.
        offload: keep this in the memory of the host: "optimizer" (state and update, as torchao's
            ``CPUOffloadOptimizer``), "parameters" (also gradients and the optimizer, as FSDP2's
            ``CPUOffloadPolicy``) or "activations" (saved tensors, as in torchtune), or several.
        compiled: estimate for ``torch.compile``: pointwise operators are fused, and images have the
            layout that the compiler chooses.
    """

    lora: int | Any | None
    weights: FrozenFormat | None
    cross_entropy: CrossEntropy | None
    fused_kernels: FusedKernel | Sequence[FusedKernel] | None
    optimizer_in_backward: bool
    clip_gradients: bool
    float8: Float8 | None
    float8_all_gather: bool
    float8_skip: Sequence[str]
    offload: Offload | Sequence[Offload] | None
    compiled: bool


class RecipeArguments(ChangeArguments, total=False):
    """Arguments for the way in which a training step runs.

    Args:
        checkpoint: recompute layers in the backward pass (activation checkpointing): True for all
            layers, a number for every n-th layer. "selective" keeps only the results of attention,
            collectives and every second matrix product, as torchtitan's "op". Or give a policy, or
            a list of operators whose results are kept, as for
            ``torch.utils.checkpoint.create_selective_checkpoint_contexts``. Layers are those of the
            outermost ``torch.nn.ModuleList``, or else modules that stand in a
            ``torch.nn.Sequential`` with others of their type.
        accumulation_steps: take each step of the optimizer after this number of forward and
            backward passes, which accumulate gradients. Times are those of all passes, and memory
            holds the gradients of earlier passes.
    """

    checkpoint: Checkpoint
    accumulation_steps: int


class StepArguments(PassArguments, RecipeArguments, total=False):
    """Arguments for estimates: the complete training step and the device.

    Args:
        optimizer: the name of a class in ``torch.optim`` or ``bitsandbytes.optim`` ("AdamW8bit",
            "PagedAdamW32bit"), the class itself, a function that makes an optimizer from a list of
            parameters, or an optimizer. The estimate is for its second step, when its state exists.
            None: gradients only.
        accumulate: add this batch's gradients to those of an earlier batch.
        holds_output: keep the model's output until the end of the step. By default, with a
            ``loss``, it is freed when the loss is computed, as in the training loops of
            transformers, torchtitan and torchtune.
        precision: "fp32", "tf32", "fp16", "bf16": the model and its inputs are converted;
            "fp16-mixed", "bf16-mixed": autocast. For times also "fp8" (converted to bf16, linear
            layers in 8 bits) and "fp8-mixed". None: the model as it is.
        device: the device to estimate for: its name ("NVIDIA H200", "RTX 4090"), or "cuda" for this
            machine's GPU; for memory also just a size, "24 GiB". ``torchscan devices`` lists all
            known devices.
        cuda_context: the memory that a process holds on the device for its context, kernels and
            libraries: bytes, or a text such as "500 MiB". None: as measured, or else 512 MiB, with
            the range that has been reported; see docs/reference/memory-model.md.
    """

    optimizer: OptimizerChoice | None
    accumulate: bool
    holds_output: bool
    precision: Precision | None
    device: str | None
    cuda_context: int | str | None


class ScanArguments(RunArguments, StepArguments, total=False):
    """All arguments of a scan."""


#: the classes that define and explain the arguments
DEFINITIONS = (
    InputArguments,
    PassArguments,
    RunArguments,
    ChangeArguments,
    RecipeArguments,
    StepArguments,
)
