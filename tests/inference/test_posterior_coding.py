"""GP posterior coding, against dense regression on the encoder's pseudo-observations."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.inference import PosteriorCoding
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import (
    KERNELS,
    N,
    RowEpoch,
    assert_same_gradients,
    gradients,
    make_epoch,
    make_model,
)

every_kernel = pytest.mark.parametrize("name", KERNELS)


def pseudo_observations(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder means, their noise (geometric mean over latent dimensions, plus residual), and the residual."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    residual = torch.zeros(len(epoch.y), dtype=torch.float64)
    if not model.kernel.carries_training_variance:
        V = model.kernel.features(epoch.rows).dense()
        residual = model.kernel.diag(epoch.rows) - V.square().sum(1)
    return mean, logvar.mean(1).exp() + residual, residual


def dense_terms(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor]:
    """Reconstruction and KL(q(B)) through N x N regression.

    q is the exact posterior given the pseudo-observations, so KL(q || p) = E_q log N(mu; f, D) - log N(mu; 0, K).
    """
    mean, d, residual = pseudo_observations(model, epoch)
    V = model.kernel.features(epoch.rows).dense()
    K_f = V @ V.T
    K = K_f + torch.diag(d)
    f = K_f @ torch.linalg.solve(K, mean)
    f_cov = K_f - K_f @ torch.linalg.solve(K, K_f)
    z_var = f_cov.diagonal() + model.alpha + residual
    z = f + z_var.sqrt().unsqueeze(1) * epoch.eps
    pixel_std = model.autoencoder.likelihood.pixel_var.sqrt()
    recon = -torch.distributions.Normal(model.autoencoder.decoder(z), pixel_std).log_prob(epoch.y).sum()
    at_mean = torch.distributions.Normal(f, d.sqrt().unsqueeze(1)).log_prob(mean).sum()
    expected = at_mean - 0.5 * mean.shape[1] * (f_cov.diagonal() / d).sum()
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(d), K).log_prob(mean.T).sum()
    return recon, expected - evidence


@every_kernel
def test_weights_are_the_dense_posterior(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=5)
    with torch.no_grad():
        mean, d, _ = pseudo_observations(model, epoch)
        V = model.kernel.features(epoch.rows).dense().numpy()
    K_f = V @ V.T
    want_mean, want_cov = oracles.gp_posterior(K_f + np.diag(d.numpy()), K_f, K_f, mean.numpy())
    for split in (None, *epoch.rows.columns):
        model.split = split
        weights = PosteriorCoding(model).weights(epoch)
        with torch.no_grad():
            W = model.features(epoch.rows).dense()
        np.testing.assert_allclose(weights.mean_at(W).numpy(), want_mean, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(weights.var_at(W)[:, 0].numpy(), np.diag(want_cov), rtol=1e-7, atol=1e-8)


@every_kernel
def test_full_batch_value_and_every_gradient_against_dense_autograd(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model)
    recon, kl = dense_terms(model, epoch)
    ((recon + kl + model.kernel.neg_log_prior()) / N).backward()
    want = gradients(model)
    for split in (None, *epoch.rows.columns):
        model.split = split
        inference = PosteriorCoding(model)
        inference.start(epoch, None)
        (terms,) = inference.steps(epoch)
        np.testing.assert_allclose(terms.recon_nll.item(), recon.item(), rtol=1e-8)
        np.testing.assert_allclose(terms.gp_nll.item(), kl.item(), rtol=1e-7)
        assert terms.neg_entropy.item() == 0.0 and terms.n == N
        assert_same_gradients(gradients(model), want, 1e-7)


def few_rows(epoch: RowEpoch, n: int, batch_size: int) -> RowEpoch:
    return RowEpoch(epoch.y[:n], epoch.rows[:n], epoch.eps[:n], batch_size)


def own_gradient(model: GPPriorVAE, epoch: RowEpoch) -> dict[str, Tensor]:
    """Of the reconstruction, through each row's own pseudo-observation only."""
    mean, d, _ = pseudo_observations(model, epoch)
    V = model.kernel.features(epoch.rows).dense().detach()
    K_f, pixel_std = V @ V.T, model.autoencoder.likelihood.pixel_var.sqrt()
    total = torch.zeros((), dtype=torch.float64)
    for n in range(len(epoch.y)):
        own = torch.zeros(len(epoch.y), dtype=torch.float64)
        own[n] = 1.0
        mu = mean.detach() + own.unsqueeze(1) * (mean - mean.detach())
        K = K_f + torch.diag(d.detach() + own * (d - d.detach()))
        f = K_f[n] @ torch.linalg.solve(K, mu)
        var = K_f[n, n] - K_f[n] @ torch.linalg.solve(K, K_f[n]) + model.alpha
        decoded = model.autoencoder.decoder((f + var.sqrt() * epoch.eps[n]).unsqueeze(0))[0]
        total = total - torch.distributions.Normal(decoded, pixel_std).log_prob(epoch.y[n]).sum()
    (total / len(epoch.y)).backward()
    return {name: gradient for name, gradient in gradients(model).items() if "encoder" in name.split(".")}


def test_encoder_gradient_over_all_batches() -> None:
    """Mean over every batch of 3 of 6 rows: a row acts on itself with weight 1 and on others with weight 4/5.

    Two different rows share a batch with probability (3 * 2) / (6 * 5); scaled by the 6 / 3 copies that a batch
    row stands for, and per batch row, that is (2 / 5) * 2 = 4/5. It tends to 1 as batches grow.
    """
    model = make_model(KERNELS["free form * learned + linear"]())
    epoch = few_rows(make_epoch(model), 6, 3)
    recon, kl = dense_terms(model, epoch)
    (recon / 6).backward()
    of_recon = gradients(model)
    recon, kl = dense_terms(model, epoch)
    (kl / 6).backward()
    of_kl = gradients(model)
    own = own_gradient(model, epoch)
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    totals, weights = inference._condition(epoch)
    batches = list(itertools.combinations(range(6), 3))
    for index in batches:
        inference.batch_loss(epoch.batch(torch.tensor(index)), totals, weights, epoch)
    mean = {name: gradient / len(batches) for name, gradient in gradients(model).items()}
    want = {name: own[name] + 0.8 * (of_recon[name] - own[name]) + of_kl[name] for name in own}
    assert len(want) == 4
    assert_same_gradients({name: mean[name] for name in want}, want, 1e-8)
    decoder = {name: gradient for name, gradient in of_recon.items() if "decoder" in name}
    assert_same_gradients({name: mean[name] for name in decoder}, decoder, 1e-8)


def test_running_sums_are_the_full_sums_when_nothing_moves() -> None:
    model = make_model(KERNELS["few anchors"]())
    epoch = make_epoch(model, batch_size=4)
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    before = inference.running.current()
    assert [terms.n for terms in inference.steps(epoch)] == [4, 4, 4, 4, 4, 1]
    after = inference.running.current()
    torch.testing.assert_close(after.outer, before.outer)
    assert after.sums[3] == before.sums[3] == N
