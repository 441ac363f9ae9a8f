"""Networks: shapes at many sizes, the paper's parameter counts by hand, and errors for networks that do not fit."""

import pytest
import torch
from torch import Tensor, nn

from gppvae.nets.build import NETWORKS, build_networks, check_networks
from gppvae.nets.conv import ConvDecoder, ConvEncoder, UpsampledConv2d, in_channels_last
from gppvae.nets.mlp import LinearPlusEncoder, MLPDecoder
from gppvae.nets.shuffle import ShuffleDecoder
from nets.alike import assert_alike

L = 16


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def conv(n_in: int, n_out: int) -> int:
    return n_out * (n_in * 9 + 1)


def dense(n_in: int, n_out: int) -> int:
    return n_out * (n_in + 1)


def grids(decoder: ConvDecoder) -> list[int]:
    """Height after the dense layer and after every stage's convolutions."""
    heights: list[int] = [decoder.grid[1]]
    x = torch.zeros(1, *decoder.grid)
    for layer in decoder.convolutions:
        if isinstance(layer, (nn.Upsample, UpsampledConv2d)) and x.shape[2] != heights[-1]:
            heights.append(x.shape[2])
        x = layer(x)
    return [*heights, x.shape[2]]


def test_mnist_network_is_the_papers() -> None:
    encoder, decoder = build_networks("conv", (1, 28, 28), L)
    # 28 -> 14 -> 7 -> 4: 8 channels of 4 x 4.
    assert count(encoder) == conv(1, 8) + conv(8, 8) + conv(8, 8) + dense(8 * 4 * 4, 2 * L) == 5376
    assert count(decoder) == dense(L, 8 * 4 * 4) + conv(8, 8) + conv(8, 8) + conv(8, 1) == 3417
    assert isinstance(decoder, ConvDecoder) and grids(decoder) == [4, 8, 14, 28]


def test_face_network_is_the_papers() -> None:
    encoder, decoder = build_networks("faces", (3, 128, 128), L)
    inner = 9 * conv(32, 32)
    assert count(encoder) == conv(3, 32) + inner + dense(32 * 4 * 4, 2 * L)
    assert count(decoder) == dense(L, 32 * 4 * 4) + inner + conv(32, 3)
    assert isinstance(decoder, ConvDecoder) and grids(decoder) == [4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv", (1, 28, 28)),
        ("conv", (3, 8, 8)),
        ("conv", (1, 9, 31)),
        ("conv", (2, 12, 12)),
        ("conv", (1, 28, 32)),
        ("conv", (1, 65, 17)),
        ("wide", (1, 28, 28)),
        ("wide", (3, 10, 13)),
        ("faces", (3, 128, 128)),
        ("faces", (3, 100, 75)),
        ("faces", (1, 124, 124)),
        ("faces", (1, 8, 8)),
        ("mlp", (7,)),
        ("mlp", (1, 5, 6)),
        ("auto", (1, 16, 16)),
        ("auto", (40,)),
    ],
)
def test_networks_fit_samples_of_any_size(name: str, shape: tuple[int, ...]) -> None:
    encoder, decoder = build_networks(name, shape, 3)
    mean, logvar = encoder(torch.randn(2, *shape))
    assert mean.shape == logvar.shape == (2, 3)
    y = decoder(torch.randn(2, 3))
    assert y.shape == (2, *shape)
    check_networks(encoder, decoder, shape, 3)


