# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels for tests; nothing here needs a GPU until a kernel is compiled."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn


@triton.jit
def _write(pointer, value, mask):
    tl.store(pointer, value, mask=mask)


@triton.jit
def exponential(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    """Write e to the power of each element, by a function that the kernel calls."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    source = x_ptr + offsets
    _write(out_ptr + offsets, tl.exp(tl.load(source, mask=mask)), mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"IS_EVEN": lambda known: known["n"] % known["BLOCK"] == 0})
@triton.jit
def weighted(x_ptr, weight_ptr, out_ptr, sum_ptr, n, BLOCK: tl.constexpr, IS_EVEN: tl.constexpr):  # noqa: N803
    """Multiply by a weight, and add up the products."""
    block = tl.make_block_ptr(
        base=out_ptr, shape=(n,), strides=(1,), offsets=(0,), block_shape=(BLOCK,), order=(0,)
    )
    source = x_ptr
    for _ in range(0, n, BLOCK):
        product = tl.load(source + tl.arange(0, BLOCK)) * tl.load(weight_ptr + tl.arange(0, BLOCK))
        source += BLOCK
        tl.atomic_add(sum_ptr, tl.sum(product))
        tl.store(block, product)
        block = tl.advance(block, (BLOCK,))


@triton.jit
def unreadable(x_ptr, out_ptr, library: tl.constexpr):
    """Give both pointers to a function that nothing is known about."""
    library(x_ptr, out_ptr)


@triton.jit
def copy_first(pointers, n):
    """Copy an element between the tensors of a tuple."""
    tl.store(pointers[1], tl.load(pointers[0]))


@triton.jit
def turned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    """Copy by one variable that points into one tensor after the other."""
    offsets = tl.arange(0, BLOCK)
    if n > BLOCK:
        pointer = x_ptr + BLOCK
    else:
        pointer = x_ptr
    for _ in range(0, n, BLOCK):
        value = tl.load(pointer + offsets)
        pointer += BLOCK
    pointer = out_ptr + offsets
    tl.store(pointer, value)


@triton.jit
def exchanged(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    """Read one tensor and write the other, in turns."""
    source, target = x_ptr, y_ptr
    for _ in range(0, n, BLOCK):
        tl.store(target, tl.load(source))
        previous = source
        source = target
        target = previous


class Tuple(nn.Module):
    """Launches a kernel on a tuple of tensors."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of the first element."""
        out = torch.empty_like(x)
        copy_first[(1,)]((x, out), 1)
        return out


@triton.jit
def strided(
    x_ptr, out_ptr, n,
    stride_0, stride_1, stride_2, stride_3, stride_4, stride_5, stride_6, stride_7,
    stride_8, stride_9, stride_10, stride_11, stride_12, stride_13, stride_14, stride_15,
    stride_16, stride_17, stride_18, stride_19, stride_20, stride_21, stride_22, stride_23,
    stride_24, stride_25, stride_26, stride_27, stride_28, stride_29, stride_30, stride_31,
    stride_32, stride_33, stride_34, stride_35, stride_36, stride_37, stride_38, stride_39,
    stride_40, stride_41, stride_42, stride_43, stride_44, stride_45, stride_46, stride_47,
    stride_48, stride_49, stride_50, stride_51, stride_52, stride_53, stride_54, stride_55,
    stride_56, stride_57, stride_58, stride_59, stride_60, stride_61, stride_62, stride_63,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Copy elements, with more parameters than an operator of torch may have."""
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n))


def _grid(known: Any) -> tuple[int]:
    return (triton.cdiv(known["n"], known["BLOCK"]),)


@torch.library.triton_op("torchscan_tests::exponential", mutates_args=())
def exponential_op(x: Tensor) -> Tensor:
    """Launch a kernel inside of an operator."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(exponential)[_grid](x, out, n=x.numel(), BLOCK=64)
    return out


class Bare(nn.Module):
    """Launches a kernel in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        """Return e to the power of x."""
        out = torch.empty_like(x)
        exponential[_grid](x, out, x.numel(), BLOCK=64, num_warps=4)
        return out


class OnDevice(Bare):
    """Chooses the device of its input before it launches a kernel, as many packages do."""

    def forward(self, x: Tensor) -> Tensor:
        """Return e to the power of x."""
        index: Any = x.device.index
        with torch.cuda.device(index):
            return super().forward(x)


class Wrapped(nn.Module):
    """Launches a kernel that torch wraps."""

    def forward(self, x: Tensor) -> Tensor:
        """Return e to the power of x."""
        out = torch.empty_like(x)
        torch.library.wrap_triton(exponential)[_grid](x, out, n=x.numel(), BLOCK=64)
        return out


class Operator(nn.Module):
    """Calls an operator that launches a kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Return e to the power of x."""
        return exponential_op(x)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        weighted[(1,)](x, weight, out, torch.zeros(1, device=x.device), x.numel())
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight = torch.empty_like(x), torch.empty_like(weight)
        total = torch.zeros(1, device=x.device)
        weighted[(1,)](gradient, weight, of_x, total, n=x.numel())
        exponential[_grid](gradient, of_weight, x.numel(), BLOCK=64)
        return of_x, of_weight


class Weighted(nn.Module):
    """Has a weight, and kernels for its gradient, as libraries of kernels have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(128))

    def forward(self, x: Tensor) -> Tensor:
        """Return the products."""
        out: Tensor = _Weighted.apply(x, self.weight)
        return out


class Chosen(nn.Module):
    """Reads what a kernel has written."""

    def forward(self, x: Tensor) -> Tensor:
        """Return as many elements as a kernel says."""
        places, written = torch.arange(128), torch.zeros(128, dtype=torch.int64)
        exponential[_grid](places, written, 128, BLOCK=64)
        return x[: int(written[3])]


class Strided(nn.Module):
    """Launches a kernel with 68 parameters."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy."""
        out = torch.empty_like(x)
        strided[(1,)](x, out, 128, *range(64), BLOCK=128)
        return out


class Tuned(nn.Module):
    """Sums up as many rows as the best configuration of a tuner says."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums."""
        weighted[(1,)](x, x, torch.empty_like(x), torch.zeros(1, device=x.device), x.numel())
        block: int = weighted.best_config.kwargs["BLOCK"]
        return x.view(-1, block).sum(0)


class PerMultiprocessor(nn.Module):
    """Has a partial result for each multiprocessor of a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the partial results."""
        count = torch.cuda.get_device_properties(x.device).multi_processor_count
        return x.new_zeros(count)


class PerMultiprocessorOfCurrent(nn.Module):
    """Asks for the current device, and for one by its number."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the partial results of both."""
        counts = [
            torch.cuda.get_device_properties(device).multi_processor_count for device in (None, 0)
        ]
        return x.new_zeros(sum(counts))


class Refusing(nn.Module):
    """Launches a kernel, then refuses its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Raise an error."""
        y: Tensor = Bare()(x)
        raise ValueError(f"{y.dtype} is not supported")
