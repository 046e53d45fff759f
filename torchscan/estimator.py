"""The verbs that answer whether a pass fits on a device, and how long it takes there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from torchscan.analyses.memory_estimate import LARGEST_BATCH, MemoryEstimate, Placement, estimate_of
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.analyses.roofline import Numbers, Products, Rates, Roofline, roofline_of
from torchscan.errors import InputError, TorchscanError
from torchscan.hardware.devices import Device, device_named
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.passes import record_pass, record_step
from torchscan.recording.precision import Precision, checked_precision, in_precision
from torchscan.recording.request import Mode, PassRequest, require_module
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.trace.trace import Trace
from torchscan.units import memory


def estimate_memory(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice | None = None,
    accumulate: bool = False,
    precision: Precision | None = None,
    mode: Mode | None = None,
    device: str | None = None,
) -> MemoryEstimate:
    """How much memory a pass of ``module`` peaks at, where, and what it holds then; worked out from shapes alone.

    Args:
        module: the model. It is as before afterwards, may be on the meta device, and needs no memory for its activations.
        input_shape: the shape of one sample, without the batch dimension; a list of shapes for several inputs, or a dict
            of them by the names of the arguments.
        dtype: the type of the inputs made from ``input_shape``, one or one per input (a list, or a dict by
            name); by default the model's own.
        args: complete positional arguments, instead of ``input_shape``.
        kwargs: keyword arguments of the forward pass.
        batch_size: the batch dimension of inputs made from ``input_shape``.
        training: a training step (forward, backward, optimizer), instead of an inference without gradients.
        loss: what to differentiate, as a function of the model's output; by default all outputs, from gradients of ones.
        optimizer: the name of a class of ``torch.optim``, the class, a function that makes one of a list of parameters, or one
            that exists; it takes its second step, when its state is there. None: gradients only.
        accumulate: this batch's gradients are added to those of one before.
        precision: "fp32", "fp16", "bf16": the model and its inputs are converted; "fp16-mixed", "bf16-mixed": autocast. None:
            as the model is.
        mode: "train", "eval" or "same" (each module as it is set); by default "train" for a training step, else "eval".
        device: the card to run on ("NVIDIA H200"; "24 GiB" for one that is not listed; "cuda" for the one at hand): adds a
            verdict, and takes the kernels of CUDA. By default those of the device that the model is on.

    """
    chosen = checked_precision(precision)
    if chosen in ("fp8", "fp8-mixed"):
        raise InputError("memory is not estimated for fp8, of which there are many ways to store weights: give 'bf16', say")
    card = None if device is None else device_named(device)
    if card is not None and not card.has_allocator:
        raise InputError(f"{card.name} is no CUDA device, and torch's allocator there is not known: leave device out")
    inputs = PassRequest(module, input_shape, dtype, args, kwargs, batch_size)
    request = _step(inputs, training, loss, optimizer, accumulate, mode)
    request = replace(request, target="cuda" if card is not None or is_on_cuda(module) else "cpu")
    request = replace(request, has_flash=card is None or card.has_flash)
    return _Estimator(in_precision(request, chosen), card).estimate()


def analyze_roofline(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    device: str = "auto",
    precision: Precision | None = None,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice | None = None,
    accumulate: bool = False,
    mode: Mode | None = None,
    compiled: bool = False,
) -> Roofline:
    """Which limit of a device each operator of a pass runs into, and how long the pass takes there; worked out from shapes.

    Takes the arguments of :func:`estimate_memory`, and these:

    Args:
        module: the model.
        input_shape: the shape of one sample, without the batch dimension; a list of shapes for several inputs, or a dict
            of them by the names of the arguments.
        dtype: the type of the inputs made from ``input_shape``.
        args: complete positional arguments, instead of ``input_shape``.
        kwargs: keyword arguments of the forward pass.
        batch_size: the batch dimension of inputs made from ``input_shape``.
        device: the card: its name ("NVIDIA H200", "RTX 4090"), "cuda" or "auto" for the one at hand. ``torchscan devices``
            lists them, :func:`register_device` adds one.
        precision: "fp32", "tf32", "fp16", "bf16": model and inputs are converted; "fp8": to "bf16", with linear layers in 8
            bits; "fp16-mixed", "bf16-mixed", "fp8-mixed": autocast. None: as the model is, convolutions and products in single
            precision in the format that ``torch.backends`` allow them.
        training: a training step (forward, backward, optimizer), instead of an inference without gradients.
        loss: what to differentiate, as a function of the model's output.
        optimizer: whose step to take, see :func:`estimate_memory`.
        accumulate: this batch's gradients are added to those of one before.
        mode: "train", "eval" or "same"; by default "train" for a training step, else "eval".
        compiled: as ``torch.compile`` runs it: pointwise operators fused, no layouts changed.

    """
    chosen = checked_precision(precision)
    card = device_named(device)
    rates = Rates(card)
    _require_format(card, chosen)
    inputs = PassRequest(module, input_shape, dtype, args, kwargs, batch_size)
    request = _step(inputs, training, loss, optimizer, accumulate, mode)
    request = replace(request, target="cpu" if card.vendor == "CPU" else "cuda", has_flash=card.has_flash)
    trace = record_pass(in_precision(request, chosen))
    told = _overflow(trace, card)
    for each in told:
        warnings.warn(each, stacklevel=2)
    return roofline_of(trace, rates, precision=chosen, numbers=_numbers(chosen, card), compiled=compiled, warnings=told)


def _require_format(card: Device, precision: Precision | None) -> None:
    form = None if precision is None else precision.removesuffix("-mixed")
    if form is not None and form not in card.flops:
        known = ", ".join(name for name in get_args(Precision) if name in card.flops)
        raise InputError(f"precision is {precision!r}, and {card.name} has no {form}: it has {known}")


def _numbers(precision: Precision | None, card: Device) -> Numbers:
    """Of a model as it is, single precision may be shortened where torch is allowed to, and the card can."""
    if precision == "tf32":
        return Numbers(tf32=frozenset(get_args(Products)))
    if precision is not None or "tf32" not in card.flops:
        return Numbers(fp8=precision in ("fp8", "fp8-mixed"))
    cudnn: Any = torch.backends.cudnn
    switches: dict[Products, Any] = {
        "products": torch.backends.cuda.matmul,
        "convolutions": cudnn.conv,
        "recurrent": cudnn.rnn,
    }
    return Numbers(tf32=frozenset(name for name, switch in switches.items() if switch.fp32_precision == "tf32"))


def _overflow(trace: Trace, card: Device) -> list[str]:
    """What to say where the pass needs more memory than the device has."""
    timeline = MemoryTimeline(trace)
    if card.has_allocator:
        verdict = Placement(trace, timeline, card).verdict(None)
        needed, fits = verdict.reserved_bytes + verdict.context_bytes, verdict.fits
    else:
        needed = max((moment.total for moment in timeline.moments), default=0)
        fits = needed <= card.memory
    if fits:
        return []
    return [f"this does not fit {card.name}: it needs {memory(needed)} of {memory(card.memory)}; times are as if it did"]


def _step(
    inputs: PassRequest,
    training: bool,
    loss: Callable[[Any], Tensor] | None,
    optimizer: OptimizerChoice | None,
    accumulate: bool,
    mode: Mode | None,
) -> PassRequest:
    """An inference or a training step, operator by operator as they run."""
    require_module(inputs.module)
    if loss is not None and not callable(loss):
        raise InputError(f"loss is a {type(loss).__name__}: give a function of the model's output")
    if not training and (loss is not None or optimizer is not None or accumulate):
        raise InputError("loss, optimizer and accumulate belong to a training step: pass training=True")
    return replace(
        inputs,
        mode=mode or ("train" if training else "eval"),
        execute="auto",
        backward=(loss or True) if training else False,
        optimizer=optimizer,
        accumulates=accumulate,
        in_pieces=True,
    )


class _Estimator:
    """Records a pass, and records it again with other batch sizes."""

    def __init__(self, request: PassRequest, device: Device | None) -> None:
        self._request = request
        self._device = device

    def estimate(self) -> MemoryEstimate:
        """The answer."""
        trace, self._request = record_step(self._request)
        timeline = MemoryTimeline(trace)
        if self._device is None:
            return estimate_of(trace, timeline)
        placement = Placement(trace, timeline, self._device)
        largest = None
        if self._request.from_shapes and trace.provenance.execution == "abstract":
            try:
                largest = self._largest_batch(self._device, placement)
            except TorchscanError as error:
                reason = str(error).splitlines()[0]
                trace = trace.assuming(f"nothing of the largest batch, because at another batch size {reason}")
        return estimate_of(trace, timeline, placement.verdict(largest))

    def _placed(self, batch_size: int, device: Device) -> Placement:
        trace = record_pass(replace(self._request, batch_size=batch_size))
        return Placement(trace, MemoryTimeline(trace), device)

    def _largest_batch(self, device: Device, asked: Placement) -> int:
        """The bound by growth does not know what rounding and gaps cost: from there down in growing steps, then by halves."""
        low, high = (self._request.batch_size, LARGEST_BATCH + 1) if asked.fits else (0, self._request.batch_size)
        guess = min(max(self._bound_by_growth(device, asked), low + 1), high - 1)
        step = 1 + guess // 256
        while guess > low:
            if self._placed(guess, device).fits:
                low = guess
                break
            high, guess, step = guess, guess - step, 2 * step
        while high - low > 1:
            guess = (low + high) // 2 if high <= LARGEST_BATCH else min(low + step, LARGEST_BATCH)
            low, high = (guess, high) if self._placed(guess, device).fits else (low, guess)
            step *= 2
        return low

    def _bound_by_growth(self, device: Device, asked: Placement) -> int:
        """At each moment ``a + b·batch`` bytes: the largest batch for which none is more than the device has."""
        size = self._request.batch_size
        sizes = (size, 2 * size) if size > 1 else (2, 4)  # a model may do something else for one
        first = asked if size > 1 else self._placed(2, device)
        small, large = first.needed, self._placed(sizes[1], device).needed
        if len(small) != len(large):
            small, large = (max(small),), (max(large),)
        bounds = [_bound(device.room, sizes, pair) for pair in zip(small, large, strict=True)]
        return max(min(bounds, default=0), 0)


def _bound(room: int, sizes: tuple[int, int], needed: tuple[int, int]) -> int:
    slope = (needed[1] - needed[0]) / (sizes[1] - sizes[0])
    at_zero = needed[0] - slope * sizes[0]
    if slope <= 0:
        return LARGEST_BATCH if at_zero <= room else 0
    return int((room - at_zero) // slope)
