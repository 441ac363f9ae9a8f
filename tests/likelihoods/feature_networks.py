"""Tiny networks and files of VGG19's layout for the tests of the perceptual likelihood."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

# Copied from the printed layout of torchvision's vgg19().features: (name, index of its convolution).
VGG_LAYERS = {
    "1_1": 0, "1_2": 2, "2_1": 5, "2_2": 7, "3_1": 10, "3_2": 12, "3_3": 14, "3_4": 16,
    "4_1": 19, "4_2": 21, "4_3": 23, "4_4": 25, "5_1": 28, "5_2": 30, "5_3": 32, "5_4": 34,
}  # fmt: skip


class Eyes(nn.Module):
    """Two convolutions with all that must not happen in a frozen network: dropout, batch statistics, in-place work."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.bend = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Conv2d(3, 4, 3, stride=2)
        self.end = nn.Linear(4, 2)
        self.runs_to_the_end = 0

    def forward(self, x: Tensor) -> Tensor:
        maps = self.second(self.drop(self.bend(self.norm(self.first(x)))))
        self.runs_to_the_end += 1
        return self.end(maps.mean((2, 3)))


def eyes(channels: int = 1, seed: int = 3) -> Eyes:
    """One with weights of its own and batch statistics that differ from the defaults; in training mode, as built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Eyes(channels)
        network.norm.running_mean.uniform_(-0.3, 0.3)
        network.norm.running_var.uniform_(0.5, 2.0)
    return network


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """A convolution in loops: x (channels, h, w), weight (out, channels, k, k)."""
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    size = weight.shape[2]
    height, width = ((n - size) // stride + 1 for n in padded.shape[1:])
    maps = np.zeros((len(weight), height, width))
    for o in range(len(weight)):
        for i in range(height):
            for j in range(width):
                patch = padded[:, i * stride : i * stride + size, j * stride : j * stride + size]
                maps[o, i, j] = float((patch * weight[o]).sum()) + bias[o]
    return maps


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def eyes_features(network: Eyes, image: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of `first` and `second` for one image, in loops, in evaluation mode."""
    first = convolve(image, numbers(network.first.weight), numbers(network.first.bias), 1, 1)
    norm = network.norm
    scale = numbers(norm.weight) / np.sqrt(numbers(norm.running_var) + norm.eps)
    shift = numbers(norm.bias) - numbers(norm.running_mean) * scale
    bent = np.maximum(first * scale[:, None, None] + shift[:, None, None], 0.0)
    return {
        "first": first,
        "second": convolve(bent, numbers(network.second.weight), numbers(network.second.bias), 2, 0),
    }


def vgg_state(widths: tuple[int, ...] = (2, 3, 2, 3, 2), seed: int = 0) -> dict[str, Tensor]:
    """A state dict with VGG19's names and few channels, one width per block."""
    generator, channels, state = torch.Generator().manual_seed(seed), 3, {}
    for name, index in VGG_LAYERS.items():
        width = widths[int(name[0]) - 1]
        state[f"features.{index}.weight"] = torch.randn(width, channels, 3, 3, generator=generator) / 3.0
        state[f"features.{index}.bias"] = torch.randn(width, generator=generator) / 3.0
        channels = width
    return state | {"classifier.0.weight": torch.randn(2, 2, generator=generator)}


def write_vgg(folder: Path, kind: str = "pth", seed: int = 0) -> Path:
    file = folder / f"vgg19.{kind}"
    if kind == "safetensors":
        save_file(vgg_state(seed=seed), file)
    else:
        torch.save(vgg_state(seed=seed), file)
    return file
