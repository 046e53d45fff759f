"""What a forward pass switches is as before afterwards, also after an exception, and whatever the way of running it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.versions import skip_without
from torchscan import RecordError, record
from torchscan.recording.switches import keep_switches
from torchscan.recording.undo import Undo
from torchscan.torch_versions import default_device, set_default_device

b = torch.backends


class Flip(NamedTuple):
    """A line in a model's forward, and how to see what it did."""

    flip: Callable[[], object]
    read: Callable[[], Any]
    needs: str = "nn"


def assigned(path: str, value: Any) -> Flip:
    owner, _, name = path.rpartition(".")
    return Flip(
        lambda: setattr(attrgetter(owner)(torch), name, value),
        lambda: attrgetter(path)(torch),
        path,
    )


def called(write: str, value: Any, read: str) -> Flip:
    return Flip(lambda: attrgetter(write)(torch)(value), lambda: attrgetter(read)(torch)(), write)


FLIPS = {
    "default dtype": called("set_default_dtype", torch.float64, "get_default_dtype"),
    "default device": called("set_default_device", "meta", "get_default_device"),
    "threads": Flip(
        lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads
    ),
    "warnings each time": called("set_warn_always", True, "is_warn_always_enabled"),
    "determinism": called(
        "use_deterministic_algorithms", True, "are_deterministic_algorithms_enabled"
    ),
    "determinism, warnings only": Flip(
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.is_deterministic_algorithms_warn_only_enabled,
    ),
    "anomalies": called("set_anomaly_enabled", True, "is_anomaly_enabled"),
    "NaN are anomalies": Flip(
        lambda: torch.set_anomaly_enabled(True, check_nan=False), torch.is_anomaly_check_nan_enabled
    ),
    "filled memory": assigned("utils.deterministic.fill_uninitialized_memory", False),
    "precision of products": called(
        "set_float32_matmul_precision", "medium", "get_float32_matmul_precision"
    ),
    "products in tf32": assigned("backends.cuda.matmul.allow_tf32", True),
    "half sums": assigned("backends.cuda.matmul.allow_fp16_accumulation", True),
    "half reductions": assigned(
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction", False
    ),
    "bfloat reductions": assigned(
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction", False
    ),
    "convolutions in tf32": assigned("backends.cudnn.allow_tf32", False),
    "cuDNN": assigned("backends.cudnn.enabled", False),
    "cuDNN measures": assigned("backends.cudnn.benchmark", True),
    "cuDNN is deterministic": assigned("backends.cudnn.deterministic", True),
    "oneDNN": Flip(lambda: b.mkldnn.set_flags(False), lambda: torch._C._get_mkldnn_enabled()),
    "oneDNN is deterministic": assigned("backends.mkldnn.deterministic", True),
    "general precision": assigned("backends.fp32_precision", "tf32"),
    "precision of convolutions": assigned("backends.cudnn.conv.fp32_precision", "ieee"),
    "precision of oneDNN": assigned("backends.mkldnn.matmul.fp32_precision", "bf16"),
    "flash attention": called(
        "backends.cuda.enable_flash_sdp", False, "backends.cuda.flash_sdp_enabled"
    ),
    "efficient attention": called(
        "backends.cuda.enable_mem_efficient_sdp", False, "backends.cuda.mem_efficient_sdp_enabled"
    ),
    "plain attention": called(
        "backends.cuda.enable_math_sdp", False, "backends.cuda.math_sdp_enabled"
    ),
    "attention of cuDNN": called(
        "backends.cuda.enable_cudnn_sdp", False, "backends.cuda.cudnn_sdp_enabled"
    ),
    "attention in halves": called(
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        True,
        "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    ),
    "fast path": called(
        "backends.mha.set_fastpath_enabled", False, "backends.mha.get_fastpath_enabled"
    ),
    "autocast": Flip(
        lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")
    ),
    "type of autocast": Flip(
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
    ),
    "autocast on a card": Flip(
        lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
        lambda: torch.get_autocast_dtype("cuda"),
    ),
    "memory of autocast": called("set_autocast_cache_enabled", False, "is_autocast_cache_enabled"),
    "gradients": called("set_grad_enabled", False, "is_grad_enabled"),
    "parameters replaced": called(
        "__future__.set_overwrite_module_params_on_conversion",
        True,
        "__future__.get_overwrite_module_params_on_conversion",
    ),
    "printing": Flip(
        lambda: torch.set_printoptions(precision=2, sci_mode=True),
        lambda: str(torch._tensor_str.PRINT_OPTS),
    ),
}


def test_what_was_set_before_the_pass_is_not_taken_for_the_default() -> None:
    """Determinism without its warnings, and a device that is the default by name."""
    torch.use_deterministic_algorithms(True)
    torch.set_default_device("cpu")
    try:
        record(Flips(lambda: torch.use_deterministic_algorithms(False), fails=False), (4,))
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        record(Flips(lambda: torch.set_default_device("meta"), fails=False), (4,))
        assert default_device() == torch.device("cpu")
    finally:
        torch.use_deterministic_algorithms(False)
        set_default_device(None)


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_context_of_autocast_that_the_model_leaves_open_is_closed_and_its_casts_are_gone(
    execute: Any,
) -> None:
    model = Flips(lambda: None, fails=False)
    x = torch.ones(1, 4)

    def leave_open(_module: nn.Module, _args: object) -> None:
        torch.autocast("cpu", torch.bfloat16).__enter__()

    forget = model.register_forward_pre_hook(leave_open)
    record(model, (4,), execute=execute, training=True, mode="eval")
    forget.remove()
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.bias.fill_(3)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).tolist() == [[3.0] * 4]


class Flips(nn.Module):
    def __init__(self, flip: Callable[[], object], *, fails: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.flip, self.fails = flip, fails

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.flip()
        if self.fails:
            raise ValueError("on purpose")
        return y


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
@pytest.mark.parametrize(
    "options",
    [{}, {"execute": "real"}, {"training": True, "mode": "eval"}],
    ids=["shapes", "real", "backward"],
)
@pytest.mark.parametrize("name", FLIPS)
def test_a_switch_is_as_before(name: str, options: Any, fails: bool) -> None:
    flip, read, needs = FLIPS[name]
    skip_without(needs)
    before = read()
    undo = Undo()
    keep_switches(undo)
    flip()
    assert read() != before  # it is a switch, and this is another setting
    undo.now()
    assert read() == before
    with contextlib.suppress(RecordError):
        record(Flips(flip, fails=fails), (4,), **options)
    assert read() == before
