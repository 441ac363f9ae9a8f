"""The two-sweep gradient, against autograd through the dense N x N density and against the paper's formulas."""

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.inference import Exact, FixedLatents
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import (
    KERNELS,
    PIXEL_VAR,
    K,
    L,
    N,
    RowEpoch,
    assert_same_gradients,
    dense_covariance,
    dense_expected_nll,
    dense_recon,
    gradients,
    kernel_of,
    layouts,
    make_epoch,
    make_model,
    total,
)

every_kernel = pytest.mark.parametrize("name", KERNELS)


def covariance(model: GPPriorVAE, epoch: RowEpoch) -> Tensor:
    return dense_covariance(kernel_of(model), model.prior.groups[0].alpha, epoch.rows)


def dense_loss(model: GPPriorVAE, epoch: RowEpoch, sampled: bool) -> Tensor:
    """The negative bound over all rows at once, every term from its textbook form."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    normal = torch.distributions.Normal(mean, (0.5 * logvar).exp())
    z, cov = mean + normal.stddev * epoch.eps, covariance(model, epoch)
    gp = dense_expected_nll(cov, z, None) if sampled else dense_expected_nll(cov, mean, normal.variance)
    return dense_recon(model, epoch.y, z) + gp - normal.entropy().sum() + kernel_of(model).neg_log_prior()


@pytest.mark.parametrize("sampled", [False, True], ids=["expected", "sampled"])
@every_kernel
def test_value_and_every_gradient_against_dense_autograd(name: str, sampled: bool) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=4)
    want_value = dense_loss(model, epoch, sampled)
    (want_value / N).backward()
    want = gradients(model)
    assert {"prior.members.0.log_alpha", "autoencoder.likelihood.log_pixel_var"} <= want.keys()
    assert all(gradient.abs().max() > 1e-6 for gradient in want.values())
    for _ in layouts(model, epoch.rows):
        (terms,) = Exact(model, sampled).steps(epoch)
        assert terms.n == N
        np.testing.assert_allclose(total(terms).item(), want_value.item(), rtol=1e-10)
        assert_same_gradients(gradients(model), want)


@pytest.mark.parametrize("sampled", [False, True], ids=["expected", "sampled"])
@pytest.mark.parametrize("batch_size", [1, 7, 2 * N])
def test_any_batch_size_and_order_gives_the_same_gradient(batch_size: int, sampled: bool) -> None:
    model = make_model(KERNELS["learned * periodic"]())
    (whole,) = Exact(model, sampled).steps(make_epoch(model))
    want = gradients(model)
    base = make_epoch(model, batch_size)
    order = torch.randperm(N).tolist()
    (terms,) = Exact(model, sampled).steps(RowEpoch(base.y, base.rows, base.eps, batch_size, order))
    assert_same_gradients(gradients(model), want)
    for key, value in whole.named().items():
        torch.testing.assert_close(terms.named()[key], value)


def test_terms_against_the_oracles() -> None:
    model = make_model(KERNELS["free form * learned + linear"]())
    epoch = make_epoch(model, batch_size=5)
    (terms,) = Exact(model).steps(epoch)
    with torch.no_grad():
        mean, logvar = model.autoencoder.encoder(epoch.y)
        decoded = model.autoencoder.decoder(mean + (0.5 * logvar).exp() * epoch.eps)
        cov = covariance(model, epoch).numpy()
    var = np.exp(logvar.numpy())
    pixel_var = float(np.float32(np.log(PIXEL_VAR)))  # the parameter starts in float32
    recon = oracles.gaussian_nll(epoch.y.numpy(), decoded.numpy(), np.exp(pixel_var))
    np.testing.assert_allclose(terms.recon_nll.item(), recon, rtol=1e-10)
    np.testing.assert_allclose(terms.gp_nll.item(), oracles.expected_gp_nll(cov, mean.numpy(), var), rtol=1e-10)
    np.testing.assert_allclose(terms.neg_entropy.item(), oracles.neg_entropy(var), rtol=1e-10)
    x = kernel_of(model).leaves()[1].x.detach().numpy()
    np.testing.assert_allclose(terms.penalty.item(), 0.5 * np.sum(x * x), rtol=1e-10)


class Latents(torch.nn.Module):
    """An encoder that says what it is told, with a decoder that ignores it: only the GP term pulls on Z."""

    def __init__(self, Z: Tensor) -> None:
        super().__init__()
        self.Z = torch.nn.Parameter(Z)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = y[:, 0].long()
        return self.Z[rows], torch.zeros(len(rows), L, dtype=torch.float64)


def test_sampled_gradient_is_the_papers_taylor_coefficients() -> None:
    """df/dZ = a, df/dV = L K^-1 V - a a'V pulled back to X by hand, df/dalpha = (L tr K^-1 - |a|^2)/2."""
    model = make_model(KERNELS["free form * learned + linear"]())
    epoch = make_epoch(model, batch_size=4)
    Z = torch.randn(N, L, dtype=torch.float64)
    model.autoencoder.encoder = Latents(Z)
    model.autoencoder.decoder = torch.nn.Linear(L, K).double()
    torch.nn.init.zeros_(model.autoencoder.decoder.weight)
    y = epoch.y.clone()
    y[:, 0] = torch.arange(N)
    epoch = RowEpoch(y, epoch.rows, torch.zeros(N, L, dtype=torch.float64), 4)
    list(Exact(model, sampled=True).steps(epoch))
    got = gradients(model)
    V = kernel_of(model).features(epoch.rows)
    a, dV, dalpha = oracles.taylor_coefficients(V.detach().numpy(), Z.numpy(), model.prior.groups[0].alpha.item())
    np.testing.assert_allclose(got["autoencoder.encoder.Z"].numpy(), a / N, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        got["prior.members.0.log_alpha"].item(), dalpha * model.prior.groups[0].alpha.item() / N, rtol=1e-9
    )
    person, pose = (epoch.rows.columns[key].index.numpy() for key in ("person (id)", "pose (id)"))
    pose_kernel, learned = kernel_of(model).leaves()[:2]
    W = pose_kernel.factor(torch.arange(len(pose_kernel.levels))).detach().numpy()
    x = learned.x.detach().numpy()
    dx = x.copy()  # of the prior |x|^2 / 2
    for n in range(N):
        for q in range(3):
            for m in range(2):
                dx[person[n], m] += dV[n, q * 2 + m] * W[pose[n], q]
    np.testing.assert_allclose(got["prior.members.0.kernel.left.right.x"].numpy(), dx / N, rtol=1e-9, atol=1e-12)


