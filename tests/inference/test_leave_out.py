"""Leave-out inference: predictions without the rows left out, against a dense GP that really never saw them."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from gppvae.data.batches import Epoch, batch_order
from gppvae.inference.leave_out import LeaveOut
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import KERNELS, RowEpoch, dense_covariance, gradients, kernel_of, make_epoch, make_model

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def dense_prediction(model: GPPriorVAE, rows: object, z: Tensor, target: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of z at `target` given z at `kept`, by the joint normal of both."""
    K = dense_covariance(kernel_of(model), model.prior.groups[0].alpha, rows)  # with noise on the diagonal
    between, among = K[target][:, kept], K[kept][:, kept]
    weights = torch.linalg.solve(among, between.T)
    return weights.T @ z[kept], (K.diagonal()[target] - (between * weights.T).sum(1)).unsqueeze(1)


def predict(model: GPPriorVAE, epoch: RowEpoch, inference: LeaveOut, number: int = 0) -> tuple[Tensor, ...]:
    """Means and variances of z at the rows of one batch that were left out, and which rows those are."""
    inference.start(epoch, None)
    summed = inference.latents.clone()
    totals = inference._sums(epoch.rows, summed)
    batch = list(epoch)[number]
    mean, _ = model.autoencoder.encode(batch.y)
    _, found, chosen = inference._predicted(batch, epoch, totals, summed, mean)
    return found.mean, found.var + found.noise, batch.index[chosen]


