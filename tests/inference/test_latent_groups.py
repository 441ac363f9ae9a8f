"""Bounds with groups of latents: two kernels, and latents without one, against dense N x N computations.

Every oracle below goes group by group through dense covariances in function space, with autograd for the gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from gppvae.inference import Distill, Exact, FixedLatents, Global, Independent, Inference, Minibatch, PosteriorCoding
from gppvae.kernels import FreeForm, Kernel, Learned, Linear, Matern
from gppvae.models.gppvae import GPPriorVAE
from gppvae.training.phases import parameter_groups
from inference.setting import (
    N,
    RowEpoch,
    assert_same_gradients,
    dense_covariance,
    dense_expected_nll,
    dense_recon,
    gradients,
    layouts,
    make_epoch,
    make_model,
    total,
)

Groups = list[tuple[Kernel | None, int]]
ORDERS: dict[str, Callable[[], Groups]] = {
    "none last": lambda: [
        (1.4 * Learned("person", 2) * FreeForm("pose"), 2),
        (0.5 * Linear("time") + Learned("person", 3), 1),
        (None, 2),
    ],
    "none between": lambda: [
        (Learned("person", 2) * Matern("time", lengthscale=0.9, max_inducing=4), 1),
        (None, 1),
        (0.7 * Learned("person", 2) * FreeForm("pose"), 3),
    ],
}
every_order = pytest.mark.parametrize("order", ORDERS)


@dataclass(frozen=True)
class Part:
    """One group: its latents' place, its kernel, and the noise of z at the rows (N,)."""

    at: slice
    kernel: Kernel | None
    noise: Tensor


def parts(model: GPPriorVAE, epoch: RowEpoch) -> list[Part]:
    found, start = [], 0
    for group in model.prior.groups:
        noise = torch.ones(N, dtype=torch.float64)
        if group.kernel is not None:
            cov = dense_covariance(group.kernel, group.alpha, epoch.rows)
            V = group.kernel.features(epoch.rows)
            noise = (cov - V @ V.T).diagonal()
        found.append(Part(slice(start, start + group.n_latents), group.kernel, noise))
        start += group.n_latents
    return found


def moved(order: str) -> tuple[GPPriorVAE, RowEpoch]:
    """A model whose groups have latent noise of their own, and an epoch in one batch."""
    model = make_model(ORDERS[order]())
    with torch.no_grad():
        for number, group in enumerate(model.prior.groups):
            if group.kernel is not None:
                group.log_alpha.add_(0.3 * number)
    return model, make_epoch(model)


def encoded(model: GPPriorVAE, epoch: RowEpoch) -> torch.distributions.Normal:
    mean, logvar = model.autoencoder.encoder(epoch.y)
    return torch.distributions.Normal(mean, (0.5 * logvar).exp())


STANDARD = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)


# -- the oracles: the negative bound over all rows, and its KL(q(z | y) || N(0, I)) of latents without a kernel


def vae_loss(model: GPPriorVAE, epoch: RowEpoch) -> Tensor:
    q = encoded(model, epoch)
    kl = torch.distributions.kl_divergence(q, STANDARD).sum()
    return dense_recon(model, epoch.y, q.mean + q.stddev * epoch.eps) + kl


def exact_loss(model: GPPriorVAE, epoch: RowEpoch) -> Tensor:
    q = encoded(model, epoch)
    value = dense_recon(model, epoch.y, q.mean + q.stddev * epoch.eps) - q.entropy().sum()
    for part in parts(model, epoch):
        V = torch.zeros(N, 0).double() if part.kernel is None else part.kernel.features(epoch.rows)
        cov = V @ V.T + torch.diag(part.noise)
        value = value + dense_expected_nll(cov, q.mean[:, part.at], q.variance[:, part.at])
    return value + model.prior.neg_log_prior()


