"""Mini-batch inference: unbiased at any q(B), its running sums exact, and its optimum that of the exact bound."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.inference import Exact, Inference, Minibatch
from gppvae.inference.base import sum_rows
from gppvae.inference.minibatch import REFRESHES_PER_EPOCH
from gppvae.kernels import RBF
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior, SharedCovariance
from inference.setting import (
    KERNELS,
    L,
    N,
    RowEpoch,
    assert_same_gradients,
    columns,
    dense_recon,
    gradients,
    kernel_of,
    layouts,
    make_epoch,
    make_model,
    total,
)


def any_weights(rank: int) -> SharedCovariance:
    root = 0.5 * torch.randn(rank, rank, dtype=torch.float64)
    return SharedCovariance(torch.randn(rank, L, dtype=torch.float64), root, 2.0 * torch.linalg.slogdet(root)[1])


def held_at(model: GPPriorVAE, weights: SharedCovariance, monkeypatch: pytest.MonkeyPatch) -> Minibatch:
    """An inference that finds this q(B) whatever it has seen."""
    monkeypatch.setattr(model.prior, "posterior", lambda totals: LatentPosterior((weights,)))
    return Minibatch(model)


def full_bound(model: GPPriorVAE, epoch: RowEpoch, weights: SharedCovariance) -> Tensor:
    """The negative bound at q(B) over all rows at once: E over q(z), q(B) of every density, and KL(q(B))."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    q = torch.distributions.Normal(mean, (0.5 * logvar).exp())
    recon = dense_recon(model, epoch.y, mean + q.stddev * epoch.eps)
    V = kernel_of(model).features(epoch.rows)
    Sigma = weights.root @ weights.root.T
    d = model.prior.groups[0].noise(epoch.rows, training=True).expand(N).unsqueeze(1)
    f_var = torch.stack([v @ Sigma @ v for v in V]).unsqueeze(1)
    at_mean = torch.distributions.Normal(V @ weights.mean, d.sqrt()).log_prob(mean)
    gp = -(at_mean - 0.5 * (q.variance + f_var) / d).sum()
    kl = sum(oracles.gaussian_kl(weights.mean[:, i].numpy(), Sigma.numpy()) for i in range(L))
    return recon + gp + kl - q.entropy().sum() + kernel_of(model).neg_log_prior()


@pytest.mark.parametrize("batch_size", [3, 8, N])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_batches_add_up_to_that_of_the_bound(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any q(B), for batches of one size and with a smaller last one."""
    model = make_model(KERNELS[name]())
    epoch, weights = make_epoch(model, batch_size), any_weights(kernel_of(model).rank)
    want_value = full_bound(model, epoch, weights)
    (want_value / N).backward()
    want = gradients(model)
    assert all(gradient.abs().max() > 1e-6 for gradient in want.values())
    for _ in layouts(model, epoch.rows):
        inference, value = held_at(model, weights, monkeypatch), 0.0
        inference.start(epoch, None)
        got = {key: torch.zeros_like(gradient) for key, gradient in want.items()}
        for terms in inference.steps(epoch):
            value += total(terms).item()
            for key, gradient in gradients(model).items():
                got[key] += gradient * terms.n / N
        np.testing.assert_allclose(value, want_value.item(), rtol=1e-9)
        assert_same_gradients(got, want)


def test_any_posterior_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditioned, stale or anything: never below the exact value, for a draw of z that both share."""
    model = make_model(KERNELS["few inducing points"]())
    epoch = make_epoch(model, batch_size=7)
    (exact,) = Exact(model).steps(epoch)
    best, others = Minibatch(model), [any_weights(kernel_of(model).rank) for _ in range(5)]
    best.start(epoch, None)
    values = [sum(total(terms).item() for terms in best.steps(epoch))]
    stale = Minibatch(model)
    away = RowEpoch(epoch.y + 1.0, epoch.rows, epoch.eps, 7)  # other encodings than those of the epoch
    stale.start(away, None)
    values.append(sum(total(terms).item() for terms in stale.steps(epoch)))
    for weights in others:
        inference = held_at(model, weights, monkeypatch)
        inference.start(epoch, None)
        values.append(sum(total(terms).item() for terms in inference.steps(epoch)))
    assert min(values) > total(exact).item() and min(values[1:]) > values[0]


def test_every_batch_gets_a_step() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=5)
    inference = Minibatch(model)
    inference.start(epoch, None)
    terms = list(inference.steps(epoch))
    assert [step.n for step in terms] == [5, 5, 5, 5, 1]
    assert all(step.waiting == () and step.gathered == 1 for step in terms)


