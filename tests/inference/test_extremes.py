"""Data that strain the algebra: finite values and gradients, no jitter that nobody was told of."""

import logging

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.data.world import ALONE
from gppvae.estimator.cost import GPCost, log_cost
from gppvae.inference import INFERENCES
from gppvae.inference.base import sum_rows
from gppvae.inference.exact import pull_back
from gppvae.kernels import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.layout import Layout
from inference.setting import K, L, RowEpoch, gradients
from oracles import expected_gp_nll

N = 30
TABLES = {
    "duplicated rows": {"object": np.zeros(N, dtype=int), "time": np.zeros(N)},
    "nearly dependent features": {"object": np.arange(N) % 3, "time": 1e-7 * np.arange(N)},
    "one sample per view": {"object": np.arange(N) % 3, "time": np.arange(N, dtype=float)},
    "one sample per object": {"object": np.arange(N), "time": np.arange(N) % 2 * 1.0},
}


def setting(table: dict[str, np.ndarray], alpha: float) -> tuple[GPPriorVAE, RowEpoch]:
    torch.manual_seed(0)
    prior = LatentPrior([(parse_kernel("Learned(object, 2) * RBF(time) + Linear(time) + Constant()"), L)], alpha)
    prior.bind(Table(table), torch.Generator().manual_seed(0))
    networks = MLPEncoder((K,), L, (5,)), MLPDecoder((K,), L, (5,))
    model = GPPriorVAE(Autoencoder(*networks, Gaussian(0.3, learn=True)).double(), prior)
    rows = prior.code(Table(table))
    prior.plan(rows, 7)
    y, eps = torch.randn(N, K, dtype=torch.float64), torch.randn(N, L, dtype=torch.float64)
    return model, RowEpoch(y, rows, eps, 7)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("name", ["fixed", "exact", "minibatch", "posterior", "global"])
def test_values_and_gradients_stay_finite(table: str, alpha: float, name: str) -> None:
    model, epoch = setting(TABLES[table], alpha)
    inference = INFERENCES[name](model)
    inference.start(epoch, model.prior.before_data())
    for terms in inference.steps(epoch):
        assert all(torch.isfinite(value) for value in terms.named().values())
        assert all(torch.isfinite(gradient).all() for gradient in gradients(model, inference).values())
    posterior = inference.weights(epoch)
    assert posterior is not None
    latents = model.prior.at(epoch.rows, posterior)
    assert torch.isfinite(latents.mean).all() and (latents.var >= 0).all() and (latents.noise > 0).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("alpha", [1e-6, 1.0, 1e3])
def test_the_term_keeps_its_digits(table: str, alpha: float) -> None:
    model, epoch = setting(TABLES[table], alpha)
    with torch.no_grad():
        mean, var = model.autoencoder.encode(epoch.y)
        V = model.prior.groups[0].features(epoch.rows)
        noise = model.prior.noise_at(epoch.rows, training=True)[:, 0]
    cov = V @ V.T + torch.diag(noise)
    totals = sum_rows(epoch, lambda b: model.prior.statistics(b.rows, *model.autoencoder.encode(b.y)))
    value, _, _ = pull_back(model.prior, totals, N, ALONE)
    # Relative to the size of what is subtracted in the quadratic form, which 1 / alpha sets.
    scale = float((mean.square() / noise.unsqueeze(1)).sum()) + abs(float(value))
    want = expected_gp_nll(cov.numpy(), mean.numpy(), var.numpy())
    assert float(value) == pytest.approx(want, abs=1e-9 * scale)


def test_the_jitter_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model, epoch = setting(TABLES["one sample per view"], 0.1)
    with caplog.at_level(logging.INFO, logger="gppvae"):
        log_cost(model.prior, epoch.rows)
    assert "jitter 1e-08" in caplog.text and "30 inducing points at its distinct values" in caplog.text
    assert f"H = {model.prior.groups[0].rank}" in caplog.text


def test_many_features_are_warned_of() -> None:
    table = Table({"object": np.arange(60) % 2, "view": np.arange(60) % 30})
    prior = LatentPrior([(parse_kernel("Learned(object, 70) * FreeForm(view)"), 4)])
    prior.bind(table, torch.Generator().manual_seed(0))
    rows = prior.code(table)
    prior.groups[0].layout = Layout(prior.kernels[0], "view (id)", rows)
    with pytest.warns(UserWarning, match=r"H = 2100 features: expect about 0\.\d GiB and [\d.]+ s for every step"):
        log_cost(prior, rows)


def test_costs_count_what_they_say() -> None:
    cost = GPCost(rank=3000, groups=9, width=100, n_latents=16)
    assert cost.bytes > 8 * 8 * 3000**2 and cost.operations > 5 * 3000**3
    assert GPCost(6000, 9, 100, 16).operations / cost.operations == pytest.approx(8.0, rel=0.05)
