"""Options of a training step: checkpoints and adapters in a copy of the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy

import torchscan
from torchscan import InputError, Scan, estimate_memory
from torchscan.recording.training.recipe import checkpointed_paths

WIDTH, BATCH, NUM_LAYERS = 64, 8, 4
GPU = "NVIDIA H100 80GB HBM3"


class Layer(nn.Module):
    """Two products without a bias, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.out_of = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(0, 1)[None]
        seen = F.scaled_dot_product_attention(heads, heads, heads)[0].transpose(0, 1).flatten(1)
        return x + self.out_of(F.relu(self.into(seen)))


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def model() -> Any:
    with torch.device("meta"):
        return Layered().bfloat16()


def scan(**recipe: Any) -> Scan:
    return Scan(model(), (WIDTH,), batch_size=BATCH, training=True, device=GPU, **recipe)


def forward_calls(**recipe: Any) -> Counter[str]:
    """Operators of a step by name, without those of backward passes."""
    names = Counter(op.signature.operator for op in scan(**recipe).steps.ops)
    return Counter({name: count for name, count in names.items() if "backward" not in name})


#: products of a step without checkpoints: one forward and two backward for each weight, but for
#: the first layer, whose input needs no gradient
PRODUCTS = 3 * 2 * NUM_LAYERS - 1
FLASH = "aten._scaled_dot_product_flash_attention"