@every_kernel
def test_fixed_latents_gradient_against_dense(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=4)
    with torch.no_grad():
        mean, logvar = model.autoencoder.encoder(epoch.y)
    value = dense_expected_nll(covariance(model, epoch), mean, logvar.exp())
    ((value + kernel_of(model).neg_log_prior()) / N).backward()
    want = gradients(model)
    for _ in layouts(model, epoch.rows):
        inference = FixedLatents(model)
        inference.start(RowEpoch(epoch.y, epoch.rows, epoch.eps, 5, torch.randperm(N).tolist()), None)
        (terms,) = inference.steps(epoch)
        np.testing.assert_allclose(terms.gp_nll.item(), value.item(), rtol=1e-10)
        np.testing.assert_allclose(terms.neg_entropy.item(), oracles.neg_entropy(logvar.exp().numpy()), rtol=1e-10)
        assert_same_gradients(gradients(model), want)


def test_fixed_latents_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(KERNELS["few inducing points"]())
    epoch = make_epoch(model)
    inference = FixedLatents(model)
    inference.start(epoch, None)
    list(inference.steps(epoch))
    want = gradients(model)
    monkeypatch.setattr("gppvae.inference.fixed_latents.CHUNK_ROWS", 8)
    list(inference.steps(epoch))
    assert_same_gradients(gradients(model), want)


@every_kernel
def test_weights_are_the_dense_posterior_given_the_encoder(name: str) -> None:
    """f at the training rows: mean K_f K^-1 mu, whatever column the features are split by."""
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=6)
    with torch.no_grad():
        mean = model.autoencoder.encoder(epoch.y)[0].numpy()
        cov = covariance(model, epoch).numpy()
        low_rank = (lambda V: V @ V.T)(kernel_of(model).features(epoch.rows).numpy())
    want, _ = oracles.gp_posterior(cov, low_rank, low_rank, mean)
    for _ in layouts(model, epoch.rows):
        with torch.no_grad():
            fitted = model.prior.at(epoch.rows, Exact(model).weights(epoch)).mean
        np.testing.assert_allclose(fitted.numpy(), want, rtol=1e-8, atol=1e-9)
