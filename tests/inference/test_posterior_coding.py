"""GP posterior coding, against dense regression on the encoder's pseudo-observations."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.data.table import Table
from gppvae.inference import PosteriorCoding, posterior_coding
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.statistics import Statistics
from inference.setting import (
    KERNELS,
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
    step,
    total,
)

every_kernel = pytest.mark.parametrize("name", KERNELS)


def pseudo_observations(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder means, their noise (geometric mean over latent dimensions, plus residual), and the residual."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    residual = torch.zeros(len(epoch.y), dtype=torch.float64)
    kernel = kernel_of(model)
    if not kernel.carries_training_variance:
        residual = kernel.diag(epoch.rows) - kernel.features(epoch.rows).square().sum(1)
    return mean, logvar.mean(1).exp() + residual, residual


def dense_terms(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor]:
    """Reconstruction and KL(q(B)) through N x N regression.

    q is the exact posterior given the pseudo-observations, so KL(q || p) = E_q log N(mu; f, D) - log N(mu; 0, K).
    """
    mean, d, residual = pseudo_observations(model, epoch)
    V = kernel_of(model).features(epoch.rows)
    K_f = V @ V.T
    K = K_f + torch.diag(d)
    f = K_f @ torch.linalg.solve(K, mean)
    f_cov = K_f - K_f @ torch.linalg.solve(K, K_f)
    z_var = f_cov.diagonal() + model.prior.groups[0].alpha + residual
    z = f + z_var.sqrt().unsqueeze(1) * epoch.eps
    recon = dense_recon(model, epoch.y, z)
    at_mean = torch.distributions.Normal(f, d.sqrt().unsqueeze(1)).log_prob(mean).sum()
    expected = at_mean - 0.5 * mean.shape[1] * (f_cov.diagonal() / d).sum()
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(d), K).log_prob(mean.T).sum()
    return recon, expected - evidence


@every_kernel
def test_weights_are_the_dense_posterior(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size=5)
    with torch.no_grad():
        mean, d, _ = pseudo_observations(model, epoch)
        V = kernel_of(model).features(epoch.rows).numpy()
    K_f = V @ V.T
    want_mean, want_cov = oracles.gp_posterior(K_f + np.diag(d.numpy()), K_f, K_f, mean.numpy())
    for _ in layouts(model, epoch.rows):
        with torch.no_grad():
            latents = model.prior.at(epoch.rows, PosteriorCoding(model).weights(epoch))
        np.testing.assert_allclose(latents.mean.numpy(), want_mean, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(latents.var[:, 0].numpy(), np.diag(want_cov), rtol=1e-7, atol=1e-8)


def dense_bound(model: GPPriorVAE, epoch: RowEpoch) -> tuple[float, float, dict[str, Tensor]]:
    """Reconstruction, KL(q(B)), and the gradients of the whole bound per row."""
    recon, kl = dense_terms(model, epoch)
    ((recon + kl + kernel_of(model).neg_log_prior()) / N).backward()
    return recon.item(), kl.item(), gradients(model)


@every_kernel
def test_full_batch_value_and_every_gradient_against_dense_autograd(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model)
    recon, kl, want = dense_bound(model, epoch)
    for _ in layouts(model, epoch.rows):
        inference = PosteriorCoding(model)
        inference.start(epoch, None)
        for _ in range(2):  # the second from what the first left behind
            (terms,) = inference.steps(epoch)
            np.testing.assert_allclose(terms.recon_nll.item(), recon, rtol=1e-8)
            np.testing.assert_allclose(terms.gp_nll.item(), kl, rtol=1e-7)
            assert terms.neg_entropy.item() == 0.0 and terms.n == N
            assert_same_gradients(gradients(model), want, 1e-7)


@pytest.mark.parametrize("batch_size", [3, 8])
@every_kernel
def test_gradients_of_batches_add_up_to_that_of_the_bound(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row acts on all others through q(B), most of which are in other batches; all batches see one q(B) here."""
    monkeypatch.setattr(posterior_coding, "BATCHES_PER_STEP", N)
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model, batch_size)
    recon, kl, want = dense_bound(model, epoch)
    for _ in layouts(model, epoch.rows):
        inference = PosteriorCoding(model)
        inference.start(epoch, None)
        steps, got = [], {name: torch.zeros_like(gradient) for name, gradient in want.items()}
        for terms in inference.steps(epoch):
            steps.append(terms)
            for key, gradient in gradients(model).items():
                got[key] += gradient * terms.n / N
        np.testing.assert_allclose(sum(terms.recon_nll.item() for terms in steps), recon, rtol=1e-8)
        np.testing.assert_allclose(sum(terms.gp_nll.item() for terms in steps), kl, rtol=1e-7)
        assert_same_gradients(got, want, 1e-7)


