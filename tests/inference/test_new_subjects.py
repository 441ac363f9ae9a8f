"""New ids of Categorical columns, against the dense posterior of all samples at once, for a linear decoder."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows, Table
from gppvae.estimator.new_objects import NewSamples, add_objects, update
from gppvae.inference.update import WeightUpdate
from gppvae.kernels import RBF, Categorical, Kernel, Learned, Linear
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import id_columns
from gppvae.models.remainders import Remainders
from gppvae.models.vae import Autoencoder
from gppvae.prior import sites
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.layout import Layout
from gppvae.prior.new_blocks import change_levels, remove_rows
from gppvae.prior.posterior import LatentPosterior, RotatedBlocks, RotatedCovariance
from gppvae.prior.sites import Sites, SiteSums, with_sites

N, P, K, L, ALPHA, NOISE = 30, 6, 5, 2, 0.2, 0.3
AGES = (20.0, 35.0, 50.0, 65.0)
DENSE, BLOCKS = 10**6, 0  # features from which on the algebra goes by blocks
Columns = dict[str, np.ndarray]
ID, SEX = oracles.categorical("id"), oracles.categorical("sex")
times, plus = oracles.multiplied, oracles.added


def columns(n: int, ids: list[str], seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "id": np.resize(ids, n),
        "sex": rng.choice(["f", "m"], n),
        "age": rng.choice(AGES, n),
        "dose": rng.normal(size=n),
    }


def rows_of(*tables: Columns) -> list[oracles.Row]:
    return [dict(zip(t, row, strict=True)) for t in tables for row in zip(*t.values(), strict=True)]


def joined(*tables: Columns) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def smooth(scale: float) -> Kernel:
    return RBF("age", lengthscale=scale, jitter=1e-12)


def rbf(scale: float) -> oracles.Covariance:
    return oracles.rbf(["age"], scale)


TRAIN = columns(N, [f"p{i}" for i in range(P)], 0)
NEW, MORE = columns(7, ["a", "b"], 1), columns(3, ["b"], 2)
ASKED = columns(14, ["a", "b", "p0", "p4"], 3)
CASES: dict[str, tuple[Callable[[], Kernel], oracles.Covariance]] = {
    "subjects and time": (
        lambda: smooth(20.0) + 0.7 * Categorical("id") * smooth(12.0),
        plus(rbf(20.0), oracles.scaled(0.7, times(ID, rbf(12.0)))),
    ),
    "two id columns": (
        lambda: smooth(20.0) + smooth(9.0) * Categorical("id") + Categorical("sex") * smooth(15.0),
        plus(plus(rbf(20.0), times(rbf(9.0), ID)), times(SEX, rbf(15.0))),
    ),
    "two terms of one block": (
        lambda: Linear("dose") * Categorical("id") * Categorical("sex") + smooth(20.0) + 0.4 * Categorical("id"),
        plus(plus(times(times(oracles.linear(["dose"], rows_of(TRAIN)), ID), SEX), rbf(20.0)), oracles.scaled(0.4, ID)),
    ),
    "nothing shared": (lambda: Categorical("id") * smooth(12.0), times(ID, rbf(12.0))),
    "the column twice": (
        lambda: Categorical("id") * smooth(12.0) * Categorical("id") + smooth(30.0),
        plus(times(ID, rbf(12.0)), rbf(30.0)),
    ),
}  # fmt: skip


class LinearNet(nn.Module):
    """y = W z in float64, and an encoder that says nothing."""

    def __init__(self, W: np.ndarray) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.from_numpy(W))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.W.T


class Nothing(nn.Module):
    def __init__(self, n_latents: int) -> None:
        super().__init__()
        self.n_latents = n_latents

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.zeros(len(y), self.n_latents, dtype=torch.float64),) * 2  # type: ignore[return-value]


class Problem:
    """A model whose q(B) is the exact posterior given training samples, and samples of new subjects.

    Args:
        groups: kernels and numbers of latents.  least: features from which on the algebra goes by blocks.
        W: decoder, (K, L).
    """

    def __init__(self, groups: list[tuple[Kernel | None, int]], least: int, W: np.ndarray | None = None) -> None:
        rng = np.random.default_rng(4)
        self.W = rng.normal(size=(K, sum(n for _, n in groups))) if W is None else W
        self.prior = LatentPrior(groups, ALPHA)
        for group in self.prior.groups:
            group.least_in_blocks = least
        self.prior.bind(Table(TRAIN), torch.Generator().manual_seed(0))
        self.likelihood = Gaussian(NOISE)
        nets = Autoencoder(Nothing(self.W.shape[1]), LinearNet(self.W), self.likelihood)
        self.model, self.remainders = GPPriorVAE(nets, self.prior), Remainders()
        self.y = {id(t): rng.normal(size=(len(t["id"]), K)).astype(np.float32) for t in (TRAIN, NEW, MORE)}
        rows = self.prior.code(Table(TRAIN))
        epoch = Epoch(Samples(self.y[id(TRAIN)]), rows, 8, None, torch.device("cpu"))
        self.weights = WeightUpdate(self.model, self.before(rows), epoch, self.likelihood).run(5)

    def before(self, rows: Rows) -> LatentPosterior:
        """N(0, I), along the directions in which the decoder keeps latents apart."""
        bases, start = [], 0
        for n in self.prior.sizes:
            own = self.W[:, start : start + n]
            bases.append(torch.from_numpy(np.linalg.eigh(own.T @ own)[1]))
            start += n
        sums = SiteSums(self.prior, bases)
        sums.add(rows, [Sites(torch.zeros(len(rows), n, dtype=torch.float64)) for n in self.prior.sizes])
        return with_sites(self.prior.before_data(), sums)

    def samples(self, *tables: Columns) -> np.ndarray:
        return np.concatenate([self.y[id(table)] for table in tables])

    def add(self, *tables: Columns, steps: int = 4) -> list[str]:
        new = Samples(self.samples(*tables)), Table(joined(*tables)), self.likelihood, self.likelihood
        _, ids, self.weights = add_objects((self.model, self.weights), NewSamples(*new, 4), self.remainders, steps)
        return ids

    def found(self, table: Columns, group: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Mean (N, L) and covariance (N L, N L) of f at rows, latents innermost, of one group of latents."""
        part, own = self.weights.parts[group], self.prior.groups[group]
        with torch.no_grad():
            V = own.features(self.prior.code(Table(table), new_ids=False))
            H, n = part.mean.shape
            roots = [V @ part.times_root(torch.eye(H * n, dtype=torch.float64)[i].view(H, n)) for i in range(H * n)]
            root = torch.stack(roots).flatten(1).T
            return part.mean_at(V).numpy(), (root @ root.T).numpy()

    def dense(self, k: oracles.Covariance, asked: Columns, *given: Columns, W: np.ndarray | None = None) -> Any:
        rows, new = rows_of(*given), rows_of(asked)
        parts = oracles.gram(k, rows, rows), oracles.gram(k, new, rows), oracles.gram(k, new, new)
        return oracles.latents_given_samples(*parts, ALPHA, self.W if W is None else W, NOISE, self.samples(*given))

    def check(self, k: oracles.Covariance, *given: Columns, asked: Columns = ASKED) -> None:
        mean, cov = self.found(asked)
        want_mean, want_cov = self.dense(k, asked, *given)
        np.testing.assert_allclose(mean, want_mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(cov, want_cov, rtol=1e-6, atol=1e-7)


def problem(name: str, least: int) -> tuple[Problem, oracles.Covariance]:
    write, k = CASES[name]
    return Problem([(write(), L)], least), k


both_forms = pytest.mark.parametrize("least", [DENSE, BLOCKS], ids=["dense", "blocks"])


@both_forms
@pytest.mark.parametrize("name", CASES)
def test_new_subjects_are_known_as_if_they_had_been_trained_on(name: str, least: int) -> None:
    """All rows, of new and of known subjects, and what they have to do with each other."""
    new, k = problem(name, least)
    known = joined(*(({c: v[ASKED["id"] == p] for c, v in ASKED.items()}) for p in ("p0", "p4")))
    new.check(k, TRAIN, asked=known)
    assert new.add(NEW) == ["a", "b"]
    assert isinstance(new.weights.parts[0], RotatedBlocks if least == BLOCKS else RotatedCovariance)
    new.check(k, TRAIN, NEW)


@both_forms
def test_one_after_the_other_is_both_at_once(least: int) -> None:
    new, k = problem("two id columns", least)
    for name in ("b", "a"):
        some = {c: v[NEW["id"] == name] for c, v in NEW.items()}
        new.y[id(some)] = new.samples(NEW)[NEW["id"] == name]
        assert new.add(some) == [name]
    new.check(k, TRAIN, NEW)


@both_forms
@pytest.mark.parametrize("name", CASES)
def test_an_id_that_is_added_again_is_known_from_its_last_samples_only(name: str, least: int) -> None:
    new, k = problem(name, least)
    new.add(NEW)
    assert new.add(MORE) == ["b"]
    first = {c: v[NEW["id"] == "a"] for c, v in NEW.items()}
    new.y[id(first)] = new.samples(NEW)[NEW["id"] == "a"]
    new.check(k, TRAIN, first, MORE)
    assert all(column.levels[-2:] == ["a", "b"] for column in id_columns(new.prior) if column.name == "id")
    assert set(new.remainders.taken) == {("id", "a"), ("id", "b")}


@both_forms
def test_further_samples_of_an_added_subject(least: int) -> None:
    new, k = problem("subjects and time", least)
    new.add(NEW)
    more = Samples(new.samples(MORE)), Table(MORE)
    new.weights = update((new.model, new.weights), *more, new.likelihood, 4, 4)
    new.check(k, TRAIN, NEW, MORE)


@pytest.mark.parametrize("least", [N, P * 4 + 8], ids=["before", "while adding"])
def test_so_many_ids_are_added_that_the_algebra_goes_by_blocks(least: int) -> None:
    new, k = problem("subjects and time", least)
    many = columns(12, [f"n{i}" for i in range(4)], 5)
    new.y[id(many)] = np.random.default_rng(6).normal(size=(12, K)).astype(np.float32)
    assert new.prior.groups[0].rank == 4 + 4 * P
    new.add(many)
    assert isinstance(new.weights.parts[0], RotatedBlocks)
    asked = columns(10, ["n0", "n3", "p1"], 7)
    new.check(k, TRAIN, many, asked=asked)


def test_few_covariances_for_many_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions that share a covariance: what is asked of the posterior is finite, and close to the exact one."""
    monkeypatch.setattr(sites, "MAX_NUMBERS", 300)
    W = np.linalg.qr(np.random.default_rng(0).normal(size=(K, L)))[0]
    shared = Problem([(CASES["subjects and time"][0](), L)], BLOCKS, W)  # all directions are seen equally well
    assert shared.weights.parts[0].n_covariances == 1
    shared.add(NEW)
    shared.add(MORE)
    first = {c: v[NEW["id"] == "a"] for c, v in NEW.items()}
    shared.y[id(first)] = shared.samples(NEW)[NEW["id"] == "a"]
    shared.check(CASES["subjects and time"][1], TRAIN, first, MORE)


@both_forms
def test_groups_of_latents(least: int) -> None:
    """Groups whose latents the decoder keeps apart: each is a problem of its own; one group does not read the ids."""
    W = np.linalg.qr(np.random.default_rng(1).normal(size=(K, 4)))[0] * np.array([2.0, 1.0, 1.5, 0.7])
    (first, k_first), (_, k_last) = CASES["subjects and time"], CASES["nothing shared"]
    groups = [(first(), 2), (smooth(15.0) + 0.3 * Categorical("sex"), 1), (CASES["nothing shared"][0](), 1)]
    new = Problem(groups, least, W)
    new.add(NEW)
    new.add(MORE)
    kept = {c: v[NEW["id"] == "a"] for c, v in NEW.items()}
    new.y[id(kept)] = new.samples(NEW)[NEW["id"] == "a"]
    kernels = k_first, plus(rbf(15.0), oracles.scaled(0.3, SEX)), k_last
    for number, (k, own) in enumerate(zip(kernels, (slice(0, 2), slice(2, 3), slice(3, 4)), strict=True)):
        mean, cov = new.found(ASKED, number)
        want_mean, want_cov = new.dense(k, ASKED, TRAIN, kept, MORE, W=W[:, own])
        np.testing.assert_allclose(mean, want_mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(cov, want_cov, rtol=1e-6, atol=1e-7)


@both_forms
def test_vectors_and_blocks_of_one_column(least: int) -> None:
    """Given the vectors that were found, weights have their exact posterior; vectors explain what they can."""
    new = Problem([(Learned("id", 2) * smooth(30.0) + 0.5 * Categorical("id") * smooth(12.0), L)], least)
    assert new.add(NEW) == ["a", "b"]
    learned, own = new.prior.leaves()[0], new.prior.leaves()[2]
    assert isinstance(learned, Learned) and isinstance(own, Categorical)
    assert learned.levels == own.levels == [f"p{i}" for i in range(P)] + ["a", "b"]
    x = dict(zip(learned.levels, learned.x.detach().numpy(), strict=True))

    def vectors(a: oracles.Row, b: oracles.Row) -> float:
        return float(x[str(a["id"])] @ x[str(b["id"])])

    k = plus(times(vectors, rbf(30.0)), oracles.scaled(0.5, times(ID, rbf(12.0))))
    new.check(k, TRAIN, NEW)
    assert learned.n_added == 2 and (learned.added_root != 0.0).any()
    new.add(MORE)
    assert learned.levels == own.levels == [f"p{i}" for i in range(P)] + ["a", "b"]


@pytest.mark.parametrize("split", [None, "age", "id (id)"])
def test_the_layout_of_training_does_not_matter(split: str | None) -> None:
    """Rows are summed by the distinct values of the training table; those of further samples are others."""
    new, k = problem("subjects and time", DENSE)
    group, rows = new.prior.groups[0], new.prior.code(Table(TRAIN))
    assert {"age", "id (id)"} <= set(rows.columns)
    group.layout = Layout(group.kernel, split, rows)
    few = MORE | {"id": np.array(["p1", "p1", "p2"]), "age": np.array([50.0, 65.0, 50.0])}
    new.y[id(few)] = new.samples(MORE)
    new.weights = update((new.model, new.weights), Samples(new.samples(few)), Table(few), new.likelihood, 4, 4)
    new.check(k, TRAIN, few, asked={c: v[2::4] for c, v in ASKED.items()})


class Bent(LinearNet):
    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(super().forward(z)) + super().forward(z)


@both_forms
@pytest.mark.parametrize("steps", [1, 3, 30])
def test_what_was_taken_in_is_taken_back_whole(least: int, steps: int) -> None:
    """Also where the decoder is not linear, and steps end before the maximum is reached."""
    new, _ = problem("two id columns", least)
    new.model.autoencoder.decoder = Bent(new.W)
    before = new.weights
    new.add(NEW, steps=steps)
    column = next(column for column in id_columns(new.prior) if column.name == "id")
    weights = new.weights
    for name in ("b", "a"):
        weights = remove_rows(new.prior, weights, new.remainders.taken["id", name])
    weights, _ = change_levels(new.prior, weights, column.own, ["a", "b"], [])
    torch.testing.assert_close(weights.means, before.means, rtol=1e-7, atol=1e-9)
    eps = torch.randn(before.means[0].shape, dtype=torch.float64)
    for one, other in zip(weights.parts, before.parts, strict=True):
        torch.testing.assert_close(one.times_root(eps), other.times_root(eps), rtol=1e-7, atol=1e-9)
