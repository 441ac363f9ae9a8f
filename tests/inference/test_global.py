"""Global inference and distillation, against the same bound written out row by row."""

import numpy as np
import pytest
import torch

import oracles
from gppvae.inference import Distill, Global
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import DiagonalCovariance, LatentPosterior
from inference.setting import (
    KERNELS,
    K,
    L,
    N,
    RowEpoch,
    assert_same_gradients,
    gradients,
    kernel_of,
    make_epoch,
    make_model,
)


def away_from_start(model: GPPriorVAE) -> Global:
    inference = Global(model)
    with torch.no_grad():
        for mean, log_std in zip(inference.means, inference.log_stds, strict=True):
            mean.copy_(torch.randn(mean.shape, dtype=torch.float64))
            log_std.add_(torch.randn(log_std.shape, dtype=torch.float64) + 3.0)
    return inference


def loop_loss(model: GPPriorVAE, inference: Global, epoch: RowEpoch) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstruction and KL, one row and one weight at a time."""
    V = kernel_of(model).features(epoch.rows)
    d = model.prior.groups[0].noise(epoch.rows, training=True).expand(N)
    (mean,), (log_std,) = inference.means, inference.log_stds
    std, recon = log_std.exp(), torch.zeros((), dtype=torch.float64)
    for n in range(N):
        draws = []
        for latent in range(L):
            f = (V[n] * mean[:, latent]).sum()
            var = (V[n] ** 2 * std[:, latent] ** 2).sum() + d[n]
            draws.append(f + var.sqrt() * epoch.eps[n, latent])
        pixel = torch.distributions.Normal(
            model.autoencoder.decoder(torch.stack(draws).unsqueeze(0))[0], model.autoencoder.likelihood.pixel_var.sqrt()
        )
        recon = recon - pixel.log_prob(epoch.y[n]).sum()
    q, p = torch.distributions.Normal(mean, std), torch.distributions.Normal(0.0, 1.0)
    return recon, torch.distributions.kl_divergence(q, p).sum()


@pytest.mark.parametrize("name", KERNELS)
def test_value_and_mean_batch_gradient(name: str) -> None:
    model = make_model(KERNELS[name]())
    inference = away_from_start(model)
    epoch = make_epoch(model, batch_size=7)
    recon, kl = loop_loss(model, inference, epoch)
    ((recon + kl + kernel_of(model).neg_log_prior()) / N).backward()
    want = gradients(model, inference)
    sums = {"recon_nll": 0.0, "gp_nll": 0.0, "penalty": 0.0, "neg_entropy": 0.0}
    for terms in inference.steps(epoch):
        assert terms.n == 7
        for key, value in terms.named().items():
            sums[key] += value.item()
    got = {name: gradient / epoch.n_batches for name, gradient in gradients(model, inference).items()}
    np.testing.assert_allclose(sums["recon_nll"], recon.item(), rtol=1e-9)
    np.testing.assert_allclose(sums["gp_nll"], kl.item(), rtol=1e-9)
    np.testing.assert_allclose(sums["penalty"], kernel_of(model).neg_log_prior().item(), rtol=1e-9)
    assert sums["neg_entropy"] == 0.0
    assert_same_gradients(got, want)
    assert not any(gradient.any() for name, gradient in got.items() if ".encoder." in name)


def test_ids_without_a_row_in_an_epoch_are_drawn_to_their_prior() -> None:
    """Weights of every id cost their KL once per epoch, also where all rows of an id are held out."""
    model = make_model(KERNELS["ids with features of their own"]())
    inference, whole = away_from_start(model), make_epoch(model)
    left = torch.nonzero(whole.rows.columns["person (id)"].index != 2).squeeze(1)
    epoch = RowEpoch(whole.y[left], whole.rows[left], whole.eps[left], 7)
    (mean,), (log_std,) = inference.means, inference.log_stds
    q = torch.distributions.Normal(mean.detach(), log_std.detach().exp())
    want = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum()
    found = sum(terms.gp_nll.item() for terms in inference.steps(epoch))
    np.testing.assert_allclose(found, want.item(), rtol=1e-9)
    own = model.prior.groups[0].places.own[2]
    assert mean.grad is not None
    per_batch = mean.detach()[own] / epoch.n_rows  # a step is on the loss per row
    np.testing.assert_allclose(mean.grad[own], per_batch * epoch.n_batches, rtol=1e-9)


def test_kl_against_the_oracle_and_weights_are_a_copy() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    inference = away_from_start(model)
    weights = inference.weights(make_epoch(model))
    mean, std = inference.means[0].detach().numpy(), inference.log_stds[0].detach().exp().numpy()
    want = sum(oracles.gaussian_kl(mean[:, latent], np.diag(std[:, latent] ** 2)) for latent in range(L))
    np.testing.assert_allclose(weights.kl().item(), want, rtol=1e-10)
    (part,) = weights.parts
    before = part.mean.clone()
    with torch.no_grad():
        inference.means[0].add_(1.0)
        inference.log_stds[0].add_(1.0)
    assert torch.equal(part.mean, before) and not part.mean.requires_grad
    assert torch.equal(part.std, torch.from_numpy(std)) and not part.std.requires_grad


def test_weights_start_at_a_draw_of_their_own_size() -> None:
    """So that f = B'v starts near 1 / H^(1/4) of its prior: by the moments of many weights."""
    model = make_model(KERNELS["learned * periodic"]())
    inference, again = Global(model), Global(model)
    assert not inference.means[0].any()
    inference.initialise(torch.Generator().manual_seed(4))
    again.initialise(torch.Generator().manual_seed(4))
    H = kernel_of(model).rank
    assert torch.equal(inference.means[0], again.means[0])
    assert 0.5 < inference.means[0].std().item() * H**0.25 < 1.6
    np.testing.assert_allclose(inference.posterior().parts[0].std.detach(), 0.01)


