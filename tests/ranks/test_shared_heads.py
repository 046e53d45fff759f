"""Models with fewer key-value heads than devices: several of these have the same head."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from torchscan import InputError, analyze_generation
from torchscan.recording.engine_sharding import as_engines_shard

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

LAYERS, WIDTH, HEADS, KEY_HEADS, HEAD_DIM = 6, 512, 16, 2, 64


def _model(kind: str = "qwen3") -> Any:
    pytest.importorskip("tests.torchvision_cpu")  # transformers imports torchvision
    config = transformers.AutoConfig.for_model(
        kind,
        hidden_size=WIDTH,
        intermediate_size=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=1024,
    )
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@functools.cache
def _alone() -> Any:
    return _asked(_model())


def _asked(model: Any, **options: Any) -> Any:
    return analyze_generation(model, 100, 50, device="H100 SXM", progress=False, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [8, 2, 4])
def test_each_device_has_one_key_value_head(tp: int) -> None:
    model = _model()
    found, alone = _asked(model, mesh={"tp": tp}), _alone()
    assert found.cache_bytes == 150 * LAYERS * 2 * HEAD_DIM * 2
    assert found.params == alone.params == sum(each.numel() for each in model.parameters())
    assert found.active_params == alone.active_params
    keys_and_values = LAYERS * 2 * HEAD_DIM * WIDTH
    queries_and_outputs = LAYERS * 2 * HEADS * HEAD_DIM * WIDTH
    products = queries_and_outputs + LAYERS * 3 * WIDTH * 2048
    norms = LAYERS * (2 * WIDTH + 2 * HEAD_DIM) + WIDTH
    vocabulary = 1024 * WIDTH
    held = keys_and_values + products // tp + norms
    embedding, scores = vocabulary, vocabulary
    sharded = [(embedding + scores) // tp, embedding + scores // tp, embedding // tp + scores]
    buffers = found.weights_bytes - 2 * held
    assert any(0 <= buffers - 2 * each <= 1024 for each in sharded)


@pytest.mark.sweep
def test_layers_that_are_left_out_change_nothing_on_a_mesh() -> None:
    """With a function that shards the model, all layers are sharded."""
    model = _model()
    some = _asked(model, mesh={"tp": 2})
    every = _asked(model, mesh={"tp": 2}, apply=as_engines_shard)
    for name in ("weights_bytes", "cache_bytes", "work_bytes"):
        assert getattr(some, name) == getattr(every, name)
    assert some.per_token == pytest.approx(every.per_token, rel=1e-6)
    assert some.first_token == pytest.approx(every.first_token, rel=1e-6)
    assert [each.layer for each in some.decode.operators] == [
        each.layer for each in every.decode.operators
    ]


def test_heads_that_neither_divide_nor_repeat_are_refused() -> None:
    with pytest.raises(InputError, match="16 heads cannot be divided among tp 3"):
        _asked(_model(), mesh={"tp": 3})