@pytest.mark.parametrize("batch_size", [1, 2, 5, N])
def test_when_the_posterior_is_conditioned(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first batch and then in equal steps, on the rows seen and the unseen share of the last epoch's."""
    model = make_model(KERNELS["learned * periodic"]())
    epoch, inference, done, asked = make_epoch(model, batch_size), Minibatch(model), [], []
    posterior = model.prior.posterior
    monkeypatch.setattr(model.prior, "posterior", lambda totals: asked.append(len(done)) or posterior(totals))
    inference.start(epoch, None)
    for terms in inference.steps(epoch):
        done.append(terms)
    every = max(1, epoch.n_batches // REFRESHES_PER_EPOCH)
    assert asked == list(range(0, epoch.n_batches, every)) and len(asked) <= 2 * REFRESHES_PER_EPOCH


def test_first_batch_uses_the_exact_posterior_of_the_start() -> None:
    """With q(B) conditioned on all rows the bound is above the exact value by tr(C^-1 T) / 2, and no more."""
    model = make_model(KERNELS["free form * learned + linear"]())
    epoch = make_epoch(model)
    (exact,) = Exact(model).steps(epoch)
    inference = Minibatch(model)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    with torch.no_grad():
        V = kernel_of(model).features(epoch.rows).numpy()
        var = model.autoencoder.encode(epoch.y)[1].numpy()
    alpha = model.prior.groups[0].alpha.item()
    C, T = np.eye(V.shape[1]) + V.T @ V / alpha, V.T @ (V * var.sum(1, keepdims=True)) / alpha**2
    gap = 0.5 * np.trace(np.linalg.solve(C, T))
    np.testing.assert_allclose((total(terms) - total(exact)).item(), gap, rtol=1e-8)


def test_running_sums_are_the_full_sums_when_nothing_moves() -> None:
    model = make_model(KERNELS["few inducing points"]())
    epoch = make_epoch(model, batch_size=4)
    inference = Minibatch(model)
    inference.start(epoch, None)
    (full,) = sum_rows(epoch, lambda batch: model.prior.statistics(batch.rows, model.autoencoder.encode(batch.y)[0]))
    for terms in inference.steps(epoch):
        (current,) = inference.running.current()
        assert terms.n <= 4
        torch.testing.assert_close(current.sums[3], full.sums[3])
    (at_end,) = inference.running.current()
    torch.testing.assert_close(at_end.outer, full.outer)
    assert at_end.sums[3] == full.sums[3] == N


def test_posterior_for_predictions_counts_the_encoders_variance() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=4)
    with torch.no_grad():
        V = kernel_of(model).features(epoch.rows).numpy()
        mean, var = (part.numpy() for part in model.autoencoder.encode(epoch.y))
    alpha, H = model.prior.groups[0].alpha.item(), V.shape[1]
    C = np.eye(H) + V.T @ V / alpha
    spread = C + V.T @ (V * var.mean(1, keepdims=True)) / alpha**2
    (weights,) = Minibatch(model).weights(epoch).parts
    np.testing.assert_allclose(weights.mean.numpy(), np.linalg.solve(C, V.T @ mean / alpha), rtol=1e-7, atol=1e-9)
    Sigma = (weights.root @ weights.root.T).numpy()
    np.testing.assert_allclose(Sigma, np.linalg.inv(C) @ spread @ np.linalg.inv(C), rtol=1e-7, atol=1e-9)


def train(model: GPPriorVAE, inference: Inference, epoch: RowEpoch, steps: int, lr: float = 0.08) -> None:
    """Adam with its rate falling to zero."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    inference.start(epoch, None)
    endless = itertools.chain.from_iterable(inference.steps(epoch) for _ in itertools.count())
    for _ in itertools.islice(endless, steps):
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def smooth_data(model: GPPriorVAE, batch_size: int) -> RowEpoch:
    """Samples that are linear in two smooth functions of time, with noise."""
    epoch = make_epoch(model, batch_size)
    time = torch.from_numpy(columns()["time"])
    mix = torch.tensor([[1.0, -0.5, 0.3, 0.8], [0.2, 1.1, -0.7, 0.4]], dtype=torch.float64)
    y = torch.stack([(2 * time).sin(), time], dim=1) @ mix + 0.3 * epoch.y
    return RowEpoch(y, epoch.rows, epoch.eps, batch_size)


def test_exact_and_minibatch_reach_the_same_objective() -> None:
    """A linear problem trained both ways, judged by the exact bound: the looser one costs a percent of the gain."""
    reached, gained = {}, []
    for kind, batch_size in ((Exact, N), (Minibatch, 7)):
        model = make_model(1.0 * RBF("time", lengthscale=0.7), hidden=())
        model.autoencoder.likelihood.log_pixel_var.requires_grad_(False)
        epoch = smooth_data(model, batch_size)
        start = total(next(Exact(model).steps(epoch))).item()
        model.zero_grad()
        train(model, kind(model), epoch, 360)
        reached[kind.name] = total(next(Exact(model).steps(epoch))).item()
        gained.append(start - reached[kind.name])
    assert min(gained) > 200.0
    assert abs(reached["minibatch"] - reached["exact"]) < 0.01 * min(gained)
