"""Latents of rows given observed values, against dense Gaussian conditioning; noise covariances against simulations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gppvae.inference.observation_weight import HiddenValues, choose_trust, hide_as_elsewhere, hide_sides
from gppvae.inference.row_latents import Observed, RowLatents
from gppvae.inference.value_noise import noise_covariance, rows_per_pair
from gppvae.likelihoods import Gaussian, NegativeBinomial
from gppvae.models.vae import Autoencoder

B, L, K = 5, 3, 6
RNG = np.random.default_rng(0)


def linear_decoder() -> tuple[nn.Linear, np.ndarray, np.ndarray]:
    torch.manual_seed(0)
    decoder = nn.Linear(L, K).double()
    return decoder, decoder.weight.detach().numpy(), decoder.bias.detach().numpy()


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Samples, masks, and means and variances of latents; one row without any observed value, one complete."""
    y, mask = RNG.normal(size=(B, K)), RNG.random((B, K)) < 0.6
    mask[0], mask[1] = False, True
    return y, mask, RNG.normal(size=(B, L)), RNG.uniform(0.2, 2.0, size=(B, L))


def observed(y: np.ndarray, mask: np.ndarray, mean: np.ndarray, var: np.ndarray) -> Observed:
    t = torch.from_numpy
    return Observed(t(np.where(mask, y, 0.0)), t(mask), None, t(mean), t(var))


