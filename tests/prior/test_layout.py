"""Sums per value of a column, against loops over rows; every split of a kernel, against the unsplit dense sums."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, Categorical, Constant, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.prior import layout
from gppvae.prior.layout import GroupedRows, Layout, plan_layout, widths
from gppvae.prior.lowrank import assemble, gp_nll
from gppvae.prior.posterior import condition
from gppvae.prior.statistics import statistics
from prior.problems import grouped_rows, tensor

N, L = 40, 2

KERNELS: dict[str, Callable[[], Kernel]] = {
    "ids first": lambda: Learned("person", 3) * Periodic("angle", 360),
    "ids last": lambda: Periodic("angle", 360) * Learned("person", 3),
    "three factors": lambda: FreeForm("pose") * Learned("person", 2) * RBF("time", lengthscale=0.8),
    "column in the middle": lambda: Linear("time") * Learned("person", 2) * FreeForm("pose"),
    "column at both ends": lambda: FreeForm("pose") * Learned("person", 2) * Categorical("pose"),
    "scales": lambda: 1.7 * Learned("person", 3) * (0.4 * FreeForm("pose")),
    "sum of products": lambda: (
        Learned("person", 2) * Periodic("angle", 360) + 0.3 * Periodic("angle", 360) * Learned("person", 3)
    ),
    "sum of different columns": lambda: 0.5 * Categorical("person") + FreeForm("pose") + Linear("time") + Constant(),
    "product of sums": lambda: (Learned("person", 2) + 0.2 * Constant()) * (FreeForm("pose") + Linear("time")),
    "few inducing points": lambda: Matern("time", lengthscale=0.7, max_inducing=4) * Learned("person", 2),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.fixture(params=["few rows", "many rows"])
def rows_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to sum per group: many rows are those beyond the size of a small product."""
    monkeypatch.setattr(layout, "SMALL_PRODUCT", 0.0 if request.param == "many rows" else 1e12)
    return request.param


# -- rows in groups


@pytest.mark.parametrize("grouped", [False, True])
def test_sums_of_outer_products(grouped: bool, rows_are: str, rng: np.random.Generator) -> None:
    """One loop over rows; a group without rows has the sum zero."""
    rows, right = grouped_rows(9), tensor(rng.normal(size=(9, 5))).requires_grad_()
    group = rows.group.tolist() if grouped else [0] * 9
    x = rows.x.requires_grad_()
    n_groups = 4 if grouped else 1
    want = [torch.zeros(3, 5, dtype=torch.float64) for _ in range(n_groups)]
    for x_n, q, r in zip(x, group, right, strict=True):
        want[q] = want[q] + torch.outer(x_n, r)
    got = GroupedRows(x, rows.group if grouped else None, n_groups).outer(right)
    torch.testing.assert_close(got, torch.stack(want))
    if grouped:
        assert not got[2].any()
    weights = torch.randn_like(got)
    for one, other in zip(
        *(torch.autograd.grad((weights * sums).sum(), [x, right]) for sums in (got, torch.stack(want))), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_no_rows_have_no_sums(rows_are: str) -> None:
    empty = GroupedRows(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.int64), 4)
    assert torch.equal(empty.outer(torch.zeros(0, 2, dtype=torch.float64)), torch.zeros(4, 3, 2, dtype=torch.float64))


# -- every split of a kernel


def columns(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "person": rng.integers(0, 4, n),
        "pose": rng.integers(0, 3, n),
        "angle": rng.choice([0.0, 45.0, 100.0, 250.0], n),
        "time": rng.normal(size=n).round(1),
    }