def posterior_in_function_space(part: Part, epoch: RowEpoch, mean: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (N, L) and variance (N,) of f at the rows given observations of noise d, and KL(q(f) || p(f))."""
    assert part.kernel is not None
    V = part.kernel.features(epoch.rows)
    K_f = V @ V.T
    K = K_f + torch.diag(d)
    f = K_f @ torch.linalg.solve(K, mean)
    f_var = (K_f - K_f @ torch.linalg.solve(K, K_f)).diagonal()
    at_mean = torch.distributions.Normal(f, d.sqrt().unsqueeze(1)).log_prob(mean).sum()
    evidence = -dense_expected_nll(K, mean, None)
    return f, f_var, at_mean - 0.5 * mean.shape[1] * (f_var / d).sum() - evidence


def minibatch_loss(model: GPPriorVAE, epoch: RowEpoch) -> Tensor:
    """q(B) is that of the encodings as they are, and does not move with the parameters.

    A change of parameters changes v, and so f = m'v and its variance at the held q(B): weight space, by a dense solve.
    """
    q = encoded(model, epoch)
    value = dense_recon(model, epoch.y, q.mean + q.stddev * epoch.eps) - q.entropy().sum()
    for part in parts(model, epoch):
        mean, var = q.mean[:, part.at], q.variance[:, part.at]
        if part.kernel is None:
            value = value - STANDARD.log_prob(mean).sum() + 0.5 * var.sum()
            continue
        V = part.kernel.features(epoch.rows)
        W, d = V.detach(), part.noise.detach()
        Sigma = torch.linalg.inv(torch.eye(W.shape[1], dtype=torch.float64) + W.T @ (W / d[:, None]))
        m = Sigma @ W.T @ (mean.detach() / d[:, None])
        f_var = (V @ Sigma * V).sum(1, keepdim=True)
        noise = part.noise.unsqueeze(1)
        density = torch.distributions.Normal(V @ m, noise.sqrt()).log_prob(mean)
        kl = posterior_in_function_space(part, epoch, mean, part.noise)[2].detach()
        value = value - density.sum() + 0.5 * ((var + f_var) / noise).sum() + kl
    return value + model.prior.neg_log_prior()


def coded_loss(model: GPPriorVAE, epoch: RowEpoch) -> Tensor:
    """Posterior coding: z from q(f) where there is a kernel, from the encoder and with its KL where there is none."""
    q = encoded(model, epoch)
    logvar = model.autoencoder.encoder(epoch.y)[1]
    z, value = [], model.prior.neg_log_prior()
    for group, part in zip(model.prior.groups, parts(model, epoch), strict=True):
        mean, eps = q.mean[:, part.at], epoch.eps[:, part.at]
        if part.kernel is None:
            own = torch.distributions.Normal(mean, q.stddev[:, part.at])
            value = value + torch.distributions.kl_divergence(own, STANDARD).sum()
            z.append(own.mean + own.stddev * eps)
            continue
        d = logvar[:, part.at].mean(1).exp() + part.noise - group.alpha
        f, f_var, kl = posterior_in_function_space(part, epoch, mean, d)
        z.append(f + (f_var + part.noise).sqrt().unsqueeze(1) * eps)
        value = value + kl
    return value + dense_recon(model, epoch.y, torch.cat(z, dim=1))


def global_loss(model: GPPriorVAE, epoch: RowEpoch, inference: Global) -> Tensor:
    q = encoded(model, epoch)
    z, value = [], model.prior.neg_log_prior()
    for part, m, log_std in zip(parts(model, epoch), inference.means, inference.log_stds, strict=True):
        own = torch.distributions.Normal(q.mean[:, part.at], q.stddev[:, part.at])
        if part.kernel is not None:
            V = part.kernel.features(epoch.rows)
            var = torch.stack([(V**2) @ std**2 for std in log_std.exp().T], dim=1) + part.noise.unsqueeze(1)
            weights = torch.distributions.Normal(m, log_std.exp())
            value = value + torch.distributions.kl_divergence(weights, STANDARD).sum()
            own = torch.distributions.Normal(V @ m, var.sqrt())
        else:
            value = value + torch.distributions.kl_divergence(own, STANDARD).sum()
        z.append(own.mean + own.stddev * epoch.eps[:, part.at])
    return value + dense_recon(model, epoch.y, torch.cat(z, dim=1))


# -- value and every gradient


def compare(model: GPPriorVAE, epoch: RowEpoch, make: Callable[[], Inference], loss: Tensor, tolerance: float) -> None:
    """One batch of all rows, in every layout of every group."""
    inference = make()
    (loss / N).backward()
    want = gradients(model, inference)
    for _ in layouts(model, epoch.rows):
        inference.start(epoch, None)
        (terms,) = inference.steps(epoch)
        np.testing.assert_allclose(total(terms).item(), loss.item(), rtol=1e-8)
        assert_same_gradients(gradients(model, inference), want, tolerance)
        inference = make()


@every_order
def test_plain_vae(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Independent(model), vae_loss(model, epoch), 1e-9)


@every_order
def test_exact(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Exact(model), exact_loss(model, epoch), 1e-9)


@every_order
def test_fixed_latents_move_the_prior_alone(order: str) -> None:
    model, epoch = moved(order)
    (exact_loss(model, epoch) / N).backward()
    want = {name: gradient for name, gradient in gradients(model).items() if name.startswith("prior")}
    inference = FixedLatents(model)
    inference.start(epoch, None)
    list(inference.steps(epoch))
    got = gradients(model)
    assert_same_gradients({name: got[name] for name in want}, want)
    assert not any(gradient.any() for name, gradient in got.items() if name.startswith("autoencoder"))


@every_order
def test_minibatch(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Minibatch(model), minibatch_loss(model, epoch), 1e-8)


@every_order
def test_posterior_coding(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: PosteriorCoding(model), coded_loss(model, epoch), 1e-7)


@every_order
def test_global(order: str) -> None:
    model, epoch = moved(order)
    inference = Global(model)
    inference.initialise(torch.Generator().manual_seed(1))
    compare(model, epoch, lambda: inference, global_loss(model, epoch, inference), 1e-9)


@pytest.mark.parametrize("kind", [Exact, PosteriorCoding, Global])
@every_order
def test_batches_at_one_posterior_add_up_to_all_rows(order: str, kind: type[Inference]) -> None:
    """Five batches, over which posterior coding keeps its q(B); mini-batch inference conditions it again."""
    model, epoch = moved(order)
    values = []
    for batch_size in (N, 5):
        inference, some = kind(model), RowEpoch(epoch.y, epoch.rows, epoch.eps, batch_size)
        inference.initialise(torch.Generator().manual_seed(1))
        inference.start(some, None)
        values.append(sum(total(terms).item() for terms in inference.steps(some)))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-9)


# -- latents without a kernel


@pytest.mark.parametrize("kind", [PosteriorCoding, Global])
def test_terms_of_latents_without_a_kernel(kind: type[Inference]) -> None:
    """Their E -log N(z; 0, I) is in gp_nll and their entropy in neg_entropy: together KL(q(z | y) || N(0, I))."""
    model, epoch = moved("none last")
    inference = kind(model)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    q = encoded(model, epoch)
    own = torch.distributions.Normal(q.mean[:, 3:], q.stddev[:, 3:])
    np.testing.assert_allclose(terms.neg_entropy.item(), -own.entropy().sum().item(), rtol=1e-10)
    of_weights = inference.posterior().kl() if isinstance(inference, Global) else inference.weights(epoch).kl()
    want = of_weights + torch.distributions.kl_divergence(own, STANDARD).sum() + own.entropy().sum()
    np.testing.assert_allclose(terms.gp_nll.item(), want.item(), rtol=1e-9)


def test_the_encoder_runs_only_where_some_latents_need_it() -> None:
    """Global inference of latents that all have a kernel has no encoder in its path."""
    for groups, calls in ((ORDERS["none last"]()[:2], 0), (ORDERS["none last"](), 1)):
        model = make_model(groups)
        seen: list[int] = []
        model.autoencoder.encoder.register_forward_hook(lambda *call, seen=seen: seen.append(1))
        list(Global(model).steps(make_epoch(model)))
        assert len(seen) == calls


def test_distillation_keeps_the_bound_of_latents_without_a_kernel() -> None:
    """A Gaussian density at the others' means; for these the plain VAE with the others where q(B) puts them."""
    model, epoch = moved("none between")
    start = Global(model)
    start.initialise(torch.Generator().manual_seed(1))
    weights, q = start.weights(epoch), encoded(model, epoch)
    z, value = [], torch.zeros((), dtype=torch.float64)
    for part, m in zip(parts(model, epoch), start.means, strict=True):
        own = torch.distributions.Normal(q.mean[:, part.at], q.stddev[:, part.at])
        if part.kernel is None:
            value = value + torch.distributions.kl_divergence(own, STANDARD).sum()
            z.append(own.mean + own.stddev * epoch.eps[:, part.at])
        else:
            z.append((part.kernel.features(epoch.rows) @ m).detach())
            value = value - own.log_prob(z[-1]).sum()
    value = value + dense_recon(model, epoch.y, torch.cat(z, dim=1))
    (value / N).backward()
    want = {name: gradient for name, gradient in gradients(model).items() if ".encoder." in name}
    inference = Distill(model)
    inference.start(epoch, weights)
    (terms,) = inference.steps(epoch)
    np.testing.assert_allclose(total(terms).item(), value.item(), rtol=1e-10)
    got = gradients(model)
    assert_same_gradients({name: got[name] for name in want}, want)
    assert not any(gradient.any() for name, gradient in got.items() if name.startswith("prior"))


@pytest.mark.parametrize("kind", [Exact, Global])
def test_their_noise_is_no_parameter_to_train(kind: type[Inference]) -> None:
    model, _ = moved("none between")
    groups = parameter_groups(model, kind(model))
    first, none, last = (group.log_alpha for group in model.prior.groups)
    assert [id(p) for p in groups["noise"]] == [id(first), id(last)] and none.item() == 0.0
