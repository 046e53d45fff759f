"""Cross entropy from hidden states: chunks of a sequence, and Liger's chunks of tokens."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import InputError, Scan

WIDTH, WORDS, BATCH, LENGTH = 64, 1000, 2, 128
ROWS = BATCH * LENGTH
GPU = "NVIDIA H100 80GB HBM3"
KERNEL = "torchscan.liger_cross_entropy"


def plain_loss(logits: Tensor, labels: Tensor, **_options: Any) -> Tensor:
    targets = F.pad(labels, (0, 1), value=-100)[..., 1:].flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), targets)


class LanguageModel(nn.Module):
    """With the names of transformers for the loss and the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.loss_function = plain_loss

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.lm_head(self.embedding(input_ids))
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels)
        return SimpleNamespace(loss=loss, logits=logits)


def scan(*, given: Any = None, **recipe: Any) -> Scan:
    with torch.device("meta"):
        model = LanguageModel().bfloat16()
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    kwargs = {"input_ids": ids, "labels": ids} if given is None else given
    step: dict[str, Any] = {"training": True, "loss": lambda output: output.loss, "device": GPU}
    return Scan(model, kwargs=kwargs, **step, **recipe)


def operators(**recipe: Any) -> Counter[str]:
    return Counter(op.signature.operator for op in scan(**recipe).steps.ops)


def test_a_head_with_adapters_is_not_fused() -> None:
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(r=4, target_modules=["lm_head"])
    with pytest.raises(InputError, match="that has adapters: leave it out"):
        _ = scan(lora=adapters, cross_entropy="liger").memory


#: bytes of parameters and gradients, in 16 bits
HELD = 2 * 2 * 2 * WORDS * WIDTH


def test_liger_computes_as_many_logits_at_once_as_hidden_states() -> None:
    """1,000 words are 16 times the width, and a sixteenth of 256 rows are 16, so 16 chunks."""
    num_chunks = 16
    found = operators(cross_entropy="liger")
    assert found[KERNEL] == num_chunks
    assert found["aten.mm"] == 2 * num_chunks
    assert found["aten.addmm_"] == num_chunks


def test_liger_holds_one_chunk_of_logits() -> None:
    """Beside parameters and gradients: hidden states and their gradient, and a chunk with what follows from it."""
    hidden = ROWS * WIDTH * 2
    chunk = 16 * WORDS * 2
    peak = scan(cross_entropy="liger").memory.peak_bytes
    ids = 2 * ROWS * 8
    assert HELD // 2 + 2 * hidden + chunk < peak < HELD + 4 * hidden + 2 * chunk + 4 * ids


def test_chunks_of_a_sequence_keep_log_probabilities_alone() -> None:
    """Eight chunks: one product each forward and two backward."""
    found = operators(cross_entropy="chunked")
    assert found["aten.mm"] == 3 * 8
    assert found["aten._log_softmax"] == 8
    plain = scan().memory.peak_bytes
    chunked = scan(cross_entropy="chunked").memory.peak_bytes
    # At the peak of the plain loss there are the log probabilities in 32 bits and their gradient,
    # of all rows; of chunks one has a gradient.
    assert plain - chunked > ROWS * WORDS * 4 * 6 // 8


def test_gradients_of_unsloth_replace_logits() -> None:
    """Plain: logits in 32 bits, log probabilities, and at the end their gradient."""
    found = scan(cross_entropy="unsloth")
    names = operators(cross_entropy="unsloth")
    assert names["torchscan.unsloth_cross_entropy"] == 1
    assert names["torchscan.unsloth_cross_entropy_backward"] == 1
    assert names["aten.mm"] == 3
    logits = ROWS * WORDS * 2
    assert scan().memory.peak_bytes - found.memory.peak_bytes >= 2 * 2 * logits
    assert found.memory.peak_bytes < HELD + logits + 4 * ROWS * WIDTH * 2 + 8 * ROWS * 8
    assert found.steps_without_formula == ()
    load = found.roofline.by_kind["torchscan.unsloth_cross_entropy_backward"]
    assert load.bytes_written == logits


def test_operators_of_fused_losses_have_formulas() -> None:
    fused = scan(cross_entropy="liger")
    assert fused.steps_without_formula == ()
    load = fused.roofline.by_kind[KERNEL]
    assert load.bytes_read == 2 * ROWS * WORDS * 2 + ROWS * 8
    assert load.bytes_written == ROWS * WORDS * 2 + ROWS * 4


def test_models_without_a_loss_of_their_own_are_refused() -> None:
    with pytest.raises(InputError, match="has no loss function and output projection"):
        Scan(nn.Linear(4, 4), (4,), training=True, cross_entropy="liger").steps  # noqa: B018


def test_a_pass_without_labels_is_refused() -> None:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    with pytest.raises(InputError, match="give labels among kwargs="):
        scan(given={"input_ids": ids}, cross_entropy="liger").steps  # noqa: B018