def own_gradient(model: GPPriorVAE, epoch: RowEpoch, late: bool) -> dict[str, Tensor]:
    """Of the reconstruction, through each row's own pseudo-observation only; of the encoder.

    Late: the noise moves variances, not means.
    """
    mean, d, _ = pseudo_observations(model, epoch)
    V = kernel_of(model).features(epoch.rows).detach()
    K_f = V @ V.T
    value = torch.zeros((), dtype=torch.float64)
    for n in range(len(epoch.y)):
        own = torch.zeros(len(epoch.y), dtype=torch.float64)
        own[n] = 1.0
        mu = mean.detach() + own.unsqueeze(1) * (mean - mean.detach())
        K = K_f + torch.diag(d.detach() + own * (d - d.detach()))
        f = K_f[n] @ torch.linalg.solve(K.detach() if late else K, mu)
        var = K_f[n, n] - K_f[n] @ torch.linalg.solve(K, K_f[n]) + model.prior.groups[0].alpha
        value = value + dense_recon(model, epoch.y[n : n + 1], (f + var.sqrt() * epoch.eps[n]).unsqueeze(0))
    (value / len(epoch.y)).backward()
    return {name: gradient for name, gradient in gradients(model).items() if "encoder" in name.split(".")}


def late_terms(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor]:
    """As `dense_terms`, but the noise of the pseudo-observations moves the covariance of q(B) only, not its mean."""
    mean, d, _ = pseudo_observations(model, epoch)
    V = kernel_of(model).features(epoch.rows)
    eye = torch.eye(V.shape[1], dtype=torch.float64)
    C = eye + V.T @ (V / d[:, None])
    m = torch.linalg.solve(C.detach(), V.T @ (mean / d.detach()[:, None]))
    s = (V * torch.linalg.solve(C, V.T).T).sum(1)
    z = V @ m + (s + model.prior.groups[0].alpha).sqrt().unsqueeze(1) * epoch.eps
    recon = dense_recon(model, epoch.y, z)
    spread = torch.linalg.inv(C).trace() - len(C) + torch.logdet(C)
    return recon, 0.5 * (m.square().sum() + m.shape[1] * spread)


class SomeRows(RowEpoch):
    """Those of the rows that `order` says, in one batch."""

    @property
    def n_batches(self) -> int:
        return 1


def test_encoder_gradient_when_other_rows_ask() -> None:
    """Mean over every batch of 3 of 6 rows, the other 3 having been seen before.

    They stand for all 6, so each counts twice where it is among them, which it is for 3 of the 5 other rows: 6/5
    instead of 1, which is N / (N - 1). A row's effect on itself counts once, and is whole; that on the others goes
    through means of the pseudo-observations and through variances.
    """
    model = make_model(KERNELS["free form * learned + linear"]())
    whole = make_epoch(model)
    epoch = RowEpoch(whole.y[:6], whole.rows[:6], whole.eps[:6], 3)
    np.testing.assert_allclose(*([t.item() for t in of(model, epoch)] for of in (late_terms, dense_terms)), rtol=1e-8)
    recon, _ = late_terms(model, epoch)
    (recon / 6).backward()
    of_recon = gradients(model)
    _, kl = late_terms(model, epoch)
    (kl / 6).backward()
    of_kl = gradients(model)
    own, own_late = (own_gradient(model, epoch, late) for late in (False, True))
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    observed, wanted = inference.running.get(), inference.wanted.get()

    def visit(rows: list[int], wants: list[Statistics]) -> dict[str, Tensor]:
        """Gradients of a batch of these rows, q(B) conditioned on all rows and on what `wants` says."""
        inference.running.set(observed)
        inference.wanted.set(wants)
        (terms,) = inference.steps(SomeRows(epoch.y, epoch.rows, epoch.eps, 3, rows))
        assert terms.n == 3
        return gradients(model)

    batches = list(itertools.combinations(range(6), 3))
    mean = {name: torch.zeros_like(gradient) for name, gradient in of_recon.items()}
    for index in batches:
        visit([row for row in range(6) if row not in index], wanted)
        for name, gradient in visit(list(index), inference.wanted.get()).items():
            mean[name] += gradient / len(batches)
    want = {name: own[name] + 1.2 * (of_recon[name] - own_late[name]) + of_kl[name] for name in own}
    assert len(want) == 4
    assert_same_gradients({name: mean[name] for name in want}, want, 1e-8)
    decoder = {name: gradient for name, gradient in of_recon.items() if "decoder" in name}
    assert_same_gradients({name: mean[name] for name in decoder}, decoder, 1e-8)


