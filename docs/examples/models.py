"""The models of the examples."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A small network for images."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.block = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.block(self.stem(image)).mean((2, 3)))


class Tagger(nn.Module):
    """A network for token ids and a weight for each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.encoder = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, 5)

    def forward(self, ids: Tensor, weight: Tensor) -> Tensor:
        states, _ = self.encoder(self.embedding(ids) * weight[..., None])
        return self.head(torch.relu(states))
