"""The GP term from sums over rows, against the dense density with its N x N covariance."""

import numpy as np
import pytest
import torch
from gppvae.kernels.features import Features
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gppvae.prior.lowrank import assemble, gp_nll
from gppvae.prior.statistics import Statistics, pull_rows, statistics
from prior.problems import ALPHAS, SIZES, Problem, problem, split_features, tensor


def value(p: Problem, expected: bool) -> float:
    features = p.features()
    return gp_nll(p.statistics(expected), features.tables, features.sizes).item()


@pytest.mark.parametrize("uneven", [False, True], ids=["one noise", "noise per row"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_expected_and_sampled_term_against_dense(size: str, alpha: float, uneven: bool) -> None:
    p = problem(*SIZES[size], alpha, uneven=uneven)
    np.testing.assert_allclose(value(p, expected=False), oracles.gp_nll(p.K, p.mean), rtol=1e-8)
    # Where H >= N and the noise vanishes, u and tr C^-1 T are both of size 1/alpha and cancel.
    lost = 1e-9 * np.sum(p.var / p.noise[:, None]) if alpha == 1e-6 else 0.0
    dense = oracles.expected_gp_nll(p.K, p.mean, p.var)
    np.testing.assert_allclose(value(p, expected=True), dense, rtol=1e-8, atol=lost)


def test_expected_term_is_the_mean_over_samples(rng: np.random.Generator) -> None:
    p = problem(9, 4, 0.3)
    draws = p.mean + np.sqrt(p.var) * rng.normal(size=(20_000, *p.mean.shape))
    solved = np.linalg.solve(p.K, draws)
    log_const = p.mean.shape[1] * (np.linalg.slogdet(p.K)[1] + len(p.K) * np.log(2 * np.pi))
    samples = 0.5 * (np.sum(draws * solved, axis=(1, 2)) + log_const)
    assert abs(samples.mean() - value(p, expected=True)) < 4.0 * samples.std() / np.sqrt(len(samples))


def test_one_noise_may_be_given_as_a_number() -> None:
    p = problem(9, 4, 0.3)
    whole = statistics(p.features(), tensor(p.mean), tensor(p.var), torch.tensor(0.3, dtype=torch.float64))
    each = p.statistics(expected=True)
    torch.testing.assert_close(whole.outer, each.outer)
    torch.testing.assert_close(whole.sums, each.sums)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans(), st.integers(0, 100))
def test_sums_over_any_batches_are_the_sums_over_all_rows(counts: list[int], expected: bool, seed: int) -> None:
    n = sum(counts)
    features, rng = split_features(n, seed), np.random.default_rng(seed)
    mean, noise = tensor(rng.normal(size=(n, 2))), tensor(rng.uniform(0.1, 2, n))
    var = tensor(rng.uniform(0.1, 2, (n, 2))) if expected else None
    whole = statistics(features, mean, var, noise)
    total, start = None, 0
    for count in counts:
        part = slice(start, start + count)
        rows = Features(features.x[part], features.group[part], features.tables, features.sizes)
        stats = statistics(rows, mean[part], None if var is None else var[part], noise[part])
        total, start = stats if total is None else total.plus(stats), start + count
    torch.testing.assert_close(total.outer, whole.outer)
    torch.testing.assert_close(total.sums, whole.sums)
    assert total.sums[3] == n


@pytest.mark.parametrize("expected", [False, True])
def test_grouped_features_give_the_term_of_the_dense_features(expected: bool) -> None:
    n, rng = 15, np.random.default_rng(1)
    features = split_features(n)
    V = features.dense().numpy()
    assert V.shape == (n, features.rank) == (n, 2 * 3 + 1 * 2)
    for i in range(n):
        q = int(features.group[i])
        blocks = [np.kron(features.x[i, :2], features.tables[0][q]), np.kron(features.x[i, 2:], features.tables[1][q])]
        np.testing.assert_allclose(V[i], np.concatenate(blocks))
    noise, mean, var = rng.uniform(0.1, 1, n), rng.normal(size=(n, 3)), rng.uniform(0.1, 1, (n, 3))
    stats = statistics(features, tensor(mean), tensor(var) if expected else None, tensor(noise))
    K = V @ V.T + np.diag(noise)
    dense = oracles.expected_gp_nll(K, mean, var) if expected else oracles.gp_nll(K, mean)
    np.testing.assert_allclose(gp_nll(stats, features.tables, features.sizes).item(), dense, rtol=1e-11)


def test_assembled_sums_are_the_sums_of_the_definition() -> None:
    n, rng = 15, np.random.default_rng(2)
    features = split_features(n)
    V = features.dense().numpy()
    d, mean, var = rng.uniform(0.1, 1, n), rng.normal(size=(n, 3)), rng.uniform(0.1, 1, (n, 3))
    full = assemble(statistics(features, tensor(mean), tensor(var), tensor(d)), features.tables, features.sizes)
    S = sum(np.outer(V[i], V[i]) / d[i] for i in range(n))
    R = sum(np.outer(V[i], mean[i]) / d[i] for i in range(n))
    T = sum(var[i].sum() * np.outer(V[i], V[i]) / d[i] ** 2 for i in range(n))
    for got, want in ((full.S, S), (full.R, R), (full.T, T)):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-11, atol=1e-11)
    sums = [
        sum(mean[i] @ mean[i] / d[i] for i in range(n)),
        sum(var[i].sum() / d[i] for i in range(n)),
        sum(np.log(d)),
        n,
    ]
    np.testing.assert_allclose(full.sums.numpy(), sums, rtol=1e-12)


