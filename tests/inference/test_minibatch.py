"""Mini-batch inference: unbiased at any q(B), its running sums exact, and its optimum that of the exact bound."""

import itertools

import numpy as np
import pytest
import torch
from gppvae.prior.bound import Held
from torch import Tensor

import oracles
from gppvae.inference import Exact, Inference, Minibatch
from gppvae.inference.base import sum_encoded
from gppvae.inference.running import RunningStatistics
from gppvae.kernels import RBF
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import SharedCovariance
from gppvae.prior.statistics import Statistics
from inference.setting import (
    KERNELS,
    L,
    N,
    RowEpoch,
    assert_same_gradients,
    at_once,
    columns,
    gradients,
    make_epoch,
    make_model,
)


def any_weights(rank: int) -> SharedCovariance:
    root = 0.5 * torch.randn(rank, rank, dtype=torch.float64)
    return SharedCovariance(torch.randn(rank, L, dtype=torch.float64), root, 2.0 * torch.linalg.slogdet(root)[1])


def full_bound(model: GPPriorVAE, epoch: RowEpoch, weights: SharedCovariance) -> Tensor:
    """The negative bound at q(B) over all rows at once: E over q(z), q(B) of every density, and KL(q(B))."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    q = torch.distributions.Normal(mean, (0.5 * logvar).exp())
    pixel = torch.distributions.Normal(
        model.autoencoder.decoder(mean + q.stddev * epoch.eps), model.autoencoder.likelihood.pixel_var.sqrt()
    )
    V = model.features(epoch.rows).dense()
    Sigma = weights.root @ weights.root.T
    d = model.noise(epoch.rows).expand(N).unsqueeze(1)
    f_var = torch.stack([v @ Sigma @ v for v in V]).unsqueeze(1)
    at_mean = torch.distributions.Normal(V @ weights.mean, d.sqrt()).log_prob(mean)
    gp = -(at_mean - 0.5 * (q.variance + f_var) / d).sum()
    kl = sum(oracles.gaussian_kl(weights.mean[:, i].numpy(), Sigma.numpy()) for i in range(L))
    return -pixel.log_prob(epoch.y).sum() + gp + kl - q.entropy().sum() + model.kernel.neg_log_prior()


@pytest.mark.parametrize("together", [1, 2, 3, 7])
@pytest.mark.parametrize("name", KERNELS)
def test_mean_gradient_is_the_gradient_of_the_bound(name: str, together: int) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=3)
    assert N % epoch.batch_size == 0
    for split in (None, *epoch.rows.columns):
        model.split = split
        weights = any_weights(model.kernel.rank)
        value = full_bound(model, epoch, weights)
        (value / N).backward()
        want = gradients(model)
        inference, held, total = Minibatch(model), Held.of(weights, *model.tables(epoch.rows)), 0.0
        inference.start(epoch, None)
        batches = list(epoch)
        got = {key: torch.zeros_like(gradient) for key, gradient in want.items()}
        for first in range(0, len(batches), together):
            some = batches[first : first + together]
            total += sum(terms.total().item() for terms in at_once(inference, held, some, epoch)[0])
            for key, gradient in gradients(model).items():
                # Those of the networks are of one batch each and add up, those of the prior of all together.
                got[key] += gradient * (1 if key.startswith("autoencoder") else len(some)) / len(batches)
        np.testing.assert_allclose(total, value.item(), rtol=1e-9)
        assert_same_gradients(got, want)


def test_every_batch_gets_a_step() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=5)
    inference = Minibatch(model)
    inference.start(epoch, None)
    counts = [terms.n for terms in inference.steps(epoch)]
    assert counts == [5, 5, 5, 5, 1]


def test_first_batch_uses_the_exact_posterior_of_the_start() -> None:
    """With q(B) conditioned on all rows the bound is above the exact value by tr(C^-1 T) / 2, and no more."""
    model = make_model(KERNELS["free form * learned + linear"]())
    epoch = make_epoch(model)
    (exact,) = Exact(model).steps(epoch)
    inference = Minibatch(model)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    with torch.no_grad():
        V = model.kernel.features(epoch.rows).dense().numpy()
        var = model.autoencoder.encode(epoch.y)[1].numpy()
    alpha = model.alpha.item()
    C, T = np.eye(V.shape[1]) + V.T @ V / alpha, V.T @ (V * var.sum(1, keepdims=True)) / alpha**2
    gap = 0.5 * np.trace(np.linalg.solve(C, T))
    np.testing.assert_allclose((terms.total() - exact.total()).item(), gap, rtol=1e-8)


def test_running_sums_are_the_full_sums_when_nothing_moves() -> None:
    model = make_model(KERNELS["few anchors"]())
    epoch = make_epoch(model, batch_size=4)
    inference = Minibatch(model)
    inference.start(epoch, None)
    full = sum_encoded(model, epoch, lambda batch: (model.autoencoder.encode(batch.y)[0], None))
    for terms in inference.steps(epoch):
        current = inference.running.current()
        assert terms.n <= 4
        torch.testing.assert_close(current.sums[3], full.sums[3])
    at_end = inference.running.current()
    torch.testing.assert_close(at_end.outer, full.outer)
    assert at_end.sums[3] == full.sums[3] == N


def test_running_sums_replace_last_epochs_share() -> None:
    def part(value: float, rows: float) -> Statistics:
        sums = torch.tensor([value, 0.0, 0.0, rows], dtype=torch.float64)
        return Statistics(torch.full((1, 1, 2), value, dtype=torch.float64), sums, 1)

    running = RunningStatistics(1)
    assert running.empty
    running.set(part(10.0, 4.0))
    assert not running.empty and running.current().outer[0, 0, 0] == 10.0
    running.add(part(7.0, 1.0))
    assert running.current().outer[0, 0, 0] == 7.0 + 0.75 * 10.0
    running.add(part(1.0, 3.0))
    assert running.current().outer[0, 0, 0] == 8.0
    running.end_epoch()
    running.add(part(2.0, 2.0))
    assert running.current().outer[0, 0, 0] == 2.0 + 0.5 * 8.0


def test_posterior_for_predictions_counts_the_encoders_variance() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=4)
    with torch.no_grad():
        V = model.kernel.features(epoch.rows).dense().numpy()
        mean, var = (part.numpy() for part in model.autoencoder.encode(epoch.y))
    alpha, H = model.alpha.item(), V.shape[1]
    C = np.eye(H) + V.T @ V / alpha
    spread = C + V.T @ (V * var.mean(1, keepdims=True)) / alpha**2
    weights = Minibatch(model).weights(epoch)
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
        start = next(Exact(model).steps(epoch)).total().item()
        model.zero_grad()
        train(model, kind(model), epoch, 360)
        reached[kind.name] = next(Exact(model).steps(epoch)).total().item()
        gained.append(start - reached[kind.name])
    assert min(gained) > 200.0
    assert abs(reached["minibatch"] - reached["exact"]) < 0.01 * min(gained)
