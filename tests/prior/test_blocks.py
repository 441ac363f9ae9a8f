"""Terms of many ids by blocks: term, posterior, draws and new ids against dense loops over rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import oracles
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, Categorical, Constant, Kernel, Learned, Linear, parse_kernel
from gppvae.models.terms import averaged_contribution, contributions, kernel_terms
from gppvae.prior.at_rows import blocks_given
from gppvae.prior.blocks import BlockFeatures, block_column
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import BlockCovariance, DiagonalCovariance, LatentPosterior, RotatedBlocks
from gppvae.prior.sites import Sites, SiteSums, precisions_of, solve_precision, with_sites
from gppvae.prior.statistics import StatisticsSum

N, P, L, ALPHA = 40, 7, 2, 0.3
AGES = (20.0, 35.0, 50.0, 65.0)


def columns(n: int = N, seed: int = 0, first: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "id": np.array([f"p{i}" for i in rng.integers(first, first + P, n)]),
        "sex": rng.choice(["f", "m"], n),
        "age": rng.choice(AGES, n),
        "dose": rng.normal(size=n),
    }


def smooth(lengthscale: float) -> Kernel:
    return RBF("age", lengthscale=lengthscale, jitter=1e-12)


def rbf(scale: float) -> oracles.Covariance:
    return oracles.rbf(["age"], scale)


def linear(training: list[oracles.Row]) -> oracles.Covariance:
    return oracles.linear(["dose"], training)


ID, SEX = oracles.categorical("id"), oracles.categorical("sex")
times, plus = oracles.multiplied, oracles.added
Oracle = Callable[[list[oracles.Row]], oracles.Covariance]
CASES: dict[str, tuple[Callable[[], Kernel], Oracle]] = {
    "subjects and time": (
        lambda: smooth(20.0) + 0.7 * Categorical("id") * smooth(12.0),
        lambda _: plus(rbf(20.0), oracles.scaled(0.7, times(ID, rbf(12.0)))),
    ),
    "two id columns": (
        lambda: smooth(20.0) + smooth(9.0) * Categorical("id") + Categorical("sex") * smooth(15.0),
        lambda _: plus(plus(rbf(20.0), times(rbf(9.0), ID)), times(SEX, rbf(15.0))),
    ),
    "two terms of one block": (
        lambda: Linear("dose") * Categorical("id") * Categorical("sex") + Constant() + 0.4 * Categorical("id"),
        lambda rows: plus(plus(times(times(linear(rows), ID), SEX), oracles.constant()), oracles.scaled(0.4, ID)),
    ),
    "nothing shared": (lambda: Categorical("id") * smooth(12.0), lambda _: times(ID, rbf(12.0))),
    "the column twice": (
        lambda: Categorical("id") * smooth(12.0) * Categorical("id") + Linear("dose"),
        lambda rows: plus(times(ID, rbf(12.0)), linear(rows)),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def rows_of(table: dict[str, np.ndarray]) -> list[oracles.Row]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


class Setting:
    """A prior in blocks, the same kernel in loops, and latents at the training rows."""

    def __init__(self, name: str, least: int = 0) -> None:
        write, oracle = CASES[name]
        self.table = columns()
        self.training = rows_of(self.table)
        self.k = oracle(self.training)
        self.prior = LatentPrior([(write(), L)], ALPHA)
        self.prior.groups[0].least_in_blocks = least
        self.prior.bind(Table(self.table))
        self.rows = self.prior.code(Table(self.table))
        rng = np.random.default_rng(1)
        self.mean, self.var = rng.normal(size=(N, L)), rng.uniform(0.1, 1.0, (N, L))

    def K(self) -> oracles.Array:
        return oracles.gram(self.k, self.training, self.training) + ALPHA * np.eye(N)

    def totals(self, expected: bool, batch: int = 9) -> Any:
        """Sums over batches, as training adds them."""
        total = StatisticsSum()
        for index in torch.arange(N).split(batch):
            var = torch.from_numpy(self.var)[index] if expected else None
            total.add(self.prior.statistics(self.rows[index], torch.from_numpy(self.mean)[index], var))
        return total.value


@pytest.mark.parametrize("expected", [False, True])
@every_case
def test_the_term_is_the_dense_one(name: str, expected: bool) -> None:
    setting = Setting(name)
    want = (
        oracles.expected_gp_nll(setting.K(), setting.mean, setting.var)
        if expected
        else oracles.gp_nll(setting.K(), setting.mean)
    )
    with torch.no_grad():
        np.testing.assert_allclose(setting.prior.nll(setting.totals(expected)).item(), want, rtol=1e-9)


def posterior_of(setting: Setting, new: list[oracles.Row], expected: bool) -> tuple[oracles.Array, oracles.Array]:
    """Mean and covariance of f at new rows; with the encoder's variances the mean moves with Z by G dZ."""
    K, cross = setting.K(), oracles.gram(setting.k, new, setting.training)
    mean, cov = oracles.gp_posterior(K, cross, oracles.gram(setting.k, new, new), setting.mean)
    if expected:
        G = cross @ np.linalg.inv(K)
        cov = cov + G @ np.diag(setting.var.mean(1)) @ G.T
    return mean, cov


