"""Predictions at rows, against dense Gaussian process regression, for every order and split of the kernel."""

import numpy as np
import pytest
import torch
from torch import nn

import oracles
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, Categorical, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import PREDICT_ROWS, decode_draws, decode_mean, latents_at, row_chunks
from gppvae.models.vae import LOGVAR_RANGE, Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, condition, prior_weights
from gppvae.prior.statistics import statistics

N, L, ALPHA = 25, 2, 0.3

KERNELS = {
    "ids first": lambda: Learned("person", 3) * Periodic("angle", 360),
    "ids last": lambda: Periodic("angle", 360) * Learned("person", 3),
    "views first": lambda: FreeForm("pose") * Learned("person", 3),
    "three factors": lambda: FreeForm("pose") * Learned("person", 2) * RBF("time", lengthscale=0.8),
    "sum": lambda: 0.5 * Categorical("person") + Periodic("angle", 360) * Learned("person", 2) + Linear("time"),
    "few anchors": lambda: Matern("time", lengthscale=0.7, max_anchors=4) * Learned("person", 2),
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
        self.table, self.new_table = Table(columns(N, 0)), Table(columns(9, 1))
        kernel.bind(self.table, torch.Generator().manual_seed(0))
        autoencoder = Autoencoder(MLPEncoder((4,), L, ()), MLPDecoder((4,), L, ()), Gaussian(0.2)).double()
        self.model = GPPriorVAE(autoencoder, kernel, ALPHA, L)
        self.model.split = split
        self.rows, self.new = kernel.code(self.table), kernel.code(self.new_table)
        self.Z = torch.randn(N, L, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def weights(self) -> SharedCovariance:
        """q(B) as every inference makes it: in the order of the model's own features."""
        features = self.model.features(self.rows)
        with torch.no_grad():
            stats = statistics(features, self.Z, None, self.model.noise(self.rows))
            return condition(assemble(stats, features.tables, features.sizes))

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of z at new rows by N x N regression; off the diagonal as the anchors see it."""
        with torch.no_grad():
            V, W = (self.model.kernel.features(rows).dense().numpy() for rows in (self.rows, self.new))
            variances, new_variances = (self.model.kernel.diag(rows).numpy() for rows in (self.rows, self.new))
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
    latents = latents_at(setting.model, prior_weights(setting.model.kernel.rank, L), setting.new)
    prior = setting.model.kernel.diag(setting.new) + ALPHA
    torch.testing.assert_close((latents.var + latents.noise)[:, 0], prior, rtol=1e-6, atol=1e-6)
    assert not latents.mean.any()


def test_far_from_the_data_the_prior_returns() -> None:
    setting = Setting(RBF("time", lengthscale=0.5))
    far = setting.model.kernel.code(Table({"time": [1e3]}))
    with torch.no_grad():
        latents = latents_at(setting.model, setting.weights(), far)
    assert latents.mean.abs().max() < 1e-12
    assert (latents.var + latents.noise).item() == pytest.approx(1.0 + ALPHA)


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
    setting = Setting(KERNELS["few anchors"](), "time")
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


def test_chunks_cover_the_rows_in_order() -> None:
    kernel = Linear("time")
    kernel.bind(Table({"time": [1.0]}))
    n = 2 * PREDICT_ROWS + 3
    rows = kernel.code(Table({"time": np.arange(n, dtype=float)}))
    parts = [(chunk, len(part), part.columns["time"].index) for chunk, part in row_chunks(rows)]
    assert [size for _, size, _ in parts] == [PREDICT_ROWS, PREDICT_ROWS, 3]
    assert torch.cat([index for _, _, index in parts]).tolist() == list(range(n))
    assert [chunk.stop - chunk.start for chunk, _, _ in parts] == [PREDICT_ROWS, PREDICT_ROWS, 3]
    assert list(row_chunks(Rows({}, 0))) == []


def test_noise_counts_what_few_anchors_miss() -> None:
    complete, few = Setting(KERNELS["ids first"]()), Setting(KERNELS["few anchors"]())
    assert complete.model.noise(complete.rows).item() == pytest.approx(ALPHA)
    noise = few.model.noise(few.rows)
    with torch.no_grad():
        V = few.model.kernel.features(few.rows).dense()
    torch.testing.assert_close(noise, ALPHA + few.model.kernel.diag(few.rows) - V.square().sum(1))
    assert noise.max().item() > ALPHA + 0.01


def test_networks_outputs_reach_the_gp_in_float64() -> None:
    model = Setting(KERNELS["ids first"]()).model
    assert model.to_gp(torch.ones(2, dtype=torch.float32)).dtype == torch.float64
    assert model.alpha.dtype == torch.float64


def test_encoder_variance_stays_finite() -> None:
    class Extreme(nn.Module):
        def forward(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return y, torch.tensor([[-1e4, 1e4]])

    mean, var = Autoencoder(Extreme(), Echo(), Gaussian()).encode(torch.zeros(1, 2))
    np.testing.assert_allclose(var.numpy(), np.exp([LOGVAR_RANGE]), rtol=1e-6)
    assert not mean.any()
