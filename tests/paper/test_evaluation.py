"""Errors, coverage and likelihood of predictions, one value at a time."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from gppvae.paper.evaluation import LEVELS, coverage, gaussian_nll, mse_per_sample, varying


def problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Truth, mean, std (7, 4, 5) and which of the 4 x 5 values count."""
    truth, mean = rng.normal(size=(2, 7, 4, 5))
    where = rng.random((4, 5)) < 0.6
    return truth, mean, rng.uniform(0.2, 2.0, size=(7, 4, 5)), where


def counted(where: np.ndarray, n: int) -> list[tuple[int, int, int]]:
    return [(i, j, k) for i in range(n) for j in range(4) for k in range(5) if where[j, k]]


def test_mse_per_sample(rng: np.random.Generator) -> None:
    truth, predicted = rng.normal(size=(2, 6, 3, 4))
    want = []
    for n in range(6):
        total = sum((truth[n, i, j] - predicted[n, i, j]) ** 2 for i in range(3) for j in range(4))
        want.append(total / 12)
    np.testing.assert_allclose(mse_per_sample(truth, predicted), want, rtol=1e-12)
    np.testing.assert_allclose(mse_per_sample(truth, predicted[:, None]), want, rtol=1e-12)  # with a channel


def test_varying_values_are_those_that_differ(rng: np.random.Generator) -> None:
    samples = np.full((9, 2, 3), 0.4)
    samples[:, 0, 1] += rng.normal(size=9)
    samples[4, 1, 2] += 0.5
    samples[:, 1, 0] += 1e-4 * rng.normal(size=9)
    want = np.zeros((2, 3), dtype=bool)
    want[0, 1] = want[1, 2] = True
    np.testing.assert_array_equal(varying(samples), want)
    want[1, 0] = True
    np.testing.assert_array_equal(varying(samples, least_std=1e-6), want)


def test_coverage_by_counting(rng: np.random.Generator) -> None:
    truth, mean, std, where = problem(rng)
    found = coverage(truth, mean, std, where)
    assert list(found) == ["50%", "80%", "90%"] and LEVELS == (0.5, 0.8, 0.9)
    for name, level in zip(found, LEVELS, strict=True):
        half = NormalDist().inv_cdf(0.5 + level / 2)
        inside = [abs(truth[at] - mean[at]) <= half * std[at] for at in counted(where, 7)]
        assert found[name] == pytest.approx(sum(inside) / len(inside))


def test_honest_intervals_cover_what_they_say(rng: np.random.Generator) -> None:
    std = rng.uniform(0.1, 3.0, size=(4000, 2, 3))
    truth, everywhere = std * rng.normal(size=std.shape), np.ones((2, 3), dtype=bool)
    zero = np.zeros_like(truth)
    for level, share in zip(LEVELS, coverage(truth, zero, std, everywhere).values(), strict=True):
        assert share == pytest.approx(level, abs=0.01)
    assert coverage(truth, zero, 0.5 * std, everywhere)["90%"] < 0.65


def test_negative_log_density_by_the_formula(rng: np.random.Generator) -> None:
    truth, mean, std, where = problem(rng)
    terms = []
    for at in counted(where, 7):
        density = math.exp(-((truth[at] - mean[at]) ** 2) / (2 * std[at] ** 2)) / (std[at] * math.sqrt(2 * math.pi))
        terms.append(-math.log(density))
    assert gaussian_nll(truth, mean, std, where) == pytest.approx(sum(terms) / len(terms), rel=1e-9)


def test_the_right_std_has_the_best_likelihood(rng: np.random.Generator) -> None:
    truth, zero = 0.7 * rng.normal(size=(5000, 1, 2)), np.zeros((5000, 1, 2))
    everywhere = np.ones((1, 2), dtype=bool)
    scores = {std: gaussian_nll(truth, zero, np.full_like(zero, std), everywhere) for std in (0.35, 0.7, 1.4)}
    assert min(scores, key=lambda std: scores[std]) == 0.7