def bound(name: str, n: int = N) -> tuple[Kernel, Rows]:
    kernel, table = KERNELS[name](), Table(columns(n))
    kernel.bind(table, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return kernel, kernel.code(table)


def splits(rows: Rows) -> list[str | None]:
    return [None, *rows.columns]


class Data:
    """Latents and noise of every row."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.mean, self.var = rng.normal(size=(N, L)), rng.uniform(0.1, 1.0, (N, L))
        self.noise = rng.uniform(0.2, 1.0, N)


@every_kernel
def test_every_split_has_the_sums_of_the_dense_features(name: str, rows_are: str) -> None:
    """S, R and T as products of V, (N, H), in NumPy."""
    kernel, rows = bound(name)
    data = Data()
    with torch.no_grad():
        V = kernel.features(rows).numpy()
        for split in splits(rows):
            own = Layout(kernel, split, rows)
            stats = statistics(own.rows(rows), tensor(data.mean), tensor(data.var), tensor(data.noise))
            full = assemble(stats, own)
            weighted = V / data.noise[:, None]
            S, R = V.T @ weighted, weighted.T @ data.mean
            T = weighted.T @ (weighted * data.var.sum(1, keepdims=True))
            for got, want in ((full.S, S), (full.R, R), (full.T, T)):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-10, err_msg=f"split by {split}")


@every_kernel
def test_rows_coded_by_themselves_are_summed_in_the_groups_of_training(name: str) -> None:
    """Held-out rows may take the only samples at a time with them; the others then have fewer distinct values."""
    kernel, rows = bound(name)
    left = np.flatnonzero(np.array(columns(N)["time"]) != columns(N)["time"][0])
    alone = kernel.code(Table(columns(N)).take(left))
    if "time" in alone.columns:
        assert len(alone.columns["time"].values) < len(rows.columns["time"].values)
    data = Data()
    with torch.no_grad():
        V = kernel.features(alone).numpy() / data.noise[left, None]
        for split in splits(rows):
            own = Layout(kernel, split, rows)
            stats = statistics(own.rows(alone), tensor(data.mean[left]), None, tensor(data.noise[left]))
            full = assemble(stats, own)
            np.testing.assert_allclose(full.R.numpy(), V.T @ data.mean[left], rtol=1e-10, atol=1e-10, err_msg=split)


@pytest.mark.parametrize("expected", [False, True])
@every_kernel
def test_every_split_has_the_dense_term_and_posterior(name: str, expected: bool, rows_are: str) -> None:
    kernel, rows = bound(name)
    data = Data()
    with torch.no_grad():
        V = kernel.features(rows)
        new = kernel.features(kernel.code(Table(columns(7, seed=5))))
        K = (V @ V.T).numpy() + np.diag(data.noise)
        nll = oracles.expected_gp_nll(K, data.mean, data.var) if expected else oracles.gp_nll(K, data.mean)
        mean, cov = oracles.gp_posterior(K, (new @ V.T).numpy(), (new @ new.T).numpy(), data.mean)
        if expected:  # the mean moves with the latents by G dZ
            G = (new @ V.T).numpy() @ np.linalg.inv(K)
            cov = cov + G @ np.diag(data.var.mean(1)) @ G.T
        for split in splits(rows):
            own = Layout(kernel, split, rows)
            var = tensor(data.var) if expected else None
            full = assemble(statistics(own.rows(rows), tensor(data.mean), var, tensor(data.noise)), own)
            np.testing.assert_allclose(gp_nll(full).item(), nll, rtol=1e-10, err_msg=f"split by {split}")
            q = condition(full)
            np.testing.assert_allclose(q.mean_at(new).numpy(), mean, rtol=1e-8, atol=1e-9, err_msg=f"split by {split}")
            np.testing.assert_allclose(q.var_at(new)[:, 0].numpy(), np.diag(cov), rtol=1e-8, atol=1e-9)


@every_kernel
def test_every_split_has_the_gradients_of_the_dense_density(name: str, rows_are: str) -> None:
    """Of all parameters of the kernel, by autograd through the N x N covariance."""
    kernel, rows = bound(name)
    data = Data()
    mean, var, noise = map(tensor, (data.mean, data.var, data.noise))
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]

    def gradients(value: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        return [torch.zeros_like(p) if by is None else by for p, by in zip(parameters, found, strict=True)]

    V = kernel.features(rows)
    K = V @ V.T + torch.diag(noise)
    density = torch.distributions.MultivariateNormal(torch.zeros(N, dtype=torch.float64), K)
    want = gradients(0.5 * (var.sum(1) * torch.linalg.inv(K).diagonal()).sum() - density.log_prob(mean.T).sum())
    for split in splits(rows):
        own = Layout(kernel, split, rows)
        got = gradients(gp_nll(assemble(statistics(own.rows(rows), mean, var, noise), own)))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_no_kernel_has_no_features() -> None:
    rows = Rows({}, 5)
    found = Layout(None).rows(rows)
    assert found.x.shape == (5, 0) and found.x.dtype == torch.float64 and found.n_groups == 1
    assert plan_layout(None, rows, 2).kernel is None


# -- the choice


def test_widths_are_those_of_the_rows_that_are_summed() -> None:
    for name in KERNELS:
        kernel, rows = bound(name)
        for split in rows.columns:
            summed = Layout(kernel, split, rows).rows(rows)
            assert sum(widths(kernel, split)) == summed.x.shape[1]
            assert summed.n_groups == len(rows.columns[split].values)


def test_the_split_that_is_cheapest_is_taken() -> None:
    """Few values of a factor with many features, and rows enough to pay for the small products."""
    kernel, rows = bound("ids first", n=5000)
    chosen = plan_layout(kernel, rows, batch_size=5000)
    assert chosen.split == "angle" and chosen.rows(rows).x.shape == (5000, 3)
    stats = statistics(chosen.rows(rows), torch.zeros(5000, L).double(), None, torch.ones(5000).double())
    assert stats.outer.shape == (4, 3, 3 + L)


def test_no_split_where_it_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = bound("ids first", n=5000)
    assert plan_layout(kernel, rows[:4], batch_size=4).split is None  # few rows
    assert plan_layout(*bound("sum of different columns", n=5000), batch_size=5000).split is None  # nothing narrower
    monkeypatch.setattr(layout, "MAX_GROUPED_SUMS", 10)
    assert plan_layout(kernel, rows, batch_size=5000).split is None  # the sums per value would not fit


def test_every_value_of_a_column_costs(rng: np.random.Generator) -> None:
    """As many values as rows: sums per value are as many as the rows themselves."""
    kernel = Learned("person", 2) * RBF("time", lengthscale=0.5, max_inducing=8, basis="inducing")
    table = Table({"person": rng.integers(0, 3, 500), "time": rng.normal(size=500)})
    kernel.bind(table, torch.Generator().manual_seed(0))
    rows = kernel.code(table)
    assert len(rows.columns["time"].values) == 500
    assert plan_layout(kernel, rows, batch_size=500).split != "time"
