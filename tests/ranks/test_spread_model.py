"""Matrices of which each device of a mesh has all, for parts by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from torchscan.analyses.generation.spread_model import SpreadModel


class Layer(nn.Module):
    """Matrices, a router, projections that all heads share, a norm, and a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixer = nn.Linear(8, 8)
        self.up = nn.Linear(8, width, bias=False)
        self.gate = nn.Linear(8, 4, bias=False)
        self.k_proj = nn.Linear(8, 4, bias=False)
        self.norm = nn.LayerNorm(8)
        self.stacked = nn.ParameterDict({"experts": nn.Parameter(nn.Linear(8, 8).weight.detach())})


class Model(nn.Module):
    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))


def mesh(**sizes: int) -> Any:
    """A mesh without processes."""

    class Mesh:
        mesh_dim_names = tuple(sizes) or None

        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(size=lambda: sizes[name])

    return Mesh()


def spread(devices: Any, apply: Any = None) -> SpreadModel:
    return SpreadModel(Model(), devices, apply, None)


def test_matrices_with_all_their_elements_are_named_once_for_all_layers() -> None:
    """``up`` has half of its rows on each device; routers and shared projections are left out."""
    half = Model(width=8)
    assert spread(mesh(tp=2)).whole_matrices(half) == ("mixer", "stacked.experts")
    assert spread(mesh(dp=2, tp=4)).whole_matrices(half) == ("mixer", "stacked.experts")
    whole = ("mixer", "up", "stacked.experts")
    assert spread(mesh(tp=2)).whole_matrices(Model()) == whole


def test_matrices_that_a_device_lacks_are_not_named() -> None:
    part = Model()
    for layer in part.layers:
        del layer.mixer
    assert spread(mesh(tp=2)).whole_matrices(part) == ("up", "stacked.experts")


def test_nothing_is_whole_that_is_not_divided() -> None:
    model = Model()
    assert spread(None).whole_matrices(model) == ()
    assert spread(mesh(tp=1)).whole_matrices(model) == ()
    assert spread(mesh(dp=2)).whole_matrices(model) == ()
    assert spread(mesh()).whole_matrices(model) == ()
    assert spread(mesh(tp=2), apply=lambda model, devices: model).whole_matrices(model) == ()


def test_sizes_are_those_of_all_parameters_before_they_were_divided() -> None:
    sizes = spread(mesh(tp=2)).sizes
    assert sizes["embedding.weight"] == 80
    assert sizes["layers.1.up.weight"] == 128
    assert len(sizes) == 1 + 2 * 8
    assert spread(None).sizes == {}
    assert spread(mesh(tp=2), apply=lambda model, devices: model).sizes == {}


def test_tied_parameters_have_a_size_at_each_path() -> None:
    model = Model()
    model.layers[1].mixer = model.layers[0].mixer
    sizes = SpreadModel(model, mesh(tp=2), None, None).sizes
    assert sizes["layers.0.mixer.weight"] == sizes["layers.1.mixer.weight"] == 64


def test_a_single_device_has_the_model_itself() -> None:
    alone = spread(None)
    assert alone.all_layers is alone.module
    assert alone.some_layers is None
    assert not alone.is_converted
    assert spread(mesh(tp=2)).is_converted
    assert spread(mesh(tp=2), apply=lambda model, devices: model).some_layers is None