@every_kernel
@pytest.mark.parametrize("what", ["rows", "each"])
def test_rows_left_out_are_predicted_from_all_others_alone(kernel: str, what: str) -> None:
    model = make_model(KERNELS[kernel]())
    epoch = make_epoch(model, batch_size=7)
    z = model.autoencoder.encode(epoch.y)[0]
    mean, var, index = predict(model, epoch, LeaveOut(model, share=0.4, what=what))
    assert len(index) == 3
    for place, row in enumerate(index):
        gone = index if what == "rows" else row.unsqueeze(0)
        kept = torch.tensor([n for n in range(len(z)) if n not in gone.tolist()])
        expected_mean, expected_var = dense_prediction(model, epoch.rows, z, row.unsqueeze(0), kept)
        torch.testing.assert_close(mean[place : place + 1], expected_mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(var[place : place + 1, :1], expected_var, rtol=1e-8, atol=1e-9)


def test_all_rows_of_a_value_are_left_out_wherever_they_are() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=5)
    z = model.autoencoder.encode(epoch.y)[0]
    inference = LeaveOut(model, share=0.01, what="person (id)")
    mean, var, index = predict(model, epoch, inference)
    person = epoch.rows.columns["person (id)"].index
    (value,) = person[index].unique().tolist()
    kept = torch.nonzero(person != value).squeeze(1)
    assert len(index) + len(kept) < len(z), "rows outside the batch should have the value too"
    expected_mean, expected_var = dense_prediction(model, epoch.rows, z, index, kept)
    torch.testing.assert_close(mean, expected_mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(var[:, :1], expected_var, rtol=1e-8, atol=1e-9)


def test_rows_elsewhere_are_left_out_as_they_were_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder moves after the sums, so that rows of earlier batches have other latents than these hold."""
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=1)  # 21 batches, a refresh after every second
    inference = LeaveOut(model, what="person (id)")
    inference.start(epoch, None)
    before = inference.latents.clone()
    with torch.no_grad():
        model.autoencoder.encoder.layers[0].weight.add_(0.5)
    seen, own = [], inference._predicted
    monkeypatch.setattr(inference, "_predicted", lambda *given: seen.append(own(*given)) or seen[-1])
    person = epoch.rows.columns["person (id)"].index
    order = [int(n) for n in torch.nonzero(person == person[0]).squeeze(1)]
    order += [n for n in range(epoch.n_rows) if n not in order]
    steps = inference.steps(dataclasses.replace(epoch, order=order))
    next(steps), next(steps)  # two rows of the same person
    target = torch.tensor(order[1:2])
    kept = torch.nonzero(person != person[0]).squeeze(1)
    expected = dense_prediction(model, epoch.rows, before, target, kept)
    _, found, _ = seen[1]
    torch.testing.assert_close(found.mean, expected[0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close((found.var + found.noise)[:, :1], expected[1], rtol=1e-8, atol=1e-9)


@every_kernel
@pytest.mark.parametrize("what", ["rows", "each", "person (id)"])
def test_the_gradient_is_that_of_a_loss_through_a_dense_gp(kernel: str, what: str) -> None:
    """All rows in one batch, so that every row has a gradient; the loss is written from densities."""
    model = make_model(KERNELS[kernel]())
    epoch = make_epoch(model)
    inference = LeaveOut(model, share=0.4, what=what)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    got = gradients(model)

    (batch,) = list(epoch)
    mean, var = model.autoencoder.encode(epoch.y)
    chosen = inference._left_out(epoch.rows, batch)
    z_mean, z_var = mean.clone(), var.clone()
    for row in torch.nonzero(chosen).squeeze(1):
        gone = torch.tensor([int(row)]) if what == "each" else torch.nonzero(chosen).squeeze(1)
        kept = torch.tensor([n for n in range(len(mean)) if n not in gone.tolist()])
        at, spread = dense_prediction(model, epoch.rows, mean, row.unsqueeze(0), kept)
        z_mean = torch.where(torch.arange(len(mean)).unsqueeze(1) == row, at, z_mean)
        z_var = torch.where(torch.arange(len(mean)).unsqueeze(1) == row, spread, z_var)
    z = z_mean + z_var.sqrt() * epoch.eps
    out = model.autoencoder.decoder(z)
    noise = model.autoencoder.likelihood.pixel_var.sqrt()
    recon = -torch.distributions.Normal(out, noise).log_prob(epoch.y).sum()
    # q(B) of the GP term is held where the latents put it at the start.
    with torch.no_grad():
        q = model.prior.posterior(model.prior.statistics(epoch.rows, mean))
    rows_nll = model.prior.at(epoch.rows, q, training=True).expected_nll(mean, var).sum()
    entropy = torch.distributions.Normal(mean, var.sqrt()).entropy().sum()
    loss = recon + rows_nll + q.kl() - entropy + model.prior.neg_log_prior()
    (loss / len(mean)).backward()
    expected = gradients(model)
    assert float(terms.recon_nll.detach()) == pytest.approx(float(recon.detach()), rel=1e-9)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            got[name], gradient, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_latents_of_the_last_visit_stand_for_rows_outside_the_batch() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=7)
    inference = LeaveOut(model)
    inference.start(epoch, None)
    before = inference.latents.clone()
    steps = inference.steps(epoch)
    next(steps)
    with torch.no_grad():
        model.autoencoder.encoder.layers[0].weight.add_(0.1)
    first = next(iter(epoch)).index
    others = [n for n in range(epoch.n_rows) if n not in first.tolist()]
    torch.testing.assert_close(inference.latents[others], before[others], rtol=0.0, atol=0.0)
    next(steps)
    second = list(epoch)[1]
    fresh = model.autoencoder.encode(second.y)[0].detach()
    torch.testing.assert_close(inference.latents[second.index], fresh, rtol=0.0, atol=1e-12)


def test_prior_and_noise_wait_until_the_sums_are_made_anew() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size=1)  # 21 batches, a refresh after every second
    inference = LeaveOut(model)
    inference.start(epoch, None)
    seen = [(terms.waiting, terms.gathered) for terms in inference.steps(epoch)]
    assert seen[:2] == [(("prior", "noise"), 1), ((), 2)]
    assert seen[-3:] == [(("prior", "noise"), 1), (("prior", "noise"), 1), ((), 3)]  # the one left over joins the last


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_shares_that_leave_nothing_out_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="needs a share above 0 and at most 1"):
        LeaveOut(make_model(KERNELS["learned * periodic"]()), share=share)


def test_an_unknown_column_is_named() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    with pytest.raises(ValueError, match=r"can use the columns .*angle.*, got 'pose'"):
        LeaveOut(model, what="pose").start(make_epoch(model), None)


def test_rows_that_belong_together_share_batches_as_far_as_these_allow() -> None:
    together = torch.from_numpy(np.repeat(np.arange(6), 4))
    batches = list(batch_order(24, 8, seed=3, together=together))
    assert sorted(torch.cat(batches).tolist()) == list(range(24))
    assert [len(set(together[batch].tolist())) for batch in batches] == [2, 2, 2]
    other = list(batch_order(24, 8, seed=4, together=together))
    assert [batch.tolist() for batch in batches] != [batch.tolist() for batch in other]
    assert "together" in Epoch.__dataclass_fields__
