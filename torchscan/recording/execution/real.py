"""Running operators for real, on the model's own device and values.

Nothing of the user's is changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.outcomes import OpOutcome, describe_outcome, protect_foreign
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.records import TensorKind


class RealExecution:
    """Runs every operator.

    The first write to a memory block of the user's goes to a copy, and so does all after it.
    """

    def __init__(self) -> None:
        #: of calls that only this pass has
        self._signatures: dict[tuple[Any, ...], OpSignature] = {}

    def needs_proxy(
        self,
        tensor: Tensor,  # noqa: ARG002 - whatever it is
        spec: TensorSpec,  # noqa: ARG002
        kind: TensorKind,  # noqa: ARG002
    ) -> bool:
        """Return False: tensors are computed with as they are."""
        return False

    def begin_optimizer(self) -> None:
        """Do nothing: all values are known."""

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator."""
        writes = request.traits.written or request.traits.silently_written
        if writes and protect_foreign(request, self._is_at_risk):
            request.look_up()
        if not torch.is_inference_mode_enabled():
            # Kernels look at the grad mode to know what the backward pass will need.
            outcome = self._outcome(request)
        else:
            # A model may keep a result, and train with it: no tensor of inference mode.
            with torch.inference_mode(False), torch.no_grad():
                outcome = self._outcome(request)
        signature = outcome.signature
        key = (request.key, tuple(map(id, signature.outputs)), signature.is_view)
        known = request.table.outcomes.signatures if request.is_repeatable else self._signatures
        return outcome._replace(signature=known.setdefault(key, signature))

    def _is_at_risk(self, tensor: Tensor) -> bool:  # noqa: ARG002 - whatever it is
        """Return True: each write changes data."""
        return True

    def _outcome(self, request: OpRequest) -> OpOutcome:
        return describe_outcome(request, request.call())
