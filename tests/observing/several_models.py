"""Programs that train several models, or call a model several times in a step."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.observing.loops import batch, mlp, repeated, validate
from tests.observing.small_models import ActorCritic, Gan, GanTrainer, PpoTrainer
from tests.observing.training_program import MODEL, Counts, Training, program


@program(3, {"generator": Counts(3), "discriminator": Counts(2 * 3)})
def gan(num_steps: int) -> Training:
    """Gradients of the generator's loss reach the discriminator, too: a second step of it."""
    model = Gan()
    trainer = GanTrainer(model, batch_size=4)

    def run() -> list[float]:
        return [loss for _ in range(num_steps) for loss in trainer.step()]

    return Training({"generator": model.generator, "discriminator": model.discriminator}, run)


@program(3, Counts(2 * 3))
def gan_in_one_module(num_steps: int) -> Training:
    """The module itself is never called: a step of each of its parts, in turn."""
    model = Gan()
    trainer = GanTrainer(model, batch_size=4)

    def run() -> list[float]:
        return [loss for _ in range(num_steps) for loss in trainer.step()]

    return Training({MODEL: model}, run)


@program(2, Counts(2 * 2, 2 * 5))
def actor_critic(num_steps: int) -> Training:
    """Rollouts of 4 + 1 passes without gradients; two epochs over each."""
    agent = ActorCritic(width=8)
    trainer = PpoTrainer(agent, num_environments=4)

    def run() -> list[float]:
        return [loss for _ in range(num_steps) for loss in trainer.step()]

    return Training({MODEL: agent}, run)


@program(3, Counts(3))
def policy_gradient(num_steps: int) -> Training:
    """REINFORCE: the model is called with gradients in each of four moves of an episode."""
    agent = ActorCritic(width=8)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        state, log_probs, rewards = torch.randn(4), [], []
        for _ in range(4):
            logits, _value = agent(state)
            chosen = torch.distributions.Categorical(logits=logits)
            action = chosen.sample()
            log_probs.append(chosen.log_prob(action))
            state = 0.9 * state + 0.1 * (action - 1)
            rewards.append(-state.square().mean())
        loss = -(torch.stack(log_probs) * torch.stack(rewards)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(agent, num_steps, take_step)


class Siamese(nn.Module):
    """An encoder with normalized outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.encode(x), dim=-1)


@program(3, Counts(3))
def contrastive(num_steps: int) -> Training:
    """The model is called with two views of each batch."""
    model = Siamese()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, _target = batch()
        views = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        first, second = views
        loss = F.cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(4, {"student": Counts(4), "teacher": Counts(0, 4)})
def mean_teacher(num_steps: int) -> Training:
    """The teacher is an average of the student, and is called without gradients."""
    student = mlp()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        predicted = student(x)
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        loss = F.cross_entropy(predicted, target) + F.cross_entropy(predicted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, each in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.lerp_(each, 0.1)
        return loss.item()

    training = repeated(student, num_steps, take_step)
    return Training({"student": student, "teacher": teacher}, training.run)


@program(3, {"backbone": Counts(0, 3), "head": Counts(3)})
def features_of_a_frozen_backbone(num_steps: int) -> Training:
    """The backbone is called without gradients, and the head is trained on its output."""
    backbone, head = mlp(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        with torch.no_grad():
            features = backbone(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(head(features), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    training = repeated(head, num_steps, take_step)
    return Training({"backbone": backbone, "head": head}, training.run)


@program(3, {"model": Counts(3, 2), "average": Counts(0, 2)}, needs=("timm",), is_slow=True)
def timm_with_average(num_steps: int) -> Training:
    """A model of timm with its ``ModelEmaV3``; both are validated at the end, on two batches."""
    from timm import create_model
    from timm.utils import ModelEmaV3

    model = create_model("test_resnet", num_classes=3)
    average = ModelEmaV3(model, decay=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> list[float]:
        losses = []
        for index in range(num_steps):
            x, target = torch.randn(2, 3, 32, 32), torch.randint(3, (2,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            average.update(model, step=index)
            losses.append(loss.item())
        with torch.no_grad():
            for each in (model.eval(), average.module.eval()):
                losses += [each(torch.randn(2, 3, 32, 32)).sum().item() for _ in range(2)]
        return losses

    return Training({"model": model, "average": average.module}, run)


@program(3, Counts(3))
def several_backward_passes(num_steps: int) -> Training:
    """Two losses of one forward pass have their own backward passes."""
    model = ActorCritic(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        logits, values = model(torch.randn(8, 4))
        optimizer.zero_grad()
        first, second = logits.square().mean(), (values - 1).square().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first.item() + second.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def list_of_losses(num_steps: int) -> Training:
    """``torch.autograd.backward`` is called with two losses."""
    model = ActorCritic(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        logits, values = model(torch.randn(8, 4))
        optimizer.zero_grad()
        losses = [logits.square().mean(), (values - 1).square().mean()]
        torch.autograd.backward(losses)
        optimizer.step()
        return sum(each.item() for each in losses)

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def optimizers_of_parts(num_steps: int) -> Training:
    """One forward pass, and an optimizer for each half of the model."""
    model = mlp()
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[3].parameters(), lr=1e-2),
    ]

    def take_step(_: int) -> float:
        x, target = batch()
        loss = F.cross_entropy(model(x), target)
        model.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, {"online": Counts(3, 3), "target": Counts(0, 3)})
def q_learning(num_steps: int) -> Training:
    """DQN: the online network chooses an action and learns; a copy of it gives the targets."""
    online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    target = copy.deepcopy(online).eval()
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    states = [torch.randn(4)]

    def take_step(_: int) -> float:
        with torch.no_grad():
            action = online(states[-1]).argmax()
        states.append(0.9 * states[-1] + 0.1 * (action - 1))
        before, after = torch.stack(states[:-1]), torch.stack(states[1:])
        with torch.no_grad():
            wanted = -after.square().mean(-1) + 0.9 * target(after).amax(-1)
        loss = F.smooth_l1_loss(online(before).amax(-1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target.load_state_dict(online.state_dict())
        return loss.item()

    training = repeated(online, num_steps, take_step)
    return Training({"online": online, "target": target}, training.run)


@program(4, Counts(4, 2), needs=("peft",), is_slow=True)
def low_rank_adapters(num_steps: int) -> Training:
    """LoRA by peft; the adapters are merged for a validation, and taken out again."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(mlp(), LoraConfig(r=2, target_modules=["0", "3"]))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)

    def take_step(index: int) -> float:
        x, target = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        if index % 2:
            model.merge_adapter()
            validate(model, 1)
            model.unmerge_adapter()
        return loss.item()

    return repeated(model, num_steps, take_step)
