"""The pixel-shuffle decoder: sizes, memory layout, and its convolutions against plain loops."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from gppvae.nets.build import build_networks
from gppvae.nets.shuffle import Residual, ShuffledConv2d, ShuffleDecoder
from nets.alike import assert_alike


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (3, 8, 12), (1, 9, 11), (2, 10, 13), (1, 7, 7), (4, 33, 5), (1, 4, 4), (1, 1, 3)]
)
@pytest.mark.parametrize("width", [1, 6])
def test_images_have_the_size_asked_for(shape: tuple[int, int, int], width: int) -> None:
    decoder = ShuffleDecoder(shape, 3, width)
    assert decoder.grid == (width, int(np.ceil(shape[1] / 4)), int(np.ceil(shape[2] / 4)))
    for batch in (1, 5):
        assert decoder(torch.randn(batch, 3)).shape == (batch, *shape)


def conv_by_loops(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3 x 3 convolution with zero padding, (C_in, h, w) -> (C_out, h, w)."""
    _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    out = np.zeros((len(weight), height, width))
    for c in range(len(weight)):
        for i in range(height):
            for j in range(width):
                out[c, i, j] = np.sum(padded[:, i : i + 3, j : j + 3] * weight[c]) + bias[c]
    return out


def shuffle_by_loops(x: np.ndarray) -> np.ndarray:
    """(4 C, h, w) -> (C, 2 h, 2 w): four channels become the four pixels of a 2 x 2 block."""
    channels, height, width = len(x) // 4, x.shape[1], x.shape[2]
    out = np.zeros((channels, 2 * height, 2 * width))
    for c in range(channels):
        for i in range(2 * height):
            for j in range(2 * width):
                out[c, i, j] = x[4 * c + 2 * (i % 2) + j % 2, i // 2, j // 2]
    return out


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def test_the_output_is_that_of_loops() -> None:
    decoder = ShuffleDecoder((2, 9, 10), 4, width=3).double()
    z = torch.randn(2, 4, dtype=torch.float64)
    got = decoder(z).detach().numpy()
    state = {name: value.numpy() for name, value in decoder.state_dict().items()}
    first, second, third = ((state[f"convolutions.{k}.weight"], state[f"convolutions.{k}.bias"]) for k in (1, 4, 6))
    for n in range(2):
        grid = (state["dense.weight"] @ z[n].numpy() + state["dense.bias"]).reshape(3, 3, 3)
        half = shuffle_by_loops(conv_by_loops(silu(grid), *first))
        full = shuffle_by_loops(conv_by_loops(silu(conv_by_loops(silu(half), *second)), *third))
        np.testing.assert_allclose(got[n], full[:, :9, :10], rtol=1e-9, atol=1e-12)


def residual_by_loops(x: np.ndarray, state: dict[str, np.ndarray], where: str) -> np.ndarray:
    first, second = ((state[f"{where}.{k}.weight"], state[f"{where}.{k}.bias"]) for k in (1, 3))
    return x + conv_by_loops(silu(conv_by_loops(silu(x), *first)), *second)


def test_the_output_with_residual_blocks_is_that_of_loops() -> None:
    decoder = ShuffleDecoder((1, 6, 7), 4, width=3, grid_width=5, blocks=(2, 1)).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    z = torch.randn(2, 4, dtype=torch.float64)
    got = decoder(z).detach().numpy()
    state = {name: value.numpy() for name, value in decoder.state_dict().items()}
    plain = {k: (state[f"convolutions.{k}.weight"], state[f"convolutions.{k}.bias"]) for k in (3, 7, 9)}
    for n in range(2):
        grid = (state["dense.weight"] @ z[n].numpy() + state["dense.bias"]).reshape(5, 2, 2)
        for block in (0, 1):
            grid = residual_by_loops(grid, state, f"convolutions.{block}.layers")
        half = residual_by_loops(shuffle_by_loops(conv_by_loops(silu(grid), *plain[3])), state, "convolutions.5.layers")
        full = shuffle_by_loops(conv_by_loops(silu(conv_by_loops(silu(half), *plain[7])), *plain[9]))
        np.testing.assert_allclose(got[n], full[:, :6, :7], rtol=1e-9, atol=1e-12)


def test_residual_blocks_start_as_the_identity_after_weights_are_drawn_too() -> None:
    for generator in (None, torch.Generator().manual_seed(1)):
        _, decoder = build_networks("image", (1, 28, 28), 4, generator=generator)
        assert isinstance(decoder, ShuffleDecoder) and decoder.grid == (64, 7, 7)
        blocks = [layer for layer in decoder.modules() if isinstance(layer, Residual)]
        assert len(blocks) == 2
        for block, channels in zip(blocks, (64, 32), strict=True):
            x = torch.randn(2, channels, 3, 3)
            assert torch.equal(block(x), x)
            assert block.layers[1].weight.abs().max() > 0  # so that the last convolution has a gradient


def layouts(decoder: ShuffleDecoder) -> list[bool]:
    weights = [value for name, value in decoder.named_parameters() if value.ndim == 4]
    assert len(weights) == 3
    return [weight.is_contiguous(memory_format=torch.channels_last) for weight in weights]


def test_channels_last_weights_survive_a_state_dict() -> None:
    decoder, twin = ShuffleDecoder((1, 13, 9), 3, 8), ShuffleDecoder((1, 13, 9), 3, 8)
    assert layouts(decoder) == [True, True, True]
    z = torch.randn(4, 3)
    want = decoder(z)
    assert not torch.equal(twin(z), want)
    twin.load_state_dict(decoder.state_dict())
    assert layouts(twin) == [True, True, True]
    assert torch.equal(twin(z), want)
    kept = io.BytesIO()
    torch.save(decoder.state_dict(), kept)
    kept.seek(0)
    plain = {name: value.contiguous() for name, value in torch.load(kept, weights_only=True).items()}
    twin.load_state_dict(plain)  # as files hold them, in the order of their indices
    assert layouts(twin) == [True, True, True]
    assert torch.equal(twin(z), want)


def test_images_of_a_batch_do_not_mix_and_gradients_reach_all_weights() -> None:
    decoder = ShuffleDecoder((1, 10, 7), 3, 5)
    z = torch.randn(4, 3, requires_grad=True)
    out = decoder(z)
    torch.testing.assert_close(decoder(z[1:2]), out[1:2], rtol=1e-4, atol=1e-6)
    (slope,) = torch.autograd.grad(out[1].square().sum(), z, retain_graph=True)
    assert slope[1].abs().min() > 0 and not slope[[0, 2, 3]].any()
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in decoder.parameters())


@pytest.mark.parametrize("channels", [(8, 1), (3, 5), (6, 16)])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_convolution_and_shuffle_in_one(channels: tuple[int, int], memory: torch.memory_format) -> None:
    """Values and gradients are those of one after the other, with the same stored weights."""
    torch.manual_seed(0)
    layer = ShuffledConv2d(*channels).double()
    plain = nn.Sequential(nn.Conv2d(channels[0], 4 * channels[1], 3, padding=1), nn.PixelShuffle(2)).double()
    plain[0].load_state_dict(layer.state_dict())
    x = torch.randn(2, channels[0], 5, 3, dtype=torch.float64).contiguous(memory_format=memory)
    assert_alike(layer, plain, x, (2, channels[1], 10, 6))


def test_shuffled_maps_stay_in_channels_last_memory() -> None:
    decoder = ShuffleDecoder((3, 16, 16), 4, 6)
    assert isinstance(decoder.convolutions[1], ShuffledConv2d)
    maps = decoder.convolutions[1](torch.randn(2, 6, 4, 4).contiguous(memory_format=torch.channels_last))
    assert maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()
