"""The posterior after a fit, without a fit: sites through a linear decoder against dense algebra over all values."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from gppvae.data.arrays import Samples
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, FreeForm, Kernel, Learned
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Bernoulli, Gaussian, Poisson
from gppvae.models import curvature, laplace
from gppvae.models.curvature import Signs, expand, jacobian, jacobian_rows
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import laplace_posterior
from gppvae.models.objects import latents_by_vector, map_covariance, vector_roots, vectors_drawn
from gppvae.models.predict import latents_at
from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.posterior import LatentPosterior, RotatedBlocks, RotatedCovariance

N, K, L, ALPHA, NOISE, SCALE = 20, 6, 2, 0.05, 0.3, 0.7


class Encoder(nn.Module):
    def __init__(self, n_latents: int) -> None:
        super().__init__()
        self.layer = nn.Linear(K, 2 * n_latents).double()

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.layer(y.double()).chunk(2, dim=1)
        return mean, logvar


def setting(groups: list[tuple[Kernel | None, int]], y: np.ndarray, table: dict) -> tuple[GPPriorVAE, Epoch]:
    torch.manual_seed(0)
    n_latents = sum(n for _, n in groups)
    prior = LatentPrior(groups, ALPHA)
    prior.bind(Table(table), torch.Generator().manual_seed(0))
    decoder = nn.Linear(n_latents, K).double()
    model = GPPriorVAE(Autoencoder(Encoder(n_latents), decoder, Gaussian(NOISE)), prior)
    rows = prior.code(Table(table))
    return model, Epoch(Samples(y.astype(np.float32), missing="mask"), rows, 7, None, torch.device("cpu"))


def any_weights(model: GPPriorVAE) -> LatentPosterior:
    """Means do not matter for the covariances of a linear decoder."""
    parts = model.prior.before_data().parts
    return LatentPosterior(parts)


def times() -> tuple[np.ndarray, dict]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, K)), {"time": np.sort(rng.uniform(0.0, 4.0, N))}


def asked(model: GPPriorVAE, weights: LatentPosterior, at: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found = latents_at(model, weights, model.prior.code(Table({"time": at})))
    return (found.var + found.noise).numpy()


@pytest.mark.parametrize("free", [0, 1])
def test_the_variance_of_latents_is_the_dense_posterior(free: int) -> None:
    """Near data, between and far away; with latents that no column explains as further noise of the values."""
    y, table = times()
    groups: list[tuple[Kernel | None, int]] = [(RBF("time", lengthscale=SCALE), L)]
    model, epoch = setting(groups + ([(None, free)] if free else []), y, table)
    weights = laplace_posterior(model, any_weights(model), epoch)
    W = model.autoencoder.decoder.weight.detach().numpy()
    new = np.array([table["time"][3], 1.234, 2.5, 6.0, 50.0])
    k = oracles.rbf(("time",), SCALE)
    train, rows = [{"time": t} for t in table["time"]], [{"time": t} for t in new]
    grams = [oracles.gram(k, a, b) for a, b in ((train, train), (rows, train), (rows, rows))]
    noise = NOISE * np.eye(K) + W[:, L:] @ W[:, L:].T  # of the values, given the latents with a kernel
    # Whitened values have noise 1.
    white = np.linalg.inv(np.linalg.cholesky(noise))
    _, cov = oracles.latents_given_samples(*grams, ALPHA, white @ W[:, :L], 1.0, np.zeros((N, K)))
    want = np.diag(cov).reshape(-1, L) + ALPHA
    np.testing.assert_allclose(asked(model, weights, new)[:, :L], want, rtol=1e-5)
    np.testing.assert_allclose(want[-1], 1.0 + ALPHA, rtol=1e-9)
    assert want[0].max() < 0.5


def test_values_that_were_not_observed_say_nothing() -> None:
    y, table = times()
    early = table["time"] < 2.0
    y[~early] = np.nan
    model, epoch = setting([(RBF("time", lengthscale=SCALE), L)], y, table)
    weights = laplace_posterior(model, any_weights(model), epoch)
    new = np.array([0.5, 1.0, 3.5, 4.0])
    alone, alone_epoch = setting([(RBF("time", lengthscale=SCALE), L)], y[early], {"time": table["time"][early]})
    want = asked(alone, laplace_posterior(alone, any_weights(alone), alone_epoch), new)
    np.testing.assert_allclose(asked(model, weights, new), want, rtol=1e-3)


def test_vectors_of_objects_have_the_curvature_of_their_rows() -> None:
    """I + sum over an object's rows of E[A (Cov of the values given x)^-1 A'], by loops; one object has no values.

    The expectation over B: what its covariance adds is averaged over all rows.
    """
    rng = np.random.default_rng(2)
    table = {"person": [*"abcd"] * 5, "pose": np.repeat(range(5), 4)}
    y = rng.normal(size=(N, K))
    y[np.array(table["person"]) == "d"] = np.nan
    model, epoch = setting([(Learned("person", 3) * FreeForm("pose"), L)], y, table)
    (group,) = model.prior.groups
    with torch.no_grad():
        model.autoencoder.decoder.weight.copy_(torch.from_numpy(np.linalg.qr(rng.normal(size=(K, L)))[0]))
    (part,) = model.prior.before_data().parts
    B = torch.from_numpy(rng.normal(size=tuple(part.mean.shape)))
    (after,) = laplace_posterior(model, LatentPosterior((replace(part, mean=B),)), epoch).parts
    learned, poses = group.kernel.leaves()
    root = vector_roots([learned]).numpy()
    W, views = (
        model.autoencoder.decoder.weight.detach().numpy(),
        poses.factor(torch.arange(len(poses.levels))).detach().numpy(),
    )
    # Draws of B show its covariance, whatever form it is kept in.
    deviations = np.stack([(after.sample(torch.Generator().manual_seed(n)) - B).numpy() for n in range(20000)])
    added = np.zeros((3, 3))  # per row
    for view in views[table["pose"]]:
        H = np.stack([np.kron(unit, view) @ deviations @ W.T for unit in np.eye(3)])  # (J, draws, K)
        white = H @ np.linalg.inv(np.linalg.cholesky(NOISE * np.eye(K) + ALPHA * W @ W.T)).T
        added += np.einsum("isk,jsk->ij", white, white) / len(deviations) / N
    for p, person in enumerate("abcd"):
        precision = np.eye(3)
        for n in range(N):
            if table["person"][n] == person and np.isfinite(y[n, 0]):
                view = views[table["pose"][n]]
                A = np.stack([np.kron(unit, view) @ B.numpy() for unit in np.eye(3)])  # (J, L)
                H = A @ W.T
                precision += H @ np.linalg.inv(NOISE * np.eye(K) + ALPHA * W @ W.T) @ H.T + added
        np.testing.assert_allclose(
            np.linalg.inv(root[p] @ root[p].T), precision, rtol=0.02, atol=0.02 * precision.max()
        )
    np.testing.assert_allclose(root[3] @ root[3].T, np.eye(3), atol=1e-12)


def test_entries_that_a_fit_does_not_use_vary_no_more_than_the_noise_allows() -> None:
    """Large amplitude, vectors and weights at zero: alone, each keeps its prior variance; their product must not."""
    table = {"person": np.repeat([*"abcd"], 5)}
    y = np.random.default_rng(3).normal(size=(N, K))
    model, epoch = setting([(400.0 * Learned("person", 3), L)], y, table)
    (learned,) = model.prior.groups[0].kernel.leaves()
    with torch.no_grad():
        learned.x.zero_()
    weights = laplace_posterior(model, any_weights(model), epoch)
    generator = torch.Generator().manual_seed(0)
    rows, drawn = epoch.rows[torch.arange(0, N, 5)], []
    for _ in range(400):
        with vectors_drawn(model.prior, generator):
            drawn.append(model.prior.functions_at(rows, weights.sample(generator)))
    spread = torch.stack(drawn).var(0) + ALPHA
    W = model.autoencoder.decoder.weight.detach()
    seen = torch.linalg.inv(W.T @ W / NOISE).diagonal() + ALPHA  # by one sample; an object has five
    assert (spread < 3.0 * seen).all(), "the prior's would be 400 x 3"


@pytest.mark.parametrize("kernel", ["Learned(who, 2) * RBF(t) + Categorical(id) * RBF(t)", "Learned(who, 2) * RBF(t)"])
def test_the_map_of_vectors_varies_as_draws_of_the_weights_do(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatentGroup, "least_in_blocks", 0)  # by blocks where there is a Categorical
    rng = np.random.default_rng(4)
    table = {"who": rng.choice([*"abc"], N), "id": rng.choice([*"uvwxyz"], N), "t": rng.normal(size=N).round(1)}
    model, epoch = setting([(parse_kernel(kernel), L)], rng.normal(size=(N, K)), table)
    leaves = [leaf for leaf in model.prior.leaves() if isinstance(leaf, Learned)]
    weights = laplace_posterior(model, any_weights(model), epoch)
    (part,) = weights.parts
    assert isinstance(part, RotatedBlocks if "Categorical" in kernel else RotatedCovariance)
    got = map_covariance(model.prior, weights, epoch.rows, leaves).numpy()
    mean, _ = latents_by_vector(model.prior, weights, epoch.rows, leaves)
    squares = np.zeros((L, 2, 2))
    for seed in range(2000):
        draw = replace(part, mean=part.sample(torch.Generator().manual_seed(seed)))
        A = latents_by_vector(model.prior, LatentPosterior((draw,)), epoch.rows, leaves)[0] - mean
        squares += np.einsum("nik,njk->kij", *2 * [(A @ part.basis).detach().numpy()]) / N / 2000
    np.testing.assert_allclose(got, squares, rtol=0.15, atol=0.1 * squares.max())


def test_vectors_are_the_same_however_many_rows_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"person": [*"abcd"] * 5, "pose": np.repeat(range(5), 4)}
    y = np.random.default_rng(2).normal(size=(N, K))
    roots = []
    for rows, products in ((1, 64), (8, 3), (1024, 64)):
        monkeypatch.setattr(laplace, "VECTOR_ROWS", rows)
        monkeypatch.setattr(laplace, "ROWS_AT_ONCE", products)
        model, epoch = setting([(Learned("person", 3) * FreeForm("pose"), L)], y, table)
        laplace_posterior(model, any_weights(model), epoch)
        roots.append(vector_roots([model.prior.groups[0].kernel.leaves()[0]]).numpy())
    np.testing.assert_allclose(roots[1], roots[0], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(roots[2], roots[0], rtol=1e-10, atol=1e-14)


def test_many_rows_need_few_directions_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over rows average the error of random directions: the precisions of vectors are near the exact ones."""
    n = 600
    table = {"person": [*"abc"] * (n // 3), "time": np.linspace(0.0, 4.0, n)}
    y = np.random.default_rng(2).normal(size=(n, K))
    found, asked = [], []
    monkeypatch.setattr(laplace, "jacobian_rows", lambda *words: asked.append(words[-1]) or jacobian_rows(*words))
    for exact in (16, 0):
        monkeypatch.setattr(curvature, "EXACT_LATENTS", exact)
        monkeypatch.setattr(laplace, "MANY_ROWS", n)
        model, epoch = setting([(Learned("person", 2) * RBF("time"), L)], y, table)
        (part,) = model.prior.before_data().parts
        B = torch.randn(part.mean.shape, generator=torch.Generator().manual_seed(0)).double()
        weights = LatentPosterior((replace(part, mean=B),))
        laplace_posterior(model, weights, epoch)
        root = vector_roots([model.prior.groups[0].kernel.leaves()[0]])
        found.append((root @ root.transpose(1, 2)).diagonal(dim1=1, dim2=2).numpy())
    assert set(asked) == {laplace.FEW_PROBES}
    np.testing.assert_allclose(found[1], found[0], rtol=0.2)
    assert not np.array_equal(found[1], found[0])


# -- slopes and curvatures


def nonlinear() -> Autoencoder:
    torch.manual_seed(1)
    decoder = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, K)).double()
    return Autoencoder(Encoder(4), decoder, Bernoulli())


