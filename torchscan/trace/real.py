"""Running operators for real, on the model's own device and values, without changing anything of the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchscan.trace.calls import OpOutcome, OpRequest, describe_outcome, protect_foreign
from torchscan.trace.events import OpSignature, TensorKind, TensorSpec


class RealExecution:
    """Every operator runs; the first write to a memory block of the user's goes to a copy, and so does all after it."""

    def __init__(self) -> None:
        self._signatures: dict[tuple[Any, ...], OpSignature] = {}

    def needs_standin(self, tensor: Tensor, spec: TensorSpec, kind: TensorKind) -> bool:  # noqa: ARG002 - whatever it is
        """No: tensors are computed with as they are."""
        return False

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator."""
        if request.traits.written or request.traits.silently_written:
            protect_foreign(request)
            request.look_up()
        with torch.inference_mode(False), torch.no_grad():  # a model may keep the result, and train with it
            outcome = describe_outcome(request, request.call())
        signature = outcome.signature
        key = (request.key, tuple(map(id, signature.outputs)), signature.is_view)
        return replace(outcome, signature=self._signatures.setdefault(key, signature))
