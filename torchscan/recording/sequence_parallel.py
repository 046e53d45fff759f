"""Tensor parallelism whose activations between products are divided by sequence.

torch's styles do it: a layer's norms and sums run on a part of each sequence. Inputs of attention
and of the feed-forward layer are all-gathered, and their results are reduced and scattered, in
place of the all-reduces of tensor parallelism alone. Modules are those that the plan of a model of
transformers names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.attention_heads import heads_of, repeat_heads
from torchscan.recording.training.float8 import Float8Linear
from torchscan.recording.training.float8_tensor_parallel import (
    gather_input_in_8_bits,
    scatter_output_in_parts,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_COLUMNS = ("colwise", "colwise_rep", "colwise_gather_output")
_ROWS = ("rowwise", "rowwise_rep")
#: modules of a layer that stay whole and run on the sequence that was gathered
_WHOLE = ("replicate", "replicated_with_grad_allreduce")


def has_sequence_plan(model: nn.Module) -> bool:
    """Return whether the plan of a model can divide activations by sequence."""
    try:
        _styles_by_path(model)
    except InputError:
        return False
    return True


def shard_sequences(
    model: nn.Module, mesh: DeviceMesh, *, divides_logits: bool = False
) -> nn.Module:
    """Shard a model of transformers over "tp", with activations divided by sequence, in place.

    ``divides_logits``: each rank has the logits of its part of the vocabulary, from which the loss
    is computed in :func:`dividing_loss`.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    tp = mesh["tp"]
    styles = _styles_by_path(model)
    heads = heads_of(model, tp.size())
    repeat_heads(model, heads, styles)
    plan = _SequencePlan(model, styles, divides_logits=divides_logits)
    is_tied = plan.is_tied
    parallelize_module(model, tp, plan.styles())
    plan.gather_in_8_bits(tp)
    if is_tied:
        plan.head.weight = plan.embedding.weight
    return model


def sum_gradients(model: nn.Module) -> None:
    """Have gradients that are partial sums reduced in the backward pass, as FSDP does."""
    from torch.distributed.tensor import DTensor

    def reduce(parameter: Any) -> None:
        placements = parameter.placements
        if parameter.grad.placements != placements:
            parameter.grad = parameter.grad.redistribute(placements=placements)

    divided: list[Any] = [each for each in model.parameters() if isinstance(each, DTensor)]
    for parameter in divided:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(reduce)


@contextmanager
def dividing_loss() -> Iterator[None]:
    """Compute losses from divided logits, as ``loss_parallel``; errors end that, too."""
    from torch.distributed.tensor.parallel import loss_parallel

    context = loss_parallel()
    context.__enter__()
    try:
        yield
    finally:
        context.__exit__(None, None, None)


def _styles_by_path(model: nn.Module) -> dict[str, str]:
    """Return the styles of the plan that a model brings along, by the paths of its modules."""
    plan, expand = getattr(model, "tp_plan", None), getattr(model, "_expand_parallel_plan", None)
    styles: dict[str, str] = expand(dict(plan)) if plan and expand is not None else {}
    unknown = sorted(set(styles.values()) - {*_COLUMNS, *_ROWS, *_WHOLE, "embedding_rowwise"})
    if not styles or unknown:
        reason = f"divides modules by {unknown[0]!r}" if unknown else "does not exist"
        raise InputError(
            Argument("sequence_parallel"),
            f" is True, and the plan of {type(model).__name__} for tensor parallelism {reason}: "
            "give ",
            Give("apply"),
            ", a function of the model and the mesh that shards it",
        )
    return styles


class _SequencePlan:
    """The styles of torch for a model, by the paths of its modules."""

    def __init__(self, model: nn.Module, styles: dict[str, str], *, divides_logits: bool) -> None:
        brought: Any = model
        self._modules = dict(model.named_modules())
        # the others are those of parameters
        self._styles = {path: each for path, each in styles.items() if path in self._modules}
        self.embedding: Any = brought.get_input_embeddings()
        self.head: Any = brought.get_output_embeddings()
        self._divides_logits = divides_logits

    @property
    def is_tied(self) -> bool:
        """True if the head has the weight of the embedding."""
        return self.head is not None and self.head.weight is self.embedding.weight

    def styles(self) -> dict[str, Any]:
        """Return all styles."""
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        in_parts: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False}
        found: dict[str, Any] = {}
        for path, style in self._styles.items():
            if style in _COLUMNS:
                found[path] = ColwiseParallel()
            elif style in _ROWS and self._has_one_scale(path):
                found[path] = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
            elif style in _ROWS:
                found[path] = RowwiseParallel(**in_parts)
        blocks = self._blocks()
        narrow = self._narrow_blocks()
        found |= {path: self._gathering(path) for path in blocks if path not in narrow}
        found |= self._norms(blocks)
        paths = {module: path for path, module in self._modules.items()}
        found[paths[self.embedding]] = RowwiseParallel(input_layouts=Replicate(), **in_parts)
        if self.head is not None:
            logits: dict[str, Any] = {"output_layouts": Replicate()}
            if self._divides_logits:
                # a loss that multiplies by itself has a head that returns hidden states
                multiplies = "forward" not in vars(self.head)
                layout = Shard(-1) if multiplies else Replicate()
                logits = {"output_layouts": layout, "use_local_output": False}
            found[paths[self.head]] = ColwiseParallel(input_layouts=Shard(1), **logits)
        return found

    def gather_in_8_bits(self, tp: DeviceMesh) -> None:
        """Have inputs and gradients of layers in float8 with one scale gathered in 8 bits."""
        for path in self._narrow_blocks():
            gather_input_in_8_bits(self._modules[path], tp)
        for path, style in self._styles.items():
            layer = self._modules[path]
            if style in _ROWS and isinstance(layer, Float8Linear) and self._has_one_scale(path):
                scatter_output_in_parts(layer, is_local=False)

    def _blocks(self) -> list[str]:
        """Return attention and feed-forward modules, which hold the divided layers."""
        ends = (self.embedding, self.head)
        divided = [path for path, style in self._styles.items() if style in (*_COLUMNS, *_ROWS)]
        inner = [path for path in divided if self._modules[path] not in ends]
        return list(dict.fromkeys(path.rpartition(".")[0] for path in inner))

    def _narrow_blocks(self) -> list[str]:
        """Return the blocks whose layers all take the input in 8 bits with one scale."""
        columns = [path for path, style in self._styles.items() if style in _COLUMNS]
        wide = {path.rpartition(".")[0] for path in columns if not self._has_one_scale(path)}
        return [path for path in self._blocks() if path not in wide]

    def _has_one_scale(self, path: str) -> bool:
        layer = self._modules[path]
        return isinstance(layer, Float8Linear) and layer.recipe == "tensorwise"

    def _norms(self, blocks: list[str]) -> dict[str, Any]:
        """Return the style of norms outside of blocks, whose weights have one dimension."""
        from torch.distributed.tensor.parallel import SequenceParallel

        found = {}
        for path, module in self._modules.items():
            is_inside = any(path.startswith(f"{block}.") for block in blocks)
            weight = module._parameters.get("weight")
            if weight is not None and weight.dim() == 1 and not is_inside:
                found[path] = SequenceParallel(use_local_output=False)
        return found

    def _gathering(self, path: str) -> Any:
        """Return the style that all-gathers the input of a module, by name or position."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import PrepareModuleInput

        if path.endswith(("attn", "attention")):
            return PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            )
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
