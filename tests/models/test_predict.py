"""Predictions at rows, against dense Gaussian process regression, for every order and split of the kernel."""

import numpy as np
import pytest
import torch
from torch import nn

import oracles
from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, Categorical, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.likelihoods import Gaussian, Poisson
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import (
    DECODE_ROWS,
    PREDICT_ROWS,
    decode_draws,
    decode_mean,
    decoded,
    latents_at,
    predictive_bound,
    row_chunks,
)
from gppvae.models.vae import LOGVAR_RANGE, Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.layout import Layout
from gppvae.prior.posterior import LatentPosterior

N, L, ALPHA = 25, 2, 0.3

KERNELS = {
    "ids first": lambda: Learned("person", 3) * Periodic("angle", 360),
    "ids last": lambda: Periodic("angle", 360) * Learned("person", 3),
    "views first": lambda: FreeForm("pose") * Learned("person", 3),
    "three factors": lambda: FreeForm("pose") * Learned("person", 2) * RBF("time", lengthscale=0.8),
    "sum": lambda: 0.5 * Categorical("person") + Periodic("angle", 360) * Learned("person", 2) + Linear("time"),
    "ids with features of their own": lambda: (
        RBF("time", lengthscale=0.7) + RBF("time", lengthscale=0.5) * Categorical("person") + Categorical("pose")
    ),
    "few inducing points": lambda: Matern("time", lengthscale=0.7, max_inducing=4) * Learned("person", 2),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def columns(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "person": rng.integers(0, 4, n),
        "pose": rng.integers(0, 3, n),
        "angle": rng.choice([0.0, 45.0, 100.0, 250.0], n) + (seed > 0) * 7.0,
        "time": rng.normal(size=n).round(1),
    }


class Setting:
    """A bound model with latents Z at training rows, and rows to predict at."""

    def __init__(self, kernel: Kernel, split: str | None = None) -> None:
        self.table, self.new_table, self.kernel = Table(columns(N, 0)), Table(columns(9, 1)), kernel
        prior = LatentPrior([(kernel, L)], ALPHA)
        prior.bind(self.table, torch.Generator().manual_seed(0))
        autoencoder = Autoencoder(MLPEncoder((4,), L, ()), MLPDecoder((4,), L, ()), Gaussian(0.2)).double()
        self.model = GPPriorVAE(autoencoder, prior)
        self.rows, self.new = prior.code(self.table), prior.code(self.new_table)
        prior.groups[0].layout = Layout(kernel, split, self.rows)
        self.Z = torch.randn(N, L, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    @torch.no_grad()
    def weights(self) -> LatentPosterior:
        """q(B) as every inference makes it: from sums in the layout of the group."""
        return self.model.prior.posterior(self.model.prior.statistics(self.rows, self.Z))

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of z at new rows by N x N regression; off the diagonal as inducing points see it."""
        with torch.no_grad():
            V, W = (self.kernel.features(rows).numpy() for rows in (self.rows, self.new))
            variances, new_variances = (self.kernel.diag(rows).numpy() for rows in (self.rows, self.new))
        K = oracles.fitc_covariance(V, variances, ALPHA)
        mean, cov = oracles.gp_posterior(K, W @ V.T, W @ W.T, self.Z.numpy())
        return mean, np.diag(cov) + (new_variances - np.sum(W * W, axis=1)) + ALPHA


@every_kernel
def test_latents_are_the_dense_gp_posterior_whatever_the_split(name: str) -> None:
    for split in (None, *Setting(KERNELS[name]()).rows.columns):
        setting = Setting(KERNELS[name](), split)
        mean, var = setting.dense()
        with torch.no_grad():
            latents = latents_at(setting.model, setting.weights(), setting.new)
        np.testing.assert_allclose(latents.mean.numpy(), mean, rtol=1e-5, atol=1e-5, err_msg=f"split by {split}")
        total = (latents.var + latents.noise)[:, 0].numpy()
        np.testing.assert_allclose(total, var, rtol=1e-5, atol=1e-5, err_msg=f"split by {split}")


@every_kernel
def test_before_data_latents_have_the_prior_variance(name: str) -> None:
    setting = Setting(KERNELS[name]())
    latents = latents_at(setting.model, setting.model.prior.before_data(), setting.new)
    prior = setting.kernel.diag(setting.new) + ALPHA
    torch.testing.assert_close((latents.var + latents.noise)[:, 0], prior, rtol=1e-6, atol=1e-6)
    assert not latents.mean.any()


def test_far_from_the_data_the_prior_returns() -> None:
    setting = Setting(RBF("time", lengthscale=0.5))
    far = setting.model.prior.code(Table({"time": [1e3]}))
    with torch.no_grad():
        latents = latents_at(setting.model, setting.weights(), far)
    assert latents.mean.abs().max() < 1e-12
    np.testing.assert_allclose(latents.var + latents.noise, 1.0 + ALPHA, rtol=1e-6)


@every_kernel
def test_decoded_mean_is_the_decoder_at_the_posterior_mean(name: str) -> None:
    for split in (None, *Setting(KERNELS[name]()).rows.columns):
        setting = Setting(KERNELS[name](), split)
        layer = setting.model.autoencoder.decoder.layers[0]
        want = setting.dense()[0] @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        with torch.no_grad():
            got = decode_mean(setting.model, setting.weights(), setting.new).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"split by {split}")


class Echo(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z


def test_draws_have_the_moments_of_the_posterior() -> None:
    setting = Setting(KERNELS["few inducing points"](), "time")
    setting.model.autoencoder.decoder = Echo()
    mean, var = setting.dense()
    weights, generator = setting.weights(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = [weights.sample(generator) for _ in range(4000)]
        outputs = list(decode_draws(setting.model, draws, setting.new, generator))
    values = torch.stack([value for value, _ in outputs]).numpy()
    assert all(torch.allclose(noise, torch.tensor(0.2).double()) for _, noise in outputs)
    np.testing.assert_allclose(values.mean(0), mean, atol=4.5 * np.sqrt(var.max() / 4000))
    np.testing.assert_allclose(values.var(0), np.repeat(var[:, None], L, 1), rtol=0.12)


@pytest.mark.parametrize("n_rows", [0, 3, DECODE_ROWS, 2 * DECODE_ROWS + 5])
def test_rows_decoded_in_parts_are_those_decoded_at_once(n_rows: int) -> None:
    autoencoder = Autoencoder(MLPEncoder((4,), 2, (3,)), MLPDecoder((4,), 2, (3,)), Poisson()).double()
    seen: list[int] = []
    autoencoder.decoder.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    generator = torch.Generator().manual_seed(0)
    z, sizes = torch.randn(n_rows, 2, generator=generator), torch.rand(n_rows, generator=generator) + 0.5
    for own in (None, sizes):
        seen.clear()
        got = decoded(autoencoder, z, own)
        assert max(seen) <= DECODE_ROWS and sum(seen) == n_rows
        torch.testing.assert_close(got, autoencoder.decode(z, own), rtol=1e-12, atol=1e-12)


def test_chunks_cover_the_rows_in_order() -> None:
    kernel = Linear("time")
    kernel.bind(Table({"time": [1.0]}))
    n = 2 * PREDICT_ROWS + 3
    rows = kernel.code(Table({"time": np.arange(n, dtype=float)}))
    parts = list(row_chunks(rows))
    assert [len(part) for part in parts] == [PREDICT_ROWS, PREDICT_ROWS, 3]
    assert torch.cat([part.columns["time"].index for part in parts]).tolist() == list(range(n))
    assert list(row_chunks(Rows({}, 0))) == []


def test_noise_counts_what_few_inducing_points_miss() -> None:
    complete, few = Setting(KERNELS["ids first"]()), Setting(KERNELS["few inducing points"]())
    np.testing.assert_allclose(complete.model.prior.noise_at(complete.rows).detach(), ALPHA)
    with torch.no_grad():
        noise, V = few.model.prior.noise_at(few.rows), few.kernel.features(few.rows)
    missed = few.kernel.diag(few.rows).detach() - V.square().sum(1)
    torch.testing.assert_close(noise, (ALPHA + missed).unsqueeze(1).expand(N, L))
    assert noise.max().item() > ALPHA + 0.01


def test_with_a_linear_decoder_the_bound_is_the_log_density() -> None:
    """log N(y; W E z + b, W Cov(z) W' + noise), by dense algebra: the refined q(z | y) is the exact posterior."""
    setting = Setting(KERNELS["sum"]())
    y = np.random.default_rng(4).normal(size=(9, 4)).astype(np.float32)
    y[2, 1] = np.nan
    epoch = Epoch(Samples(y, missing="mask"), setting.new, 4, 0, torch.device("cpu"))
    layer, (mean, var), want = setting.model.autoencoder.decoder.layers[0], setting.dense(), 0.0
    W, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    for n in range(9):
        seen = np.isfinite(y[n])
        cov = W @ (var[n] * np.eye(L)) @ W.T + 0.2 * np.eye(4)
        error = (y[n].astype(np.float64) - W @ mean[n] - b)[seen]
        want -= oracles.gp_nll(cov[np.ix_(seen, seen)], error[:, None])
    setting.model.autoencoder.encoder.float()
    np.testing.assert_allclose(predictive_bound(setting.model, setting.weights(), epoch), want / 9, rtol=1e-5)


def test_encoder_variance_stays_finite() -> None:
    class Extreme(nn.Module):
        def forward(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return y, torch.tensor([[-1e4, 1e4]])

    mean, var = Autoencoder(Extreme(), Echo(), Gaussian()).encode(torch.zeros(1, 2))
    np.testing.assert_allclose(var.numpy(), np.exp([LOGVAR_RANGE]), rtol=1e-6)
    assert not mean.any()
