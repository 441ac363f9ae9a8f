"""Latents as a linear function of an object's vector, and added ids with uncertain vectors."""

import copy

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.kernels import FreeForm, Kernel, Learned, Linear, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import latents_by_vector, learned_by_column, vector_variance, vectors_drawn
from gppvae.models.predict import latents_at
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior, SharedCovariance

L = 3
KERNELS: dict[str, list[tuple[Kernel | None, int]]] = {
    "one learned kernel": [(Learned("person", 3) * Periodic("angle", 360), L)],
    "view first": [(FreeForm("pose") * Learned("person", 3), L)],
    "two of one column": [(Learned("person", 2) * FreeForm("pose") + 0.5 * Learned("person", 2) + Linear("angle"), L)],
    "two groups of latents": [(Learned("person", 2) * FreeForm("pose"), 1), (None, 1), (Learned("person", 3), 1)],
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def fitted(name: str) -> tuple[GPPriorVAE, LatentPosterior]:
    rng = np.random.default_rng(0)
    table = Table({"person": list("abcd") * 3, "pose": rng.integers(0, 3, 12), "angle": rng.integers(0, 4, 12) * 30.0})
    prior = LatentPrior(copy.deepcopy(KERNELS[name]))
    prior.bind(table, torch.Generator().manual_seed(0))
    autoencoder = Autoencoder(MLPEncoder((4,), L, ()), MLPDecoder((4,), L, ()), Gaussian()).double()
    parts = []
    for group in prior.groups:
        mean = torch.randn(group.rank, group.n_latents, dtype=torch.float64)
        root = 0.3 * torch.eye(group.rank, dtype=torch.float64)
        parts.append(SharedCovariance(mean, root, torch.zeros((), dtype=torch.float64)))
    return GPPriorVAE(autoencoder, prior), LatentPosterior(tuple(parts))


def means(model: GPPriorVAE, weights: LatentPosterior, table: Table) -> torch.Tensor:
    """E z by the features of every group, made with the vectors that the kernels have now."""
    rows = model.prior.code(table)
    found = []
    for group, part in zip(model.prior.groups, weights.parts, strict=True):
        V = torch.zeros(len(table), 0).double() if group.kernel is None else group.kernel.features(rows)
        found.append(V @ part.mean)
    return torch.cat(found, dim=1).detach()


NEW = Table({"person": ["a", "c", "c", "d"], "pose": [0, 2, 1, 1], "angle": [10.0, 0.0, 200.0, 90.0]})


@every_kernel
def test_latents_are_affine_in_the_vectors(name: str) -> None:
    """z = A'x + o, with x the vectors of the row's object, against features made with those vectors."""
    model, weights = fitted(name)
    rows, leaves = model.prior.code(NEW), learned_by_column(model.prior)["person"]
    A, offset = latents_by_vector(model.prior, weights, rows, leaves)
    x = torch.cat([leaf.vectors() for leaf in leaves], dim=1)[rows.columns["person (id)"].index]
    got = torch.einsum("njl,nj->nl", A, x) + offset
    torch.testing.assert_close(got, means(model, weights, NEW), rtol=1e-9, atol=1e-9)


def test_vectors_of_a_group_move_its_latents_only() -> None:
    model, weights = fitted("two groups of latents")
    leaves = learned_by_column(model.prior)["person"]
    assert [leaf.dim for leaf in leaves] == [2, 3]
    A, offset = latents_by_vector(model.prior, weights, model.prior.code(NEW), leaves)
    assert A[:, :2, 0].any() and A[:, 2:, 2].any()
    assert not A[:, 2:, 0].any() and not A[:, :2, 2].any() and not A[:, :, 1].any() and not offset.any()


def add_two(model: GPPriorVAE) -> list[Learned]:
    leaves = learned_by_column(model.prior)["person"]
    J = sum(leaf.dim for leaf in leaves)
    root, start = 0.5 * torch.randn(2, J, J, dtype=torch.float64), 0
    for leaf in leaves:
        leaf.add_levels(["x", "y"], torch.randn(2, leaf.dim, dtype=torch.float64), root[:, start : start + leaf.dim])
        start += leaf.dim
    return leaves


ADDED = Table({"person": ["x", "a", "y", "x"], "pose": [0, 2, 1, 1], "angle": [10.0, 0.0, 200.0, 90.0]})


@every_kernel
def test_uncertain_vectors_widen_the_latents_as_draws_do(name: str) -> None:
    """Against the moments of many draws, also between the latents of two groups."""
    model, weights = fitted(name)
    add_two(model)
    rows = model.prior.code(ADDED)
    has_kernel = [n for n in range(L) if not model.prior.unexplained()[n]]
    variance = vector_variance(model.prior, weights, rows)
    assert not variance[1].any() and (variance[[0, 2, 3]][:, has_kernel] > 0).all()
    assert not variance[:, model.prior.unexplained()].any()
    generator, draws = torch.Generator().manual_seed(0), []
    for _ in range(600):
        with vectors_drawn(model.prior, generator):
            draws.append(means(model, weights, ADDED))
    spread = torch.stack(draws)
    np.testing.assert_allclose(spread.var(0).numpy(), variance.numpy(), rtol=0.3, atol=1e-12)
    A, _ = latents_by_vector(model.prior, weights, rows, learned_by_column(model.prior)["person"])
    root = torch.cat([leaf.added_root for leaf in learned_by_column(model.prior)["person"]], dim=1)[0]
    first, last = (A[0][:, latent] @ root for latent in (0, L - 1))  # row 0 shows "x", the first that was added
    between = torch.cov(spread[:, 0, [0, L - 1]].T)[0, 1].item()
    assert abs(between - (first @ last).item()) < 0.3 * (first.norm() * last.norm()).item()
    with torch.no_grad():
        plain, latents = model.prior.at(rows, weights), latents_at(model, weights, rows)
    torch.testing.assert_close(latents.var, plain.var + variance)
    torch.testing.assert_close((latents.mean, latents.noise), (plain.mean, plain.noise))


def test_drawn_vectors_are_put_back() -> None:
    model, _ = fitted("one learned kernel")
    (leaf,) = add_two(model)
    before = leaf.vectors().detach().clone()
    with vectors_drawn(model.prior, torch.Generator().manual_seed(0)):
        assert torch.equal(leaf.vectors()[:4], before[:4]) and not torch.equal(leaf.vectors()[4:], before[4:])
    assert torch.equal(leaf.vectors(), before)


def test_added_levels_can_be_dropped_again() -> None:
    model, _ = fitted("one learned kernel")
    (leaf,) = learned_by_column(model.prior)["person"]
    before = leaf.x.detach().clone()
    add_two(model)
    kept = leaf.x.detach()[5]
    leaf.drop_levels(["x", "a"])  # "a" is of the training set and stays
    assert leaf.levels == ["a", "b", "c", "d", "y"] and leaf.n_added == 1
    assert torch.equal(leaf.x[:4], before) and torch.equal(leaf.x[4], kept)
