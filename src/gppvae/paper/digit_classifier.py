"""A small convolutional classifier of digits, trained in seconds, whose features serve a perceptual likelihood."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.nets.conv import channels_last, in_channels_last
from gppvae.training.threads import one_thread

N_HELD_OUT = 500
BATCH = 64


class DigitClassifier(nn.Module):
    """Images (B, 1, 28, 28) to logits of ten digits; features are relu1 (28 x 28), relu2 (14 x 14), relu3 (7 x 7)."""

    def __init__(self, channels: tuple[int, int, int] = (8, 16, 32)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels[0], 3, padding=1)
        self.relu1, self.pool1 = nn.ReLU(), nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, padding=1)
        self.relu2, self.pool2 = nn.ReLU(), nn.MaxPool2d(2)
        self.conv3, self.relu3 = nn.Conv2d(channels[1], channels[2], 3, padding=1), nn.ReLU()
        self.dense = nn.Linear(channels[2] * 7 * 7, 10)
        channels_last(nn.Sequential(self.conv1, self.conv2, self.conv3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pool1(self.relu1(self.conv1(in_channels_last(images))))
        maps = self.pool2(self.relu2(self.conv2(maps)))
        return self.dense(self.relu3(self.conv3(maps)).flatten(1))


def train_classifier(
    images: np.ndarray, labels: np.ndarray, seed: int = 0, epochs: int = 8, lr: float = 2e-3
) -> tuple[DigitClassifier, float]:
    """Fit the classifier to upright digits in [0, 1]; it, and its accuracy on 500 held-out ones."""
    order = np.random.default_rng(seed).permutation(len(images))
    x = torch.from_numpy(images[order].astype(np.float32)).unsqueeze(1)
    t = torch.from_numpy(labels[order])
    n = len(x) - N_HELD_OUT
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        model = DigitClassifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(epochs):
            for index in torch.randperm(n).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[index]), t[index]).backward()
                optimizer.step()
        with torch.no_grad():
            correct = (model(x[n:]).argmax(1) == t[n:]).float().mean()
    return model.eval(), float(correct)
