"""Real steps: forward passes or training steps of a model with data on a local device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchscan.errors import InputError, RecordError, TorchscanError
from torchscan.precisions import Precision
from torchscan.recording.bookkeeping.inventory import tensors_of, type_name_of
from torchscan.recording.call_arguments import make_arguments
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.recording.training.gradients import differentiable_outputs, loss_of
from torchscan.recording.training.optimizer_steps import needs_closure
from torchscan.recording.training.optimizers import installed_optimizer, optimizer_on
from torchscan.torch_versions import products_in_tf32

_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def local_device(name: str | None) -> torch.device:
    """Return a device of this machine by its name; by default CUDA's first one, else the CPU."""
    on_cuda = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda" if on_cuda else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(
            f"the device is {name[:40]!r}, and steps run on this machine: give cpu, cuda or cuda:0"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        choices = "cpu or cuda" if on_cuda else "cpu"
        raise InputError(f"{name} is not a device that torch can use here: give {choices}")
    return device


class RealSteps:
    """Takes real steps of a request, whose model is moved, converted and trained."""

    def __init__(
        self, request: PassRequest, run_on: torch.device, precision: Precision | None
    ) -> None:
        if any(tensor.is_meta for tensor in tensors_of(request.module)):
            raise InputError(
                f"{type_name_of(request.module)} has tensors without data, "
                "but real steps need data: build it on the CPU"
            )
        self._precision, self._autocast = precision, _autocast_in(precision, run_on)
        dtype = None if precision is None else _TYPES.get(precision)
        with self._explained(request):
            self.module: nn.Module = request.module.to(run_on, dtype)
        if request.mode != "same":
            self.module.train(request.mode == "train")
        self._request = replace(request, module=self.module, execute="abstract", optimizer=None)
        self._args, self._kwargs, _ = make_arguments(self._request, run_on, ())
        parameters = {id(parameter): parameter for parameter in self.module.parameters()}
        self._optimizer = None
        if request.optimizer is not None:
            # an optimizer of bitsandbytes by name computes no values, which only estimates can use
            self._optimizer = optimizer_on(installed_optimizer(request.optimizer), parameters)

    def take(self) -> None:
        """Take one more step."""
        products = products_in_tf32(True) if self._precision == "tf32" else nullcontext()
        with self._explained(self._request), products:
            if self._request.has_backward:
                self._learn()
            else:
                with torch.no_grad():
                    self._forward()

    def _forward(self) -> Any:
        with self._autocast:
            result = self.module(*self._args, **self._kwargs)
            if self._request.has_backward:
                return loss_of(result, self._request.backward)
            return result

    def _learn(self) -> None:
        """Compute gradients from ones, as in a recorded pass, and take the optimizer's step."""
        self.module.zero_grad()
        outputs = differentiable_outputs(self._forward())
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        if self._optimizer is None:
            return
        if needs_closure(self._optimizer):
            loss = sum(float(output.sum()) for output in outputs)
            self._optimizer.step(lambda: loss)
        else:
            self._optimizer.step()

    @contextlib.contextmanager
    def _explained(self, request: PassRequest) -> Iterator[None]:
        """Explain a failure by the same pass on shapes alone, if that fails too."""
        try:
            yield
        except TorchscanError:
            raise
        except Exception as error:
            with _only_failures():
                record_pass(replace(request, execute="abstract", optimizer=None))
            said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            raise RecordError(
                f"{type_name_of(request.module)} failed in a real step: {said}"
            ) from error


@contextlib.contextmanager
def _only_failures() -> Iterator[None]:
    """Pass on errors of the model, and suppress errors of recording."""
    try:
        yield
    except RecordError:
        raise
    except Exception:
        return


def _autocast_in(
    precision: Precision | None, run_on: torch.device
) -> AbstractContextManager[object]:
    """Return the autocast of a precision, or raise if this device does not compute in it."""
    if precision in ("fp8", "fp8-mixed"):
        raise InputError(
            f"precision is {precision}, which needs its own modules: "
            "convert the model in Python, and call inspect()"
        )
    if precision == "tf32" and run_on.type != "cuda":
        raise InputError(
            "precision is tf32, which needs a CUDA device, "
            f"and steps run on {run_on}: give fp32 or bf16"
        )
    if precision is None or not precision.endswith("-mixed"):
        return nullcontext()
    return torch.autocast(run_on.type, _TYPES[precision.removesuffix("-mixed")])
