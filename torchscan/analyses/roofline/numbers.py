"""The formats in which a device computes a requested precision."""

from __future__ import annotations

from typing import get_args

from torchscan.analyses.roofline.number_formats import Numbers, Products
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import Device
from torchscan.precisions import PRECISIONS, Precision
from torchscan.torch_versions import shortened_to_tf32


def require_format(device: Device, precision: Precision | None) -> None:
    """Refuse a precision that the device does not have."""
    if precision is None:
        return
    form = precision.removesuffix("-mixed")
    if form not in device.flops_per_second:
        known = [name for name in PRECISIONS if name in device.flops_per_second]
        raise InputError(
            Argument("precision"),
            f" is {precision!r}, and {device.name} has no {form}: give {', '.join(known)}",
        )


def require_float8(device: Device, recipe: str | None) -> None:
    """Refuse a recipe of 8-bit layers whose products the device does not have."""
    if recipe is None or device.vendor == "CPU":
        return
    has_products = "fp8" in device.flops_per_second
    example, kind = "NVIDIA H100 80GB SXM", "8-bit products"
    if recipe == "mx":
        has_products = device.arch.startswith("Blackwell")
        example, kind = "NVIDIA B200", "products with scales of blocks"
    if not has_products:
        reason = f" is {recipe!r}, and {device.name} has no {kind}: give "
        advice = Give("device", example)
        raise InputError(Argument("float8"), reason, advice, ", for example")


def numbers_of(device: Device, precision: Precision | None) -> Numbers:
    """Return the number formats of a pass.

    A model without a precision may use TF32 for single precision if torch allows it and the device
    can.
    """
    if precision == "tf32":
        return Numbers(tf32=frozenset(get_args(Products)))
    if precision is not None or "tf32" not in device.flops_per_second:
        return Numbers(fp8=precision in ("fp8", "fp8-mixed"))
    return Numbers(tf32=shortened_to_tf32())
