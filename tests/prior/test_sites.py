"""q(B) from sites, against the dense joint posterior over the weights of all latents."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gppvae.data.table import Table
from gppvae.kernels import FreeForm, Kernel, Learned, Linear
from gppvae.prior import sites
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.layout import Layout
from gppvae.prior.posterior import LatentPosterior, RotatedCovariance
from gppvae.prior.sites import Sites, SiteSums, precisions_of, with_sites

N, L = 12, 3


def tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(x, dtype=np.float64))


class Problem:
    """A bound prior, a basis of the latents and precisions of rows along it."""

    def __init__(self, split: str | None) -> None:
        rng = np.random.default_rng(0)
        kernel: Kernel = Learned("person", 2) * FreeForm("pose") + Linear("time")
        table = {"person": list("abc") * 4, "pose": [0, 1, 2, 3] * 3, "time": rng.normal(size=N)}
        self.prior = LatentPrior([(kernel, L)])
        self.prior.bind(Table(table), torch.Generator().manual_seed(0))
        self.rows = self.prior.code(Table(table))
        self.prior.groups[0].layout = Layout(kernel, split, self.rows)
        with torch.no_grad():
            self.V = kernel.features(self.rows).numpy()
        self.U = np.linalg.qr(rng.normal(size=(L, L)))[0]
        self.precision = rng.uniform(0.0, 4.0, size=(N, L))
        self.mean = rng.normal(size=(self.V.shape[1], L))
        zeros = torch.zeros(self.V.shape[1], self.V.shape[1]).double()
        part = RotatedCovariance(tensor(self.mean), tensor(self.U), zeros[None], torch.zeros(1).double())
        self.weights = LatentPosterior((part,))

    def found(self) -> RotatedCovariance:
        """In two batches."""
        sums = SiteSums(self.prior, [tensor(self.U)])
        for part in (slice(0, 5), slice(5, N)):
            sums.add(self.rows[part], [Sites(tensor(self.precision[part]))])
        (found,) = with_sites(self.weights, sums).parts
        assert isinstance(found, RotatedCovariance)
        return found

    def dense(self, precision: np.ndarray) -> np.ndarray:
        """Covariance of all weights, latents innermost: (I + sum_n v v' (x) U diag(precision_n) U')^-1."""
        H = self.V.shape[1]
        total = np.eye(H * L)
        for v, own in zip(self.V, precision, strict=True):
            total += np.kron(np.outer(v, v), self.U @ np.diag(own) @ self.U.T)
        return np.linalg.inv(total)


@pytest.mark.parametrize("split", [None, "person (id)", "pose (id)"])
def test_sites_give_the_dense_posterior_of_all_weights(split: str | None) -> None:
    problem = Problem(split)
    found, cov = problem.found(), problem.dense(problem.precision)
    at = found.covariance_at(tensor(problem.V)).numpy()
    for n, v in enumerate(problem.V):
        lift = np.kron(v, np.eye(L))  # f_n = lift B
        np.testing.assert_allclose(at[n], lift @ cov @ lift.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.var_at(tensor(problem.V)), np.diagonal(at, axis1=1, axis2=2), rtol=1e-12)
    kl = 0.5 * (np.sum(problem.mean**2) + np.trace(cov) - len(cov) - np.linalg.slogdet(cov)[1])
    assert float(found.kl()) == pytest.approx(kl, rel=1e-9)
    assert torch.equal(found.mean, tensor(problem.mean))


def test_draws_have_the_covariance_of_the_posterior() -> None:
    problem = Problem(None)
    found, generator = problem.found(), torch.Generator().manual_seed(0)
    draws = torch.stack([found.sample(generator) for _ in range(4000)]).flatten(1).numpy()
    want = problem.dense(problem.precision)
    assert np.abs(np.cov(draws.T) - want).max() < 0.07 * np.diag(want).max()


def test_directions_share_covariances_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("pose (id)")
    H = problem.V.shape[1]
    monkeypatch.setattr(sites, "MAX_NUMBERS", 2 * H**2)
    found = problem.found()
    assert found.roots.shape == (2, H, H) and found.covariance_index.tolist() == [0, 0, 1]
    own = problem.precision.copy()
    own[:, :2] = own[:, :2].mean(axis=1, keepdims=True)
    cov, lift = problem.dense(own), np.kron(problem.V[0], np.eye(L))
    at = found.covariance_at(tensor(problem.V[:1]))[0]
    np.testing.assert_allclose(at, lift @ cov @ lift.T, rtol=1e-9, atol=1e-12)


def test_without_observations_the_posterior_is_the_prior() -> None:
    problem = Problem(None)
    problem.precision = np.zeros((N, L))
    found = problem.found()
    np.testing.assert_allclose(found.var_at(tensor(problem.V)), np.repeat(np.sum(problem.V**2, 1)[:, None], L, 1))


def test_it_survives_its_tensors_and_says_what_does_not_fit() -> None:
    problem = Problem(None)
    found, H = problem.found(), problem.V.shape[1]
    again = LatentPosterior.from_tensors(LatentPosterior((found,)).tensors())
    again.check([(H, L, None)])
    assert torch.equal(again.parts[0].covariance_at(tensor(problem.V)), found.covariance_at(tensor(problem.V)))
    cov = precisions_of(again.parts[0]) @ found.roots @ found.roots.transpose(1, 2)
    torch.testing.assert_close(cov, torch.eye(H).double().expand_as(cov))
    for name, value in (("basis", 2.0 * found.basis), ("roots", found.roots[:, 1:]), ("logdets", found.logdets[:1])):
        broken = RotatedCovariance(**(found.tensors() | {name: value}))
        with pytest.raises(ValueError, match=r"q\(B\)"):
            LatentPosterior((broken,)).check([(H, L, None)])
