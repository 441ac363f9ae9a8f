"""Bounds of models with groups of latents: two kernels, and latents without one, through dense covariances.

Every loss goes group by group through N x N matrices in function space, with autograd for the gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.inference import Global
from gppvae.kernels import RBF, Categorical, FreeForm, Kernel, Learned, Linear, Matern
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import N, RowEpoch, dense_covariance, dense_expected_nll, dense_recon, make_epoch, make_model

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
    "ids with features of their own": lambda: [
        (
            RBF("time", lengthscale=0.8, max_inducing=3)
            + 1.3 * Categorical("person") * Matern("time", max_inducing=4)
            + Linear("time") * Categorical("person") * Categorical("pose"),
            2,
        ),
        (Categorical("pose") * Learned("person", 2), 1),
    ],
}


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


# -- the negative bound over all rows


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
