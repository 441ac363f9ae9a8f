"""A whole fit of samples that a linear map of a Gaussian process made, against dense formulas at the fitted numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from gppvae import GPPVAE
from gppvae.estimator.kernel_summary import kernel_rows, noise_label

N, K, L, NOISE, SCALE = 120, 6, 2, 0.3, 0.8
FAR = np.array([9.0, 30.0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(K, 2 * L)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.layer(y).chunk(2, dim=1)
        return mean, logvar


def grams(a: np.ndarray, b: np.ndarray, scale: float = SCALE) -> np.ndarray:
    k = oracles.rbf(("time",), scale)
    return oracles.gram(k, [{"time": t} for t in a], [{"time": t} for t in b])


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    time = np.sort(rng.uniform(0.0, 6.0, N))
    f = np.linalg.cholesky(grams(time, time) + 1e-8 * np.eye(N)) @ rng.normal(size=(N, L))
    y = f @ rng.normal(size=(K, L)).T + NOISE * rng.normal(size=(N, K))
    return y.astype(np.float32), time


Y, TIME = data()
TRAIN, TEST = np.arange(0, N, 2), np.arange(1, N, 2)


def fit(**settings: Any) -> GPPVAE:
    torch.manual_seed(0)
    given = {"encoder": Encoder(), "decoder": nn.Linear(L, K), "pixel_var": NOISE**2, "lr": 5e-3, "prior_lr": 3e-2}
    model = GPPVAE(f"RBF(time, lengthscale={SCALE})", L, batch_size=20, **(given | settings))
    return model.fit(Y[TRAIN], {"time": TIME[TRAIN]}, progress=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for inference in ("global", "minibatch"):
        found[inference] = tmp_path_factory.mktemp(inference)
        fit(inference=inference, epochs=80, warmup_epochs=20, gp_epochs=20).save(found[inference])
    return found


@pytest.fixture(params=["global", "minibatch"])
def model(request: pytest.FixtureRequest, saved: dict[str, Path]) -> GPPVAE:
    """Loaded from its file: what is tested was saved."""
    return load(saved[request.param])


def load(folder: Path) -> GPPVAE:
    return GPPVAE.load(folder, encoder=Encoder(), decoder=nn.Linear(L, K))


class Dense:
    """Posterior of f and densities of samples at the numbers that were learned, with no low rank in it."""

    def __init__(self, model: GPPVAE, used: np.ndarray, asked: np.ndarray) -> None:
        decoder, group = model.model_.autoencoder.decoder, model.prior_.groups[0]
        self.W, self.b = (p.detach().numpy().astype(np.float64) for p in (decoder.weight, decoder.bias))
        self.alpha = float(group.alpha.detach())
        scale = float(group.kernel.base.lengthscale.detach())
        t = TIME[used]
        parts = grams(t, t, scale), grams(asked, t, scale), grams(asked, asked, scale)
        self.mean, self.all = oracles.latents_given_samples(*parts, self.alpha, self.W, NOISE**2, Y[used] - self.b)
        self.cov = oracles.row_blocks(self.all, L)

    def var(self) -> np.ndarray:
        return np.diagonal(self.cov, axis1=1, axis2=2) + self.alpha

    def log_density(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Per sample, at latents of this mean."""
        found = []
        for n, sample in enumerate(y.astype(np.float64)):
            cov = self.W @ (self.cov[n] + self.alpha * np.eye(L)) @ self.W.T + NOISE**2 * np.eye(K)
            found.append(oracles.log_density(sample, self.b + self.W @ mean[n], cov))
        return np.array(found)


def test_variances_are_the_exact_posterior_near_and_the_prior_far(model: GPPVAE) -> None:
    asked = np.concatenate([TIME[TRAIN[::7]], TIME[TEST[::7]], FAR])
    dense, (_, var) = Dense(model, TRAIN, asked), model.predict_latent({"time": asked})
    np.testing.assert_allclose(var, dense.var(), rtol=1e-4)
    np.testing.assert_allclose(var[-1], 1.0 + dense.alpha, rtol=1e-6)
    assert var[:-2].max() < 0.4 + dense.alpha  # much was observed there