@pytest.mark.parametrize(("name", "shape"), [("conv", (1, 12, 12)), ("wide", (1, 13, 9)), ("mlp", (6,))])
def test_every_parameter_and_output_is_in_use(name: str, shape: tuple[int, ...]) -> None:
    encoder, decoder = build_networks(name, shape, 3)
    mean, logvar = encoder(torch.randn(4, *shape))
    (mean.square().sum() + logvar.square().sum()).backward()
    decoder(torch.randn(4, 3)).square().sum().backward()
    for parameter in [*encoder.parameters(), *decoder.parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
    assert decoder(torch.randn(4, 3)).std(0).min() > 0  # every value depends on z


def test_signals_keep_their_size_through_the_face_network() -> None:
    """Ten layers: with torch's default start less than a hundredth of the variance comes out."""
    torch.manual_seed(0)
    _, decoder = build_networks("faces", (3, 64, 64), 256)
    maps = torch.randn(16, 32, 8, 8)
    with torch.no_grad():
        for layer in decoder.convolutions:
            before, maps = maps, layer(maps)
            if isinstance(layer, torch.nn.Conv2d) and layer.out_channels == 32:
                ratio = float(maps.square().mean() / before.square().mean())
                assert 1.2 < ratio < 2.0, "a convolution makes up for what the ELU before or after it takes"
        assert 0.2 < float(maps.std()) < 3.0


def test_width_sets_the_channels() -> None:
    encoder, decoder = build_networks("conv", (1, 28, 28), L, width=5)
    assert count(encoder) == conv(1, 5) + 2 * conv(5, 5) + dense(5 * 16, 2 * L)
    assert count(decoder) == dense(L, 5 * 16) + 2 * conv(5, 5) + conv(5, 1)


def test_mlp_counts_and_linear_case() -> None:
    encoder, decoder = build_networks("mlp", (7,), 3)
    assert count(encoder) == dense(7, 128) + dense(128, 128) + dense(128, 6)
    assert count(decoder) == dense(3, 128) + dense(128, 128) + dense(128, 7)
    line = MLPDecoder((7,), 3, hidden=())
    z = torch.randn(5, 3)
    torch.testing.assert_close(line(z), z @ line.layers[0].weight.T + line.layers[0].bias)


def test_auto_chooses_by_the_samples() -> None:
    encoder, decoder = build_networks("auto", (1, 16, 16), 2)
    assert isinstance(encoder, ConvEncoder) and isinstance(decoder, ShuffleDecoder)
    assert isinstance(build_networks("auto", (16,), 2)[0], LinearPlusEncoder)
    assert isinstance(build_networks("auto", (1, 5, 16), 2)[0], LinearPlusEncoder)  # too small to halve three times


@pytest.mark.parametrize(("side", "grid"), [(28, 7), (64, 16), (65, 9), (128, 16), (256, 16)])
def test_the_image_network_grows_with_the_image(side: int, grid: int) -> None:
    _, decoder = build_networks("image", (3, side, side - 4), 5)
    assert isinstance(decoder, ShuffleDecoder) and decoder.grid[1] == grid
    assert decoder(torch.zeros(2, 5)).shape == (2, 3, side, side - 4)


def test_the_vector_network_starts_linear() -> None:
    encoder, decoder = build_networks("vector", (7,), 3, generator=torch.Generator().manual_seed(0))
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    torch.testing.assert_close(decoder(a) + decoder(b), decoder(a + b) + decoder(torch.zeros(5, 3)))
    y, other = torch.randn(5, 7), torch.randn(5, 7)
    torch.testing.assert_close(encoder(y)[0] + encoder(other)[0], encoder(y + other)[0] + encoder(torch.zeros(5, 7))[0])


def test_samples_of_a_batch_do_not_mix() -> None:
    encoder, decoder = build_networks("conv", (1, 12, 12), 3)
    y, z = torch.randn(4, 1, 12, 12), torch.randn(4, 3)
    torch.testing.assert_close(encoder(y)[0][2:3], encoder(y[2:3])[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(decoder(z)[2:3], decoder(z[2:3]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (1, 28, 28), f"one of {', '.join(NETWORKS)}, got 'resnet'"),
        ("conv", (12,), r"needs images .* got samples of shape \(12,\); use network='vector'"),
        ("faces", (1, 7, 28), r"8 x 8 or more, got \(7, 28\); use network='vector'"),
    ],
)
def test_networks_that_cannot_be_built_are_explained(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_networks(name, shape, 2)


class Returns(nn.Module):
    """A network that returns what it is told, whatever comes in."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.shapes = shapes

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = tuple(torch.zeros(shape) for shape in self.shapes)
        return outputs if len(outputs) > 1 else outputs[0]


@pytest.mark.parametrize(
    ("encoder", "decoder", "error", "message"),
    [
        (Returns((2, 3)), Returns((2, 5)), TypeError, r"encoder must return \(mean, logvar\), got Tensor"),
        (Returns((2, 4), (2, 3)), Returns((2, 5)), ValueError, r"encoder's mean .* \(batch, 3\), got \(2, 4\)"),
        (Returns((2, 3), (2, 6)), Returns((2, 5)), ValueError, r"encoder's logvar .* got \(2, 6\)"),
        (Returns((2, 3), (2, 3)), Returns((2, 6)), ValueError, r"decoder must return .*\(batch, 5\), got \(2, 6\)"),
    ],
)
def test_own_networks_that_do_not_fit_are_explained(
    encoder: nn.Module, decoder: nn.Module, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_networks(encoder, decoder, (5,), 3)
    assert check_networks(Returns((2, 3), (2, 3)), Returns((2, 5)), (5,), 3) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_maps_stay_in_one_order_of_memory(channels: int) -> None:
    """Images of one channel fit both orders; the encoder's maps must follow its weights all the same."""
    y = torch.rand(4, channels, 12, 8, generator=torch.Generator().manual_seed(0))
    placed = in_channels_last(y)
    torch.testing.assert_close(placed, y, rtol=0.0, atol=0.0)
    encoder = ConvEncoder((channels, 12, 8), 2)
    maps = encoder.convolutions[0](placed)
    assert maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()
    weight, bias = encoder.convolutions[0].weight.detach().contiguous(), encoder.convolutions[0].bias
    want = torch.nn.functional.conv2d(y, weight, bias, stride=2, padding=1)
    torch.testing.assert_close(maps, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [(8, 1), (3, 5)])
def test_upsampling_and_convolution_in_one(channels: tuple[int, int]) -> None:
    """Values and gradients are those of one after the other, borders too."""
    torch.manual_seed(0)
    layer, x = UpsampledConv2d(*channels).double(), torch.randn(2, channels[0], 5, 3, dtype=torch.float64)
    plain = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(*channels, 3, padding=1)).double()
    plain[1].load_state_dict(layer.state_dict())
    assert_alike(layer, plain, x, (2, channels[1], 10, 6))