@pytest.mark.parametrize("least", [0, 10**6], ids=["blocks", "dense"])
@pytest.mark.parametrize("expected", [False, True])
@every_case
def test_latents_at_known_and_new_ids(name: str, expected: bool, least: int) -> None:
    """Ids p3 to p6 are known, p7 to p9 are new: their own effect is the prior's."""
    setting = Setting(name, least)
    table = columns(25, seed=5, first=3)
    mean, cov = posterior_of(setting, rows_of(table), expected)
    with torch.no_grad():
        q = setting.prior.posterior(setting.totals(expected))
        found = setting.prior.at(setting.prior.code(Table(table)), q)
    np.testing.assert_allclose(found.mean.numpy(), mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.var[:, 0].numpy(), np.diag(cov), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.noise, torch.full_like(found.noise, ALPHA))


@pytest.mark.parametrize("expected", [False, True])
@every_case
def test_draws_are_whole_functions_also_of_new_ids(name: str, expected: bool) -> None:
    """Their covariance over rows of several ids, from the root of Sigma and the prior of new weights."""
    setting = Setting(name)
    table = columns(12, seed=6, first=4)
    _, cov = posterior_of(setting, rows_of(table), expected)
    prior, group = setting.prior, setting.prior.groups[0]
    with torch.no_grad():
        q = prior.posterior(setting.totals(expected)).parts[0]
        rows = prior.code(Table(table))
        V, new = group.features(rows), group.new_ids(rows)
        assert new is not None and new.n > 0
        root = torch.cat([V @ q.times_root(eps.unsqueeze(1)) for eps in torch.eye(group.rank, dtype=torch.float64)], 1)
        same = (new.block.unsqueeze(1) == new.block).double()  # rows of known ids have u = 0
        got = root @ root.T + (new.own @ new.own.T) * same
        drawn = [new.drawn(1, torch.Generator().manual_seed(seed)) for seed in range(3000)]
    np.testing.assert_allclose(got.numpy(), cov, rtol=1e-6, atol=1e-6)
    sampled = torch.cat(drawn, dim=1)
    spread = (sampled @ sampled.T / len(drawn) - (new.own @ new.own.T) * same).abs().max()
    assert spread < 0.15


@pytest.mark.parametrize("expected", [False, True])
@every_case
def test_kl_is_that_of_the_dense_gaussian(name: str, expected: bool) -> None:
    setting = Setting(name)
    group = setting.prior.groups[0]
    with torch.no_grad():
        q = setting.prior.posterior(setting.totals(expected)).parts[0]
        root = torch.cat([q.times_root(eps.unsqueeze(1)) for eps in torch.eye(group.rank, dtype=torch.float64)], 1)
    Sigma = (root @ root.T).numpy()
    want = sum(oracles.gaussian_kl(q.mean[:, latent].numpy(), Sigma) for latent in range(L))
    np.testing.assert_allclose(q.kl().item(), want, rtol=1e-9)


