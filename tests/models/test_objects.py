"""Latents as a linear function of an object's vector, and added ids with uncertain vectors."""

import numpy as np
import pytest
import torch
from gppvae.kernels.columns import drawn_vectors, learned_by_column

from gppvae.data.table import Table
from gppvae.kernels import FreeForm, Kernel, Learned, Linear, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import latents_by_vector, vector_variance
from gppvae.models.predict import latents_at
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.posterior import SharedCovariance

L = 2
KERNELS = {
    "one learned kernel": lambda: Learned("person", 3) * Periodic("angle", 360),
    "view first": lambda: FreeForm("pose") * Learned("person", 3),
    "two of one column": lambda: Learned("person", 2) * FreeForm("pose") + 0.5 * Learned("person", 2) + Linear("angle"),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def fitted(kernel: Kernel, split: str | None) -> tuple[GPPriorVAE, SharedCovariance]:
    rng = np.random.default_rng(0)
    table = Table({"person": list("abcd") * 3, "pose": rng.integers(0, 3, 12), "angle": rng.integers(0, 4, 12) * 30.0})
    kernel.bind(table, torch.Generator().manual_seed(0))
    autoencoder = Autoencoder(MLPEncoder((4,), L, ()), MLPDecoder((4,), L, ()), Gaussian()).double()
    model = GPPriorVAE(autoencoder, kernel, 0.1, L)
    model.split = split
    H = kernel.rank
    root = 0.3 * torch.eye(H, dtype=torch.float64)
    return model, SharedCovariance(torch.randn(H, L, dtype=torch.float64), root, torch.zeros((), dtype=torch.float64))


NEW = Table({"person": ["a", "c", "c", "d"], "pose": [0, 2, 1, 1], "angle": [10.0, 0.0, 200.0, 90.0]})


def splits(name: str) -> list[str | None]:
    kernel = KERNELS[name]()
    fitted(kernel, None)
    return [None, *kernel.code(NEW).columns]


@every_kernel
def test_latents_are_affine_in_the_vectors(name: str) -> None:
    """z = A'x + o, with x the vectors of the row's object, against features made with those vectors."""
    for split in splits(name):
        model, weights = fitted(KERNELS[name](), split)
        rows = model.kernel.code(NEW)
        leaves = learned_by_column(model.kernel)["person"]
        A, offset = latents_by_vector(model, weights, rows, leaves)
        with torch.no_grad():
            want = model.features(rows).dense() @ weights.mean
            level = rows.columns["person (id)"].index
            x = torch.cat([leaf.vectors() for leaf in leaves], dim=1)[level]
        got = torch.einsum("njl,nj->nl", A, x) + offset
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text, s=split: f"split by {s}: {text}")


def add_two(model: GPPriorVAE) -> list[Learned]:
    leaves = learned_by_column(model.kernel)["person"]
    J = sum(leaf.dim for leaf in leaves)
    root, start = 0.5 * torch.randn(2, J, J, dtype=torch.float64), 0
    for leaf in leaves:
        leaf.add_levels(["x", "y"], torch.randn(2, leaf.dim, dtype=torch.float64), root[:, start : start + leaf.dim])
        start += leaf.dim
    return leaves


ADDED = Table({"person": ["x", "a", "y", "x"], "pose": [0, 2, 1, 1], "angle": [10.0, 0.0, 200.0, 90.0]})


@every_kernel
def test_uncertain_vectors_widen_the_latents_as_draws_do(name: str) -> None:
    for split in splits(name):
        model, weights = fitted(KERNELS[name](), split)
        leaves = add_two(model)
        rows = model.kernel.code(ADDED)
        variance = vector_variance(model, weights, rows, leaves)
        assert not variance[1].any() and (variance[[0, 2, 3]] > 0).all()
        generator, draws = torch.Generator().manual_seed(0), []
        with torch.no_grad():
            for _ in range(600):
                with drawn_vectors(model.kernel, generator):
                    draws.append(model.features(rows).dense() @ weights.mean)
            plain = weights.var_at(model.features(rows).dense())
            latents = latents_at(model, weights, rows)
        spread = torch.stack(draws).var(0).numpy()
        np.testing.assert_allclose(spread, variance.numpy(), rtol=0.3, atol=1e-12, err_msg=f"split by {split}")
        torch.testing.assert_close(latents.var, plain + variance)


def test_drawn_vectors_are_put_back() -> None:
    model, _ = fitted(KERNELS["one learned kernel"](), None)
    (leaf,) = add_two(model)
    before = leaf.vectors().detach().clone()
    with drawn_vectors(model.kernel, torch.Generator().manual_seed(0)):
        assert torch.equal(leaf.vectors()[:4], before[:4]) and not torch.equal(leaf.vectors()[4:], before[4:])
    assert torch.equal(leaf.vectors(), before)


def test_added_levels_can_be_dropped_again() -> None:
    model, _ = fitted(KERNELS["one learned kernel"](), None)
    (leaf,) = learned_by_column(model.kernel)["person"]
    before = leaf.x.detach().clone()
    add_two(model)
    kept = leaf.x.detach()[5]
    leaf.drop_levels(["x", "a"])  # "a" is of the training set and stays
    assert leaf.levels == ["a", "b", "c", "d", "y"] and leaf.n_added == 1
    assert torch.equal(leaf.x[:4], before) and torch.equal(leaf.x[4], kept)
