"""The GP term from sums over rows, against the dense density with its N x N covariance."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles
from gppvae.prior.layout import GroupedRows
from gppvae.prior.lowrank import assemble, gp_nll
from gppvae.prior.statistics import Statistics, statistics, weighted_sums
from prior.problems import ALPHAS, SIZES, WHOLE, Problem, grouped_rows, problem, tensor


def value(p: Problem, expected: bool) -> float:
    return gp_nll(p.assembled(expected)).item()


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


@pytest.mark.parametrize("expected", [False, True])
def test_without_features_latents_are_independent(expected: bool, rng: np.random.Generator) -> None:
    """H = 0 and noise 1: the density of N(0, I), as a loop over entries."""
    p = Problem(np.zeros((6, 0)), rng.normal(size=(6, 2)), rng.uniform(0.1, 2.0, (6, 2)), np.ones(6))
    want = 0.0
    for mean, var in zip(p.mean.ravel(), p.var.ravel(), strict=True):
        want += 0.5 * (mean**2 + (var if expected else 0.0) + np.log(2.0 * np.pi))
    np.testing.assert_allclose(value(p, expected), want, rtol=1e-13)


def test_one_noise_may_be_given_as_a_number() -> None:
    p = problem(9, 4, 0.3)
    rows = GroupedRows(tensor(p.V))
    whole = statistics(rows, tensor(p.mean), tensor(p.var), torch.tensor(0.3, dtype=torch.float64))
    each = p.statistics(expected=True)
    torch.testing.assert_close(whole.outer, each.outer)
    torch.testing.assert_close(whole.sums, each.sums)


# -- the sums


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans(), st.integers(0, 100))
def test_sums_over_any_batches_are_the_sums_over_all_rows(counts: list[int], expected: bool, seed: int) -> None:
    n = sum(counts)
    rows, rng = grouped_rows(n, seed), np.random.default_rng(seed)
    mean, noise = tensor(rng.normal(size=(n, 2))), tensor(rng.uniform(0.1, 2, n))
    var = tensor(rng.uniform(0.1, 2, (n, 2))) if expected else None
    whole = statistics(rows, mean, var, noise)
    total, start = None, 0
    for count in counts:
        part = slice(start, start + count)
        some = GroupedRows(rows.x[part], rows.group[part], rows.n_groups)
        stats = statistics(some, mean[part], None if var is None else var[part], noise[part])
        total, start = stats if total is None else total.plus(stats), start + count
    torch.testing.assert_close(total.outer, whole.outer)
    torch.testing.assert_close(total.sums, whole.sums)
    assert total.sums[3] == n


@pytest.mark.parametrize("uneven", [False, True], ids=["one noise", "noise per row"])
def test_assembled_sums_are_the_sums_of_the_definition(uneven: bool) -> None:
    p = problem(15, 4, 0.3, uneven=uneven)
    V, d, mean, var, n = p.V, p.noise, p.mean, p.var, len(p.V)
    full = p.assembled(expected=True)
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


def test_weighted_sums_are_the_sums_of_the_definition(rng: np.random.Generator) -> None:
    V, weight, values = rng.normal(size=(8, 3)), rng.normal(size=(8, 1)), rng.normal(size=(8, 2))
    full = assemble(weighted_sums(GroupedRows(tensor(V)), tensor(weight), tensor(values)), WHOLE)
    np.testing.assert_allclose(full.S, sum(weight[i] * np.outer(V[i], V[i]) for i in range(8)), atol=1e-12)
    np.testing.assert_allclose(full.R, sum(np.outer(V[i], values[i]) for i in range(8)), atol=1e-12)
    assert full.T is None and full.sums.tolist() == [0.0, 0.0, 0.0, 8.0]


@pytest.mark.parametrize("expected", [False, True])
def test_statistics_plus_themselves_are_those_of_copies(expected: bool) -> None:
    p = problem(5, 3, 0.2, uneven=True)
    thrice = Problem(*(np.concatenate([part] * 3) for part in (p.V, p.mean, p.var, p.noise)))
    once, want = p.statistics(expected), thrice.statistics(expected)
    got = once.plus(once, 2.0)
    torch.testing.assert_close(once.sums, p.statistics(expected).sums, rtol=0.0, atol=0.0)
    torch.testing.assert_close(got.outer, want.outer)
    torch.testing.assert_close(got.sums, want.sums)


# -- gradients through the sums


def random_pull(like: Statistics) -> Statistics:
    """A gradient with respect to sums."""
    return Statistics(torch.randn_like(like.outer), torch.randn_like(like.sums), like.n_latents)


@pytest.mark.parametrize("one_noise", [False, True])
@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_inner_products_of_sums_and_their_gradients(grouped: bool, expected: bool, one_noise: bool) -> None:
    """<pull, sums over rows>, the sums written as a loop."""
    n, rng = 7, np.random.default_rng(5)
    start = grouped_rows(n)
    x = start.x.requires_grad_()
    rows = GroupedRows(x, start.group, 4) if grouped else GroupedRows(x)
    group = start.group.tolist() if grouped else [0] * n
    mean = tensor(rng.normal(size=(n, 2))).requires_grad_()
    var = tensor(rng.uniform(0.2, 1, (n, 2))).requires_grad_() if expected else None
    noise = tensor(rng.uniform(0.2, 1, () if one_noise else n)).requires_grad_()
    sums = statistics(rows, mean, var, noise)
    pull = random_pull(sums)
    S, R, T = pull.split()
    want, d = n * pull.sums[3], noise.expand(n)
    for i, q in enumerate(group):
        want = want + (x[i] @ S[q] @ x[i] + x[i] @ R[q] @ mean[i] + pull.sums[0] * mean[i] @ mean[i]) / d[i]
        want = want + pull.sums[2] * d[i].log()
        if var is not None and T is not None:
            want = want + var[i].sum() * (x[i] @ T[q] @ x[i] / d[i] ** 2 + pull.sums[1] / d[i])
    got = pull.dot(sums)
    torch.testing.assert_close(got, want)
    inputs = [entry for entry in (x, mean, var, noise) if entry is not None]
    found, expected_gradients = torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs)
    for one, other in zip(found, expected_gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("expected", [False, True])
def test_gradient_of_the_term_by_differences(expected: bool) -> None:
    """gradcheck through features, latents, variances and noise."""
    p = problem(6, 4, 0.4, n_latents=2, uneven=True)
    inputs = [tensor(part).requires_grad_() for part in (p.V, p.mean, p.noise, p.var)]

    def term(V: Tensor, mean: Tensor, noise: Tensor, var: Tensor | None = None) -> Tensor:
        return gp_nll(assemble(statistics(GroupedRows(V), mean, var, noise), WHOLE))

    assert torch.autograd.gradcheck(term, inputs if expected else inputs[:3], eps=1e-6, atol=1e-6)