def test_more_and_smaller_batches_get_further() -> None:
    """What a row does to the others must not be guessed from the single one that shares its batch."""

    def bound_after(batch_size: int, epochs: int = 30) -> float:
        """Median over the last ten epochs: single steps on 21 rows are noisy."""
        model = make_model(KERNELS["learned * periodic"]())
        epoch = make_epoch(model, batch_size)
        inference, optimizer = PosteriorCoding(model), torch.optim.Adam(model.parameters(), 0.01)
        inference.start(epoch, None)
        bounds = []
        for _ in range(max(1, epochs)):
            for terms in inference.steps(epoch) if epochs else ():
                step(optimizer, terms, model, inference)
            with torch.no_grad():
                recon, kl = dense_terms(model, epoch)
                bounds.append((recon + kl + kernel_of(model).neg_log_prior()).item())
        return float(np.median(bounds[-10:]))

    assert bound_after(2) < bound_after(10) < bound_after(10, epochs=0)


def test_an_encoder_that_starts_from_nothing_does_not_run_away() -> None:
    """75 batches per epoch: while the encoder moves fast, q(B) is far behind it, and no row may grow sure for that."""
    n = 300
    model = make_model(KERNELS["learned * periodic"](), hidden=(16,))
    with torch.no_grad():
        model.autoencoder.likelihood.log_pixel_var.fill_(np.log(0.01))
    table = columns(n)
    angle, person = (torch.tensor(values, dtype=torch.float64) for values in (table["angle"], table["person"]))
    turn = torch.deg2rad(angle)
    y = torch.stack([torch.sin(turn + person), torch.cos(turn), person / 3, person * torch.cos(turn)], dim=1)
    eps = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    epoch = RowEpoch(y, model.prior.code(Table(table)), eps, 4)
    inference, optimizer = PosteriorCoding(model), torch.optim.Adam(model.parameters(), 0.01)
    inference.start(epoch, None)
    bounds = []
    for _ in range(16):
        bounds.append(0.0)
        for terms in inference.steps(epoch):
            bounds[-1] += total(terms).item()
            step(optimizer, terms, model, inference)
    with torch.no_grad():
        _, noise, _ = pseudo_observations(model, epoch)
    assert noise.min() > 1e-4
    assert bounds[-1] < 0.3 * bounds[0]


def test_running_sums_are_the_full_sums_when_nothing_moves() -> None:
    """In the second epoch too, when rows of the first have asked for something."""
    model = make_model(KERNELS["few inducing points"]())
    epoch = make_epoch(model, batch_size=4)
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    (before,) = inference.running.current()
    for _ in range(2):
        counts = []
        for terms in inference.steps(epoch):
            counts.append(terms.n)
            torch.testing.assert_close(inference.running.current()[0].sums[3], before.sums[3])
        assert counts == [4, 4, 4, 4, 4, 1]
        (after,) = inference.running.current()
        torch.testing.assert_close(after.outer, before.outer)
        assert after.sums[3] == before.sums[3] == N


def test_what_rows_want_is_forgotten_by_and_by() -> None:
    """When q(B) is conditioned again, 0.3 of what was wanted before is kept; all rows at once stand alone."""
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=2)  # 11 batches: conditioned after 4, and after all
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    assert inference.wanted.n_rows == N
    for number, _ in enumerate(inference.steps(epoch)):
        if number == 4:
            assert inference.wanted.n_rows == 8  # of the start nothing: those were all rows
    np.testing.assert_allclose(inference.wanted.n_rows, 13 + 0.3 * 8)
    inference.start(epoch, None)  # a resumed run keeps what it has
    np.testing.assert_allclose(inference.wanted.n_rows, 13 + 0.3 * 8)
