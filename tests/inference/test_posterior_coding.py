"""GP posterior coding, against dense regression on the encoder's pseudo-observations."""

import itertools

import numpy as np
import pytest
import torch
from gppvae.prior.pseudo import split_pseudo_sums
from torch import Tensor

import oracles
from gppvae.data.table import Table
from gppvae.inference import PosteriorCoding, posterior_coding
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import (
    KERNELS,
    K,
    N,
    RowEpoch,
    assert_same_gradients,
    at_once,
    columns,
    gradients,
    make_epoch,
    make_model,
)

every_kernel = pytest.mark.parametrize("name", KERNELS)


def pseudo_observations(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder means, their noise (geometric mean over latent dimensions, plus residual), and the residual."""
    mean, logvar = model.autoencoder.encoder(epoch.y)
    residual = torch.zeros(len(epoch.y), dtype=torch.float64)
    if not model.kernel.carries_training_variance:
        V = model.kernel.features(epoch.rows).dense()
        residual = model.kernel.diag(epoch.rows) - V.square().sum(1)
    return mean, logvar.mean(1).exp() + residual, residual


def dense_terms(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor]:
    """Reconstruction and KL(q(B)) through N x N regression.

    q is the exact posterior given the pseudo-observations, so KL(q || p) = E_q log N(mu; f, D) - log N(mu; 0, K).
    """
    mean, d, residual = pseudo_observations(model, epoch)
    V = model.kernel.features(epoch.rows).dense()
    K_f = V @ V.T
    K = K_f + torch.diag(d)
    f = K_f @ torch.linalg.solve(K, mean)
    f_cov = K_f - K_f @ torch.linalg.solve(K, K_f)
    z_var = f_cov.diagonal() + model.alpha + residual
    z = f + z_var.sqrt().unsqueeze(1) * epoch.eps
    pixel_std = model.autoencoder.likelihood.pixel_var.sqrt()
    recon = -torch.distributions.Normal(model.autoencoder.decoder(z), pixel_std).log_prob(epoch.y).sum()
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
        V = model.kernel.features(epoch.rows).dense().numpy()
    K_f = V @ V.T
    want_mean, want_cov = oracles.gp_posterior(K_f + np.diag(d.numpy()), K_f, K_f, mean.numpy())
    for split in (None, *epoch.rows.columns):
        model.split = split
        weights = PosteriorCoding(model).weights(epoch)
        with torch.no_grad():
            W = model.features(epoch.rows).dense()
        np.testing.assert_allclose(weights.mean_at(W).numpy(), want_mean, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(weights.var_at(W)[:, 0].numpy(), np.diag(want_cov), rtol=1e-7, atol=1e-8)


def dense_bound(model: GPPriorVAE, epoch: RowEpoch) -> tuple[float, float, dict[str, Tensor]]:
    """Reconstruction, KL(q(B)), and the gradients of the whole bound per row."""
    recon, kl = dense_terms(model, epoch)
    ((recon + kl + model.kernel.neg_log_prior()) / N).backward()
    return recon.item(), kl.item(), gradients(model)


@every_kernel
def test_full_batch_value_and_every_gradient_against_dense_autograd(name: str) -> None:
    model = make_model(KERNELS[name]())
    epoch = make_epoch(model)
    recon, kl, want = dense_bound(model, epoch)
    for split in (None, *epoch.rows.columns):
        model.split = split
        inference = PosteriorCoding(model)
        inference.start(epoch, None)
        (terms,) = inference.steps(epoch)
        np.testing.assert_allclose(terms.recon_nll.item(), recon, rtol=1e-8)
        np.testing.assert_allclose(terms.gp_nll.item(), kl, rtol=1e-7)
        assert terms.neg_entropy.item() == 0.0 and terms.n == N
        assert_same_gradients(gradients(model), want, 1e-7)


@pytest.mark.parametrize(("together", "encoded"), [(1, 1), (2, 1), (3, 2), (7, 3), (7, 7)])
@every_kernel
def test_mean_gradient_is_the_gradient_of_the_bound(
    name: str, together: int, encoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row acts on all others through q(B), most of which are in other batches.

    Some batches see the same q(B) together, and some of these are encoded at once.
    """
    model = make_model(KERNELS[name]())
    sizes: list[int] = []
    model.autoencoder.encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    monkeypatch.setattr(posterior_coding, "ENCODED_VALUES", encoded * 3 * K)
    epoch = make_epoch(model, batch_size=3)
    assert N % epoch.batch_size == 0
    recon, kl, want = dense_bound(model, epoch)
    for split in (None, *epoch.rows.columns):
        model.split = split
        inference = PosteriorCoding(model)
        inference.start(epoch, None)
        given = inference.given(epoch)
        batches, terms = list(epoch), []
        sizes.clear()
        got = {name: torch.zeros_like(gradient) for name, gradient in want.items()}
        for first in range(0, len(batches), together):
            some = batches[first : first + together]
            terms += at_once(inference, given, some, epoch)[0]
            for key, gradient in gradients(model).items():
                # The decoder's are of one batch each and add up, all others of the batches together.
                alone = "autoencoder.encoder" not in key and "autoencoder" in key
                got[key] += gradient * (1 if alone else len(some)) / len(batches)
        np.testing.assert_allclose(sum(t.recon_nll.item() for t in terms), recon, rtol=1e-8)
        np.testing.assert_allclose(sum(t.gp_nll.item() for t in terms), kl, rtol=1e-7)
        assert_same_gradients(got, want, 1e-7)
        assert max(sizes) == 3 * encoded and sum(sizes) == N


def own_gradient(model: GPPriorVAE, epoch: RowEpoch, late: bool) -> dict[str, Tensor]:
    """Of the reconstruction, through each row's own pseudo-observation only; of the encoder.

    Late: the noise moves variances, not means.
    """
    mean, d, _ = pseudo_observations(model, epoch)
    V = model.kernel.features(epoch.rows).dense().detach()
    K_f, pixel_std = V @ V.T, model.autoencoder.likelihood.pixel_var.sqrt()
    total = torch.zeros((), dtype=torch.float64)
    for n in range(len(epoch.y)):
        own = torch.zeros(len(epoch.y), dtype=torch.float64)
        own[n] = 1.0
        mu = mean.detach() + own.unsqueeze(1) * (mean - mean.detach())
        K = K_f + torch.diag(d.detach() + own * (d - d.detach()))
        f = K_f[n] @ torch.linalg.solve(K.detach() if late else K, mu)
        var = K_f[n, n] - K_f[n] @ torch.linalg.solve(K, K_f[n]) + model.alpha
        decoded = model.autoencoder.decoder((f + var.sqrt() * epoch.eps[n]).unsqueeze(0))[0]
        total = total - torch.distributions.Normal(decoded, pixel_std).log_prob(epoch.y[n]).sum()
    (total / len(epoch.y)).backward()
    return {name: gradient for name, gradient in gradients(model).items() if "encoder" in name.split(".")}


def late_terms(model: GPPriorVAE, epoch: RowEpoch) -> tuple[Tensor, Tensor]:
    """As `dense_terms`, but the noise of the pseudo-observations moves the covariance of q(B) only, not its mean."""
    mean, d, _ = pseudo_observations(model, epoch)
    V = model.kernel.features(epoch.rows).dense()
    eye = torch.eye(V.shape[1], dtype=torch.float64)
    C = eye + V.T @ (V / d[:, None])
    m = torch.linalg.solve(C.detach(), V.T @ (mean / d.detach()[:, None]))
    s = (V * torch.linalg.solve(C, V.T).T).sum(1)
    z = V @ m + (s + model.alpha).sqrt().unsqueeze(1) * epoch.eps
    pixel_std = model.autoencoder.likelihood.pixel_var.sqrt()
    recon = -torch.distributions.Normal(model.autoencoder.decoder(z), pixel_std).log_prob(epoch.y).sum()
    spread = torch.linalg.inv(C).trace() - len(C) + torch.logdet(C)
    return recon, 0.5 * (m.square().sum() + m.shape[1] * spread)


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
    at_start = inference.given(epoch)
    batches = list(itertools.combinations(range(6), 3))
    mean = {name: torch.zeros_like(gradient) for name, gradient in of_recon.items()}
    for index in batches:
        before = torch.tensor([row for row in range(6) if row not in index])
        _, seen = at_once(inference, at_start, [epoch.batch(before)], epoch)
        gradients(model)
        _, asked = split_pseudo_sums(seen)
        inference.asked_outer, inference.asked_sums = asked.tensors()
        at_once(inference, inference.given(epoch), [epoch.batch(torch.tensor(index))], epoch)
        for name, gradient in gradients(model).items():
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
            for _ in inference.steps(epoch) if epochs else ():
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                recon, kl = dense_terms(model, epoch)
                bounds.append((recon + kl + model.kernel.neg_log_prior()).item())
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
    epoch = RowEpoch(y, model.kernel.code(Table(table)), eps, 4)
    inference, optimizer = PosteriorCoding(model), torch.optim.Adam(model.parameters(), 0.01)
    inference.start(epoch, None)
    bounds = []
    for _ in range(16):
        bounds.append(0.0)
        for terms in inference.steps(epoch):
            bounds[-1] += terms.total().item()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        _, noise, _ = pseudo_observations(model, epoch)
    assert noise.min() > 1e-4
    assert bounds[-1] < 0.3 * bounds[0]


def test_running_sums_are_the_full_sums_when_nothing_moves() -> None:
    """In the second epoch too, when rows of the first have asked for something."""
    model = make_model(KERNELS["few anchors"]())
    epoch = make_epoch(model, batch_size=4)
    inference = PosteriorCoding(model)
    inference.start(epoch, None)
    before = inference.running.current()
    for _ in range(2):
        counts = []
        for terms in inference.steps(epoch):
            counts.append(terms.n)
            torch.testing.assert_close(inference.running.current().sums[3], before.sums[3])
        assert counts == [4, 4, 4, 4, 4, 1]
        after = inference.running.current()
        torch.testing.assert_close(after.outer, before.outer)
        assert after.sums[3] == before.sums[3] == N