def test_curvature_is_the_fisher_information_by_finite_differences() -> None:
    autoencoder, z, step = nonlinear(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double(), 1e-5
    mask = torch.rand(3, K, generator=torch.Generator().manual_seed(1)) < 0.7
    y = (torch.rand(3, K, generator=torch.Generator().manual_seed(2)) < 0.5).double()

    def logits(at: Tensor) -> np.ndarray:
        with torch.no_grad():
            return autoencoder.decoder(at).numpy()

    batch = Batch(y, mask, Rows({}, 3), torch.arange(3), seed=0, total=3)
    found = expand(autoencoder, autoencoder.likelihood, batch, z)
    columns = [(logits(z + step * unit) - logits(z - step * unit)) / (2 * step) for unit in torch.eye(4).double()]
    J = np.stack(columns, axis=2)  # d logits / d z, (3, K, L)
    p = 1.0 / (1.0 + np.exp(-logits(z)))
    for n in range(3):
        seen = mask[n].numpy()
        own, at = J[n][seen], p[n][seen]
        np.testing.assert_allclose(found.curvature[n], own.T @ np.diag(at * (1 - at)) @ own, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found.gradient[n], own.T @ (at - y[n].numpy()[seen]), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("at_once", [1, 7, 128])
def test_slopes_are_those_of_each_row_at_its_own_size(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "PASS_ROWS", at_once)
    torch.manual_seed(2)
    decoder = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, K)).double()
    autoencoder, sizes = Autoencoder(Encoder(4), decoder, Poisson()), torch.tensor([10.0, 200.0, 3000.0]).double()
    autoencoder.likelihood.adapt((K,))
    autoencoder.size, z, step = sizes, torch.randn(3, 4).double(), 1e-6

    def rates(at: Tensor) -> np.ndarray:
        with torch.no_grad():
            return np.stack(
                [
                    (sizes[n] * decoder(row).add(autoencoder.likelihood.log_rate).softmax(0)).numpy()
                    for n, row in enumerate(at)
                ]
            )

    def mean(at: Tensor) -> Tensor:
        return autoencoder.likelihood.mean(autoencoder.decode(at))

    found = jacobian(mean, z)
    assert found.shape == (3, 4, K)
    autoencoder.size = sizes[:0]
    assert jacobian(mean, z[:0]).shape == (0, 4, K)  # a process without rows of a batch
    for latent, unit in enumerate(torch.eye(4).double()):
        by_difference = (rates(z + step * unit) - rates(z - step * unit)) / (2 * step)
        np.testing.assert_allclose(found[:, latent].detach(), by_difference, rtol=1e-4, atol=1e-4)


def test_random_directions_give_the_curvature_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    autoencoder, z = nonlinear(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).double()
    likelihood = autoencoder.likelihood
    exact = jacobian_rows(autoencoder, likelihood, z, None, Signs(0, 2))
    monkeypatch.setattr(curvature, "EXACT_LATENTS", 0)
    drawn = jacobian_rows(autoencoder, likelihood, z, None, Signs(0, 2), probes=3000)
    assert drawn.shape == (2, 3000, 4)
    want = exact.transpose(1, 2) @ exact
    np.testing.assert_allclose(drawn.transpose(1, 2) @ drawn, want, atol=0.08 * want.abs().max())


def test_random_signs_do_not_depend_on_the_number_of_processes() -> None:
    whole, parts = Signs(5, 7), [Signs(5, 7, start) for start in (0, 4)]
    for _ in range(2):
        together = torch.cat([parts[0].draw(torch.zeros(4, 3)), parts[1].draw(torch.zeros(3, 3))])
        assert torch.equal(whole.draw(torch.zeros(7, 3)), together) and set(together.unique().tolist()) == {-1.0, 1.0}
