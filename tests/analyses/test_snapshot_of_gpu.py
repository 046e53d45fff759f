"""The snapshot of two training steps on an H100, with C++ stacks, as torch 2.11 wrote it.

The model is ``Sequential(Linear(512, 2048), ReLU(), Linear(2048, 512))``, the batch has 4,096 rows,
and the optimizer is AdamW. The snapshot was taken after ``zero_grad()`` of the second step.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from torch import nn

from torchscan import read_snapshot

MIB = 2**20
#: elements of both weights and biases
PARAMETERS = 2 * 512 * 2048 + 2048 + 512


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The snapshot as a file of its own."""
    path = tmp_path / "snapshot.pickle"
    compressed = Path(__file__).with_name("snapshots") / "h100.pickle.gz"
    path.write_bytes(gzip.decompress(compressed.read_bytes()))
    return path


def test_workspaces_of_cublas_are_neither_activations_nor_gradients(file: Path) -> None:
    """One of 32 MiB for each of the two threads, and one of 1 MiB for cuBLASLt, stay to the end."""
    end = read_snapshot(file, moment="end")
    assert end.by_kind == {
        "workspaces": 65 * MIB,
        "optimizer": 8 * PARAMETERS,
        "parameters": 4 * PARAMETERS,
    }
    assert end.reserved_bytes == end.requested_bytes + end.rounding_bytes + end.free_bytes


def test_the_peak_is_where_a_gradient_of_a_bias_is_reduced(file: Path) -> None:
    """The kernel takes 64 MiB besides 32 of the gradient and 8 of weights; activations are freed."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    peak = read_snapshot(file, model)
    assert peak.moment == "peak"
    assert "activations" not in peak.by_kind
    assert 104 * MIB < peak.by_kind["backward"] < 105 * MIB
    assert peak.by_kind["workspaces"] == 65 * MIB
    inputs = 4096 * 512 * 4
    assert inputs <= peak.by_kind["other"] < inputs + 512
