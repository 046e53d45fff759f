"""Small models whose training step takes 1 to 10 ms, for tests and for the benchmark of small steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Gan(nn.Module):
    """A generator and a discriminator, each of which is called by itself."""

    def __init__(self, noise: int = 16, width: int = 64, size: int = 32) -> None:
        super().__init__()
        self.noise, self.size = noise, size
        self.generator = nn.Sequential(
            nn.Linear(noise, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, size),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(size, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 1),
        )


class GanTrainer:
    """Non-saturating losses: the discriminator's update, then the generator's."""

    def __init__(self, gan: Gan, batch_size: int = 32) -> None:
        self.gan, self.batch_size = gan, batch_size
        betas = (0.5, 0.999)
        self._discriminating = torch.optim.Adam(gan.discriminator.parameters(), 2e-4, betas)
        self._generating = torch.optim.Adam(gan.generator.parameters(), 2e-4, betas)

    def step(self) -> list[float]:
        """Return the loss of the discriminator and that of the generator."""
        gan = self.gan
        real = torch.randn(self.batch_size, gan.size).tanh()
        fake = gan.generator(torch.randn(self.batch_size, gan.noise))
        wrong = F.softplus(-gan.discriminator(real)) + F.softplus(gan.discriminator(fake.detach()))
        discriminating = wrong.mean()
        self._discriminating.zero_grad()
        discriminating.backward()
        self._discriminating.step()

        fake = gan.generator(torch.randn(self.batch_size, gan.noise))
        generating = F.softplus(-gan.discriminator(fake)).mean()
        self._generating.zero_grad()
        generating.backward()
        self._generating.step()
        return [discriminating.item(), generating.item()]


class MessagePassing(nn.Module):
    """A layer of a graph network: the mean of what the neighbors send is added to each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], -1)))
        received = torch.zeros_like(nodes).index_add(0, target, messages)
        degree = torch.zeros(len(nodes)).index_add(0, target, torch.ones(len(target)))
        mean = received / degree.clamp(min=1)[:, None]
        return self.norm(nodes + F.relu(self.update(torch.cat([nodes, mean], -1))))


class GraphNet(nn.Module):
    """A node classifier with several layers of messages."""

    def __init__(
        self, num_features: int = 16, width: int = 32, num_layers: int = 4, num_classes: int = 5
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(num_features, width)
        self.layers = nn.ModuleList(MessagePassing(width) for _ in range(num_layers))
        self.classify = nn.Linear(width, num_classes)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        nodes = F.relu(self.embed(features))
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return self.classify(nodes)


class Graph(NamedTuple):
    """A random graph with features and classes of its nodes."""

    features: Tensor
    edges: Tensor
    classes: Tensor

    @classmethod
    def random(cls, num_nodes: int = 100, num_edges: int = 400) -> Graph:
        """Draw a graph."""
        edges = torch.randint(num_nodes, (2, num_edges))
        return cls(torch.randn(num_nodes, 16), edges, torch.randint(5, (num_nodes,)))


class ActorCritic(nn.Module):
    """A trunk with two heads: logits of actions, and the value of a state."""

    def __init__(self, state_size: int = 4, width: int = 64, num_actions: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(state_size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.policy = nn.Linear(width, num_actions)
        self.value = nn.Linear(width, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.trunk(states)
        return self.policy(shared), self.value(shared).squeeze(-1)


class Rollout(NamedTuple):
    """States and actions of several environments over time, with what the agent knew then."""

    states: Tensor
    actions: Tensor
    log_probs: Tensor
    returns: Tensor
    advantages: Tensor


class PpoTrainer:
    """Proximal policy optimization in an environment where each action pushes the state."""

    def __init__(
        self,
        agent: nn.Module,
        *,
        num_steps: int = 4,
        num_epochs: int = 2,
        num_environments: int = 16,
    ) -> None:
        self.agent, self.num_steps, self.num_epochs = agent, num_steps, num_epochs
        self._optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
        self._state = torch.randn(num_environments, 4)

    def step(self) -> list[float]:
        """Return the losses of the epochs over a new rollout."""
        rollout = self._play()
        return [self._learn(rollout) for _ in range(self.num_epochs)]

    @torch.no_grad()
    def _play(self) -> Rollout:
        states, actions, log_probs, values, rewards = [], [], [], [], []
        for _ in range(self.num_steps):
            logits, value = self.agent(self._state)
            chosen = torch.distributions.Categorical(logits=logits)
            action = chosen.sample()
            states.append(self._state)
            actions.append(action)
            log_probs.append(chosen.log_prob(action))
            values.append(value)
            self._state = 0.9 * self._state + 0.1 * (action - 1)[:, None]
            rewards.append(-self._state.square().mean(-1))
        _, following = self.agent(self._state)
        returns = []
        for reward in reversed(rewards):
            following = reward + 0.9 * following
            returns.append(following)
        expected = torch.stack(returns[::-1])
        advantages = (expected - torch.stack(values)).flatten()
        return Rollout(
            torch.cat(states),
            torch.cat(actions),
            torch.cat(log_probs),
            expected.flatten(),
            (advantages - advantages.mean()) / (advantages.std() + 1e-6),
        )

    def _learn(self, rollout: Rollout) -> float:
        logits, values = self.agent(rollout.states)
        chosen = torch.distributions.Categorical(logits=logits)
        ratio = (chosen.log_prob(rollout.actions) - rollout.log_probs).exp()
        clipped = ratio.clamp(0.8, 1.2)
        gain = torch.minimum(ratio * rollout.advantages, clipped * rollout.advantages).mean()
        loss = F.mse_loss(values, rollout.returns) - gain - 0.01 * chosen.entropy().mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self._optimizer.step()
        return loss.item()
