"""Low-rank adapters (LoRA) beside the linear layers of a model, which are frozen. The model is changed: it is nobody else's."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from torchscan.errors import InputError


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two small ones that is trained: ``y = W x + B A x``."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        place = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base
        self.into = nn.Linear(base.in_features, rank, bias=False, **place)
        self.out_of = nn.Linear(rank, base.out_features, bias=False, **place)

    @property
    def weight(self) -> Tensor:
        """Of the layer: some modules look at it, or compute with it themselves."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """Of the layer."""
        return self.base.bias

    def forward(self, given: Tensor) -> Tensor:
        """Both together."""
        result: Tensor = self.base(given) + self.out_of(self.into(given))
        return result


def adapt(module: nn.Module, layers: Iterable[nn.Module], rank: int) -> None:
    """Freeze the model, and put adapters beside all linear layers that are in its layers, or are such a layer."""
    module.requires_grad_(False)
    inside = {id(each) for layer in layers for each in layer.modules() if isinstance(each, nn.Linear)}
    if not inside:
        raise InputError("adapters go beside linear layers (torch.nn.Linear), and the layers of this model have none")
    adapted: dict[int, Adapted] = {}
    for parent in list(module.modules()):
        for name, each in list(parent.named_children()):
            if isinstance(each, nn.Linear) and id(each) in inside:
                setattr(parent, name, adapted.setdefault(id(each), Adapted(each, rank)))
