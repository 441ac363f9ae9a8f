"""Vectors of new objects through other decoders and likelihoods: the loss of each, in NumPy, falls at every step."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from gppvae.inference.new_objects import ObjectFit
from gppvae.likelihoods import Bernoulli, Gaussian
from inference.object_setting import CASES, NOISE, Case, K, L, LinearDecoder, Problem, prior_by_loops
from oracles import Array


def loss_of(problem: Problem, case: Case, nll: Callable[[Array, Array], float]) -> Callable[[Array], Array]:
    """x (P, J) -> -log p(y | x) - log p(x) of every object up to a constant, (P,)."""
    A, o = problem.affine(case)
    mean, cov = prior_by_loops(problem.leaves, 7)

    def losses(x: Array) -> Array:
        total = np.zeros(problem.n_objects)
        for p in range(problem.n_objects):
            total[p] = 0.5 * (x[p] - mean) @ np.linalg.solve(cov, x[p] - mean)
            for n in np.flatnonzero(problem.owner == p):
                z = torch.from_numpy(A[n].T @ x[p] + o[n])
                total[p] += nll(problem.y[n], problem.model.autoencoder.decoder(z[None])[0].detach().numpy())
        return total

    return losses


def bernoulli_nll(y: Array, logits: Array) -> float:
    signed = [-logit if one else logit for one, logit in zip(y, logits, strict=True)]
    return float(sum(np.log1p(np.exp(value)) for value in signed))


class Waves(nn.Module):
    """A decoder with many wrong minima, where a full Gauss-Newton step often leads uphill."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(L, K).double()

    def forward(self, z: Tensor) -> Tensor:
        return torch.sin(150.0 * self.layer(z))


def test_a_step_that_does_not_help_is_not_taken() -> None:
    case = CASES["learned * periodic"]
    problem = Problem(case.make(), Waves(), n_objects=6)
    likelihood, paths = Gaussian(NOISE), []
    for steps in range(16):
        paths.append(problem.fit(likelihood, steps, certain=True)[0])
    losses = loss_of(problem, case, lambda y, mean: oracles.gaussian_nll(y, mean, NOISE))
    values = np.array([losses(x) for x in paths])
    assert (np.diff(values, axis=0) <= 1e-6).all()
    assert (values[-1] < values[0] - 1.0).all()
    stayed = np.array([(b == a).all(axis=1) for a, b in itertools.pairwise(paths)])
    assert stayed.any()
    # A step that was refused is tried again, shorter: the object moves on later.
    refused_then_moved = [p for p in range(6) if any(stayed[s, p] and not stayed[s + 1 :, p].all() for s in range(14))]
    assert refused_then_moved


@pytest.mark.parametrize("name", ["learned * periodic", "two of one column", "two groups that read the column"])
def test_scoring_with_a_bernoulli_likelihood_finds_the_maximum(name: str) -> None:
    case = CASES[name]
    problem = Problem(case.make(), LinearDecoder(), binary=True)
    losses = loss_of(problem, case, bernoulli_nll)
    values = [losses(problem.fit(Bernoulli(), steps, certain=True)[0]) for steps in range(7)]
    assert (np.diff(values, axis=0) <= 1e-6).all()
    assert (values[-1] < values[0] - 1e-3).all()
    x, cov = problem.fit(Bernoulli(), 12, certain=True)
    J, step = x.shape[1], 1e-3
    best = losses(x)
    for j in range(J):
        for i in range(j + 1):
            around = {}
            for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                moved = x.copy()
                moved[:, i] += a * step
                moved[:, j] += b * step
                around[a, b] = losses(moved)
            if i != j:
                second = (around[1, 1] - around[1, -1] - around[-1, 1] + around[-1, -1]) / (4 * step**2)
            else:
                second = (around[1, 1] - 2 * best + around[-1, -1]) / (2 * step) ** 2
                slope = (around[1, 1] - around[-1, -1]) / (4 * step)
                np.testing.assert_allclose(slope, 0.0, atol=1e-3)
            # Logits are linear in x here, so scoring is Newton and the curvature is the second derivative.
            np.testing.assert_allclose(np.linalg.inv(cov)[:, i, j], second, rtol=1e-3, atol=1e-3)


class Saturated(nn.Module):
    """Logits of which some are so large that their probability is one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(L, K)

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(z) + torch.tensor([0.0, 0.0, 0.0, 30.0, -200.0])


def test_certain_values_do_not_spoil_a_bernoulli_fit() -> None:
    problem = Problem(CASES["learned * periodic"].make(), Saturated(), binary=True)
    problem.y[:, 3], problem.y[:, 4] = 1.0, 0.0
    x, cov = problem.fit(Bernoulli(), 12)
    assert np.isfinite(x).all() and np.isfinite(cov).all()
    problem.y[:, 3:] = np.nan  # certain and right, so as if they had not been seen
    np.testing.assert_allclose(problem.fit(Bernoulli(), 12)[0], x, rtol=1e-3, atol=1e-3)


class Echo(nn.Module):
    """A decoder without parameters."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, z, z[:, :1]], dim=1)


def test_a_decoder_may_have_no_parameters() -> None:
    problem = Problem(CASES["learned * periodic"].make(), Echo())
    x, _ = problem.fit(Gaussian(NOISE), 4)
    assert x.shape == (3, 3) and np.isfinite(x).all()


def test_the_steps_of_each_object_end_when_they_hardly_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    case, likelihood = CASES["learned * periodic"], Gaussian(NOISE)
    problem, count = Problem(case.make(), LinearDecoder(), n_objects=3), 0
    of_one, state = problem.owner == 1, ObjectFit._state

    def counted(self: ObjectFit, x: Tensor, u: Tensor) -> object:
        nonlocal count
        count += 1
        return state(self, x, u)

    monkeypatch.setattr(ObjectFit, "_state", counted)
    found = problem.fit(likelihood, 100)[0]
    assert 3 <= count < 20
    alone = problem.fit(likelihood, 100, used=of_one)[0]  # the others have no samples and stay at the prior
    np.testing.assert_allclose(found[1], alone[1], rtol=1e-9, atol=1e-10)
