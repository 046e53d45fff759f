"""The way to sample several tensors at once, which their types and sizes determine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.watching.sampling import ValueSampler

BARE_TYPES = frozenset({Tensor, torch.nn.Parameter})
#: all that decides how a tensor is sampled, besides its type and its number of values
kind_of = attrgetter("dtype", "layout", "is_nested", "device")
#: values of a tensor that is joined with others before it is sampled, and of all such tensors: a
#: copy of so few values takes less time than another operator
_MAX_JOINED, _MAX_TOTAL = 2**14, 2**22
#: plans that are remembered
_MAX_PLANS = 16


class SamplingPlan(NamedTuple):
    """The way to sample several tensors."""

    #: indices of the tensors that are joined before they are sampled
    joined: Sequence[int]
    #: values of these
    numels: Sequence[int]
    #: positions to sample in the joined values, or None for all
    places: Tensor | None
    #: for each tensor its index among the joined ones, or None
    indices: list[int | None]
    #: indices of joined tensors of which not all values are sampled, and of tensors not joined
    wide: Sequence[int]
    others: Sequence[int]


class SamplingPlans:
    """Plans for many tensors, which are remembered."""

    def __init__(self, sampler: ValueSampler) -> None:
        self._sampler = sampler
        #: plans by the types and sizes of the tensors
        self._plans: dict[tuple[object, ...], SamplingPlan] = {}

    def plan_of(self, tensors: Sequence[Tensor]) -> SamplingPlan:
        """Return the plan for tensors, which is known if such tensors were sampled before."""
        key = *map(type, tensors), *map(kind_of, tensors), *map(Tensor.numel, tensors)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(tensors)
        return plan

    def _make_plan(self, tensors: Sequence[Tensor]) -> SamplingPlan:
        width = self._sampler.max_width
        is_joined = self._choose_joined(tensors)
        joined = list(compress(range(len(tensors)), is_joined))
        numels = [tensors[index].numel() for index in joined]
        indices: list[int | None] = [None] * len(tensors)
        for number, index in enumerate(joined):
            indices[index] = number
        places: Tensor | None = None
        wide = [index for index in joined if tensors[index].numel() > width]
        if wide:
            starts = accumulate(numels, initial=0)
            sampled = [self._sampler.places_among(numel) for numel in numels]
            places = torch.cat([start + each for start, each in zip(starts, sampled, strict=False)])
        others = [index for index, each in enumerate(is_joined) if not each]
        return SamplingPlan(
            joined=joined,
            numels=numels,
            places=places,
            indices=indices,
            wide=wide,
            others=others,
        )

    def _choose_joined(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return for each tensor whether it is sampled by one operator for all such tensors."""
        device = self._sampler.device
        if device.type == "meta":
            return [False] * len(tensors)
        chosen = [
            0 < tensor.numel() <= _MAX_JOINED
            and type(tensor) in BARE_TYPES
            and tensor.dtype is torch.float32
            and tensor.layout is torch.strided
            and tensor.device == device
            and not tensor.is_nested
            for tensor in tensors
        ]
        total = sum(tensor.numel() for tensor in compress(tensors, chosen))
        if total > _MAX_TOTAL:
            width = self._sampler.max_width
            chosen = [
                is_chosen and tensor.numel() <= width
                for is_chosen, tensor in zip(chosen, tensors, strict=True)
            ]
        return chosen
