"""The GP term of complete designs, against the dense density with its N x N covariance, and when it is used."""

import logging

import gppvae.prior.kronecker
import numpy as np
import pytest
import torch
from gppvae.kernels.features import Features
from gppvae.prior.kronecker import complete_design_nll, is_cheaper, is_complete
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gppvae.kernels.base
import oracles
from gppvae import GPPVAE
from gppvae.data.table import Table
from gppvae.inference import Exact
from gppvae.kernels import Constant, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.statistics import statistics
from inference.setting import K, L, RowEpoch, assert_same_gradients, gradients, make_model
from prior.problems import ALPHAS
from tiny import spots

SIZES = st.tuples(*[st.integers(1, 5)] * 5)  # objects, M, views, R, L


class Grid:
    """P objects at Q views, `copies` times each, in any order."""

    def __init__(self, sizes: tuple[int, ...], alpha: float, copies: int = 1, seed: int = 0) -> None:
        P, M, Q, R, n_latents = sizes
        torch.manual_seed(seed)
        self.X, self.W = (torch.randn(shape, dtype=torch.float64) for shape in ((P, M), (Q, R)))
        order = torch.randperm(P * Q * copies)
        self.object, self.view = order % P, order // P % Q
        self.mean = torch.randn(len(order), n_latents, dtype=torch.float64)
        self.var = torch.rand(len(order), n_latents, dtype=torch.float64) + 0.1
        self.log_alpha = torch.tensor(alpha, dtype=torch.float64).log()
        self.inputs = [self.X, self.W, self.mean, self.var, self.log_alpha]
        for entry in self.inputs:
            entry.requires_grad_()

    def ours(self, expected: bool) -> Tensor:
        features = Features(self.X[self.object], self.view, [self.W], [self.X.shape[1]])
        stats = statistics(features, self.mean, self.var if expected else None, self.log_alpha.exp())
        return complete_design_nll(stats, self.W)

    def cov(self) -> Tensor:
        """K by its definition, x_p' x_p' w_q' w_q' + alpha."""
        objects, views = (self.X @ self.X.T)[self.object][:, self.object], (self.W @ self.W.T)[self.view][:, self.view]
        return objects * views + self.log_alpha.exp() * torch.eye(len(self.view), dtype=torch.float64)

    def dense(self, expected: bool) -> Tensor:
        cov = self.cov()
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(cov), dtype=torch.float64), cov)
        nll = -normal.log_prob(self.mean.T).sum()
        return nll + 0.5 * (self.var.sum(1) * torch.linalg.inv(cov).diagonal()).sum() if expected else nll


@pytest.mark.parametrize("expected", [False, True], ids=["sampled", "expected"])
@settings(deadline=None, max_examples=25)
@given(sizes=SIZES, alpha=st.floats(1e-2, 10.0), copies=st.integers(1, 2), seed=st.integers(0, 99))
def test_value_and_gradients_against_the_dense_density(
    expected: bool, sizes: tuple[int, ...], alpha: float, copies: int, seed: int
) -> None:
    grid = Grid(sizes, alpha, copies, seed)
    inputs = grid.inputs if expected else [entry for entry in grid.inputs if entry is not grid.var]
    got, want = grid.ours(expected), grid.dense(expected)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    for one, other in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("sizes", [(6, 3, 4, 4, 2), (2, 5, 3, 3, 2), (4, 4, 4, 4, 2)])
def test_any_noise_keeps_the_digits(sizes: tuple[int, ...], alpha: float) -> None:
    grid = Grid(sizes, alpha)
    cov, mean, var = (part.detach().numpy() for part in (grid.cov(), grid.mean, grid.var))
    # Where H >= N and the noise vanishes, terms of size 1/alpha cancel.
    lost = 1e-9 * np.sum((mean**2 + var) / alpha) if alpha == 1e-6 else 0.0
    np.testing.assert_allclose(grid.ours(False).item(), oracles.gp_nll(cov, mean), rtol=1e-8, atol=lost)
    np.testing.assert_allclose(grid.ours(True).item(), oracles.expected_gp_nll(cov, mean, var), rtol=1e-8, atol=lost)


