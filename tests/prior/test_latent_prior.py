"""Groups of latents, two with kernels and one without, against dense Gaussian processes in NumPy (oracles.py)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gppvae.data.table import Rows, Table
from gppvae.inference.running import add
from gppvae.kernels import RBF, FreeForm, Learned, Linear
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior, SharedCovariance
from gppvae.prior.statistics import StatisticsSum, Sums
from oracles import Array, LatentGroup, Row
from prior.problems import tensor

N, SIZES, ALPHAS = 17, [2, 1, 3], (0.3, 1.0, 0.8)
L = sum(SIZES)


def columns(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    times = rng.normal(size=n).round(1)
    return {"person": rng.choice(list("abcd"), n), "pose": rng.choice(list("uvw"), n), "time": times}


def dict_rows(table: dict[str, np.ndarray]) -> list[Row]:
    n = len(table["time"])
    return [{c: float(v[i]) if c == "time" else str(v[i]) for c, v in table.items()} for i in range(n)]


class Setting:
    """A product of ids, no kernel, and a sum, with latents at training rows and rows to predict at."""

    def __init__(self) -> None:
        self.table, self.new_table = columns(N, 0), columns(6, 1)
        first = 1.3 * Learned("person", 2) * FreeForm("pose")
        third = 0.6 * Learned("person", 3) + Linear("time")
        self.prior = LatentPrior([(first, SIZES[0]), (None, SIZES[1]), (third, SIZES[2])], alpha=0.5)
        self.prior.bind(Table(self.table), torch.Generator().manual_seed(0))
        with torch.no_grad():
            for kernel in self.prior.kernels:
                for parameter in kernel.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
            for group, alpha in zip(self.prior.groups, ALPHAS, strict=True):
                group.log_alpha.fill_(np.log(alpha))
        self.rows, self.new = (self.prior.code(Table(table)) for table in (self.table, self.new_table))
        rng = np.random.default_rng(2)
        self.mean, self.var = rng.normal(size=(N, L)), rng.uniform(0.1, 1.5, (N, L))

    def groups(self) -> list[LatentGroup]:
        """The same prior by loops."""
        scale, vectors, form, other_scale, others = self.numbers()
        first = oracles.multiplied(oracles.learned("person", vectors), oracles.free_form("pose", list("uvw"), form))
        line = oracles.linear(("time",), dict_rows(self.table))
        third = oracles.added(oracles.scaled(other_scale, oracles.learned("person", others)), line)
        covariances = (oracles.scaled(scale, first), None, third)
        return [LatentGroup(*group) for group in zip(covariances, SIZES, ALPHAS, strict=True)]

    def numbers(self) -> tuple[float, dict[str, Array], Array, float, dict[str, Array]]:
        first, third = (kernel.terms() for kernel in self.prior.kernels)
        (learned, form), (other,) = first[0].leaves, third[0].leaves
        vectors, others = (dict(zip("abcd", leaf.x.detach().numpy(), strict=True)) for leaf in (learned, other))
        return first[0].amplitude().item(), vectors, form.raw.detach().numpy(), third[0].amplitude().item(), others

    @torch.no_grad()
    def totals(self, expected: bool) -> Sums:
        return self.prior.statistics(self.rows, tensor(self.mean), tensor(self.var) if expected else None)

    def known(self, expected: bool) -> tuple[Array, Array]:
        """Mean and variance of the latents as they were summed."""
        return self.mean, self.var if expected else np.zeros_like(self.var)


both = pytest.mark.parametrize("expected", [False, True], ids=["given latents", "encoded latents"])
LAYOUTS = ([None, None, None], ["pose (id)", None, "person (id)"], ["person (id)", None, "time"])


@pytest.mark.parametrize("splits", LAYOUTS)
@both
def test_density_of_all_latents(expected: bool, splits: list[str | None]) -> None:
    setting = Setting()
    for group, split in zip(setting.prior.groups, splits, strict=True):
        group.layout = type(group.layout)(group.kernel, split, setting.rows)
    want = oracles.groups_nll(setting.groups(), dict_rows(setting.table), *setting.known(expected))
    np.testing.assert_allclose(setting.prior.nll(setting.totals(expected)).item(), want, rtol=1e-10)


@both
def test_sums_add_over_batches(expected: bool) -> None:
    setting, total = Setting(), StatisticsSum()
    for part in (slice(0, 5), slice(5, 6), slice(6, N)):
        var = tensor(setting.var[part]) if expected else None
        with torch.no_grad():
            total.add(setting.prior.statistics(setting.rows[part], tensor(setting.mean[part]), var))
    for sums, whole in zip(total.value, setting.totals(expected), strict=True):
        torch.testing.assert_close(sums.tensors(), whole.tensors())


@pytest.mark.parametrize("where", ["training rows", "new rows"])
@both
def test_posterior_of_rows(expected: bool, where: str) -> None:
    setting = Setting()
    rows, table = (setting.rows, setting.table) if where == "training rows" else (setting.new, setting.new_table)
    want = oracles.groups_posterior(
        setting.groups(), dict_rows(setting.table), dict_rows(table), *setting.known(expected)
    )
    with torch.no_grad():
        latents = setting.prior.at(rows, setting.prior.posterior(setting.totals(expected)))
        noise = setting.prior.noise_at(rows)
    for got, expected_values in zip((latents.mean, latents.var, latents.noise), want, strict=True):
        assert got.shape == (len(rows), L)
        np.testing.assert_allclose(got.numpy(), expected_values, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(noise, latents.noise)


@pytest.mark.parametrize("splits", LAYOUTS)
def test_posterior_from_sums_over_whole_features(splits: list[str | None]) -> None:
    """Sums in any layout, turned over to whole features, with rows taken out: as if these had never been summed."""
    setting, gone = Setting(), torch.tensor([1, 4, 5])
    for group, split in zip(setting.prior.groups, splits, strict=True):
        group.layout = type(group.layout)(group.kernel, split, setting.rows)
    kept = [n for n in range(N) if n not in gone.tolist()]
    known, asked = ([dict_rows(setting.table)[n] for n in rows] for rows in (kept, gone.tolist()))
    want = oracles.groups_posterior(setting.groups(), known, asked, setting.mean[kept], np.zeros((len(kept), L)))
    with torch.no_grad():
        left_out = setting.prior.features_at(setting.rows[gone])
        totals = setting.prior.over_features(setting.totals(expected=False))
        rest = add(totals, left_out.sums(tensor(setting.mean)[gone]), -1.0)
        for latents in (left_out.given(rest), left_out.at(setting.prior.given(rest))):
            for got, expected_values in zip((latents.mean, latents.var, latents.noise), want, strict=True):
                np.testing.assert_allclose(got.numpy(), expected_values, rtol=1e-9, atol=1e-10)


def test_divergence_from_the_prior() -> None:
    setting = Setting()
    q = setting.prior.posterior(setting.totals(expected=False))
    want = oracles.groups_kl(setting.groups(), dict_rows(setting.table), setting.mean)
    np.testing.assert_allclose(q.kl().item(), want, rtol=1e-9)
    assert q.parts[1].kl() == 0.0


def test_before_data_is_the_prior() -> None:
    setting = Setting()
    q = setting.prior.before_data()
    with torch.no_grad():
        latents = setting.prior.at(setting.new, q)
    assert not latents.mean.any() and abs(q.kl().item()) < 1e-12
    for group, (total,) in oracles.of_groups(setting.groups(), (latents.var + latents.noise).numpy()):
        for n, row in enumerate(dict_rows(setting.new_table)):
            prior_variance = 0.0 if group.k is None else group.k(row, row)
            np.testing.assert_allclose(total[n], prior_variance + group.alpha, rtol=1e-10)


def bound(setting: Setting, q: LatentPosterior, expected: bool) -> float:
    mean, var = map(tensor, setting.known(expected))
    with torch.no_grad():
        return (setting.prior.at(setting.rows, q).expected_nll(mean, var).sum() + q.kl()).item()


@given(st.integers(0, 999), st.floats(0.05, 3.0), st.booleans())
def test_no_posterior_is_below_the_exact_density(seed: int, size: float, expected: bool) -> None:
    setting, rng = Setting(), np.random.default_rng(seed)
    parts = []
    for group in setting.prior.groups:
        root = size * rng.normal(size=(group.rank, group.rank))
        logdet = tensor(2.0 * np.linalg.slogdet(root)[1])
        parts.append(SharedCovariance(tensor(rng.normal(size=(group.rank, group.n_latents))), tensor(root), logdet))
    exact = oracles.groups_nll(setting.groups(), dict_rows(setting.table), *setting.known(expected))
    assert bound(setting, LatentPosterior(tuple(parts)), expected) >= exact - 1e-9


def test_at_the_posterior_of_given_latents_the_bound_is_exact() -> None:
    setting = Setting()
    exact = oracles.groups_nll(setting.groups(), dict_rows(setting.table), *setting.known(False))
    best = setting.prior.posterior(setting.totals(expected=False))
    np.testing.assert_allclose(bound(setting, best, expected=False), exact, rtol=1e-11)
    moved = LatentPosterior(tuple(SharedCovariance(part.mean + 0.1, part.root, part.logdet) for part in best.parts))
    assert bound(setting, moved, expected=False) > exact + 1e-3


def test_functions_are_drawn_per_group() -> None:
    setting = Setting()
    draws = [torch.randn(group.rank, group.n_latents, dtype=torch.float64) for group in setting.prior.groups]
    f = setting.prior.functions_at(setting.new, draws)
    first, third = (kernel.features(setting.new) for kernel in setting.prior.kernels)
    nothing = torch.zeros(6, 1, dtype=torch.float64)
    torch.testing.assert_close(f, torch.cat([first @ draws[0], nothing, third @ draws[2]], dim=1))


# -- latents without a kernel


def test_noise_of_latents_without_a_kernel_stays_one() -> None:
    prior = Setting().prior
    assert [group.log_alpha.requires_grad for group in prior.groups] == [True, False, True]
    assert prior.groups[1].alpha == 1.0 and LatentPrior([(None, 3)], alpha=0.2).groups[0].alpha == 1.0
    assert prior.unexplained().tolist() == [False, False, True, False, False, False]
    setting = Setting()
    setting.prior.nll(setting.prior.statistics(setting.rows, tensor(setting.mean), tensor(setting.var))).backward()
    found = [group.log_alpha.grad for group in setting.prior.groups]
    assert found[1] is None and found[0] is not None and found[2] is not None


def test_a_prior_without_kernels_is_the_standard_normal(rng: np.random.Generator) -> None:
    prior, rows = LatentPrior([(None, 2)]), Rows({}, 5)
    mean, var = rng.normal(size=(5, 2)), rng.uniform(0.1, 1.0, (5, 2))
    want = oracles.groups_nll([LatentGroup(None, 2)], [{}] * 5, mean, var)
    totals = prior.statistics(rows, tensor(mean), tensor(var))
    np.testing.assert_allclose(prior.nll(totals).item(), want, rtol=1e-12)
    latents = prior.at(rows, prior.posterior(totals))
    assert not latents.mean.any() and not latents.var.any() and (latents.noise == 1.0).all()
    assert prior.kernels == [] and prior.columns() == [] and prior.neg_log_prior() == 0.0
    assert len(prior.code(Table({"any": [1, 2, 3]}))) == 3


# -- what it passes on to the kernels


def test_it_speaks_for_all_kernels() -> None:
    setting = Setting()
    prior = setting.prior
    assert prior.n_latents == L and prior.columns() == ["person", "pose", "time"]
    assert sorted(setting.rows.columns) == ["person (id)", "pose (id)", "time"] and len(setting.rows) == N
    vectors = [leaf.x for leaf in prior.leaves() if isinstance(leaf, Learned)]
    want = sum(0.5 * float((x.detach() ** 2).sum()) for x in vectors)
    np.testing.assert_allclose(prior.neg_log_prior().item(), want, rtol=1e-12)
    assert prior.to_gp(torch.ones(2, dtype=torch.float32)).dtype == torch.float64
    prior.plan(setting.rows, batch_size=N)
    assert prior.groups[0].layout.split is not None and prior.groups[1].layout.kernel is None


def test_columns_that_groups_cannot_tell_apart_are_refused() -> None:
    """One group reads the columns a and b, another a column called "a x b"; both would look up the same name."""
    prior = LatentPrior([(Linear("a", "b"), 1), (Linear("a x b"), 1)])
    table = Table({"a": [1.0, 2.0], "b": [3.0, 4.0], "a x b": [5.0, 6.0]})
    with pytest.raises(ValueError, match=r"\('a', 'b'\) and \('a x b',\) must have different keys"):
        prior.bind(table)


def test_noise_counts_what_few_inducing_points_miss() -> None:
    times = np.linspace(-2.0, 2.0, 30)
    kernel = RBF("time", lengthscale=0.4, max_inducing=3, basis="inducing")
    prior = LatentPrior([(kernel, 1), (None, 1)], alpha=0.3)
    prior.bind(Table({"time": times}))
    rows = prior.code(Table({"time": times}))
    with torch.no_grad():
        noise, V = prior.noise_at(rows), kernel.features(rows)
    torch.testing.assert_close(noise[:, 0], 0.3 + 1.0 - V.square().sum(1))
    assert noise[:, 0].max() > 0.5 and (noise[:, 1] == 1.0).all()