def test_the_score_is_the_log_density_from_below(model: GPPVAE) -> None:
    rows, y = {"time": TIME[TEST]}, Y[TEST]
    dense, (mean, _) = Dense(model, TRAIN, TIME[TEST]), model.predict_latent(rows)
    score = model.score(y, rows)
    at_mean = dense.log_density(y, mean).mean()  # at the mean that training found
    assert score == pytest.approx(at_mean, rel=1e-3)
    assert score == pytest.approx(dense.log_density(y, dense.mean).mean(), rel=0.05)


def test_the_score_is_not_below_that_of_the_prediction_as_q(model: GPPVAE) -> None:
    """E log p(y | z) over z ~ p(z | row), in closed form for a linear decoder; also where the encoder knows nothing."""
    rows, y = {"time": TIME[TEST]}, Y[TEST].astype(np.float64)
    dense, (mean, _) = Dense(model, TRAIN, TIME[TEST]), model.predict_latent(rows)
    own = []
    for n in range(len(y)):
        spread = np.trace(dense.W @ (dense.cov[n] + dense.alpha * np.eye(L)) @ dense.W.T)
        own.append(-oracles.gaussian_nll(y[n], dense.b + dense.W @ mean[n], NOISE**2) - 0.5 * spread / NOISE**2)
    with torch.no_grad():
        model.model_.autoencoder.encoder.layer.weight.mul_(-30.0)
    assert model.score(Y[TEST], rows) > np.mean(own)


def test_reconstructions_are_no_worse_than_encoding_and_predicting(model: GPPVAE) -> None:
    def mse(found: np.ndarray) -> float:
        return float(np.mean((found - Y[TRAIN]) ** 2))

    rows = {"time": TIME[TRAIN]}
    with torch.no_grad():
        encoded = model.model_.autoencoder.reconstruct(torch.from_numpy(Y[TRAIN])).numpy()
    for found in (model.reconstruct(Y[TRAIN]), model.reconstruct(Y[TRAIN], table=rows)):
        assert mse(found) <= min(mse(encoded), mse(model.predict(rows).mean)) + 1e-6
    with pytest.raises(ValueError, match="one table row per sample"):
        model.reconstruct(Y[TRAIN], table={"time": TIME[:3]})


def test_further_samples_are_taken_in_as_by_dense_conditioning(model: GPPVAE, tmp_path: Path) -> None:
    """f ~ N(mean so far, dense covariance so far), conditioned on the further samples all at once."""
    asked = np.concatenate([TIME[TEST[::5]], FAR])
    everywhere, n = np.concatenate([TIME[TEST], asked]), len(TEST)
    so_far = Dense(model, TRAIN, everywhere)
    mean = model.predict_latent({"time": everywhere})[0]
    values = np.kron(np.eye(n), so_far.W)
    noise = np.kron(np.eye(n), so_far.alpha * so_far.W @ so_far.W.T + NOISE**2 * np.eye(K))
    C = so_far.all[:, : n * L] @ values.T
    gain = C @ np.linalg.inv(values @ so_far.all[: n * L, : n * L] @ values.T + noise)
    error = Y[TEST] - so_far.b - mean[:n] @ so_far.W.T
    want_mean = (mean.ravel() + gain @ error.ravel()).reshape(-1, L)[n:]
    want_var = np.diag(so_far.all - gain @ C.T).reshape(-1, L)[n:] + so_far.alpha
    model.update(Y[TEST], {"time": TIME[TEST]})
    found_mean, found_var = model.predict_latent({"time": asked})
    np.testing.assert_allclose(found_mean, want_mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found_var, want_var, rtol=1e-4)
    model.save(tmp_path)
    np.testing.assert_array_equal(load(tmp_path).predict_latent({"time": asked})[1], found_var)


def test_numbers_that_were_not_learned_are_labelled(saved: dict[str, Path]) -> None:
    labels = {name: dict(kernel_rows(load(folder))) for name, folder in saved.items()}
    assert labels["global"]["latent noise"].endswith("(fixed, not learned)")
    assert "not" not in labels["minibatch"]["latent noise"]
    assert noise_label(load(saved["global"])) and not noise_label(load(saved["minibatch"]))
    assert "length scale" in str(labels["global"]) and str(labels["global"]).count("not learned") == 1
    still = fit(inference="global", epochs=1, prior_lr=0.0)
    assert str(kernel_rows(still)).count("(fixed, not learned)") == 2
