"""The posterior of the weights, against dense Gaussian process regression and against samples."""

import numpy as np
import pytest
import torch

import oracles
from gppvae.prior.posterior import (
    DiagonalCovariance,
    LatentPosterior,
    SharedCovariance,
    condition,
)
from prior.problems import ALPHAS, SIZES, Problem, problem, tensor


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("size", SIZES)
def test_conditioned_weights_give_the_dense_gp_posterior(size: str, alpha: float) -> None:
    n, rank = SIZES[size]
    p = problem(n, rank, alpha, uneven=True)
    V_new = np.random.default_rng(1).normal(size=(8, rank))
    weights = condition(p.assembled())
    mean, cov = oracles.gp_posterior(p.K, V_new @ p.V.T, V_new @ V_new.T, p.mean)
    np.testing.assert_allclose(weights.mean_at(tensor(V_new)).numpy(), mean, rtol=1e-7, atol=1e-8)
    root = V_new @ weights.root.numpy()
    np.testing.assert_allclose(root @ root.T, cov, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(weights.var_at(tensor(V_new))[:, 0].numpy(), np.diag(cov), rtol=1e-7, atol=1e-8)


def test_no_noise_interpolates_when_the_rank_suffices() -> None:
    for n, rank in (SIZES["H = N"], SIZES["H > N"]):
        p = problem(n, rank, 1e-10)
        weights = condition(p.assembled())
        np.testing.assert_allclose(weights.mean_at(tensor(p.V)).numpy(), p.mean, atol=1e-5)
        assert weights.var_at(tensor(p.V)).max() < 1e-8


def test_no_noise_projects_on_the_span_of_the_features_otherwise() -> None:
    p = problem(*SIZES["H < N"], 1e-10)
    projection = p.V @ np.linalg.lstsq(p.V, p.mean, rcond=None)[0]
    fitted = condition(p.assembled()).mean_at(tensor(p.V)).numpy()
    np.testing.assert_allclose(fitted, projection, atol=1e-6)
    assert np.abs(fitted - p.mean).max() > 0.1


def test_no_data_gives_the_prior() -> None:
    weights = condition(problem(0, 4, 1.0).assembled())
    assert torch.equal(weights.mean, torch.zeros(4, 3, dtype=torch.float64))
    torch.testing.assert_close(weights.root @ weights.root.T, torch.eye(4, dtype=torch.float64))
    assert weights.kl().item() == pytest.approx(0.0, abs=1e-12)
    V = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(weights.var_at(V)[:, 0], V.square().sum(1))


def test_encoder_uncertainty_is_that_of_many_encodings(rng: np.random.Generator) -> None:
    """Sigma = C^-1 + C^-1 V'D^-1 Cov(Z) D^-1 V C^-1, the second part by drawing Z and conditioning on it."""
    p = problem(8, 3, 0.4, n_latents=2, uneven=True)
    weights = condition(p.assembled(expected=True))
    exact = condition(p.assembled())
    torch.testing.assert_close(weights.mean, exact.mean)
    C = np.eye(3) + p.V.T @ np.diag(1 / p.noise) @ p.V
    averaged = np.diag(p.var.mean(1) / p.noise**2)
    spread = np.linalg.inv(C) @ p.V.T @ averaged @ p.V @ np.linalg.inv(C)
    Sigma = (weights.root @ weights.root.T).numpy()
    np.testing.assert_allclose(Sigma, np.linalg.inv(C) + spread, rtol=1e-9)
    np.testing.assert_allclose(weights.logdet.item(), np.linalg.slogdet(Sigma)[1], rtol=1e-9)

    same_var = np.repeat(p.var.mean(1, keepdims=True), 40_000, axis=1)
    Z = p.mean[:, :1] + np.sqrt(same_var) * rng.normal(size=same_var.shape)
    means = np.linalg.solve(C, p.V.T @ (Z / p.noise[:, None]))
    np.testing.assert_allclose(np.cov(means), spread, atol=0.03 * np.abs(spread).max())


def test_an_encoder_that_is_sure_gives_the_posterior_of_given_latents() -> None:
    p = problem(8, 3, 0.4)
    sure = condition(Problem(p.V, p.mean, np.zeros_like(p.var), p.noise).assembled(expected=True))
    given = condition(p.assembled(expected=False))
    torch.testing.assert_close(sure.root @ sure.root.T, given.root @ given.root.T)
    torch.testing.assert_close((sure.mean, sure.logdet), (given.mean, given.logdet))


@pytest.mark.parametrize("kind", ["shared", "diagonal"])
def test_kl_against_the_definition(kind: str, rng: np.random.Generator) -> None:
    mean, root, std = rng.normal(size=(4, 3)), rng.normal(size=(4, 4)), rng.uniform(0.2, 2, (4, 3))
    if kind == "shared":
        cov = [root @ root.T] * 3
        weights = SharedCovariance(tensor(mean), tensor(root), tensor(np.linalg.slogdet(cov[0])[1]))
    else:
        cov = [np.diag(std[:, latent] ** 2) for latent in range(3)]
        weights = DiagonalCovariance(tensor(mean), tensor(std))
    want = sum(oracles.gaussian_kl(mean[:, latent], cov[latent]) for latent in range(3))
    np.testing.assert_allclose(weights.kl().item(), want, rtol=1e-11)


@pytest.mark.parametrize("kind", ["shared", "diagonal"])
def test_samples_have_the_moments_of_the_posterior(kind: str, rng: np.random.Generator) -> None:
    mean, root, std = rng.normal(size=(3, 2)), rng.normal(size=(3, 3)), rng.uniform(0.2, 2, (3, 2))
    if kind == "shared":
        weights = SharedCovariance(tensor(mean), tensor(root), torch.zeros((), dtype=torch.float64))
        cov = [root @ root.T] * 2
    else:
        weights = DiagonalCovariance(tensor(mean), tensor(std))
        cov = [np.diag(std[:, latent] ** 2) for latent in range(2)]
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([weights.sample(generator) for _ in range(8000)]).numpy()
    scale = np.sqrt(np.max(cov))
    np.testing.assert_allclose(draws.mean(0), mean, atol=4 * scale / np.sqrt(8000))
    V = rng.normal(size=(5, 3))
    for latent in range(2):
        np.testing.assert_allclose(np.cov(draws[:, :, latent].T), cov[latent], atol=0.08 * scale**2)
        at_rows = np.diag(V @ cov[latent] @ V.T)
        column = weights.var_at(tensor(V)).expand(5, 2)[:, latent]
        np.testing.assert_allclose(column.numpy(), at_rows, rtol=1e-11)
    again = torch.Generator().manual_seed(0)
    assert torch.equal(weights.sample(again), torch.from_numpy(draws[0]))


def groups_of_latents() -> LatentPosterior:
    """Eleven groups, so that the order of numbers is not that of their text; one has no features."""
    parts = [condition(problem(8, rank, 0.4, n_latents=2).assembled()) for rank in (3, 0, *range(1, 9))]
    diagonal = DiagonalCovariance(torch.randn(2, 1, dtype=torch.float64), torch.rand(2, 1, dtype=torch.float64) + 0.1)
    return LatentPosterior((*parts, diagonal))


def test_groups_are_independent() -> None:
    weights = groups_of_latents()
    assert len(weights.parts) == 11
    np.testing.assert_allclose(weights.kl().item(), sum(part.kl().item() for part in weights.parts), rtol=1e-13)
    draws = weights.sample(torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    for part, draw in zip(weights.parts, draws, strict=True):
        assert torch.equal(draw, part.sample(generator))


def test_saved_tensors_build_the_posterior_again() -> None:
    weights = groups_of_latents()
    shuffled = dict(sorted(weights.tensors().items()))  # files give them in the order of their names
    again = LatentPosterior.from_tensors(shuffled)
    assert [type(part) for part in again.parts] == [type(part) for part in weights.parts]
    for part, other in zip(again.parts, weights.parts, strict=True):
        assert all(torch.equal(part.tensors()[name], value) for name, value in other.tensors().items())
