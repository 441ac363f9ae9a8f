"""The convolutions of VGG19 (Simonyan and Zisserman 2015), with weights from a file the user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

CONVOLUTIONS = (2, 2, 4, 4, 4)  # per block; a pooling layer between blocks
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, on which the weights were trained


class VGG19(nn.Module):
    """Grey or colour images in [0, 1] to feature maps; layers conv1_1, relu1_1, ..., pool1, ..., relu5_4.

    Args:
        file: weights under torchvision's names (features.0.weight, features.0.bias, ...), as .safetensors or
            as written by torch.save; other entries are ignored. Widths are taken from the file.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, file: str | os.PathLike[str]) -> None:
        super().__init__()
        self.file = Path(file).resolve()
        weights = read_weights(self.file)
        channels = 3
        for block, number, index in layout():
            if number == 1 and block > 1:
                self.add_module(f"pool{block - 1}", nn.MaxPool2d(2))
            weight, bias = (_checked(weights, f"features.{index}.{part}", self.file) for part in ("weight", "bias"))
            if weight.shape[1:] != (channels, 3, 3) or bias.shape != weight.shape[:1]:
                raise ValueError(
                    f"expected features.{index} of VGG19 in {self.file} to be (n, {channels}, 3, 3) weights with n "
                    f"biases, got {tuple(weight.shape)} and {tuple(bias.shape)}; take the file of torchvision's vgg19"
                )
            channels = len(weight)
            convolution = nn.Conv2d(weight.shape[1], channels, 3, padding=1)
            convolution.load_state_dict({"weight": weight, "bias": bias})
            # Faster on CPUs in this memory order.
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
            self.add_module(f"conv{block}_{number}", convolution)
            self.add_module(f"relu{block}_{number}", nn.ReLU())
        self.register_buffer("mean", torch.tensor(MEAN).reshape(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).reshape(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"VGG19 takes images of 1 or 3 channels, got samples of shape {tuple(images.shape[1:])}; "
                "give channels first or another network"
            )
        # Grey images are broadcast to three channels, (B, 3, height, width).
        maps = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        for layer in self.children():
            maps = layer(maps)
        return maps


def layout() -> Iterator[tuple[int, int, int]]:
    """(block, number in it, torchvision's index) of each convolution; ReLU and pooling layers count in the index."""
    index = 0
    for block, count in enumerate(CONVOLUTIONS, start=1):
        for number in range(1, count + 1):
            yield block, number, index
            index += 2
        index += 1


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors by name; nothing in the file is executed."""
    if not file.is_file():
        raise FileNotFoundError(f"expected VGG19 weights at {file}, found no file; name torchvision's vgg19 file")
    if file.suffix == ".safetensors":
        try:
            with safe_open(str(file), framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys() if name.startswith("features.")}  # noqa: SIM118
        except SafetensorError:
            raise ValueError(f"{file} is cut short or not a safetensors file; get it again") from None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch.load fails in many ways on a bad file
        raise ValueError(
            f"{file} is cut short or not a file of tensors written by torch.save; get it again, or name a .safetensors"
        ) from None
    return content if isinstance(content, dict) else {}


def _checked(weights: dict[str, Tensor], name: str, file: Path) -> Tensor:
    found = weights.get(name)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise ValueError(f"expected {name} of VGG19 in {file}, found none; take the file of torchvision's vgg19")
    if not torch.isfinite(found).all():
        raise ValueError(f"expected finite numbers in {name} of {file}, got NaN or infinity; get the file again")
    return found.float()
