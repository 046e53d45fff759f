"""Memory of full fine-tuning, against what was measured on an A100."""

from __future__ import annotations

import pytest

from tests.models.finetuned import FinetuningRun, allocated_by

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: of the published table of fms-acceleration: ``max_memory_allocated`` of a bf16 step with
#: AdamW and gradient checkpointing
POWERLM = FinetuningRun(
    name="ibm/PowerLM-3b", cards=1, batch=4, tokens=4096, allocated_bytes=35_134_836_736
)


@pytest.mark.sweep
def test_full_finetuning_allocates_what_was_measured() -> None:
    allocated = allocated_by(POWERLM, holds_output=False)
    assert allocated == pytest.approx(POWERLM.allocated_bytes, rel=1e-3)


@pytest.mark.sweep
def test_an_output_that_is_held_adds_logits() -> None:
    dropped, held = (allocated_by(POWERLM, holds_output=holds) for holds in (False, True))
    logits = 4 * 4096 * 49_152 * 2
    assert held - dropped == pytest.approx(logits, rel=0.01)