def test_distillation_teaches_the_encoder_and_nothing_else() -> None:
    model = make_model(KERNELS["free form * learned + linear"](), hidden=(32,))
    epoch = make_epoch(model, batch_size=7)
    kernel = kernel_of(model)
    B, std = torch.randn(kernel.rank, L, dtype=torch.float64), torch.full((kernel.rank, L), 0.1, dtype=torch.float64)
    weights, target = LatentPosterior((DiagonalCovariance(B, std),)), kernel.features(epoch.rows).detach() @ B
    epoch = RowEpoch(target @ torch.randn(L, K, dtype=torch.float64), epoch.rows, epoch.eps, 7)
    inference = Distill(model)
    inference.start(epoch, weights)

    def error() -> float:
        with torch.no_grad():
            return (model.autoencoder.encoder(epoch.y)[0] - target).square().mean().item()

    next(inference.steps(epoch))
    taught = {name for name, gradient in gradients(model).items() if gradient.any()}
    assert taught and all(name.startswith("autoencoder.encoder.") for name in taught)
    before = error()
    optimizer = torch.optim.Adam(model.autoencoder.encoder.parameters(), lr=0.03)
    for _ in range(60):
        for _ in inference.steps(epoch):
            optimizer.step()
            optimizer.zero_grad()
    assert error() < 0.1 * before
    assert inference.weights(epoch) is weights


def test_distillation_loss_is_a_gaussian_density() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model)
    weights = away_from_start(model).weights(epoch)
    inference = Distill(model)
    inference.start(epoch, weights)
    (terms,) = inference.steps(epoch)
    mean, logvar = model.autoencoder.encoder(epoch.y)
    target = kernel_of(model).features(epoch.rows) @ weights.parts[0].mean
    want = -torch.distributions.Normal(mean, (0.5 * logvar).exp()).log_prob(target).sum()
    np.testing.assert_allclose(terms.gp_nll.item(), want.item(), rtol=1e-10)
