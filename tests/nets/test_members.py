"""Ensembles inside one model: who gets which latents, the average, and what each member is trained on."""

import numpy as np
import pytest
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.inference.base import recon_nll
from gppvae.likelihoods import Gaussian
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import build_networks
from gppvae.nets.members import MemberDecoder, MemberEncoder, latents_of_members

SHAPE, SIZES, MEMBERS = (1, 8, 8), (5, 2), 2


def test_every_latent_has_one_member_and_every_group_is_divided() -> None:
    positions = latents_of_members([7, 3], 3)
    assert sorted(torch.cat(positions).tolist()) == list(range(10))
    of_first_group = [sum(place < 7 for place in own.tolist()) for own in positions]
    of_second_group = [sum(place >= 7 for place in own.tolist()) for own in positions]
    assert of_first_group == [3, 2, 2]
    assert of_second_group == [1, 1, 1]


def test_more_members_than_latents_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one latent per member, got 4 members"):
        latents_of_members([3, 2], 4)


@pytest.fixture
def networks() -> tuple[MemberEncoder, MemberDecoder]:
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = build_networks("mlp", SHAPE, 7, 6, 1, generator, members=MEMBERS, sizes=SIZES)
    assert isinstance(encoder, MemberEncoder) and isinstance(decoder, MemberDecoder)
    return encoder.double(), decoder.double()


def test_latents_are_in_the_order_of_the_groups(networks: tuple[MemberEncoder, MemberDecoder]) -> None:
    encoder, _ = networks
    y = torch.randn(3, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mean, logvar = encoder(y)
    first, second = (member(y) for member in encoder.members)
    # The first group has latents 0-4 (three and two of them), the second 5 and 6.
    for whole, one, two in zip((mean, logvar), first, second, strict=True):
        for n in range(3):
            wanted = [*one[n, :3].tolist(), *two[n, :2].tolist(), one[n, 3].item(), two[n, 2].item()]
            assert whole[n].tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_decoder_is_the_average_of_its_members(networks: tuple[MemberEncoder, MemberDecoder]) -> None:
    _, decoder = networks
    z = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    one = decoder.members[0](z[:, [0, 1, 2, 5]])
    two = decoder.members[1](z[:, [3, 4, 6]])
    np.testing.assert_allclose(decoder(z).detach(), ((one + two) / 2).detach(), atol=1e-12)


def test_each_member_is_trained_on_the_whole_sample(networks: tuple[MemberEncoder, MemberDecoder]) -> None:
    autoencoder = Autoencoder(*networks, Gaussian(0.5).double())
    y = np.random.default_rng(0).normal(size=(4, *SHAPE)).astype(np.float32)
    (batch,) = Epoch(Samples(y), Rows({}, 4), 4, None, torch.device("cpu"))
    z = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wanted = 0.0
    for out in (networks[1].members[0](z[:, [0, 1, 2, 5]]), networks[1].members[1](z[:, [3, 4, 6]])):
        for n in range(4):
            for value, guess in zip(y[n].ravel().tolist(), out[n].detach().flatten().tolist(), strict=True):
                wanted += 0.5 * ((value - guess) ** 2 / 0.5 + np.log(2 * np.pi * 0.5))
    assert recon_nll(autoencoder, batch, z).item() == pytest.approx(wanted, rel=1e-6)


def test_members_start_differently(networks: tuple[MemberEncoder, MemberDecoder]) -> None:
    weights = [member.layers[0].weight for member in networks[0].members]
    assert not torch.equal(*weights)