@pytest.mark.parametrize("expected", [False, True])
def test_statistics_plus_themselves_are_those_of_copies(expected: bool) -> None:
    p = problem(5, 3, 0.2, uneven=True)
    thrice = Problem(*(np.concatenate([part] * 3) for part in (p.V, p.mean, p.var, p.noise)))
    once, want = p.statistics(expected), thrice.statistics(expected)
    got = once.plus(once, 2.0)
    torch.testing.assert_close(once.sums, p.statistics(expected).sums, rtol=0.0, atol=0.0)
    torch.testing.assert_close(got.outer, want.outer)
    torch.testing.assert_close(got.sums, want.sums)
    torch.testing.assert_close(once.add_(once.plus(once), 1.0).outer, want.outer)


def random_pull(like: Statistics) -> Statistics:
    """A gradient with respect to sums: symmetric where they are."""
    S, R, T = like.split()
    parts = [torch.randn_like(S), torch.randn_like(R)] + ([] if T is None else [torch.randn_like(T)])
    parts = [part + part.transpose(1, 2) if n != 1 else part for n, part in enumerate(parts)]
    return Statistics(torch.cat(parts, dim=2), torch.randn_like(like.sums), like.n_latents)


@pytest.mark.parametrize("one_noise", [False, True])
@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_pulled_rows_are_the_gradients_of_the_contraction(grouped: bool, expected: bool, one_noise: bool) -> None:
    """<pull, sums over rows>, the sums written as a loop."""
    n, rng = 7, np.random.default_rng(5)
    features = split_features(n)
    if not grouped:
        features = Features(features.x, torch.zeros_like(features.group), [], [features.x.shape[1]])
    mean = tensor(rng.normal(size=(n, 2))).requires_grad_()
    var = tensor(rng.uniform(0.2, 1, (n, 2))).requires_grad_() if expected else None
    noise = tensor(rng.uniform(0.2, 1, () if one_noise else n)).requires_grad_()
    x = features.x.requires_grad_()
    pull = random_pull(statistics(features, mean, var, noise))
    S, R, T = pull.split()
    value, d = torch.zeros((), dtype=torch.float64), noise.expand(n)
    for i, q in enumerate(features.group.tolist()):
        value = value + (x[i] @ S[q] @ x[i] + x[i] @ R[q] @ mean[i] + pull.sums[0] * mean[i] @ mean[i]) / d[i]
        value = value + pull.sums[2] * d[i].log()
        if var is not None and T is not None:
            value = value + var[i].sum() * (x[i] @ T[q] @ x[i] / d[i] ** 2 + pull.sums[1] / d[i])
    rows = [row for row in (x, mean, var, noise) if row is not None]
    want = torch.autograd.grad(value, rows)
    with torch.no_grad():
        got = [by for by in pull_rows(pull, features, mean, var, noise) if by is not None]
    for found, expected_gradient in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected_gradient)


def test_gradient_of_the_term_by_differences() -> None:
    """gradcheck through features, tables, latents, variances and noise."""
    n, rng = 6, np.random.default_rng(4)
    start = split_features(n)
    inputs = [
        start.x,
        *start.tables,
        tensor(rng.normal(size=(n, 2))),
        tensor(rng.uniform(0.2, 1, (n, 2))),
        tensor(rng.uniform(0.2, 1, n)),
    ]
    for entry in inputs:
        entry.requires_grad_()

    def term(x, table_a, table_b, mean, var, noise):
        features = Features(x, start.group, [table_a, table_b], start.sizes)
        return gp_nll(statistics(features, mean, var, noise), features.tables, features.sizes)

    assert torch.autograd.gradcheck(term, inputs, eps=1e-6, atol=1e-6)
