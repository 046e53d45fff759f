"""Layers whose weights are sparse or quantised, run for real."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import crawl_module


def macs(module: nn.Module, *args: Tensor) -> int:
    info = crawl_module(module, args=args, strict=True)
    return int(info["overall"]["macs"])


def diagonal(layout: str) -> Any:
    """4 × 6 with 4 elements."""
    dense = torch.eye(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's sparse CSR is in beta state
        return getattr(
            dense, {"coo": "to_sparse", "csr": "to_sparse_csr", "csc": "to_sparse_csc"}[layout]
        )()


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_of_a_sparse_matrix_only_what_is_stored_is_multiplied(layout: str) -> None:
    sparse = diagonal(layout)
    assert macs(Calls(lambda _, x: sparse @ x), torch.zeros(6, 3)) == 4 * 3
    assert macs(Calls(lambda _, x: torch.sparse.mm(sparse, x)), torch.zeros(6, 3)) == 4 * 3
    assert (
        macs(Calls(lambda _, x: torch.addmm(torch.zeros(4, 3), sparse, x)), torch.zeros(6, 3))
        == 4 * 3
    )


@pytest.mark.parametrize(("layout", "indices"), [("coo", 4 + 4), ("csr", 5 + 4), ("csc", 7 + 4)])
def test_the_bytes_of_a_sparse_matrix_are_its_values_and_their_places(
    layout: str, indices: int
) -> None:
    """4 floats; 2 · 4 indices of 8 bytes, or where each row or column begins and ends, and 4 indices; and 6 · 3 floats."""
    sparse = diagonal(layout)
    info = crawl_module(Calls(lambda _, x: torch.sparse.mm(sparse, x)), args=(torch.zeros(6, 3),))
    assert info["overall"]["bytes_read"] == 4 * 4 + 8 * indices + 18 * 4


@pytest.fixture
def quantised() -> Any:
    """torch.ao.quantization, which warns that it is on its way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield torch.ao.quantization


def test_dynamically_quantised_layers(quantised: Any) -> None:
    model = quantised.quantize_dynamic(
        nn.Sequential(nn.Linear(6, 4), nn.ReLU()), {nn.Linear}, torch.qint8
    )
    assert macs(model, torch.zeros(2, 6)) == 2 * 6 * 4


def test_a_dynamically_quantised_lstm(quantised: Any) -> None:
    """3 steps · 2 samples · 4 gates of 5 units, from 4 inputs and 5 states."""
    model = quantised.quantize_dynamic(nn.Sequential(nn.LSTM(4, 5)), {nn.LSTM}, torch.qint8)
    assert macs(model[0], torch.zeros(3, 2, 4)) == 6 * 4 * 5 * (4 + 5)


def test_statically_quantised_layers(quantised: Any) -> None:
    """2 · 4 · 6 · 6 outputs of 27 products, 2 · 5 of 144."""
    model = nn.Sequential(
        quantised.QuantStub(),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 5),
        quantised.DeQuantStub(),
    ).eval()
    model.qconfig = quantised.get_default_qconfig("x86")
    quantised.prepare(model, inplace=True)
    model(torch.rand(2, 3, 8, 8))
    quantised.convert(model, inplace=True)
    assert macs(model, torch.rand(2, 3, 8, 8)) == 288 * 27 + 10 * 144