def dense(y, mask, mean, var, W, b, psi, carried=0.0, unsure=0.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of all values given the observed ones: conditioning of N(W m + b + r, W S W' + (1 + u) Psi)."""
    means, variances = np.empty((B, K)), np.empty((B, K))
    r, u = np.broadcast_to(carried, (B, K)), np.broadcast_to(unsure, B)
    for n in range(B):
        centre, C, o = W @ mean[n] + b + r[n], W @ np.diag(var[n]) @ W.T + (1.0 + u[n]) * psi, mask[n]
        gain = C[:, o] @ np.linalg.inv(C[np.ix_(o, o)])
        means[n] = centre + gain @ (y[n, o] - centre[o])
        variances[n] = np.diag(C - gain @ C[o])
    return means, variances


@pytest.mark.parametrize("correlated", [False, True])
def test_a_linear_decoder_gives_the_conditional_gaussian(correlated: bool) -> None:
    decoder, W, b = linear_decoder()
    y, mask, mean, var = problem()
    root = RNG.normal(size=(K, K))
    psi = root @ root.T / K + 0.2 * np.eye(K) if correlated else 0.3 * np.eye(K)
    likelihood = Gaussian(0.3).double()
    noise = torch.from_numpy(psi) if correlated else None
    found = RowLatents(Autoencoder(nn.Identity(), decoder, likelihood), likelihood, observed(y, mask, mean, var), noise)
    filled = found.moments()
    want_mean, want_var = dense(y, mask, mean, var, W, b, psi)
    total = (filled.var + filled.noise).numpy()
    np.testing.assert_allclose(filled.mean.numpy()[~mask], want_mean[~mask], atol=1e-5)
    np.testing.assert_allclose(total[~mask], want_var[~mask], atol=1e-5)
    if correlated:  # then observed values come back as they are
        np.testing.assert_allclose(filled.mean.numpy()[mask], y[mask], atol=1e-8)
        np.testing.assert_allclose(total[mask], 0.0, atol=1e-8)


@pytest.mark.parametrize("correlated", [False, True])
def test_errors_carried_over_are_part_of_the_mean_and_their_variance_has_the_form_of_the_noise(
    correlated: bool,
) -> None:
    decoder, W, b = linear_decoder()
    y, mask, mean, var = problem()
    carried, unsure = RNG.normal(size=(B, K)), np.array([0.5, 0.0, 3.0, 0.2, 1.0])
    psi = 0.3 * (0.5 * np.eye(K) + 0.5) if correlated else 0.3 * np.eye(K)
    likelihood = Gaussian(0.3).double()
    noise = torch.from_numpy(psi) if correlated else None
    known = replace(observed(y, mask, mean, var), carried=torch.from_numpy(carried), unsure=torch.from_numpy(unsure))
    found = RowLatents(Autoencoder(nn.Identity(), decoder, likelihood), likelihood, known, noise)
    filled, generator = found.moments(), torch.Generator().manual_seed(0)
    want_mean, want_var = dense(y, mask, mean, var, W, b, psi, carried, unsure)
    np.testing.assert_allclose(filled.mean.numpy()[~mask], want_mean[~mask], atol=1e-5)
    np.testing.assert_allclose(found.mean().numpy()[~mask], want_mean[~mask], atol=1e-5)
    np.testing.assert_allclose((filled.var + filled.noise).numpy()[~mask], want_var[~mask], atol=1e-5)
    plain = RowLatents(Autoencoder(nn.Identity(), decoder, likelihood), likelihood, observed(y, mask, mean, var), noise)
    np.testing.assert_allclose(filled.noise.numpy(), plain.moments().noise.numpy(), atol=1e-8)  # of the noise alone
    for include_noise in (True, False):
        draws = torch.stack([found.draw(generator, include_noise) for _ in range(4000)]).numpy()
        total = want_var if include_noise else want_var - filled.noise.numpy()
        error = (draws.mean(0) - want_mean)[~mask] / np.sqrt(total[~mask] / 4000)
        assert np.abs(error).max() < 4.5
        np.testing.assert_allclose(draws.var(0)[~mask], total[~mask], rtol=0.15)


@pytest.mark.parametrize("correlated", [False, True])
def test_draws_have_these_moments(correlated: bool) -> None:
    decoder, W, b = linear_decoder()
    y, mask, mean, var = problem()
    psi = 0.3 * (0.5 * np.eye(K) + 0.5) if correlated else 0.3 * np.eye(K)
    likelihood = Gaussian(0.3).double()
    noise = torch.from_numpy(psi) if correlated else None
    found = RowLatents(Autoencoder(nn.Identity(), decoder, likelihood), likelihood, observed(y, mask, mean, var), noise)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([found.draw(generator, include_noise=True) for _ in range(4000)]).numpy()
    want_mean, want_var = dense(y, mask, mean, var, W, b, psi)
    error = (draws.mean(0) - want_mean)[~mask] / np.sqrt(want_var[~mask] / 4000)
    assert np.abs(error).max() < 4.5
    np.testing.assert_allclose(draws.var(0)[~mask], want_var[~mask], rtol=0.15)


def test_the_mode_of_a_curved_decoder_is_a_mode() -> None:
    """The gradient of the dense -log posterior is zero there, for counts with sizes too."""
    torch.manual_seed(1)
    decoder = nn.Sequential(nn.Linear(L, 8), nn.Tanh(), nn.Linear(8, K)).double()
    likelihood = NegativeBinomial(2.0)
    likelihood.adapt((K,))
    likelihood.double()
    _, mask, mean, var = problem()
    y = RNG.poisson(4.0, size=(B, K)).astype(float)
    sizes = torch.full((B,), 30.0, dtype=torch.float64)
    known = Observed(
        *(torch.from_numpy(x) for x in (np.where(mask, y, 0.0), mask)), sizes, *map(torch.from_numpy, (mean, var))
    )
    autoencoder = Autoencoder(nn.Identity(), decoder, likelihood)
    found = RowLatents(autoencoder, likelihood, known, steps=40)
    z = found.z.clone().requires_grad_()
    out = autoencoder.decode(z, sizes)
    loss = likelihood.nll(known.y, out, known.mask) + 0.5 * ((z - known.mean).square() / known.var).sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert gradient.abs().max() < 1e-3
    torch.testing.assert_close(found.z[0], known.mean[0])  # nothing observed: the prediction


def test_a_weight_of_zero_is_the_prediction_and_a_large_one_leaves_it_aside() -> None:
    decoder, _, _ = linear_decoder()
    y, mask, mean, var = problem()
    mask[:] = True
    likelihood = Gaussian(0.3).double()
    autoencoder, known = Autoencoder(nn.Identity(), decoder, likelihood), observed(y, mask, mean, var)
    torch.testing.assert_close(RowLatents(autoencoder, likelihood, known, weight=0.0).z, known.mean)
    far = RowLatents(autoencoder, likelihood, known, weight=1e8).z
    want = torch.linalg.lstsq(decoder.weight, (known.y - decoder.bias).T).solution.T
    torch.testing.assert_close(far, want.detach(), atol=1e-4, rtol=0)


def test_the_covariance_of_noise_is_found_behind_latents_and_gaps() -> None:
    rng = np.random.default_rng(3)
    N, k, latents = 3000, 4, 2
    root = rng.normal(size=(k, k))
    psi = root @ root.T / k + 0.1 * np.eye(k)
    J, var = rng.normal(size=(N, latents, k)), rng.uniform(0.1, 1.0, size=(N, latents))
    u = rng.normal(size=(N, latents)) * np.sqrt(var)
    errors = np.einsum("nl,nlk->nk", u, J) + rng.multivariate_normal(np.zeros(k), psi, size=N)
    seen = rng.random((N, k)) < 0.7
    found = noise_covariance(*(torch.from_numpy(x) for x in (np.where(seen, errors, 99.0), seen, J, var))).numpy()
    np.testing.assert_allclose(found, psi, atol=0.15 * np.abs(psi).max())
    assert np.linalg.eigvalsh(found).min() > 0


def test_correlations_are_found_where_most_pairs_are_hardly_ever_seen_together() -> None:
    """Values measured rarely say nothing about pairs, and must not make those be forgotten that are seen often."""
    rng = np.random.default_rng(6)
    N, K = 250, 24
    errors = rng.normal(size=(N, 1)) + 0.6 * rng.normal(size=(N, K))
    truth = 1.0 / 1.36  # of every correlation
    seen = rng.random((N, K)) < np.where(np.arange(K) < 6, 0.7, 0.04)
    none = torch.zeros(N, 1, K, dtype=torch.float64), torch.ones(N, 1, dtype=torch.float64)
    psi = noise_covariance(torch.from_numpy(errors), torch.from_numpy(seen), *none).numpy()
    correlation = psi / np.sqrt(np.outer(np.diag(psi), np.diag(psi)))
    off = ~np.eye(6, dtype=bool)
    assert 0.8 * truth < correlation[:6, :6][off].mean() < 1.1 * truth


def test_rows_that_show_a_pair_are_counted() -> None:
    seen = np.random.default_rng(7).random((50, 6)) < 0.4
    pairs = [(seen[:, i] & seen[:, j]).sum() for i in range(6) for j in range(6) if i != j]
    assert rows_per_pair(torch.from_numpy(seen)) == pytest.approx(np.mean(pairs))


def complete(errors: np.ndarray) -> np.ndarray:
    """The covariance found for errors of which none is missing, at latents that are known."""
    N, K = errors.shape
    none = torch.zeros(N, 1, K, dtype=torch.float64), torch.ones(N, 1, dtype=torch.float64)
    return noise_covariance(torch.from_numpy(errors), torch.ones(N, K, dtype=torch.bool), *none).numpy()


def test_correlations_are_shrunk_by_the_share_that_is_sampling_noise() -> None:
    """Schaefer and Strimmer's share, by loops."""
    rng = np.random.default_rng(4)
    e = rng.normal(size=(12, 3)) + 1.5 * rng.normal(size=(12, 1))
    moment = e.T @ e / 12
    noise = size = 0.0
    for i in range(3):
        for j in range(3):
            if i != j:
                r = moment[i, j] / math.sqrt(moment[i, i] * moment[j, j])
                noise, size = noise + (1 - r**2) ** 2 / 11, size + r**2
    want = moment * (1 - noise / size)
    np.fill_diagonal(want, np.diag(moment))
    np.testing.assert_allclose(complete(e), want, atol=1e-9)
    assert 0.02 < noise / size < 0.9


def test_values_that_err_alike_keep_a_covariance_that_can_be_factored() -> None:
    psi = complete(np.repeat([[0.5], [-0.5], [0.5], [0.5]], 4, axis=1))
    np.linalg.cholesky(psi)
    np.testing.assert_allclose(psi, np.full((4, 4), 0.25), rtol=1e-3)


def test_few_smooth_curves_keep_their_covariance_and_noise_loses_it() -> None:
    """Thirty samples of 120 values: neighbours on a curve predict each other, independent values do not."""
    rng = np.random.default_rng(5)
    x = np.linspace(0.0, 1.0, 120)
    curves = rng.normal(size=(30, 4)) @ np.stack([np.sin((n + 1) * np.pi * x) for n in range(4)])
    curves += 0.05 * rng.normal(size=curves.shape)
    odd, even = np.arange(1, 120, 2), np.arange(0, 120, 2)
    psi = complete(curves)
    new = rng.normal(size=(50, 4)) @ np.stack([np.sin((n + 1) * np.pi * x) for n in range(4)])
    filled = new[:, even] @ np.linalg.solve(psi[np.ix_(even, even)], psi[np.ix_(even, odd)])
    assert np.square(filled - new[:, odd]).mean() < 0.01 * np.square(new[:, odd]).mean()
    psi = complete(rng.normal(size=(30, 120)))
    correlation = psi / np.sqrt(np.outer(np.diag(psi), np.diag(psi))) - np.eye(120)
    assert np.abs(correlation).max() < 0.1


# -- trust


def hidden_values(n: int = 40) -> HiddenValues:
    """Rows whose residuals are J u + noise with u and noise ~ N(0, I)."""
    rng = np.random.default_rng(5)
    C = 30
    J, u = rng.normal(size=(n, L, C)), rng.normal(size=(n, L))
    residual = np.einsum("nl,nlc->nc", u, J) + rng.normal(size=(n, C))
    hidden = rng.random((n, C)) < 0.5
    seen = J * ~hidden[:, None]
    curvature, pull = seen @ seen.transpose(0, 2, 1), np.einsum("nlc,nc->nl", seen, residual)
    return HiddenValues(
        *(torch.from_numpy(x) for x in (np.arange(n), np.ones((n, L)), curvature, pull, J, residual, hidden))
    )


def test_observed_values_are_trusted_as_far_as_they_deserve() -> None:
    part = hidden_values()
    right = choose_trust([part])
    assert 0.1 <= right.weight <= 3.0 and right.spread == pytest.approx(1.0, abs=0.1)
    noise = torch.randn(part.residual.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (
        choose_trust([replace(part, residual=noise)]).weight == 0.0
    )  # what was observed says nothing of what is hidden
    assert choose_trust([replace(part, var=part.var / 1e4)]).weight >= 100.0  # predictions are far too sure
    assert choose_trust([replace(part, hidden=torch.zeros_like(part.hidden))]) is None
    with pytest.raises(ValueError, match="got errors beyond what float32 can square; give samples in"):
        choose_trust([replace(part, residual=part.residual * torch.inf)])


def test_what_is_hidden_was_observed() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(8, 2, 6, 5, generator=generator) < 0.7
    elsewhere = hide_as_elsewhere(mask, 3)
    assert torch.equal(elsewhere, mask & ~mask.roll(3, dims=0))
    assert hide_as_elsewhere(mask[:1].expand_as(mask)) is None
    sides = hide_sides(mask, generator)
    assert not (sides & ~mask).any()
    share = sides.flatten(1).sum(1) / mask.flatten(1).sum(1)
    assert (share > 0.2).all() and (share < 0.8).all()
    vector = hide_sides(torch.ones(4, 9, dtype=torch.bool), generator)
    assert vector.any(1).all() and not vector.all(1).any()


def test_slopes_beyond_the_digits_of_the_prior_are_no_error() -> None:
    """Two latents that the decoder cannot tell apart, known so well together that rounding eats the prior of each."""
    decoder = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        decoder.weight.fill_(1e9)
    likelihood = Gaussian(1.0).double()
    known = observed(np.full((3, 1), 1e9), np.ones((3, 1), bool), np.zeros((3, 2)), np.ones((3, 2)))
    found = RowLatents(Autoencoder(nn.Identity(), decoder, likelihood), likelihood, known)
    assert found.root.isfinite().all()
    torch.testing.assert_close(found.z.sum(1), torch.ones(3, dtype=torch.float64), rtol=1e-3, atol=0.0)