@every_case
def test_few_ids_with_the_others_integrated_out(name: str) -> None:
    """q(B) of the ids of some rows, without a look at the others."""
    setting = Setting(name)
    prior = setting.prior
    with torch.no_grad():
        totals = setting.totals(expected=False)
        some, z = setting.rows[:6], torch.randn(6, L, dtype=torch.float64)
        changed = totals[0].plus(prior.statistics(some, z)[0], 2.0)
        assert len(changed.parts) == 1, "a batch is not spread over all ids"
        assert changed.eliminated is totals[0].eliminated, "all ids are looked at once for many batches"
        want = prior.at(setting.rows[:9], prior.posterior([changed]))
        V = prior.groups[0].features(setting.rows[:9])
        assert isinstance(V, BlockFeatures)
        mean, var = blocks_given(V, changed)
    torch.testing.assert_close(mean, want.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(var.expand_as(mean), want.var, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("expected", [False, True])
def test_a_posterior_is_built_again_from_its_tensors(expected: bool) -> None:
    setting = Setting("two id columns")
    group = setting.prior.groups[0]
    with torch.no_grad():
        q = setting.prior.posterior(setting.totals(expected))
        tensors = {name: value.clone() for name, value in q.tensors().items()}
        again = LatentPosterior.from_tensors(tensors)
        assert isinstance(again.parts[0], BlockCovariance)
        again.check([(group.rank, L, group.places)])
        one, other = (setting.prior.at(setting.rows, each) for each in (q, again))
    assert torch.equal(one.mean, other.mean) and torch.equal(one.var, other.var)
    tensors["0.places_own"] = tensors["0.places_own"].roll(1)
    with pytest.raises(ValueError, match="at the positions of the kernel"):
        LatentPosterior.from_tensors(tensors).check([(group.rank, L, group.places)])


# -- which column, which ids


def bound(text: str, table: dict[str, Any]) -> LatentPrior:
    prior = LatentPrior([(parse_kernel(text), 1)])
    prior.bind(Table(table), torch.Generator().manual_seed(0))
    return prior


def test_the_column_of_most_ids_has_the_blocks() -> None:
    kernel = parse_kernel("Categorical(sex) * RBF(age) + Categorical(id)")
    kernel.bind(Table(columns()))
    assert block_column(kernel) == "id (id)"
    kernel = parse_kernel("Learned(id) * RBF(age)")
    kernel.bind(Table(columns()))
    assert block_column(kernel) is None


def test_new_ids_are_told_and_only_where_they_have_nothing_but_a_block(caplog: pytest.LogCaptureFixture) -> None:
    known, new = columns(), columns(5, seed=5, first=5)
    rows = bound("Categorical(id) * RBF(age)", known).code(Table(new))
    assert len(rows.columns["id (id)"].values) > P
    assert "ids of column 'id' were not in the training set: Categorical('id') gives them its prior" in (caplog.text)
    for text in ("Categorical(id) + Learned(id, 2) * RBF(age)", "FreeForm(id) + Categorical(id)", "Learned(id, 2)"):
        with pytest.raises(ValueError, match="column 'id' must hold ids known from training"):
            bound(text, known).code(Table(new))
    with pytest.raises(ValueError, match="column 'id' must hold ids known from training"):
        bound("Categorical(id)", known).code(Table(new), new_ids=False)
    with pytest.raises(ValueError, match="column 'sex' must hold ids known from training"):
        bound("Categorical(id) + Categorical(sex)", known).code(Table(known | {"sex": ["x"] * N}))


def test_ids_added_to_another_kernel_of_the_column_keep_their_numbers() -> None:
    """Learned(id) knows an added id, Categorical(id) does not: for it the id is new."""
    prior = bound("Categorical(id) + Learned(id, 2)", columns())
    (learned,) = [leaf for leaf in prior.leaves() if isinstance(leaf, Learned)]
    learned.add_levels(["a"], torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, 2, 2, dtype=torch.float64))
    column = prior.code(Table({"id": ["a", "p0"]})).columns["id (id)"]
    assert column.index.tolist() == [P, 0]
    found = prior.at(prior.code(Table({"id": ["a", "p0"]})), prior.before_data())
    torch.testing.assert_close(found.var[0, 0].item(), 3.0)  # |(1, 1)|^2, and 1 for an effect of its own


def test_a_number_may_be_missing_where_all_kernels_switch_its_terms_off() -> None:
    """Dose 0 and a NaN age: allowed in one group of latents, an error where another one reads the age."""
    table = {"id": ["a", "b", "a"], "dose": [0.0, 1.0, 1.0], "age": [np.nan, 20.0, 35.0]}
    prior = bound("Linear(dose) * RBF(age) + Categorical(id)", table)
    V = prior.groups[0].features(prior.code(Table(table)))
    assert isinstance(V, Tensor) and not V[0, :2].any() and V.isfinite().all()
    both = LatentPrior([(parse_kernel("Linear(dose) * RBF(age)"), 1), (parse_kernel("RBF(age)"), 1)])
    both.bind(Table({name: column[1:] for name, column in table.items()}))
    with pytest.raises(ValueError, match="column 'age' must be finite, got nan in row 0"):
        both.code(Table(table))


# -- cost


class LargestTensor(TorchDispatchMode):
    """The largest number of entries that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.entries = max(self.entries, leaf.numel())
        return out


def largest(n_ids: int) -> int:
    table = {"id": np.repeat(np.arange(n_ids), 3), "age": np.tile(AGES[:3], n_ids)}
    prior = LatentPrior([(parse_kernel("RBF(age) + Categorical(id) * RBF(age)"), L)])
    prior.groups[0].least_in_blocks = 0
    with LargestTensor() as made:
        prior.bind(Table(table))
        rows: Rows = prior.code(Table(table))
        z = torch.zeros(len(rows), L, dtype=torch.float64)
        totals = [sums.whole().map(lambda x: x.requires_grad_()) for sums in prior.statistics(rows, z, z + 0.1)]
        prior.nll(totals).backward()
        with torch.no_grad():
            q = prior.posterior(totals)
            prior.at(rows, q)
            q.sample(torch.Generator().manual_seed(0))
            q.kl()
    return made.entries


def test_memory_is_linear_in_the_ids() -> None:
    assert largest(400) < 2.1 * largest(200)


# -- what rows say through the decoder


def test_sites_give_the_dense_covariances() -> None:
    """Precisions of rows along directions of the latents, two for three latents: sum_n lambda v v' in loops."""
    prior = LatentPrior([(CASES["two id columns"][0](), 3)], ALPHA)
    group = prior.groups[0]
    group.least_in_blocks = 0
    table = columns()
    prior.bind(Table(table))
    rows = prior.code(Table(table))
    rng = np.random.default_rng(3)
    precision, pull = (torch.from_numpy(rng.uniform(0.1, 2.0, (N, 3))) for _ in range(2))
    basis = torch.linalg.qr(torch.from_numpy(rng.normal(size=(3, 3))))[0]
    sums = SiteSums(prior, [basis])
    for index in torch.arange(N).split(11):
        sums.add(rows[index], [Sites(precision[index], pull[index])])
    with torch.no_grad():
        V = group.kernel.features(rows) if group.kernel is not None else torch.zeros(0)
        mean = torch.from_numpy(rng.normal(size=(group.rank, 3)))
        q = with_sites(LatentPosterior((DiagonalCovariance(mean, mean.abs()),)), sums).parts[0]
        assert isinstance(q, RotatedBlocks) and q.n_covariances == 3
        Sigma = []
        for direction in range(3):
            C = torch.eye(group.rank, dtype=torch.float64)
            for v, weight in zip(V, precision[:, direction], strict=True):
                C += weight * torch.outer(v, v)
            Sigma.append(torch.linalg.inv(C))
        want = torch.einsum("lk,mk,kn->nlm", basis, basis, torch.stack([(V @ S * V).sum(1) for S in Sigma]))
        features = group.features(rows)
        torch.testing.assert_close(q.covariance_at(features), want, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(q.var_at(features), want.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(sums.totals()[0][1], V.T @ pull)
        kl = sum(oracles.gaussian_kl(m.numpy(), S.numpy()) for m, S in zip((mean @ basis).T, Sigma, strict=True))
        np.testing.assert_allclose(q.kl().item(), kl, rtol=1e-9)
        x = torch.from_numpy(rng.normal(size=(group.rank, 2)))
        for P_k, S in zip(precisions_of(q), Sigma, strict=True):
            torch.testing.assert_close(P_k @ (S @ x), x)
            torch.testing.assert_close(solve_precision(P_k, x), S @ x)
        again = LatentPosterior.from_tensors(LatentPosterior((q,)).tensors())
        again.check([(group.rank, 3, group.places)])
        eps = torch.randn(group.rank, 3, dtype=torch.float64)
        assert torch.equal(again.parts[0].times_root(eps), q.times_root(eps))
        root = torch.cat([q.times_each_root(1, e.unsqueeze(1)) for e in torch.eye(group.rank).double()], dim=1)
        torch.testing.assert_close(root @ root.T, Sigma[1])


@pytest.mark.parametrize("expected", [False, True])
def test_parts_of_terms_and_averages_over_rows_of_several_ids(expected: bool) -> None:
    """As `explain` asks for them: the same q(B), dense and by blocks."""
    table, found = columns(24, seed=7), []
    for least in (0, 10**6):
        setting = Setting("two id columns", least)
        prior, terms = setting.prior, kernel_terms(setting.prior)
        with torch.no_grad():
            q = prior.posterior(setting.totals(expected))
            rows = prior.code(Table(table))
            averages = [averaged_contribution(prior, q, rows, term, 6) for term in terms]
            found.append([*contributions(prior, q, rows, terms), *(x for pair in averages for x in pair)])
    for by_blocks, dense in zip(*found, strict=True):
        torch.testing.assert_close(by_blocks, dense, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("least", [0, 10**6])
def test_parts_of_terms_at_new_ids_have_their_prior_variance(least: int) -> None:
    """With and without block algebra: k(a, a) of every term, and of averages the mean of k over pairs of rows."""
    points = [-1.0, 0.3, 2.0]
    kernel = RBF("x", lengthscale=1.0, jitter=1e-12) + 0.5 * Categorical("id") * RBF("x", lengthscale=2.0, jitter=1e-12)
    prior = LatentPrior([(kernel + 2.0 * Categorical("id"), 2)])
    prior.groups[0].least_in_blocks = least
    prior.bind(Table({"x": points * 2, "id": ["a", "a", "a", "b", "b", "b"]}))
    x, ids = [*points, 0.3, -1.0, 0.3], ["a", "new", "new", "newer", "b", "b"]
    rows = prior.code(Table({"x": x, "id": ids}))

    def k(term: int, i: int, j: int) -> float:
        gap = (x[i] - x[j]) ** 2
        return [np.exp(-gap / 2), 0.5 * (ids[i] == ids[j]) * np.exp(-gap / 8), 2.0 * (ids[i] == ids[j])][term]

    terms = kernel_terms(prior)
    with torch.no_grad():
        _, var = contributions(prior, prior.before_data(), rows, terms)
        averages = [averaged_contribution(prior, prior.before_data(), rows, term, 3)[1] for term in terms]
    for number in range(3):
        for n in range(6):
            np.testing.assert_allclose(var[number, n], k(number, n, n), rtol=1e-8)
        for run in range(2):
            pairs = [k(number, i, j) for i in range(3 * run, 3 * run + 3) for j in range(3 * run, 3 * run + 3)]
            np.testing.assert_allclose(averages[number][run], np.mean(pairs), rtol=1e-8)
