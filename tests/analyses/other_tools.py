"""Other tools, run for real on the CPU: each takes a fresh model and one input, and returns the figure that it reports."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.torchvision_cpu import torchvision  # noqa: F401 - which ptflops imports, by way of timm

# isort: split
from torch.utils.flop_counter import FlopCounterMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they use what torch and Python have deprecated
    import ptflops
    import thop
    import torchinfo
    import torchinfo.torchinfo
    from fvcore.nn import FlopCountAnalysis

Tool = Callable[[nn.Module, Tensor], int]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Neither warnings nor text, and nothing left on torch's classes."""
    before = set(vars(torch.Tensor))
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        torchinfo.torchinfo.clear_cached_forward_pass()
        for name in (
            set(vars(torch.Tensor)) - before
        ):  # ptflops puts back inherited methods as own ones
            delattr(torch.Tensor, name)


def flop_counter(model: nn.Module, x: Tensor, device: str = "meta") -> int:
    """FlopCounterMode, on shapes alone unless another device is named."""
    model, x = model.eval().to(device), x.to(device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops()


def fvcore(model: nn.Module, x: Tensor) -> int:
    """FlopCountAnalysis, in the mode that the model is in."""
    with _quietly():
        return int(FlopCountAnalysis(model, (x,)).total())


def thop_profile(model: nn.Module, x: Tensor) -> int:
    """thop.profile."""
    with _quietly():
        return int(thop.profile(model, inputs=(x,), verbose=False)[0])


def ptflops_complexity(model: nn.Module, x: Tensor) -> int:
    """get_model_complexity_info with its default backend."""
    options: dict[str, Any] = {
        "as_strings": False,
        "print_per_layer_stat": False,
        "input_constructor": lambda _: x,
    }
    with _quietly():
        return int(ptflops.get_model_complexity_info(model, tuple(x.shape), **options)[0])


def torchinfo_summary(model: nn.Module, x: Tensor) -> int:
    """The total of torchinfo.summary."""
    with _quietly():
        return int(torchinfo.summary(model, input_data=[x], verbose=0).total_mult_adds)


TOOLS: Mapping[str, Tool] = {
    "flop_counter": flop_counter,
    "fvcore": lambda model, x: fvcore(model.eval(), x),
    "thop": thop_profile,
    "ptflops": ptflops_complexity,
    "torchinfo": torchinfo_summary,
}
