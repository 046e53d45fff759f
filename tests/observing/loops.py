"""Programs that train one model in a loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.observing.small_models import Graph, GraphNet
from tests.observing.training_program import MODEL, Counts, Training, program


def mlp(dropout: float = 0.0) -> nn.Sequential:
    """Return a classifier of 8 features into 3 classes."""
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    """Draw features and classes."""
    return torch.randn(size, 8), torch.randint(3, (size,))


def repeated(model: nn.Module, num_steps: int, take_step: Callable[[int], float]) -> Training:
    """Return the training whose loop takes a step again and again."""
    return Training({MODEL: model}, lambda: [take_step(index) for index in range(num_steps)])


@torch.no_grad()
def validate(model: nn.Module, num_batches: int) -> None:
    """Run batches in ``eval`` mode."""
    model.eval()
    for _ in range(num_batches):
        model(batch()[0])
    model.train()


@program(4, Counts(4, 2 * 2))
def plain_loop(num_steps: int) -> Training:
    """Two epochs of two batches, with a validation of two batches after each."""
    model = mlp(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def take_step(index: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        if index % 2:
            validate(model, 2)
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3, 3 * 2))
def validation_with_gradients_on(num_steps: int) -> Training:
    """``model.eval()`` without ``no_grad``, which many programs forget."""
    model = mlp(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        model.eval()
        correct = 0.0
        for _ in range(2):
            x, target = batch()
            correct += (model(x).argmax(-1) == target).float().mean().item()
        model.train()
        return loss.item() + correct

    return repeated(model, num_steps, take_step)


class Block(nn.Module):
    """A layer of GPT: causal attention, then a perceptron."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = [*x.shape[:2], self.num_heads, -1]
        parts = self.attention(self.norm1(x)).chunk(3, -1)
        query, key, value = (each.reshape(split).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A language model whose embedding and head share their weight, as in nanoGPT."""

    def __init__(self, vocabulary: int = 32, length: int = 12, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _text() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(32, (4, 13))
    return tokens[:, :-1], tokens[:, 1:]


@program(3, Counts(2 * 3, 2 * 4))
def nanogpt(num_steps: int) -> Training:
    """Two micro-batches in a step; losses are estimated before steps 0 and 2, on 2 × 2 batches."""
    model = Gpt()
    decayed = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    @torch.no_grad()
    def estimate_loss() -> None:
        model.eval()
        for _ in ("train", "val"):
            for _ in range(2):
                model(*_text())
        model.train()

    def take_step(index: int) -> float:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * index / num_steps))
        if index % 2 == 0:
            estimate_loss()
        for _ in range(2):
            _, loss = model(*_text())
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def graph_network(num_steps: int) -> Training:
    """Messages along edges, summed by ``index_add``."""
    model, graph = GraphNet(), Graph.random(20, 60)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graph.features, graph.edges), graph.classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


class UNet(nn.Module):
    """A denoiser of images with one skip connection and an embedding of the noise level."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.leave = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, 2 * width), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        phases = level[:, None] * torch.logspace(0, 2, 4)
        embedded = self.time(torch.cat([phases.sin(), phases.cos()], -1))
        skip = F.silu(self.enter(x) + embedded[:, :, None, None])
        coarse = self.up(self.middle(self.down(skip)))
        return self.leave(F.silu(self.join(torch.cat([skip, coarse], 1))))


@program(3, Counts(3, 4))
def diffusion(num_steps: int) -> Training:
    """Predict the noise of images; four denoising passes draw a sample at the end."""
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = torch.linspace(0.999, 0.01, 10)

    def take_step(_: int) -> float:
        images, noise = torch.rand(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
        level = torch.randint(10, (4,))
        share = kept[level].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, level), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def draw() -> float:
        x = torch.randn(2, 1, 8, 8)
        for level in (9, 6, 3, 0):
            noise = model(x, torch.full((2,), level))
            x = (x - (1 - kept[level]).sqrt() * noise).clamp(-2, 2)
        return x.mean().item()

    return Training(
        {MODEL: model}, lambda: [*(take_step(index) for index in range(num_steps)), draw()]
    )


class Recurrent(nn.Module):
    """A GRU with a linear head, which is given its state and returns the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs, state = self.cell(x, state)
        return self.head(outputs), state


@program(4, Counts(4))
def truncated_backpropagation(num_steps: int) -> Training:
    """A long sequence in chunks; the state goes on without its graph."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run() -> list[float]:
        losses, state = [], None
        for _ in range(num_steps):
            x = torch.randn(2, 5, 4)
            predicted, state = model(x, state)
            state = state.detach()
            loss = F.mse_loss(predicted, x.sum(-1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def cell_called_in_a_loop(num_steps: int) -> Training:
    """The model is called for each of four time steps, before one backward pass."""
    model = nn.GRUCell(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        state = torch.zeros(2, 8)
        for _ in range(4):
            state = model(torch.randn(2, 4), state)
        loss = state.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


class Checkpointed(nn.Module):
    """Two blocks whose activations are computed again in the backward pass."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)
        )
        self._use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self._use_reentrant)
        return self.leave(x)


def _classify(
    model: nn.Module, num_steps: int, called: Callable[[Tensor], Tensor] | None = None
) -> Training:
    """Return the training of a classifier, which is called as another module that wraps it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    function = model if called is None else called

    def take_step(_: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(function(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def reentrant_checkpoint(num_steps: int) -> Training:
    return _classify(Checkpointed(use_reentrant=True), num_steps)


@program(3, Counts(3))
def checkpoint_without_reentry(num_steps: int) -> Training:
    return _classify(Checkpointed(use_reentrant=False), num_steps)


def _compiled(num_steps: int, backend: str) -> Training:
    torch.compiler.reset()
    model = Checkpointed(use_reentrant=False)
    return _classify(model, num_steps, torch.compile(model, backend=backend))


@program(3, Counts(3), is_slow=True)
def compiled(num_steps: int) -> Training:
    """Compiled by dynamo alone."""
    torch.compiler.reset()
    model = mlp()
    return _classify(model, num_steps, torch.compile(model, backend="eager"))


@program(3, Counts(3), is_slow=True)
def compiled_checkpoint(num_steps: int) -> Training:
    """Compiled forward and backward, without a C++ compiler."""
    return _compiled(num_steps, "aot_eager")


@program(4, Counts(4))
def mixed_precision(num_steps: int) -> Training:
    """Autocast to bfloat16, and a GradScaler that has nothing to skip."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def take_step(_: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, Counts(4), num_skipped=2)
def steps_skipped_by_a_scaler(num_steps: int) -> Training:
    """The gradient is 4: scaled by 2¹²⁷ and 2¹²⁶ it overflows, and by 2¹²⁵ it does not."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    def take_step(_: int) -> float:
        optimizer.zero_grad()
        loss = model(torch.full((1, 1), 4.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return repeated(model, num_steps, take_step)


class FakeQuantized(nn.Module):
    """A linear layer with 8-bit weights and inputs, whose gradients ignore the rounding."""

    largest: Tensor

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)
        self.register_buffer("largest", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.mul_(0.9).add_(x.detach().abs().max(), alpha=0.1)
        x = torch.fake_quantize_per_tensor_affine(x, self.largest.item() / 127, 0, -128, 127)
        weight = self.linear.weight
        scale = weight.detach().abs().amax(1) / 127
        zero = torch.zeros(len(scale), dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)
        return F.linear(x, weight, self.linear.bias)


@program(4, Counts(4, 2))
def quantization_aware(num_steps: int) -> Training:
    model = nn.Sequential(FakeQuantized(8, 16), nn.ReLU(), FakeQuantized(16, 3))
    training = _classify(model, num_steps)

    def run() -> list[float]:
        losses = training.run()
        validate(model, 2)
        return losses

    return Training({MODEL: model}, run)


class Tree(NamedTuple):
    """A binary tree with features at its leaves."""

    features: Tensor | None
    children: tuple[Tree, ...] = ()

    @classmethod
    def random(cls, depth: int) -> Tree:
        """Draw a tree."""
        if not depth:
            return cls(torch.randn(1, 4))
        return cls(None, (cls.random(depth - 1), cls.random(max(0, depth - 2))))


class TreeLstm(nn.Module):
    """A model that calls itself for each child of a node."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.leaf, self.gates = nn.Linear(4, width), nn.Linear(2 * width, 5 * width)

    def forward(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if tree.features is not None:
            state = self.leaf(tree.features)
            return state.tanh(), state
        (left, left_cell), (right, right_cell) = map(self, tree.children)
        gates = self.gates(torch.cat([left, right], -1)).chunk(5, -1)
        enter, forget_left, forget_right, leave = (each.sigmoid() for each in gates[:4])
        cell = enter * gates[4].tanh() + forget_left * left_cell + forget_right * right_cell
        return leave * cell.tanh(), cell


@program(3, Counts(3))
def recursive_module(num_steps: int) -> Training:
    """A tree-LSTM over trees of different shapes."""
    model = TreeLstm()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(index: int) -> float:
        state, _ = model(Tree.random(2 + index % 2))
        loss = (state - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, Counts(4))
def gradient_accumulation(num_steps: int) -> Training:
    """Each backward pass that a forward pass follows ends a step: two for each optimizer step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(index: int) -> float:
        x, target = batch()
        loss = F.cross_entropy(model(x), target) / 2
        loss.backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, Counts(4))
def skipped_optimizer_steps(num_steps: int) -> Training:
    """Steps with a large gradient are left out, with their gradients."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(index: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x * (100 if index % 2 else 1)), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        if norm < 10:
            optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, Counts(4))
def replaced_module(num_steps: int) -> Training:
    """After half of the steps the head is replaced, with a new optimizer."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def run() -> list[float]:
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for index in range(num_steps):
            if index == num_steps // 2:
                model[2] = nn.Linear(16, 5)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, target = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def frozen_backbone(num_steps: int) -> Training:
    """Only the last layer is trained."""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def evaluation_in_a_step(num_steps: int) -> Training:
    """A pass without gradients between the forward and the backward pass is part of the step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, _target = batch()
        predicted = model(x)
        with torch.no_grad():
            target = model(x + 0.1 * torch.randn_like(x)).softmax(-1)
        loss = F.cross_entropy(predicted, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3, 3))
def pseudo_labels_before_a_step(num_steps: int) -> Training:
    """A pass without gradients before the forward pass is an evaluation."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, _target = batch()
        with torch.no_grad():
            target = model(x).argmax(-1)
        loss = F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


class _OutOfMemoryError(RuntimeError):
    """The error of a batch that is too large."""


class _Limited(nn.Module):
    """A classifier that fails in the middle of large batches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        if len(x) > 8:
            raise _OutOfMemoryError("the batch is too large")
        return self.head(x)


@program(3, Counts(3))
def smaller_batch_after_a_failure(num_steps: int) -> Training:
    """A forward pass that fails is repeated with half of the batch."""
    model = _Limited()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(index: int) -> float:
        x, target = batch(16 if index == 1 else 8)
        optimizer.zero_grad()
        try:
            loss = F.cross_entropy(model(x), target)
        except _OutOfMemoryError:
            loss = F.cross_entropy(model(x[:8]), target[:8])
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, Counts(4, 3))
def recalibrated_batch_norm(num_steps: int) -> Training:
    """Averaged weights, whose batch-norm statistics come from passes in ``train`` mode."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    training = _classify(model, num_steps)

    def run() -> list[float]:
        losses = training.run()
        with torch.no_grad():
            for _ in range(3):
                model(batch()[0])
        return losses

    return Training({MODEL: model}, run)


@program(4, Counts(4, 2 * 2))
def averaged_weights(num_steps: int) -> Training:
    """An average of the weights is swapped in for each evaluation, and out again."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = [each.detach().clone() for each in model.parameters()]

    @torch.no_grad()
    def swap() -> None:
        for mean, each in zip(average, model.parameters(), strict=True):
            kept = each.clone()
            each.copy_(mean)
            mean.copy_(kept)

    def take_step(index: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, each in zip(average, model.parameters(), strict=True):
                mean.lerp_(each, 0.1)
        if index % 2:
            swap()
            validate(model, 2)
            swap()
        return loss.item()

    return repeated(model, num_steps, take_step)


class ScheduleFree(torch.optim.Optimizer):
    """SGD without a schedule: gradients at a mix of the iterate and its average."""

    def __init__(self, params: list[nn.Parameter], lr: float = 0.1, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})
        self._num_steps = 0
        self._is_training = True

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self._num_steps += 1
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                iterate = state.setdefault("z", each.clone())
                average = state.setdefault("x", each.clone())
                iterate.sub_(each.grad, alpha=group["lr"])
                average.lerp_(iterate, 1 / self._num_steps)
                each.copy_(iterate.lerp(average, group["beta"]))

    @torch.no_grad()
    def swap(self) -> None:
        """Change between the weights that are trained and those that are evaluated."""
        self._is_training = not self._is_training
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                mixed = state["z"].lerp(state["x"], group["beta"])
                each.copy_(mixed if self._is_training else state["x"])


@program(4, Counts(4, 2))
def schedule_free(num_steps: int) -> Training:
    """An optimizer of the program's own, whose evaluation weights differ."""
    model = mlp()
    optimizer = ScheduleFree(list(model.parameters()))

    def take_step(index: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        if index % 2:
            optimizer.swap()
            validate(model, 1)
            optimizer.swap()
        return loss.item()

    return repeated(model, num_steps, take_step)