def test_equal_eigenvalues_have_gradients() -> None:
    """Orthonormal features: every eigenvalue is the same, where the gradient of eigenvectors would divide by zero."""
    grid = Grid((4, 4, 3, 3, 2), 0.5)
    with torch.no_grad():
        grid.X.copy_(torch.eye(4))
        grid.W.copy_(torch.eye(3))
    got, want = (torch.autograd.grad(value, grid.inputs) for value in (grid.ours(True), grid.dense(True)))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


# -- when it is used


def grid_table(n_people: int = 4, n_poses: int = 3) -> dict[str, np.ndarray]:
    person, pose = np.divmod(np.random.default_rng(0).permutation(n_people * n_poses), n_poses)
    return {"person": person, "pose": pose, "time": pose * 1.5}


def without_a_row(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values[1:] for name, values in table.items()}


def one_row_elsewhere(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    person = table["person"].copy()
    person[0] = (person[0] + 1) % 4
    return table | {"person": person}


def twice(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.tile(values, 2) for name, values in table.items()}


PRODUCT = Learned("person", 3) * FreeForm("pose")


@pytest.mark.parametrize(
    ("kernel", "table", "split", "complete"),
    [
        (PRODUCT, grid_table(), "pose (id)", True),
        (PRODUCT, grid_table(), "person (id)", True),
        (PRODUCT, twice(grid_table()), "pose (id)", True),
        (2.0 * PRODUCT * Learned("person", 2), grid_table(), "pose (id)", True),
        (Learned("person", 3) * Periodic("time", 9.0), grid_table(), "time", True),
        (PRODUCT, grid_table(), None, False),
        (PRODUCT, without_a_row(grid_table()), "pose (id)", False),
        (PRODUCT, one_row_elsewhere(grid_table()), "pose (id)", False),
        (PRODUCT + Constant(), grid_table(), "pose (id)", False),
        (PRODUCT * Linear("time"), grid_table(), "pose (id)", False),  # time is the pose, not an object
        (Learned("person", 3) * Matern("time", basis="hilbert"), grid_table(), "time", False),  # noise per row
    ],
)
def test_complete_designs_are_recognised(
    kernel: Kernel, table: dict[str, np.ndarray], split: str | None, complete: bool
) -> None:
    kernel.bind(Table(table), torch.Generator().manual_seed(0))
    assert is_complete(kernel, kernel.code(Table(table)), split) == complete


def test_it_is_used_where_it_is_cheaper() -> None:
    assert is_cheaper(groups=9, width=64, table_rank=9, n_latents=256)
    assert not is_cheaper(groups=3, width=2, table_rank=3, n_latents=2)
    assert not is_cheaper(groups=1, width=200, table_rank=1, n_latents=2)  # eigenvalues of the whole take longer


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("split", ["pose (id)", "person (id)"])
def test_a_step_is_that_of_the_general_form(split: str, sampled: bool) -> None:
    model: GPPriorVAE = make_model(1.4 * Learned("person", 3) * FreeForm("pose"))
    table = Table(grid_table() | {"pose": np.array(["left", "front", "right"])[grid_table()["pose"]]})
    rows = model.kernel.code(table)
    y, eps = (torch.randn(len(table), width, dtype=torch.float64) for width in (K, L))
    epoch, model.split = RowEpoch(y, rows, eps, batch_size=5), split
    found = []
    for model.complete_design in (False, True):
        (terms,) = Exact(model, sampled).steps(epoch)
        found.append((terms.total().item(), gradients(model)))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-11)
    assert_same_gradients(found[1][1], found[0][1], 1e-10)


def test_a_fit_takes_it_and_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(gppvae.kernels.base, "SMALL_PRODUCT", 0.0)
    losses = []
    for smallest in (10**9, 1):
        monkeypatch.setattr(gppvae.prior.kronecker, "SMALL_RANK", smallest)
        model = GPPVAE(
            "Learned(spot, 3) * Periodic(angle, 360)", 2, network="mlp", width=8, inference="exact",
            warmup_epochs=1, gp_epochs=3, epochs=3, device="cpu",
        )  # fmt: skip
        with caplog.at_level(logging.INFO, logger="gppvae"):
            model.fit(*spots(), progress=False)
        assert ("complete design" in caplog.text) == (smallest == 1)
        losses.append([row["loss"] for row in model.history_])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
