"""The start from principal components against dense formulas and a search written here."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from gppvae.data.table import Table
from gppvae.kernels import parse_kernel
from gppvae.models.start import fit_components, principal_components, rows_for_start


def field(n: int = 150, length: float = 0.8, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Places (n, 2) and six noisy values that are linear in two smooth functions of the place."""
    rng = np.random.default_rng(3)
    places = rng.uniform(0, 4, (n, 2))
    squares = ((places[:, None] - places[None]) ** 2).sum(2)
    functions = np.linalg.cholesky(np.exp(-0.5 * squares / length**2) + 1e-8 * np.eye(n)) @ rng.normal(size=(n, 2))
    return places, functions @ rng.normal(size=(2, 6)) + noise * rng.normal(size=(n, 6))


def dense_length(places: np.ndarray, scores: np.ndarray) -> float:
    """The length scale of greatest likelihood, one for both axes, amplitude and noise of each score its own."""
    squares = ((places[:, None] - places[None]) ** 2).sum(2)

    def loss(free: np.ndarray) -> float:
        total, n = 0.0, len(places)
        for c in range(scores.shape[1]):
            S = np.exp(-0.5 * squares / math.exp(2 * free[0])) + (math.exp(free[1 + c]) + 1e-6) * np.eye(n)
            total += 0.5 * n * math.log(scores[:, c] @ np.linalg.solve(S, scores[:, c]) / n)
            total += 0.5 * np.linalg.slogdet(S)[1]
        return total

    start = np.array([0.0, *([-2.0] * scores.shape[1])])
    return math.exp(minimize(loss, start, method="Nelder-Mead", options={"maxiter": 400}).x[0])


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    _, values = field()
    scores, loadings, std = principal_components(torch.tensor(values), None)
    standardised = (values - values.mean(0)) / values.std(0)
    left, sizes, right = np.linalg.svd(standardised, full_matrices=False)
    np.testing.assert_allclose(std.numpy(), sizes / math.sqrt(len(values)), rtol=1e-8)
    np.testing.assert_allclose(np.abs(loadings.numpy()), np.abs(right), atol=1e-8)
    rebuilt = (scores * std) @ loadings
    np.testing.assert_allclose(rebuilt.numpy(), (left * sizes) @ right, atol=1e-8)


def test_missing_values_count_as_the_mean() -> None:
    _, values = field(40)
    mask = torch.ones(values.shape, dtype=torch.bool)
    mask[3, 2] = False
    spoiled = torch.tensor(values)
    spoiled[3, 2] = 1e6
    filled = values.copy()
    filled[3, 2] = np.delete(values[:, 2], 3).mean()
    seen = (filled - filled.mean(0)) / np.sqrt((np.square(filled - filled.mean(0))).sum(0) / mask.numpy().sum(0))
    seen = seen - seen.mean(0)
    std = principal_components(spoiled, mask)[2].numpy()
    np.testing.assert_allclose(std, np.linalg.svd(seen, compute_uv=False) / math.sqrt(40), rtol=1e-8)


def test_length_scales_are_those_of_a_dense_search() -> None:
    places, values = field()
    table = Table({"x": places[:, 0], "y": places[:, 1]})
    kernel = parse_kernel("RBF(x, y)")
    kernel.bind(table)
    scores = principal_components(torch.tensor(values), None)[0]
    signal = fit_components(kernel, kernel.code(table), scores)
    found = kernel.leaves()[0].base.lengthscale.detach().numpy().ravel()
    expected = dense_length(places, scores[:, :4].numpy())
    assert np.abs(found / expected - 1.0).max() < 0.2  # one length per axis here, one for both there
    assert abs(np.sqrt(found.prod()) / expected - 1.0) < 0.05
    assert signal[:2].min() > 0.9 and signal[2:].max() < 0.1  # two functions, the rest is noise


def test_a_term_that_explains_nothing_gets_a_small_amplitude() -> None:
    places, values = field(100)
    table = Table({"x": places[:, 0], "y": places[:, 1], "z": np.random.default_rng(0).normal(size=100)})
    kernel = parse_kernel("1.0 * RBF(x, y) + 1.0 * RBF(z)")
    kernel.bind(table)
    fit_components(kernel, kernel.code(table), principal_components(torch.tensor(values), None)[0])
    useful, useless = (float(torch.as_tensor(term.amplitude()).detach()) for term in kernel.terms())
    assert useless < 0.1 * useful


def test_learned_vectors_stay_as_they_are() -> None:
    rng = np.random.default_rng(1)
    table = Table({"who": np.repeat(np.arange(6), 8), "t": np.tile(np.linspace(0, 1, 8), 6)})
    kernel = parse_kernel("Learned(who, 3) * RBF(t)")
    kernel.bind(table, torch.Generator().manual_seed(0))
    before = kernel.leaves()[0].x.detach().clone()
    fit_components(kernel, kernel.code(table), torch.tensor(rng.normal(size=(48, 3))))
    assert torch.equal(kernel.leaves()[0].x, before)


@pytest.mark.parametrize("kernel", ["Learned(who, 2) * RBF(t)", "RBF(t)"])
def test_whole_ids_are_taken(kernel: str) -> None:
    table = Table({"who": np.repeat(np.arange(100), 9), "t": np.tile(np.arange(9.0), 100)})
    bound = parse_kernel(kernel)
    bound.bind(table)
    picked = rows_for_start(bound.code(table), [bound], torch.Generator().manual_seed(0)).numpy()
    assert len(picked) == 512 and len(set(picked)) == 512
    counts = np.bincount(picked // 9, minlength=100)
    whole = ((counts == 9) | (counts == 0)).sum()
    assert whole >= 99 if "Learned" in kernel else whole < 90
