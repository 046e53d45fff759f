"""The small verbs: one module on given inputs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import (
    InputError,
    RecordError,
    crawl_module,
    format_info,
    module_dmas,
    module_flops,
    module_macs,
    module_rf,
    summary,
)

VERBS: list[Callable[..., int]] = [
    module_flops,
    module_macs,
    module_dmas,
]


def test_the_cost_of_one_module_on_a_tensor() -> None:
    """32 rows of 8 inputs and 4 outputs: MACs 32·8·4; reads 256 + 32 weights + 4 biases, writes 128."""
    linear, x = nn.Linear(8, 4), torch.rand(32, 8)
    assert module_macs(linear, x, linear(x)) == 1024
    assert module_flops(linear, (x,), linear(x)) == 2048
    assert module_dmas(linear, x, linear(x)) == 256 + 32 + 4 + 128


def test_a_module_is_taken_as_it_is_set() -> None:
    dropout, x = nn.Dropout(0.5), torch.rand(10)
    assert module_flops(dropout, x) == 20
    assert module_flops(dropout.eval(), x) == 0


def test_several_arguments() -> None:
    assert (
        module_macs(nn.Bilinear(3, 4, 5), (torch.rand(2, 3), torch.rand(2, 4)))
        == 2 * 5 * 12 + 2 * 5 * 4
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_module_that_cannot_run_warns_and_gives_0(verb: Callable[..., int]) -> None:
    with pytest.warns(UserWarning, match="the result is 0: Linear .* failed in aten.linear"):
        assert verb(nn.Linear(8, 4), torch.rand(32, 7), torch.rand(32, 4)) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_an_operator_without_a_price_warns_of_a_lower_bound(verb: Callable[..., int]) -> None:
    module = Calls(lambda _, x: torch.special.bessel_j0(x) + 1)
    with pytest.warns(
        UserWarning, match="are lower bounds, because these operators have no cost formula: "
    ):
        assert (
            verb(module, torch.rand(4))
            == {"module_flops": 4, "module_macs": 0, "module_dmas": 8}[verb.__name__]
        )


def test_reading_an_info_in_ci() -> None:
    """What the README shows."""
    info: dict[str, Any] = crawl_module(nn.Linear(8, 4), (8,), strict=True)
    assert info["overall"]["grad_params"] <= 25e6
    assert info["overall"]["macs"] <= 4.2e9


def test_train_mode_counts_what_training_does() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.1)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.norm(x))

    flops = {
        mode: crawl_module(Mixed(), (4,), batch_size=2, mode=mode)["overall"]["flops"]
        for mode in ("eval", "train")
    }
    # 8 elements in 4 channels: evaluation 2·8 + 2·4 + 2·8; training 4·8 + 6·4 for statistics and 2·8 to drop out
    assert flops == {"eval": 40, "train": 40 + 56 + 16}


def test_a_depth_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InputError, match="max_depth is 'two': give a number of levels"):
        summary(nn.Linear(2, 2), (2,), max_depth="two")  # type: ignore[arg-type]


def test_the_usual_calls_work_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 8, 8)
    info = crawl_module(model, (3, 8, 8), torch.float32)
    text = format_info(info, "tail", True, True)
    assert text.splitlines()[1].split() == [
        "Layer",
        "Type",
        "Output",
        "Params",
        "MACs",
        "RF",
        "Stride",
        "Pad",
        "of",
        "MACs",
    ]
    summary(model, (3, 8, 8), "tail", None, True, True)
    assert capsys.readouterr().out == f"{text}\n"
    assert torchscan.aggregate_info(info, 0)["layers"][0]["macs"] == 4 * 27 * 36
    assert module_macs(model, x, None) == 4 * 27 * 36
    assert module_flops(model, x, None) == 2 * 4 * 27 * 36  # whatever the bias
    assert module_dmas(model, x, None) > 0
    assert module_rf(model, x, None) == (3, 1, 0)


def test_a_failure_shows_the_lines_of_the_model_alone() -> None:
    """Of the caller the one that asked, of the model the ones that it came through; ours and torch's would bury them."""

    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x

    with pytest.raises(RecordError) as caught:
        summary(nn.Sequential(Wrong()), (3, 4))
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    files = [line.split('"')[1] for line in lines if line.startswith("  File")]
    assert [Path(file).name for file in files] == [
        "container.py",
        "test_crawler.py",
        "test_crawler.py",
        "signatures.py",
    ]
    assert "return x @ x" in "".join(lines)


def test_of_all_exceptions_that_led_to_a_failure_the_lines_of_the_model_are_shown() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            try:
                return x @ x
            except RuntimeError as error:
                raise ValueError("no square") from error

    with pytest.raises(RecordError) as caught:
        summary(Wrong(), (3, 4))
    shown = "".join(traceback.format_exception(caught.value))
    assert "return x @ x" in shown
    assert "recorder.py" not in shown