def keeps_attention(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    is_attention = operator is torch.ops.aten._scaled_dot_product_flash_attention.default
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize(
    ("checkpoint", "recomputed_products", "recomputed_attention"),
    [
        (False, 0, 0),
        # The last product of a layer is not computed again: nothing in its backward pass needs it.
        (True, NUM_LAYERS, NUM_LAYERS),
        (2, NUM_LAYERS // 2, NUM_LAYERS // 2),
        # The first product of each layer is kept, and the second one is needed by nothing.
        ("selective", 0, 0),
        ([torch.ops.aten.mm.default], 0, NUM_LAYERS),
        (keeps_attention, NUM_LAYERS, 0),
    ],
)
def test_checkpoints_recompute_what_their_choice_does_not_keep(
    checkpoint: Any, recomputed_products: int, recomputed_attention: int
) -> None:
    found = forward_calls(checkpoint=checkpoint)
    assert found["aten.mm"] == PRODUCTS + recomputed_products
    assert found[FLASH] == NUM_LAYERS + recomputed_attention


class OwnCheckpoint(Layer):
    """A layer that checkpoints itself, as those of transformers do."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Any = None

    def __call__(self, *args: Any) -> Any:
        """Run the layer, by the function that it was given if it is checkpointed."""
        if not self.gradient_checkpointing:
            return super().__call__(*args)
        return self._gradient_checkpointing_func(super().__call__, *args)


@pytest.mark.parametrize(("checkpoint", "num_checkpointed"), [(False, 0), (True, 4), (2, 2)])
def test_checkpoint_option_reaches_layers_with_their_own_checkpointing(
    checkpoint: Any, num_checkpointed: int
) -> None:
    """Their own function runs the hooks of the layer, too, and the model itself is unchanged."""
    given = model()
    given.layers = nn.ModuleList(OwnCheckpoint() for _ in range(NUM_LAYERS)).to("meta").bfloat16()
    options: dict[str, Any] = {"training": True, "device": GPU, "checkpoint": checkpoint}
    steps = Scan(given, (WIDTH,), batch_size=BATCH, **options).steps
    names = Counter(op.signature.operator for op in steps.ops)
    assert names[FLASH] == NUM_LAYERS + num_checkpointed
    assert not any(layer.gradient_checkpointing for layer in given.layers)


def test_a_checkpointed_layer_keeps_its_input_alone() -> None:
    """Of 4 layers, between the passes: one input each; and for all but these, less than of one layer as it is."""
    layers = scan(checkpoint=True).memory.layers
    kept = {each.path: each.activation_bytes for each in layers}
    assert kept["layers.3"] == 0 or kept["layers.3"] == BATCH * WIDTH * 2
    assert kept["layers.2"] == BATCH * WIDTH * 2


def test_the_model_is_unchanged() -> None:
    given = model()
    before = {name: id(each) for name, each in given.named_parameters()}
    estimate_memory(given, (WIDTH,), training=True, lora=4, checkpoint=True)
    assert {name: id(each) for name, each in given.named_parameters()} == before
    assert all(each.requires_grad for each in given.parameters())
    assert "forward" not in vars(given.layers[0])


def test_adapters_train_alone_in_32_bits() -> None:
    """Beside each of two layers of WIDTH and 4 · WIDTH, both ways, with two states of AdamW and a step each."""
    rank = 4
    adapted = NUM_LAYERS * 2 * rank * (WIDTH + 4 * WIDTH)
    most = scan(lora=rank, optimizer="AdamW").memory
    largest = Counter[str]()
    for moment in most.timeline:
        for kind, size in moment.by_kind.items():
            largest[kind] = max(largest[kind], size)
    base = NUM_LAYERS * 2 * 4 * WIDTH * WIDTH
    assert largest["parameters"] == 2 * base + 4 * adapted
    assert largest["gradients"] == 4 * adapted
    assert largest["optimizer"] == 8 * adapted


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (*model.layers, model):
        fully_shard(each, mesh=mesh["dp"])


@pytest.mark.slow
def test_a_plan_follows_the_same_options() -> None:
    plan = torchscan.parallel.plan(
        model(),
        (WIDTH,),
        torch.bfloat16,
        mesh={"dp": 2},
        apply=shard,
        device=GPU,
        batch_size=BATCH,
        training=True,
        checkpoint=keeps_attention,
        lora=4,
        compiled=True,
        progress=False,
    )
    found = Counter(op.signature.operator for op in plan.ranks[0].trace.ops)
    assert found[FLASH] == NUM_LAYERS
    assert plan.ranks[0].roofline is not None
    assert plan.ranks[0].roofline.compiled
    assert plan.params == NUM_LAYERS * 2 * (4 * WIDTH * WIDTH + 4 * (WIDTH + 4 * WIDTH))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"checkpoint": "op"}, r"checkpoint is 'op': give True, a number of layers"),
        ({"checkpoint": 0}, "checkpoint is 0: give a positive integer"),
        ({"checkpoint": ["mm"]}, "give a list of operators"),
        ({"checkpoint": lambda: None}, "give a policy"),
        ({"lora": 0}, "lora is 0: give a positive integer"),
        ({"lora": "8"}, "give a rank, or a peft.LoraConfig"),
        ({"clip_gradients": True, "optimizer_in_backward": True}, "needs the gradients of all"),
        ({"offload": "optimizer", "optimizer_in_backward": True}, "updates all parameters at once"),
        ({"accumulation_steps": 0}, "accumulation_steps is 0: give a positive integer"),
        ({"weights": "int3"}, "weights is 'int3': choose from"),
        ({"offload": "gradients"}, "offload is 'gradients': choose from"),
        ({"float8": "rowwise", "weights": "nf4"}, "float8 is for weights that are trained"),
        (
            {"accumulate": True, "optimizer": "SGD", "optimizer_in_backward": True},
            "accumulate adds to gradients of an earlier batch",
        ),
        (
            {"lora": 4, "optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])},
            "optimizer is an instance, which has no parameter of the adapters",
        ),
        ({"float8_all_gather": True, "float8": "rowwise"}, "give float8='tensorwise'"),
    ],
)
def test_invalid_options_are_refused(recipe: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scan(**recipe)


def test_a_number_of_layers_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(
        InputError, match=f"checkpoint is 5: give a number of layers up to {NUM_LAYERS}"
    ):
        _ = scan(checkpoint=NUM_LAYERS + 1).memory


def test_options_of_a_training_step_need_one() -> None:
    with pytest.raises(
        InputError, match=r"checkpoint belongs to a training step: .* training=True"
    ):
        estimate_memory(model(), (WIDTH,), checkpoint=True)
    with pytest.raises(InputError, match=r"lora belongs to a training step"):
        torchscan.parallel.plan(model(), (WIDTH,), mesh={"dp": 2}, apply=shard, lora=4)


def test_checkpoints_need_a_list_of_layers() -> None:
    with pytest.raises(InputError, match=r"needs equal layers in a torch.nn.ModuleList"):
        estimate_memory(nn.Linear(4, 4), (4,), training=True, checkpoint=True)


def test_a_module_that_is_alone_of_its_type_is_searched_for_repeated_ones() -> None:
    """The outer sequence has one module of each type, and the first has a sequence of two."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Layer(), Layer())

    model = nn.Sequential(Encoder(), nn.Linear(WIDTH, WIDTH))
    assert checkpointed_paths(model) == ["0.blocks.0", "0.blocks.1"]
