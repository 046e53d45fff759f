"""Which way a pass is run, and what is tried where that does not lead through."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_backward import mapped
from tests.recording.test_record import Calls
from torchscan import InputError, NeedsValuesError
from torchscan.recording.passes import record_pass, record_step
from torchscan.recording.request import PassRequest


def positive_rows(self: Any, x: Tensor) -> Tensor:
    made = self.layer(x)
    return made[made.sum(1) > 0]


def asks_for_values() -> nn.Module:
    return Calls(positive_rows, layer=nn.Linear(4, 3))


def test_a_request_that_is_settled_says_how_it_ran() -> None:
    for model, execution in ((nn.Linear(4, 3), "abstract"), (asks_for_values(), "real")):
        trace, settled = record_step(PassRequest(module=model, args=(torch.ones(2, 4),)))
        assert settled.execute == trace.provenance.execution == execution
        assert settled.module is model


def test_in_pieces_shapes_come_first() -> None:
    model = nn.Linear(4, 3)
    trace, settled = record_step(PassRequest(module=model, input_shape=(4,), is_decomposed=True))
    assert (settled.execute, settled.module is model) == ("abstract", True)
    assert trace == record_pass(settled)


def test_in_pieces_a_model_whose_parameters_autograd_is_handed_directly_is_copied_to_the_meta_device() -> (
    None
):
    model = mapped()
    request = PassRequest(
        module=model, input_shape=(8,), mode="train", backward=True, is_decomposed=True
    )
    trace, settled = record_step(request)
    assert settled.is_converted
    assert all(parameter.is_meta for parameter in settled.module.parameters())
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert trace.provenance.execution == "abstract"


def test_in_pieces_a_model_that_asks_for_values_runs_on_data_and_says_so() -> None:
    trace, settled = record_step(
        PassRequest(module=asks_for_values(), args=(torch.ones(2, 4),), is_decomposed=True)
    )
    assert settled.execute == trace.provenance.execution == "real"
    assert trace.provenance.assumptions[-1].code == "runs-on-data"


def test_in_pieces_what_has_no_data_to_fall_back_to_is_refused() -> None:
    model = asks_for_values().to("meta")
    with pytest.raises(NeedsValuesError, match="try: a model with data, as it is"):
        record_pass(PassRequest(module=model, input_shape=(4,), is_decomposed=True))
    with pytest.raises(NeedsValuesError, match="try: a model with data, as it is"):
        record_pass(
            PassRequest(
                module=asks_for_values(),
                input_shape=(4,),
                is_decomposed=True,
                autocast=torch.bfloat16,
            )
        )


def test_a_model_that_asks_for_values_and_cannot_be_copied_runs_on_data() -> None:
    model = asks_for_values()
    model.lock = threading.Lock()  # type: ignore[assignment] # which no copy can be made of
    assert (
        record_pass(
            PassRequest(module=model, args=(torch.ones(2, 4),), is_decomposed=True)
        ).provenance.execution
        == "real"
    )


def test_nothing_else_is_tried_where_shapes_were_asked_for() -> None:
    for is_decomposed in (True, False):
        with pytest.raises(NeedsValuesError, match="depend on the data"):
            record_pass(
                PassRequest(
                    module=asks_for_values(),
                    input_shape=(4,),
                    execute="abstract",
                    is_decomposed=is_decomposed,
                )
            )


def test_nothing_else_is_tried_where_the_arguments_are_wrong() -> None:
    with pytest.raises(InputError, match="the model has no input"):
        record_pass(PassRequest(module=nn.Linear(4, 3), is_decomposed=True))
