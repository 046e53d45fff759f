"""Calls on nested tensors, sample by sample.

A nested tensor has samples of different shapes. An operator whose tensors are all nested treats
each sample like a batch of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchscan.trace.events import OpSignature, Shape, TensorSpec


def split_samples(signature: OpSignature) -> list[tuple[OpSignature, int]] | None:
    """Return the calls on samples of each shape, with the number of such samples.

    Return None if an operand is dense, the shapes of its samples are unknown, or the tensors have
    different numbers of samples.
    """
    specs = (*signature.inputs, *signature.all_written)
    samples = [spec.samples for spec in specs if spec.samples is not None]
    numbers = set(map(len, samples))
    if len(samples) != len(specs) or len(numbers) != 1:
        return None

    calls = []
    for shapes, number in Counter(zip(*samples, strict=True)).items():
        shape_by_spec = dict(zip(specs, shapes, strict=True))
        calls.append((_call_on_sample(signature, shape_by_spec), number))
    return calls


def _call_on_sample(
    signature: OpSignature, shape_by_spec: Mapping[TensorSpec, Shape]
) -> OpSignature:
    """Return the call with batches of one sample in place of nested tensors."""

    def take_sample(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(take_sample, value))
        if not isinstance(value, TensorSpec):
            return value
        shape = (1, *shape_by_spec[value])
        return TensorSpec(shape, value.dtype, ())

    keywords = {name: take_sample(value) for name, value in signature.kwargs.items()}
    return replace(
        signature,
        args=take_sample(signature.args),
        kwargs=keywords,
        outputs=take_sample(signature.outputs),
        written=take_sample(signature.written),
    )
