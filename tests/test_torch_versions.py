"""What differs between versions of torch is asked for in one room, by feature."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torchscan
from tests.versions import before, lacks
from torchscan import torch_versions
from torchscan.ops import registry
from torchscan.ops.windows import elementwise
from torchscan.torch_versions import has_collectives_on_shapes

PACKAGE = Path(torchscan.__file__).parent

#: what only some of the supported versions have
COME_AND_GONE = {"aten.cholesky"}
SINCE_2_7_OR_LATER = {
    *(
        "aten._cudnn_attention_backward",
        "aten._cudnn_attention_forward",
        "aten._dyn_quant_matmul_4bit",
    ),
    *(
        "aten._flash_attention_forward_no_dropout_inplace",
        "aten._foreach_clone",
        "aten._foreach_mm",
        "aten._foreach_powsum",
    ),
    *(
        "aten._fused_rms_norm",
        "aten._fused_rms_norm_backward",
        "aten._grouped_mm",
        "aten._grouped_mm.default",
    ),
    *(
        "aten._philox_normal",
        "aten._philox_uniform",
        "aten._scaled_grouped_mm",
        "aten._scaled_grouped_mm_v2",
    ),
    *(
        "aten._scaled_mm_v2",
        "aten._upsample_lanczos2d_aa",
        "aten._upsample_lanczos2d_aa_backward",
        "aten.hash_tensor",
    ),
    "aten._weight_int4pack_mm_with_scales_and_zeros",
}


def _private_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.module}: {part}" for part in parts if _is_private(part))
        if (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and ast.unparse(node.value) == "torch"
        ):
            yield ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@pytest.mark.slow
def test_private_parts_of_torch_are_used_in_one_room_only() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file.parent.name != "torch_versions"]
    assert [f"{file.name}: {name}" for file in files for name in _private_names(file)] == []


def test_an_operator_that_torch_lacks_is_a_name_that_never_comes() -> None:
    missing = torch_versions.aten.no_such_operator
    assert isinstance(missing, torch_versions.MissingOperator)
    assert str(missing.default) == "aten.no_such_operator.default"
    assert missing.overloads() == []


def test_a_formula_can_be_registered_for_it() -> None:
    registry.pointwise(torch_versions.aten.no_such_operator)
    assert registry._window_rules.pop("aten.no_such_operator") is elementwise


def test_an_operator_that_is_there_is_torchs_own() -> None:
    assert torch_versions.aten.add is torch.ops.aten.add


def test_no_operator_is_misspelt() -> None:
    """Every name with a price or a rule is an operator of this version of torch, or known to come or go with others."""
    names = {
        name for name in {**registry._entries, **registry._window_rules} if name.startswith("aten.")
    }
    names |= {str(value) for value in vars(torch_versions.aten).values()} - {
        "aten.no_such_operator"
    }
    assert {name for name in names if not _exists(name)} <= COME_AND_GONE | SINCE_2_7_OR_LATER


def _exists(name: str) -> bool:
    packet, _, overload = name.removeprefix("aten.").partition(".")
    operator = getattr(torch.ops.aten, packet, None)
    return operator is not None and (not overload or hasattr(operator, overload))


@pytest.mark.slow
def test_what_torch_lacks_is_named_when_torchscan_cannot_be_imported() -> None:
    code = "import torch; del torch.quint8; from torchscan import crawl_module"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.stderr.splitlines()[-1] == (
        "ImportError: torchscan.crawler cannot be imported: module 'torch' has no attribute 'quint8'"
    )


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'torchscan' has no attribute 'sumary'"):
        torchscan.sumary  # type: ignore[attr-defined] # noqa: B018


@before("2.9", "collectives do not run on tensors without data")
def test_collectives_run_on_shapes() -> None:
    pytest.importorskip("torch.distributed")
    assert has_collectives_on_shapes()


@pytest.mark.skipif(
    not lacks("_C._autograd._top_saved_tensors_default_hooks"), reason="torch tells it"
)
def test_checkpoints_are_compared_only_if_torch_tells_what_they_save() -> None:
    found = torchscan.Scan(nn.Linear(4, 4), (4,), training=True, device="H100")
    with pytest.raises(torchscan.InputError, match=r"torch 2\.6 does not report what checkpoints"):
        found.checkpointing()


#: private names that torch's own Python can do without
NOT_NEEDED = [
    "_C._DisablePythonDispatcher",
    "_C._autograd.SavedTensor",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._is_alias_of",
    "_GLOBAL_DEVICE_CONTEXT",
    "_fused_sdp_choice",
    "_library.custom_ops.OPDEFS",
]
_WITHOUT = """
import functools, sys, torch
from torch import nn

for path in sys.argv[1:]:
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, torch)
    if hasattr(owner, name):
        delattr(owner, name)
import torchscan

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
info = torchscan.crawl_module(model, (3, 8, 8))
print(info["overall"]["grad_params"])
print(torchscan.estimate_memory(model, (3, 8, 8), training=True).by_kind["parameters"])
"""


@pytest.mark.slow
def test_a_version_of_torch_may_lose_private_names() -> None:
    """8 · 27 + 8 parameters of the convolution and 288 · 4 + 4 of the linear layer."""
    done = subprocess.run(  # noqa: S603 - the program is the one above
        [sys.executable, "-W", "ignore", "-c", _WITHOUT, *NOT_NEEDED],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["1380", str(1380 * 4)], done.stderr
